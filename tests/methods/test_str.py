"""STR: its step by hand, for the weights and for the threshold."""

from __future__ import annotations

import math

import pytest
import torch

from methods.steps import advance, begin, fitting, line, network, plain, run, slanted
from rewa.methods.method import Plan
from rewa.methods.str import STR


def sigmoid(s: float) -> float:
    return 1 / (1 + math.exp(-s))


def test_one_step_by_hand():
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1)
    method, model = STR(strength=0.5, s_init=-2.0), line(0.5, -0.3, 0.1)
    bound = begin(method, model, plan)
    threshold = sigmoid(-2.0)  # 0.1192: the last weight is below it
    assert bound.current()["weight"].tolist() == [pytest.approx([0.5 - threshold, -0.3 + threshold, 0.0])]
    advance(bound, slanted(2.0, -1.0, 7.0), [0])
    (s,) = (param for name, param in model.named_parameters() if name.endswith(".s"))
    # The gradient of s is -sigmoid' times the sum of sign(w) g over the two that are not zero, 2 + 1.
    slope = threshold * (1 - threshold)
    s_new = -2.0 - 0.1 * (0.5 * -2.0 - slope * 3)
    assert s.item() == pytest.approx(s_new)
    w = [0.5 - 0.1 * (2 + 0.25), -0.3 - 0.1 * (-1 - 0.15), 0.1 - 0.1 * 0.05]
    expected = [math.copysign(max(abs(one) - sigmoid(s_new), 0), one) for one in w]
    bound.finish()
    assert plain(model)["weight"].tolist() == [pytest.approx(expected)]
    assert model.bias.item() == pytest.approx(0.25 - 0.1)


def test_one_threshold_for_each_layer_decays_like_the_weights():
    model = network()
    bound = begin(STR(strength=0.07), model, Plan(learning_rates=(0.1,), steps_per_epoch=1))
    decays = {name: group["weight_decay"] for group in bound.optimizer.param_groups for name in group["param_names"]}
    assert {name for name, decay in decays.items() if decay == 0} == {"0.bias", "2.bias", "4.bias"}
    assert {name for name, decay in decays.items() if decay == 0.07} == {
        f"{layer}.parametrizations.weight.{part}" for layer in (0, 2, 4) for part in ("original", "0.s")
    }


def test_decay_alone_raises_the_threshold_as_the_grid_says():
    plan = Plan(learning_rates=(0.01,) * 80, steps_per_epoch=1, momentum=0.5)
    for strength, budget in zip(STR().grid(plan), (0.5, 1.0, 2.0, 4.0), strict=True):
        method, model = STR(strength=strength), line(0.001)
        bound = begin(method, model, plan)
        advance(bound, lambda model: 0 * model.weight.sum(), range(plan.steps))
        (s,) = (param for name, param in model.named_parameters() if name.endswith(".s"))
        assert math.log(s.item() / -5) == pytest.approx(-budget, rel=0.1)


def test_stronger_decay_gives_more_exact_zeros():
    plan = Plan(learning_rates=(0.1,) * 60, steps_per_epoch=10, momentum=0.9)
    zeros, values = [], []
    for strength in (1e-4, 1e-2, 5e-2):
        model, _ = run(STR(strength=strength), plan)
        zeros.append(sum(int((value == 0).sum()) for name, value in plain(model).items() if "weight" in name))
        values.append(fitting(model).item())
    assert zeros[0] < zeros[1] < zeros[2]
    assert values[0] < 0.1 * fitting(network()).item()


def test_dtype_of_the_threshold_is_that_of_the_weight():
    model = network().float()
    STR().bind(model, Plan(learning_rates=(0.1,), steps_per_epoch=1))
    assert all(param.dtype == torch.float32 for param in model.parameters())
