"""The l1 penalty by its proximal map and by its subgradient, each step pinned by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from methods.steps import advance, begin, train
from rewa.methods.l1 import L1, L1Subgradient
from rewa.methods.method import Method, Plan

PLAN = Plan(learning_rates=(0.1, 0.2), steps_per_epoch=1, momentum=0.9, weight_decay=0.5)
SLOPES = torch.tensor([[1.0, -2.0, 0.0]], dtype=torch.float64)


def linear() -> nn.Linear:
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.3, 0.04]]))
        model.bias.fill_(0.25)
    return model


def slanted(model: nn.Linear) -> Tensor:
    """A loss whose gradient is ``SLOPES``, and 1 for the bias."""
    return (SLOPES * model.weight).sum() + model.bias.sum()


def soft(z: Tensor, t: float) -> Tensor:
    return z.sign() * (z.abs() - t).clamp(min=0)


def logistic(model: nn.Linear) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(400, 20, generator=generator)
    target = (X[:, :2] @ torch.tensor([2.0, -2.0]) > 0).double()
    return nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], target)


def test_proximal_steps_by_hand():
    model = train(L1(strength=0.5), linear(), slanted, PLAN)
    # After the first step 0.5 - 0.1 = 0.4, -0.3 + 0.2 = -0.1, 0.04; all move by 0.1 * 0.5 = 0.05 towards zero. In the second
    # the momentum is 1.9 times the gradient, the rate 0.2, the threshold 0.1, and no decay of the recipe is there.
    expected = torch.tensor([[0.0, -0.05 + 0.76 - 0.1, 0.0]])  # 0.35 - 0.38 lies within the threshold
    torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=1e-15)
    assert model.weight[0, 0].item() == 0.0
    assert model.bias.item() == pytest.approx(0.25 - 0.1 - 0.38)


def test_subgradient_steps_by_hand():
    model = linear()
    method = L1Subgradient(strength=0.5)
    bound = begin(method, model, PLAN)
    advance(bound, slanted, range(1))
    first = torch.tensor([[1.5, -2.5, 0.5]])  # gradient and 0.5 * sign(x)
    torch.testing.assert_close(model.weight.grad, first)
    x = torch.tensor([[0.5, -0.3, 0.04]]) - 0.1 * first
    torch.testing.assert_close(model.weight.detach(), x)
    advance(bound, slanted, range(1, 2))
    second = 0.9 * first + SLOPES + 0.5 * x.sign()
    torch.testing.assert_close(model.weight.detach(), x - 0.2 * second)
    assert model.bias.item() == pytest.approx(0.25 - 0.1 - 0.38)
    assert model.bias.grad.item() == 1.0


def test_a_weight_without_gradient_gets_the_penalty_alone():
    model = linear()
    method = L1Subgradient(strength=0.5)
    bound = begin(method, model, PLAN)
    bound.before_step(0)
    torch.testing.assert_close(model.weight.grad, 0.5 * torch.tensor([[1.0, -1.0, 1.0]]))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_proximal_form_minimizes_the_penalty_times_one_minus_momentum(momentum: float):
    target = torch.tensor([[1.0, -0.3, 0.02]])
    plan = Plan(learning_rates=(0.05,) * 600, steps_per_epoch=1, momentum=momentum)
    model = train(L1(strength=0.5), linear(), lambda model: ((model.weight - target) ** 2).sum() / 2, plan)
    torch.testing.assert_close(model.weight.detach(), soft(target, 0.5 * (1 - momentum)), rtol=0, atol=1e-10)


def test_the_subgradient_form_minimizes_the_penalty_whatever_the_momentum():
    target = torch.tensor([[1.0, -0.3, 0.3]])
    plan = Plan(learning_rates=(0.05,) * 600, steps_per_epoch=1, momentum=0.9)
    model = train(L1Subgradient(strength=0.1), linear(), lambda model: ((model.weight - target) ** 2).sum() / 2, plan)
    torch.testing.assert_close(model.weight.detach(), soft(target, 0.1), rtol=0, atol=1e-10)


def test_on_adamw_the_threshold_is_decoupled_and_the_subgradient_normalized():
    plan = Plan(learning_rates=(0.01,), steps_per_epoch=1, optimizer="adamw", weight_decay=0.5)
    start = linear().weight.detach()
    # Adam's first step is the rate times the gradient's sign.
    model = train(L1(strength=0.5), linear(), slanted, plan)
    torch.testing.assert_close(model.weight.detach(), soft(start - 0.01 * SLOPES.sign(), 0.005), rtol=0, atol=1e-9)
    for strength in (1e-3, 0.5):
        model = train(L1Subgradient(strength=strength), linear(), slanted, plan)
        expected = start - 0.01 * torch.tensor([[1.0, -1.0, 1.0]])
        torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_grids_mean_the_same_for_short_and_long_runs(optimizer: str):
    short = Plan(learning_rates=(0.1,) * 10, steps_per_epoch=1, optimizer=optimizer, momentum=0.9)
    long = Plan(learning_rates=(0.1,) * 1000, steps_per_epoch=1, optimizer=optimizer, momentum=0.9)
    for plan in (short, long):
        budgets = [strength * plan.rate_sum for strength in L1().grid(plan)]
        assert budgets == pytest.approx({"sgd": [0.2, 0.8, 3, 10], "adamw": [0.05, 0.1, 0.2, 0.4]}[optimizer])
    if optimizer == "sgd":
        assert L1Subgradient().grid(long) == pytest.approx([strength / 10 for strength in L1().grid(long)])
    else:
        assert L1Subgradient().grid(long) == L1Subgradient().grid(short)


def test_a_logistic_model_ends_with_the_true_features_and_exact_zeros():
    plan = Plan(learning_rates=(0.5,) * 60, steps_per_epoch=1)
    weight = train(L1(strength=0.05), nn.Linear(20, 1), logistic, plan).weight.detach()[0]
    assert weight[0] > 0.3
    assert weight[1] < -0.3
    assert bool((weight[2:] == 0).all())
    weight = train(L1Subgradient(strength=0.05), nn.Linear(20, 1), logistic, plan).weight.detach()[0]
    assert bool((weight != 0).all())
    assert float(weight[2:].abs().max()) < 0.05 < float(weight[:2].abs().min())


@pytest.mark.parametrize("strength", [math.nan, -0.1])
@pytest.mark.parametrize("make", [L1, L1Subgradient])
def test_a_strength_must_be_chosen(make: type[Method], strength: float):
    with pytest.raises(ValueError, match="Invalid strength"):
        begin(make(strength=strength), linear(), PLAN)
