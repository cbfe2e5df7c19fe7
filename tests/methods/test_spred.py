"""spred: its steps by hand, its start, and the l1 penalty that it is."""

from __future__ import annotations

import math

import pytest
import torch

from methods.steps import advance, begin, line, network, plain, slanted
from rewa.methods.method import Plan
from rewa.methods.spred import Spred


def test_steps_by_hand():
    plan = Plan(learning_rates=(0.1, 0.05, 0.02), steps_per_epoch=1, momentum=0.9)
    method, model = Spred(strength=0.5), line(0.25, -0.09)
    bound = begin(method, model, plan)
    assert bound.current()["weight"].tolist() == [pytest.approx([0.25, -0.09], rel=1e-14)]
    advance(bound, slanted(2.0, -1.0), range(3))
    expected = []
    c = math.sqrt(math.sqrt((0.25**2 + 0.09**2) / 2))
    for x, g in ((0.25, 2.0), (-0.09, -1.0)):
        u, v, momentum_u, momentum_v = x / c, c, 0.0, 0.0
        for lr in plan.learning_rates:
            momentum_u, momentum_v = 0.9 * momentum_u + g * v + 0.5 * u, 0.9 * momentum_v + g * u + 0.5 * v
            u, v = u - lr * momentum_u, v - lr * momentum_v
        expected.append(u * v)
    bound.finish()
    assert model.weight.tolist() == [pytest.approx(expected)]
    assert model.bias.item() == pytest.approx(0.25 - 0.1 - 0.05 * 1.9 - 0.02 * 2.71)


def test_both_factors_start_with_the_same_norm():
    method, model = Spred(strength=0.0), network()
    bound = method.bind(model, Plan(learning_rates=(0.1,), steps_per_epoch=1))
    for chain in bound._chains():
        u, v = chain.parameters(recurse=False)
        assert u.norm().item() == pytest.approx(v.norm().item())
        assert v.min() == v.max()


def test_a_layer_of_zeros_keeps_its_value_and_trains():
    method, model = Spred(strength=0.0), line(0.0, 0.0)
    bound = begin(method, model, Plan(learning_rates=(0.1,), steps_per_epoch=1))
    assert bound.current()["weight"].tolist() == [[0.0, 0.0]]
    advance(bound, slanted(2.0, -1.0), [0])
    assert bound.current()["weight"].tolist() == [pytest.approx([-0.2, 0.1])]


@pytest.mark.parametrize("start", [(0.3, -0.1, 0.2), (-0.1, 0.3, -0.2)], ids=["right signs", "wrong signs"])
def test_ends_at_the_minimizer_of_the_l1_penalty(start):
    target, lam = torch.tensor([[1.0, -0.5, 0.2]]), 0.3

    def quadratic(model):
        return 0.5 * (model.weight - target).square().sum()

    plan = Plan(learning_rates=(0.5,) * 200, steps_per_epoch=1)
    method, model = Spred(strength=lam), line(*start)
    bound = begin(method, model, plan)
    advance(bound, quadratic, range(plan.steps))
    bound.finish()
    assert torch.allclose(plain(model)["weight"], torch.tensor([[0.7, -0.2, 0.0]]), atol=1e-6)


def test_grid_is_the_shrinking_of_a_weight_without_gradient():
    plan = Plan(learning_rates=(0.01,) * 80, steps_per_epoch=1)
    for strength, budget in zip(Spred().grid(plan), (1, 4, 12, 32), strict=True):
        method, model = Spred(strength=strength), line(1.0)
        bound = begin(method, model, plan)
        advance(bound, lambda model: 0 * model.weight.sum(), range(plan.steps))
        assert math.log(bound.current()["weight"].item()) == pytest.approx(-budget, rel=0.15)


def test_keeps_a_fifth_of_the_epochs_for_its_fine_tune():
    assert Spred.finetune_share == 0.2
