"""The SCAD penalty's proximal map against brute force over the penalty of ``rewa.theory``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from methods.steps import brute_force, fit_logistic, train
from rewa import theory
from rewa.methods.l1 import L1
from rewa.methods.method import Plan
from rewa.methods.scad import SCAD

# The share c = lr * strength / (knee / a) on both sides of a - 1 = 2.7 and of a + 1 = 4.7.
CURVATURES = (0.05, 0.9, 1.0, 2.5, 2.75, 4.0, 4.65, 4.75, 9.0)


def penalty(x: np.ndarray, method: SCAD) -> np.ndarray:
    lam = method.knee / method.a
    return method.strength * theory.scad(x, lam=lam, a=method.a) / lam


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize(("knee", "a"), [(0.1, 3.7), (1.0, 3.7), (0.5, 2.1)])
def test_the_map_is_the_minimizer(knee: float, a: float, c: float):
    lr = 0.05
    method = SCAD(strength=c * knee / a / lr, knee=knee, a=a)
    z = knee * np.linspace(-4.013, 4.037, 150)  # no point on a jump, where two minimizers are
    x = method.prox(torch.tensor(z), lr).numpy()
    np.testing.assert_allclose(x, brute_force(z, lambda x: lr * penalty(x, method)), rtol=0, atol=4e-6 * knee)


def test_the_textbook_map_is_the_case_of_lr_one():
    # Fan and Li's equation 2.8 for lam = 1, a = 3.7: slope 1, knee 3.7.
    z = torch.tensor([0.5, -1.5, 2.5, -3.0, 3.6, 4.0])
    expected = torch.tensor([0.0, -0.5, (2.7 * 2.5 - 3.7) / 1.7, -(2.7 * 3 - 3.7) / 1.7, (2.7 * 3.6 - 3.7) / 1.7, 4.0])
    torch.testing.assert_close(SCAD(strength=1.0, knee=3.7).prox(z, 1.0), expected)


def test_strength_is_the_slope_at_zero_and_knee_where_it_ends():
    method = SCAD(strength=7.0, knee=0.2)
    slope = np.gradient(penalty(np.linspace(0, 0.4, 40001), method), 1e-5)
    assert slope[1] == pytest.approx(7.0)
    assert slope[19990] > 1e-3
    assert slope[20010:] == pytest.approx(0.0)
    # Small weights move as under l1 of the same strength; weights beyond the knee do not move at all.
    small, large = torch.tensor([0.03, -0.05]), torch.tensor([0.21, -3.0])
    torch.testing.assert_close(method.prox(small, 1e-3), L1(strength=7.0).prox(small, 1e-3))
    assert torch.equal(method.prox(large, 1e-3), large)


def test_with_a_far_knee_it_is_l1():
    z = torch.linspace(-1, 1, 41)
    torch.testing.assert_close(SCAD(strength=2.0, knee=100.0).prox(z, 0.1), L1(strength=2.0).prox(z, 0.1))


def test_a_step_by_hand_with_biases_untouched_and_no_decay():
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.03, -0.1, 0.25, 0.5]]))
        model.bias.fill_(0.02)
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1, momentum=0.9, weight_decay=0.5)
    # knee 0.37, a 3.7: unit 0.1; c = 0.1 * 0.5 / 0.1 = 0.5; the gradient is 1 for the first weight and the bias.
    method = SCAD(strength=0.5, knee=0.37)
    train(method, model, lambda model: model.weight[0, 0] + model.bias.sum(), plan)
    expected = torch.tensor([[-0.02, -0.05, (2.7 * 0.25 - 0.5 * 0.37) / 2.2, 0.5]])  # 0.03 - 0.1 + 0.05
    torch.testing.assert_close(model.weight.detach(), expected)
    assert model.bias.item() == pytest.approx(-0.08)


def test_a_logistic_model_ends_with_the_true_features_and_exact_zeros():
    ours, l1 = (fit_logistic(method(strength=0.05, **knee)) for method, knee in ((SCAD, {"knee": 0.5}), (L1, {})))
    assert bool((ours[2:] == 0).all())
    assert bool((l1[2:] == 0).all())
    assert bool((ours[:2].abs() > l1[:2].abs() + 0.2).all())  # large weights are not biased


def test_what_is_no_scad_raises():
    for settings in ({"a": 2.0}, {"knee": 0.0}):
        with pytest.raises(ValueError, match="SCAD needs a > 2 and knee > 0"):
            SCAD(**settings)
    assert SCAD(strength=1.0).prox(torch.tensor([torch.nan]), 0.1).isnan().all()
    plan = Plan(learning_rates=(0.1,) * 7, steps_per_epoch=1)
    assert SCAD().grid(plan) == L1().grid(plan)
