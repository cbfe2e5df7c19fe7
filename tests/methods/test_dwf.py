"""Deep weight factorization: its step by hand, its reduction to equal factors, its penalty, its initialization."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from methods.steps import advance, begin, fitting, line, network, plain, run, slanted
from rewa import remove_reparametrization, reparametrize
from rewa.methods.dwf import DWF
from rewa.methods.method import Plan

PLAN = Plan(learning_rates=(0.1,), steps_per_epoch=1)


def test_one_step_by_hand():
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1)
    method, model = DWF(strength=0.5, init="equal"), line(0.125, -0.027)
    bound = begin(method, model, plan)
    advance(bound, slanted(2.0, -1.0), [0])
    # Three factors 0.5: each 0.5 - 0.1 (2 * 0.25 + 0.25) = 0.425.
    # -0.3, 0.3, 0.3: the first -0.3 - 0.1 (-0.09 - 0.15) = -0.276, the others 0.3 - 0.1 (0.09 + 0.15) = 0.276.
    bound.finish()
    assert model.weight.tolist() == [pytest.approx([0.425**3, -(0.276**3)])]


def test_equal_factors_are_those_of_the_form():
    plan = Plan(learning_rates=(0.1, 0.05, 0.02), steps_per_epoch=1, momentum=0.9)
    deep, _ = run(DWF(strength=0.02, K=2, init="equal"), plan)
    other = reparametrize(network(), form="factors", K=2)
    factors = [param for name, param in other.named_parameters() if "original" in name]
    rest = [param for name, param in other.named_parameters() if "original" not in name]
    groups = [{"params": factors, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    for lr in plan.learning_rates:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        fitting(other).backward()
        optimizer.step()
    remove_reparametrization(other)
    assert all(torch.equal(other.get_parameter(name), value) for name, value in plain(deep).items())


def test_ends_where_the_penalty_of_the_product_is_stationary():
    lam = 0.1
    plan = Plan(learning_rates=(0.3,) * 300, steps_per_epoch=1)
    method, model = DWF(strength=lam, init="equal"), line(0.5)
    bound = begin(method, model, plan)
    advance(bound, lambda model: 0.5 * (model.weight - 1).square().sum(), range(plan.steps))
    x = bound.current()["weight"].item()
    # The derivative of (x - 1)^2 / 2 + (3/2) lam x^(2/3).
    assert x - 1 + lam * x ** (-1 / 3) == pytest.approx(0, abs=1e-9)


def test_the_papers_start_is_a_normal_distribution_given_its_interval():
    torch.manual_seed(1)
    model = nn.Linear(300, 200)
    nn.init.normal_(model.weight, std=0.1)
    std, method = model.weight.std().item(), DWF(init="dwf", K=3, smallest=3e-3)
    bound = method.bind(model, PLAN)
    factors = [param for name, param in model.named_parameters() if "original" in name]
    scale, low, high = std ** (1 / 3), 3e-3 ** (1 / 3), (2 * std) ** (1 / 3)
    # The second moment of the restricted distribution, by summation.
    t = torch.linspace(low, high, 100001)
    density = torch.exp(-((t / scale) ** 2) / 2)
    second = ((t**2 * density).sum() / density.sum()).item()
    assert len(factors) == 3
    for factor in factors:
        moduli = factor.detach().abs()
        assert low <= moduli.min() < 1.01 * low
        assert 0.99 * high < moduli.max() <= high
        assert moduli.square().mean().item() == pytest.approx(second, rel=5e-3)
        assert abs(factor.detach().mean().item()) < 5 * math.sqrt(second / factor.numel())
    product = bound.current()["weight"]
    assert product.abs().min() >= 3e-3
    assert product.abs().max() <= 2 * std
    assert product.square().mean().item() == pytest.approx(second**3, rel=0.02)
    assert not torch.equal(factors[0], factors[1])


def test_the_papers_start_has_no_factor_above_one():
    torch.manual_seed(1)
    model = nn.Linear(100, 100)
    nn.init.normal_(model.weight, std=3.0)  # (2 std)^(1/3) is 1.8
    method = DWF(K=3)
    method.bind(model, PLAN)
    for factor in (param.detach() for name, param in model.named_parameters() if "original" in name):
        assert 0.99 < factor.abs().max() <= 1
    assert DWF().init == "dwf"


def test_the_papers_start_lets_weights_change_their_sign():
    torch.manual_seed(1)
    changed = {}
    for init in ("dwf", "equal"):
        method, model = DWF(strength=1e-3, init=init), nn.Linear(30, 20)
        nn.init.normal_(model.weight, std=0.3)
        bound = begin(method, model, Plan(learning_rates=(0.05,) * 200, steps_per_epoch=1))
        first = bound.current()["weight"].sign()
        advance(bound, lambda model: 0.5 * (model.weight - 0.5).square().sum(), range(200))
        changed[init] = int((bound.current()["weight"].sign() != first).sum())
    assert changed["equal"] == 0
    assert changed["dwf"] > 100


def test_grid_is_the_shrinking_of_a_weight_without_gradient():
    plan = Plan(learning_rates=(0.01,) * 80, steps_per_epoch=1)
    for strength, budget in zip(DWF().grid(plan), (3, 5, 8, 12), strict=True):
        method, model = DWF(strength=strength, init="equal"), line(1.0)
        bound = begin(method, model, plan)
        advance(bound, lambda model: 0 * model.weight.sum(), range(plan.steps))
        assert math.log(bound.current()["weight"].item()) == pytest.approx(-budget, rel=0.05)


def test_the_papers_start_follows_torchs_seed():
    starts = []
    for seed in (5, 5, 6):
        method, model = DWF(init="dwf"), nn.Linear(20, 10)
        torch.manual_seed(seed)
        bound = method.bind(model, PLAN)
        starts.append(bound.current()["weight"])
    assert torch.equal(starts[0] != 0, starts[1] != 0)
    assert not torch.equal(starts[0].sign(), starts[2].sign())


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="Invalid init: 'he'"):
        DWF(init="he")
    with pytest.raises(ValueError, match="Invalid smallest: -1"):
        DWF(smallest=-1)
    with pytest.raises(ValueError, match=r"smallest=0.5 leaves no initial value for 'weight'"):
        DWF(init="dwf", smallest=0.5).bind(nn.Linear(20, 10), PLAN)
    with pytest.raises(ValueError, match="Invalid K value"):
        DWF(K=1).bind(nn.Linear(20, 10), PLAN)
