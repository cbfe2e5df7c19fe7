from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from methods.steps import advance, begin, line, slanted
from rewa.methods.method import Plan
from rewa.methods.rewa import AnnealedReWA, MatchedPair, ReWA, ReWAAdam, ReWAPair
from rewa.optim.adamw import ReWAAdamW
from rewa.optim.sgd import ReWASGD
from rewa.theory import decay_budget

PLAN = Plan(learning_rates=(0.1, 0.1), steps_per_epoch=2, momentum=0.5)


def layer():
    return line(0.5, -0.2)


def test_a_step_by_hand():
    model, method = layer(), ReWA(strength=0.01, K=3, M=1, eps=0.1)
    bound = begin(method, model, PLAN)
    advance(bound, slanted(3.0, -6.0), [0])
    expected = []
    for x, g in ((0.5, 3.0), (-0.2, -6.0)):
        y = math.copysign(abs(x) ** (1 / 3), x)
        scale = abs(y) * y**2 / (y**2 + 0.1)
        y -= 0.1 * (scale * g + 0.01 * y)
        expected.append(math.copysign(abs(y) ** 3, y))
    assert model.weight.tolist()[0] == pytest.approx(expected, rel=1e-9)
    assert model.bias.item() == pytest.approx(0.25 - 0.1), "plain, without decay"


def test_annealed_steps_by_hand():
    """The gradient is divided by the step of a weight of the layer's first size, and K times the decay stays the same."""
    plan = Plan(learning_rates=(0.1,) * 4, steps_per_epoch=4)
    model, method = layer(), AnnealedReWA(strength=0.01, M=1.5, begin=0.25, end=0.75)
    bound = begin(method, model, plan)
    size = math.sqrt((0.5**2 + 0.2**2) / 2)
    weights = [0.5, -0.2]
    for step, (K, M) in enumerate([(1, 0), (1, 0), (1.5, 0.75), (2, 1.5)]):
        advance(bound, slanted(0.3, -0.6), [step])
        for index, g in enumerate((0.3, -0.6)):
            x = weights[index]
            y = math.copysign(abs(x) ** (1 / K), x)
            y -= 0.1 * (abs(y) ** M * g / (K * size ** ((K - 1 + M) / K)) + 0.01 * 2 / K * y)
            weights[index] = math.copysign(abs(y) ** K, y)
        assert model.weight.tolist()[0] == pytest.approx(weights, rel=1e-9)


def test_annealed_on_adamw_keeps_adams_step():
    adam = Plan(learning_rates=(0.1,) * 10, steps_per_epoch=1, optimizer="adamw")
    method = AnnealedReWA(strength=0.1)
    bound = begin(method, layer(), adam)
    assert isinstance(bound.optimizer, ReWAAdamW)
    bound.before_forward(7)
    assert [(group["K"], group["M"]) for group in bound.optimizer.param_groups] == [(2, 1), (1, 0)]


def test_an_annealed_run_that_goes_on_anneals_the_groups_it_loaded():
    plan = Plan(learning_rates=(0.1,) * 10, steps_per_epoch=10)
    method = AnnealedReWA(strength=0.01)
    bound = begin(method, layer(), plan)
    bound.optimizer.load_state_dict(bound.optimizer.state_dict())  # which puts new groups in the place of the old
    bound.before_forward(9)
    assert [bound.optimizer.param_groups[0][key] for key in ("K", "M")] == [2, 1]


def test_budgets_of_an_annealed_run():
    plan = Plan(learning_rates=(0.1,) * 50, steps_per_epoch=5, momentum=0.5)
    grid = AnnealedReWA().grid(plan)
    found = [decay_budget(plan.learning_rates, K=2, weight_decay=decay, momentum=0.5) for decay in grid]
    assert found == pytest.approx([2, 4, 8, 16])


def test_a_window_that_ends_before_it_begins_is_refused():
    with pytest.raises(ValueError, match=r"Invalid begin and end: 0\.8, 0\.5"):
        AnnealedReWA(begin=0.8)


def test_the_recipes_optimizer_decides_the_algorithm():
    assert isinstance(begin(ReWA(strength=0.1), layer(), PLAN).optimizer, ReWASGD)
    adam = Plan(learning_rates=(0.1,), steps_per_epoch=1, optimizer="adamw")
    assert isinstance(begin(ReWA(strength=0.1), layer(), adam).optimizer, ReWAAdamW)


def test_algorithm_two_whatever_the_recipe():
    method = ReWAAdam(strength=0.1, adam_lr=0.002)
    planned = method.planned(Plan(learning_rates=(0.05, 0.1, 0.025), steps_per_epoch=1, momentum=0.9))
    assert planned.optimizer == "adamw"
    assert planned.learning_rates == pytest.approx((0.001, 0.002, 0.0005))
    assert isinstance(begin(method, layer(), planned).optimizer, ReWAAdamW)
    own = Plan(learning_rates=(0.3,), steps_per_epoch=1, optimizer="adamw")
    assert method.planned(own) is own


@pytest.mark.parametrize(
    ("optimizer", "lr", "expected"),
    [
        ("sgd", 0.1, [3, 6, 12, 24]),
        ("adamw", 1e-3, [0.8, 1.6, 2.8, 4]),
        ("adamw", 3e-3, [0.8, 1.6, 2.8, 4]),
        ("adamw", 6e-3, [1.6, 3.2, 5.6, 8]),
    ],
)
@pytest.mark.parametrize("K", [3, 9])
@pytest.mark.parametrize("kind", [ReWA, ReWAAdam, ReWAPair])
def test_the_grid_is_a_grid_of_decay_budgets(optimizer, lr, expected, K, kind):
    plan = Plan(learning_rates=(lr,) * 50, steps_per_epoch=5, momentum=0.9, optimizer=optimizer)
    budgets = [
        decay_budget(plan.learning_rates, K=K, weight_decay=decay, momentum=0.9, decoupled=optimizer == "adamw")
        for decay in kind(K=K).grid(plan)
    ]
    assert budgets == pytest.approx(expected)


def test_the_pair_by_hand():
    model, method = layer(), ReWAPair(strength=0.01, K=3, M=1, start_value=0.1)
    bound = begin(method, model, PLAN)
    assert bound.current()["weight"].tolist()[0] == pytest.approx([0.5, -0.2])
    advance(bound, slanted(3.0, -6.0), [0])
    expected = []
    for x, g in ((0.5, 3.0), (-0.2, -6.0)):
        u, v = ((max(sign * x, 0) + 0.1) ** (1 / 3) for sign in (1, -1))
        u -= 0.1 * (u * g + 0.01 * u)
        v -= 0.1 * (-v * g + 0.01 * v)
        expected.append(u**3 - v**3)
    assert bound.current()["weight"].tolist()[0] == pytest.approx(expected, rel=1e-9)
    bound.finish()
    assert type(model.weight) is nn.Parameter
    assert model.weight.tolist()[0] == pytest.approx(expected, rel=1e-9)


def test_the_matched_pair_by_hand():
    model, method = layer(), MatchedPair(strength=0.01)
    bound = begin(method, model, PLAN)
    for group in bound.optimizer.param_groups:
        group["lr"] = PLAN.learning_rates[0] * group["lr_scale"]  # as the loop does
    advance(bound, slanted(3.0, -6.0), [0])
    size = math.sqrt((0.5**2 + 0.2**2) / 2)
    rate = 1 / (2 * (2 * size + size))
    assert bound.optimizer.param_groups[-1]["lr_scale"] == pytest.approx(rate)
    expected = []
    for x, g in ((0.5, 3.0), (-0.2, -6.0)):
        u, v = (math.sqrt(max(sign * x, 0) + size) for sign in (1, -1))
        u -= 0.1 * rate * (u * g + 0.01 * u)
        v -= 0.1 * rate * (-v * g + 0.01 * v)
        expected.append(u**2 - v**2)
    assert bound.current()["weight"].tolist()[0] == pytest.approx(expected, rel=1e-9)


def test_on_adamw_the_matched_pair_is_the_pair_with_a_start_of_its_size():
    plan = replace(PLAN, optimizer="adamw")
    model, method = layer(), MatchedPair(strength=0.01)
    bound = begin(method, model, plan)
    assert isinstance(bound.optimizer, torch.optim.AdamW)
    assert not any("lr_scale" in group for group in bound.optimizer.param_groups)
    assert MatchedPair().grid(plan) == ReWAPair(K=2).grid(plan)
