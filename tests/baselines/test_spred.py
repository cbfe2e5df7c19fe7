"""spred: its step by hand, its identity with two factors, and the l1 penalty that it is."""

from __future__ import annotations

import math

import pytest
import torch

from baselines.steps import advance, begin, fitting, line, network, plain, slanted
from rewa import reparametrize
from rewa.baselines.method import Plan
from rewa.baselines.spred import Spred


def test_one_step_by_hand():
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1)
    method, model = Spred(strength=0.5), line(0.25, -0.09)
    advance(method, model, begin(method, model, plan), slanted(2.0, -1.0), [0])
    # u = v = 0.5 with g = 2: both become 0.5 - 0.1 (2 * 0.5 + 0.5 * 0.5) = 0.375.
    # u = -0.3, v = 0.3 with g = -1: u - 0.1 (-0.3 - 0.15) = -0.255, and v - 0.1 (0.3 + 0.15) = 0.255.
    method.finish(model)
    assert model.weight.tolist() == [pytest.approx([0.375**2, -(0.255**2)])]
    assert model.bias.item() == pytest.approx(0.25 - 0.1)


def test_is_two_factors_under_weight_decay():
    plan = Plan(learning_rates=(0.1, 0.05, 0.02), steps_per_epoch=1, momentum=0.9)
    method, model = Spred(strength=0.02), network()
    advance(method, model, begin(method, model, plan), fitting, range(3))
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
    assert all(torch.equal(other.get_submodule(name[:1]).weight, value) for name, value in method.current().items())


def test_ends_at_the_minimizer_of_the_l1_penalty():
    target, lam = torch.tensor([[1.0, -0.5, 0.2]]), 0.3

    def quadratic(model):
        return 0.5 * (model.weight - target).square().sum()

    plan = Plan(learning_rates=(0.5,) * 200, steps_per_epoch=1)
    method, model = Spred(strength=lam), line(0.3, -0.3, 0.3)
    advance(method, model, begin(method, model, plan), quadratic, range(plan.steps))
    method.finish(model)
    assert torch.allclose(plain(model)["weight"], torch.tensor([[0.7, -0.2, 0.0]]), atol=1e-6)


def test_grid_is_the_shrinking_of_a_weight_without_gradient():
    plan = Plan(learning_rates=(0.01,) * 80, steps_per_epoch=1)
    for strength, budget in zip(Spred().grid(plan), (4, 8, 16, 32), strict=True):
        method, model = Spred(strength=strength), line(1.0)
        advance(method, model, begin(method, model, plan), lambda model: 0 * model.weight.sum(), range(plan.steps))
        assert math.log(method.current()["weight"].item()) == pytest.approx(-budget, rel=0.15)


def test_keeps_a_fifth_of_the_epochs_for_its_fine_tune():
    assert Spred.finetune_share == 0.2
