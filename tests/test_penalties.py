"""Every penalty against a slow reference: derivatives by differences, proximal maps by brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods.steps import brute_force
from rewa import penalties, theory

X = np.array([-7.0, -1.9, -0.4, -0.03, 0.02, 0.35, 1.1, 2.2, 9.0])
Z = np.linspace(-4.013, 4.037, 150)  # no point on a jump, where two minimizers are
PENALTIES = {
    "l1": (lambda x: penalties.lp(x, 1), lambda x: penalties.lp_derivative(x, 1)),
    "l0.5": (lambda x: penalties.lp(x, 0.5), lambda x: penalties.lp_derivative(x, 0.5)),
    "l0.9": (lambda x: penalties.lp(x, 0.9), lambda x: penalties.lp_derivative(x, 0.9)),
    "log": (lambda x: penalties.lp(x, 0), lambda x: penalties.lp_derivative(x, 0)),
    "l-0.5": (lambda x: penalties.lp(x, -0.5), lambda x: penalties.lp_derivative(x, -0.5)),
    "scad": (
        lambda x: penalties.scad(x, slope=0.7, knee=1.5, a=3.0),
        lambda x: penalties.scad_derivative(x, slope=0.7, knee=1.5, a=3.0),
    ),
    "mcp": (lambda x: penalties.mcp(x, slope=0.7, knee=1.5), lambda x: penalties.mcp_derivative(x, slope=0.7, knee=1.5)),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_derivatives_are_those_of_the_values(name):
    value, derivative = PENALTIES[name]
    step = 1e-6
    np.testing.assert_allclose(derivative(X), (value(X + step) - value(X - step)) / (2 * step), rtol=1e-6, atol=1e-9)
    assert derivative(np.zeros(1)) == 0
    np.testing.assert_allclose(value(-X), value(X), rtol=0)


def test_below_its_smallest_size_the_derivative_is_that_of_the_tangent():
    found = penalties.lp_derivative(np.array([-0.01, 0.0, 0.2, 0.25, 4.0]), 0.5, smallest=0.25)
    np.testing.assert_allclose(found, [-2, 0, 2, 2, 0.5])


PROXES = {
    "l1": (lambda z, t: penalties.soft_threshold(z, t), lambda x, t: t * np.abs(x)),
    "half": (lambda z, t: penalties.half_threshold(z, t), lambda x, t: t * np.sqrt(np.abs(x))),
    "l0.3": (lambda z, t: penalties.lp_prox(z, t, 1.0, 0.3), lambda x, t: t * penalties.lp(x, 0.3)),
    "scad": (lambda z, t: penalties.scad_prox(z, t, knee=1.5), lambda x, t: penalties.scad(x, slope=t, knee=1.5)),
    "scad2": (
        lambda z, t: penalties.scad_prox(z, t, knee=0.5, a=2.1),
        lambda x, t: penalties.scad(x, slope=t, knee=0.5, a=2.1),
    ),
    "mcp": (lambda z, t: penalties.mcp_prox(z, t, knee=1.5), lambda x, t: penalties.mcp(x, slope=t, knee=1.5)),
}


@pytest.mark.parametrize("t", [1e-4, 0.02, 0.3, 1.1, 1.7, 2.53, 5.0])
@pytest.mark.parametrize("name", PROXES)
def test_proximal_maps_are_the_minimizers(name, t):
    prox, penalty = PROXES[name]
    np.testing.assert_allclose(prox(Z, t), brute_force(Z, lambda x: penalty(x, t)), rtol=0, atol=6e-6)


@pytest.mark.parametrize("t", [1e-4, 0.3, 1.7, 5.0])
@pytest.mark.parametrize("name", ["l1", "half", "scad", "scad2", "mcp"])
def test_tensors_get_what_arrays_get_in_their_own_precision(name, t):
    prox, _ = PROXES[name]
    found = prox(torch.tensor(Z), t)
    np.testing.assert_allclose(found.numpy(), prox(Z, t), rtol=1e-14, atol=1e-15)
    assert prox(torch.tensor(Z, dtype=torch.float32), t).dtype == torch.float32
    assert prox(torch.tensor([torch.nan]), t).isnan().all()


def test_derivatives_of_tensors_are_those_of_arrays():
    for p, smallest in ((0.5, 0.1), (1, 0.0), (0.25, 0.0)):
        found = penalties.lp_derivative(torch.tensor(X), p, smallest)
        np.testing.assert_allclose(found.numpy(), penalties.lp_derivative(X, p, smallest), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_soft_threshold_takes_one_threshold_or_one_for_each_weight(dtype):
    z = torch.cat([torch.randn(1000, dtype=dtype), torch.tensor([0.0, -0.0, 0.3, -0.3], dtype=dtype)])
    alike = torch.full_like(z, 0.3)
    assert torch.equal(penalties.soft_threshold(z, 0.3), penalties.soft_threshold(z, alike))
    t = torch.rand_like(z)
    assert torch.equal(penalties.soft_threshold(z, t), z.sign() * (z.abs() - t).clamp(min=0))


@pytest.mark.parametrize("t", [1e-6, 0.1, 2.0])
def test_the_closed_form_for_one_half_is_newtons_result(t):
    np.testing.assert_allclose(penalties.half_threshold(Z, t), penalties.lp_prox(Z, t / 2, 1.0, 0.5), rtol=1e-12, atol=0)


def test_theory_has_the_same_penalties_in_its_own_units():
    np.testing.assert_allclose(theory.scad(X, lam=0.4, a=3.0), penalties.scad(X, slope=0.4, knee=1.2, a=3.0), rtol=1e-14)
    np.testing.assert_allclose(theory.mcp(X, lam=0.4, a=3.0), penalties.mcp(X, slope=0.4, knee=1.2), rtol=1e-14)
    np.testing.assert_allclose(theory.regularizer(X, K=4, M=3), penalties.lp(X, 0.5), rtol=0)
    np.testing.assert_allclose(theory.regularizer_gradient(X, K=4, M=3), penalties.lp_derivative(X, 0.5), rtol=0)
