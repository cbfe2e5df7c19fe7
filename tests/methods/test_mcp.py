"""The minimax concave penalty's proximal map against brute force over the penalty of ``rewa.theory``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from methods.steps import brute_force, fit_logistic, train
from rewa import theory
from rewa.methods.l1 import L1
from rewa.methods.mcp import MCP
from rewa.methods.method import Plan


def penalty(x: np.ndarray, method: MCP, a: float = 3.0) -> np.ndarray:
    """Zhang's penalty for any a, scaled to the slope at zero and the knee; a drops out."""
    lam = method.knee / a
    return method.strength * theory.mcp(x, lam=lam, a=a) / lam


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 1.1, 5.0])
@pytest.mark.parametrize("knee", [0.1, 1.0])
def test_the_map_is_the_minimizer(knee: float, share: float):
    """On both sides of lr * strength = knee, with Zhang's a at two values."""
    lr = 0.05
    method = MCP(strength=share * knee / lr, knee=knee)
    z = knee * np.linspace(-4.013, 4.037, 150)  # no point on a jump, where two minimizers are
    x = method.prox(torch.tensor(z), lr).numpy()
    for a in (3.0, 1.5):
        expected = brute_force(z, lambda x: lr * penalty(x, method, a))
        np.testing.assert_allclose(x, expected, rtol=0, atol=4e-6 * knee)


def test_strength_and_knee_are_zhangs_lam_and_a_lam():
    x = np.linspace(-2, 2, 401)
    np.testing.assert_allclose(penalty(x, MCP(strength=0.4, knee=1.2)), theory.mcp(x, lam=0.4, a=3.0), atol=1e-15)


def test_strength_is_the_slope_at_zero_and_knee_where_it_ends():
    method = MCP(strength=7.0, knee=0.2)
    slope = np.gradient(penalty(np.linspace(0, 0.4, 40001), method), 1e-5)
    assert slope[1] == pytest.approx(7.0, rel=1e-3)
    assert slope[10000] == pytest.approx(3.5)
    assert slope[20010:] == pytest.approx(0.0)
    large = torch.tensor([0.21, -3.0])
    assert torch.equal(method.prox(large, 1e-3), large)
    assert method.prox(torch.tensor([0.0069, -0.0069]), 1e-3).tolist() == [0.0, 0.0]


def test_with_a_far_knee_it_is_l1():
    z = torch.linspace(-1, 1, 41)
    torch.testing.assert_close(MCP(strength=2.0, knee=1e9).prox(z, 0.1), L1(strength=2.0).prox(z, 0.1))


def test_a_step_by_hand_with_biases_untouched_and_no_decay():
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.03, -0.1, 0.04, 0.5]]))
        model.bias.fill_(0.02)
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1, momentum=0.9, weight_decay=0.5)
    # knee 0.4, t = 0.1 * 0.5 = 0.05, so 1 - t / knee = 0.875; the gradient is 1 for the first weight and the bias.
    train(MCP(strength=0.5, knee=0.4), model, lambda model: model.weight[0, 0] + model.bias.sum(), plan)
    expected = torch.tensor([[-0.02 / 0.875, -0.05 / 0.875, 0.0, 0.5]])
    torch.testing.assert_close(model.weight.detach(), expected)
    assert model.bias.item() == pytest.approx(-0.08)


def test_a_logistic_model_ends_with_the_true_features_and_exact_zeros():
    ours, l1 = (fit_logistic(method(strength=0.05, **knee)) for method, knee in ((MCP, {"knee": 0.5}), (L1, {})))
    assert bool((ours[2:] == 0).all())
    assert bool((l1[2:] == 0).all())
    assert bool((ours[:2].abs() > l1[:2].abs() + 0.2).all())  # large weights are not biased


def test_what_is_no_mcp_raises():
    with pytest.raises(ValueError, match=r"Invalid knee: 0\.0"):
        MCP(knee=0.0)
    for strength in (1.0, 100.0):
        assert MCP(strength=strength).prox(torch.tensor([torch.nan]), 0.1).isnan().all()
    plan = Plan(learning_rates=(0.1,) * 7, steps_per_epoch=1)
    assert MCP().grid(plan) == L1().grid(plan)
