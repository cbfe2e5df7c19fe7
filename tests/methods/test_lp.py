"""The l_p penalties: clipped subgradients against autograd, the half threshold against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from methods.steps import brute_force, train
from rewa import theory
from rewa.methods.l1 import L1Subgradient
from rewa.methods.lp import ClippedLp, Half, L1ClippedLp
from rewa.methods.method import Plan

PLAN = Plan(learning_rates=(0.1, 0.2), steps_per_epoch=1, momentum=0.9, weight_decay=0.5)
SLOPES = torch.tensor([[1.0, -2.0, 0.0]], dtype=torch.float64)


def linear() -> nn.Linear:
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.64, -0.36, 0.04]]))
        model.bias.fill_(0.25)
    return model


def slanted(model: nn.Linear) -> Tensor:
    """A loss whose gradient is ``SLOPES``, and 1 for the bias."""
    return (SLOPES * model.weight).sum() + model.bias.sum()


def logistic(model: nn.Linear) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(400, 20, generator=generator)
    target = (X[:, :2] @ torch.tensor([2.0, -2.0]) > 0).double()
    return nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], target)


@pytest.mark.parametrize("p", [0.5, 0.25])
@pytest.mark.parametrize("make", [ClippedLp, L1ClippedLp])
def test_slopes_are_the_derivatives_of_the_clipped_penalties(make: type[ClippedLp], p: float):
    u = 0.1
    x = torch.tensor([-2.0, -0.11, -0.09, -1e-6, 0.0, 1e-9, 0.05, 0.2, 1.0], requires_grad=True)
    size = x.abs()
    power = size.clamp(min=1e-12) ** p
    inside = torch.full_like(x, u**p) if make is ClippedLp else p * u ** (p - 1) * size + (1 - p) * u**p
    torch.where(size < u, inside, power).sum().backward()
    torch.testing.assert_close(make(strength=3.0, p=p, u=u).slope(x.detach()), 3 * x.grad)


def test_the_slopes_stay_within_the_bound_of_the_theory():
    x = torch.linspace(-1, 1, 4001)
    for make, cost in ((ClippedLp, theory.constant_clipping), (L1ClippedLp, theory.l1_clipping)):
        largest = make(strength=1.0, p=0.5, u=0.0625).slope(x).abs().max()
        bound = cost(0.5, 0.0625, 1).gradient_bound
        assert 0.99 * bound <= float(largest) <= bound * (1 + 1e-12)


def test_the_subgradient_is_added_to_the_gradient_by_hand():
    # At 0.64 and 0.36 the slope of sqrt is 1 / 1.6 and 1 / 1.2; 0.04 lies below u = 0.09, where the tangent's is 1 / 0.6.
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1, momentum=0.9, weight_decay=0.5)
    for make, below in ((ClippedLp, 0.0), (L1ClippedLp, 0.3 / 0.6)):
        model = train(make(strength=0.3, u=0.09), linear(), slanted, plan)
        gradient = torch.tensor([[1 + 0.3 / 1.6, -2 - 0.3 / 1.2, below]])
        torch.testing.assert_close(model.weight.grad, gradient)
        torch.testing.assert_close(model.weight.detach(), torch.tensor([[0.64, -0.36, 0.04]]) - 0.1 * gradient)
        assert model.bias.item() == pytest.approx(0.15)


def test_the_clipping_decides_and_not_the_class():
    x = torch.tensor([-0.5, 0.01, 0.2])
    torch.testing.assert_close(
        ClippedLp(strength=1.0, u=0.1, clipping="l1").slope(x), L1ClippedLp(strength=1.0, u=0.1).slope(x), rtol=0, atol=0
    )
    assert (ClippedLp().name, L1ClippedLp().name) == ("clipped-lp", "clipped-lp-l1")
    assert L1ClippedLp().settings == {"p": 0.5, "u": 1e-3, "clipping": "l1"}


def test_what_does_not_clip_raises():
    for settings in ({"p": 1.0}, {"p": 0.0}, {"u": 0.0}):
        with pytest.raises(ValueError, match="clipping needs 0 < p < 1 and u > 0"):
            ClippedLp(**settings)
    with pytest.raises(ValueError, match=r"Invalid clipping: 'hard' \(allowed: constant, l1\)"):
        ClippedLp(clipping="hard")


@pytest.mark.parametrize("t", [0.0, 1e-4, 0.02, 0.5, 3.0])
def test_the_half_threshold_is_the_minimizer(t: float):
    threshold = 54 ** (1 / 3) / 4 * (2 * t) ** (2 / 3)  # as Xu et al. print it, for their lambda = 2t
    assert threshold == pytest.approx(1.5 * t ** (2 / 3))
    z = np.concatenate([np.linspace(-4, 4, 80), threshold * np.array([-1.001, -0.999, 0.5, 0.999, 1.001, 1.1]), [0.0]])
    x = Half(strength=t / 0.1).prox(torch.tensor(z), 0.1).numpy()
    expected = brute_force(z, lambda x: t * np.sqrt(np.abs(x)))
    np.testing.assert_allclose(x, expected, rtol=0, atol=4e-6)
    assert ((x == 0) == (np.abs(z) <= threshold)).all()


def test_the_half_threshold_jumps_and_keeps_its_root_equation():
    t = 0.3
    threshold = 1.5 * t ** (2 / 3)
    z = torch.tensor([threshold * (1 - 1e-12), threshold * (1 + 1e-12), -0.9, 7.0])
    x = Half(strength=3.0).prox(z, 0.1)
    assert x[0].item() == 0.0
    assert x[1].item() == pytest.approx(t ** (2 / 3), rel=1e-9)
    residual = x[1:] - z[1:] + t / 2 * x[1:].sign() / x[1:].abs().sqrt()
    torch.testing.assert_close(residual, torch.zeros(3), rtol=0, atol=1e-12)


def test_the_half_threshold_does_not_hide_a_diverged_weight():
    assert Half(strength=1.0).prox(torch.tensor([torch.nan]), 0.1).isnan().all()


def test_half_thresholds_after_the_step_by_hand():
    # Threshold 1.5 * 0.1 = 0.15 in the first step, t = 0.1^1.5; the weight at 0.04 is gone, and no decay is there.
    strength = 0.1**1.5 / 0.1
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1, momentum=0.9, weight_decay=0.5)
    x = train(Half(strength=strength), linear(), slanted, plan).weight.detach()[0]
    before = torch.tensor([0.64 - 0.1, -0.36 + 0.2, 0.04])
    expected = brute_force(before.numpy(), lambda x: 0.1**1.5 * np.sqrt(np.abs(x)))
    np.testing.assert_allclose(x.numpy(), expected, rtol=0, atol=1e-7)
    assert x[2].item() == 0.0
    assert x[1].item() != 0.0


def test_half_leaves_the_bias_alone():
    assert train(Half(strength=100.0), linear(), slanted, PLAN).bias.item() == pytest.approx(0.25 - 0.1 - 0.38)


def test_grids_mean_the_same_for_short_and_long_runs():
    for steps in (10, 1000):
        plan = Plan(learning_rates=(0.1,) * steps, steps_per_epoch=1, momentum=0.9)
        slopes = [float(ClippedLp(strength=one).slope(torch.tensor(0.01))) for one in ClippedLp().grid(plan)]
        assert slopes == pytest.approx(L1Subgradient().grid(plan))
        assert L1ClippedLp().grid(plan) == ClippedLp().grid(plan)
        assert list(Half().grid(plan)) == sorted(Half().grid(plan))
    # Small steps follow the flow: a weight of the size meant goes to zero in the last of them.
    size, strength = Half.budgets["sgd"][2], Half().grid(plan)[2]
    half, x = Half(strength=strength), torch.tensor([0.97 * size, 1.03 * size])
    for lr in plan.learning_rates:
        x = half.prox(x, lr)
    assert x[0].item() == 0.0
    assert 0 < x[1].item() < 0.3 * size


def test_a_logistic_model_ends_with_the_true_features_and_exact_zeros():
    plan = Plan(learning_rates=(0.5,) * 60, steps_per_epoch=1)
    weight = train(Half(strength=0.03), nn.Linear(20, 1), logistic, plan).weight.detach()[0]
    assert weight[0] > 0.5
    assert weight[1] < -0.5
    assert bool((weight[2:] == 0).all())
    for make in (ClippedLp, L1ClippedLp):  # small, and never zero
        weight = train(make(strength=0.02, u=0.02), nn.Linear(20, 1), logistic, plan).weight.detach()[0]
        assert bool((weight != 0).all())
        assert float(weight[2:].abs().max()) < 0.15 < 0.5 < float(weight[:2].abs().min())
