from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rewa
from rewa import theory

SETTINGS = [(9, 2, 0.0), (9, 4, 0.0), (5, 2.5, 0.0), (3, 0, 1e-2), (4, 1.5, 0.1), (3, 2, 1e-3), (3, 4, 0.0), (2, 1, 0.0)]


@pytest.mark.parametrize(("K", "M", "eps"), SETTINGS)
def test_gradient_of_the_regularizer_by_finite_differences(K, M, eps):
    x = np.array([-2.0, -0.3, 0.01, 0.5, 7.0])
    step = 1e-6 * np.abs(x)
    up, down = (theory.regularizer(x + sign * step, K, M, eps, lam=0.3) for sign in (1, -1))
    np.testing.assert_allclose(theory.regularizer_gradient(x, K, M, eps, lam=0.3), (up - down) / (2 * step), rtol=1e-7)


@pytest.mark.parametrize(("K", "M", "eps"), [(3, 2, 1e-3), (3, 4, 0.0)])
def test_the_degenerate_exponents_are_limits(K, M, eps):
    """Differences of R, which are all that counts, pass through M = 2 and M = K + 1 without a jump."""
    x = np.array([0.1, 3.0])
    at, near = (np.diff(theory.regularizer(x, K, M + shift, eps)) for shift in (0.0, 1e-6))
    np.testing.assert_allclose(at, near, rtol=1e-5)


@given(K=st.floats(1, 12), M=st.floats(0, 8), eps=st.sampled_from([0.0, 1e-3, 0.5]), a=st.floats(1e-3, 10))
@settings(deadline=None)
def test_penalty_is_the_force_of_weight_decay(K, M, eps, a):
    """At rest in y, scale(y) g + lambda y = 0, the gradient in x is -lambda R'(x)."""
    y = a ** (1 / K)
    scale = y**M * (y ** (K - 1) / (y ** (K - 1) + eps) if eps else 1)
    assert theory.regularizer_gradient(a, K, M, eps, lam=0.7) == pytest.approx(0.7 * y / scale, rel=1e-9)


@pytest.mark.parametrize(
    ("K", "M", "eps"), [(9, 2, 0.0), (5, 3, 0.0), (4, 2.5, 0.0), (3, 0, 0.05), (3, 1.5, 0.05), (5, 1, 0.1)]
)
def test_rewa_converges_to_a_stationary_point_of_loss_plus_penalty(K, M, eps):
    """A convex problem with coupled coordinates: each ends at zero or at grad f + lambda R' = 0, to 1e-6."""
    rng = np.random.default_rng(0)
    design = rng.standard_normal((40, 6))
    gram = torch.tensor(design.T @ design / 40)
    target = torch.tensor([2.0, -1.5, 1.0, 0.0, 0.0, 0.0])
    lam = 0.1
    param = nn.Parameter(torch.tensor([0.5, -0.5, 0.5, 0.3, -0.3, 0.2]))
    optimizer = rewa.ReWASGD([param], lr=0.05, K=K, M=M, eps=eps, weight_decay=lam, fused=True)
    for _ in range(30_000):
        param.grad = gram @ (param.detach() - target)
        optimizer.step()
    x, grad = param.detach().numpy(), (gram @ (param.detach() - target)).numpy()
    balance = grad + theory.regularizer_gradient(x, K, M, eps, lam=lam)
    assert (np.minimum(np.abs(x), np.abs(balance)) < 1e-6).all()
    assert (np.abs(x[:3]) > 0.1).all()
    assert np.abs(theory.stationarity_residual(x, grad, K, M, eps, lam=lam)).max() < 1e-6


def test_without_lambda_the_theorem_fails():
    """The paper's statement has R without lambda; a weight at rest balances lambda R', not R'."""
    x = theory.regularizer_gradient(2.0, 9, 2, lam=0.1)
    assert theory.stationarity_residual([2.0], [-x], 9, 2, lam=0.1) == pytest.approx([0])
    assert abs(theory.stationarity_residual([2.0], [-x], 9, 2, lam=1.0)[0]) > 0.5


@pytest.mark.parametrize(
    ("setting", "name", "p"),
    [
        ((9, 2, 0.0), "A", 8 / 9),
        ((9, 4, 0.0), "A", 2 / 3),
        ((3, 0, 1e-3), "B", 2 / 3),
        ((9, 1, 0.0), "neither", 1.0),
        ((3, 5, 0.0), "neither", -1 / 3),  # M > 1, and yet no l_p with 0 < p < 1
        ((1, 0, 1.0), "neither", 2.0),  # M < 2, and yet p = 2
        ((3, 2, 1e-3), "neither", 2 / 3),
        ((3, 3, 1e-3), "neither", 1 / 3),
    ],
)
def test_configurations(setting, name, p):
    result = theory.configuration(*setting)
    assert result.name == name
    assert result.p == pytest.approx(p)
    assert result.why


@given(K=st.floats(1, 20), M=st.floats(0, 10))
@settings(deadline=None)
def test_configurations_c_and_d_have_one_penalty(K, M):
    p = theory.effective_p(K, M)
    if not 0 < p <= 2:
        with pytest.raises(ValueError, match="needs 0 < p <= 2"):
            theory.plain_equivalent(K, M)
        return
    plain_K, plain_M = theory.plain_equivalent(K, M)
    assert plain_M == plain_K - 1
    assert theory.effective_p(plain_K, plain_M) == pytest.approx(p)
    x = np.array([0.01, 0.5, 3.0])
    gradients = [theory.regularizer_gradient(x, k, m) for k, m in ((K, M), (plain_K, plain_M))]
    np.testing.assert_allclose(*gradients, rtol=1e-9)


@pytest.mark.parametrize("ratio", [0.99, 1.01])
def test_growth_threshold_decides_a_real_step(ratio):
    start = 0.002
    threshold = theory.growth_threshold(start, 9, 4, lam=0.25)
    param = nn.Parameter(torch.tensor([start]))
    optimizer = rewa.ReWASGD([param], lr=1e-3, K=9, M=4, weight_decay=0.25)
    param.grad = torch.tensor([-ratio * float(threshold)])
    optimizer.step()
    assert (param.item() > start) is (ratio > 1)


@pytest.mark.parametrize(("momentum", "decoupled"), [(0.0, False), (0.875, False), (0.875, True)])
def test_decay_budget_against_a_real_run(momentum, decoupled):
    """A cosine schedule with warm-up; the weight that gets no gradient ends where the budget says."""
    steps, peak = 2000, 0.256
    schedule = [peak * min((t + 1) / 100, (1 + math.cos(math.pi * t / steps)) / 2) for t in range(steps)]
    run = {"K": 9, "momentum": momentum, "decoupled": decoupled}
    decay = theory.weight_decay_for(1e-5, schedule, start=0.05, **run)
    param = nn.Parameter(torch.tensor([0.05]))
    optimizer = rewa.ReWASGD([param], lr=peak, M=2, weight_decay=decay, **run)
    for lr in schedule:
        optimizer.param_groups[0]["lr"] = lr
        param.grad = torch.zeros(1)
        optimizer.step()
    budget = theory.decay_budget(schedule, weight_decay=decay, **run)
    assert budget == pytest.approx(math.log(0.05 / 1e-5))
    assert math.log(0.05 / param.item()) == pytest.approx(budget, rel=0.02)


def keeps_its_sign(y, *, scale, lr, lam, B):
    """Whether no gradient within the bound can take y across zero in one step."""
    return (1 - lr * lam) * y - lr * scale * B >= -1e-12


@pytest.mark.parametrize("C", [0.05, 0.3, 0.9])
@pytest.mark.parametrize(("K", "M", "eps"), [(5, 3, 0.01), (9, 2, 1e-4), (7, 4, 0.5)])
def test_stagnation_radii_are_where_signs_freeze(K, M, eps, C):
    """Just inside a radius no step crosses zero, just outside one does: by the update rule itself."""
    lr, lam = 0.1, 0.2
    B = (1 - lr * lam) / (lr * C)
    radii = theory.stagnation_radii(K=K, M=M, eps=eps, lr=lr, weight_decay=lam, gradient_bound=B)
    scales = (
        lambda y: y**M,
        lambda y: y ** (K - 1) / (y ** (K - 1) + eps),
        lambda y: y ** (K - 1),
    )
    for radius, scale in zip(radii, scales, strict=True):
        if radius == math.inf:
            sizes = np.logspace(-3, 3, 1000)
            assert all(keeps_its_sign(y, scale=scale(y), lr=lr, lam=lam, B=B) for y in sizes)
        else:
            inside, outside = 0.999 * radius, 1.001 * radius
            assert keeps_its_sign(inside, scale=scale(inside), lr=lr, lam=lam, B=B)
            assert not keeps_its_sign(outside, scale=scale(outside), lr=lr, lam=lam, B=B)


def test_stagnation_claims_that_fail_as_printed():
    """For M < 1 the first radius turns around, and C >= 1 does not make all radii exceed 1."""
    lr, B, M = 0.1, 100.0, 0.5
    C = 1 / (lr * B)
    printed = C ** (1 / (M - 1))
    inside = 0.5 * printed
    assert not keeps_its_sign(inside, scale=inside**M, lr=lr, lam=0.0, B=B)  # the statement says the sign is kept
    assert theory.stagnation_radii(K=5, M=M, eps=0.0, lr=lr, weight_decay=0.0, gradient_bound=B).with_M == 0
    radii = theory.stagnation_radii(K=5, M=3, eps=1e-3, lr=0.1, weight_decay=0.0, gradient_bound=8.0)
    assert 1 / (0.1 * 8.0) >= 1
    assert radii.with_eps < 1 < radii.with_M  # the proposition's last item says all three exceed 1


@pytest.mark.parametrize("C", [0.1, 0.5, 0.9])
def test_adaptive_radii_are_smaller(C):
    radii = theory.stagnation_radii(K=7, M=3, eps=0.01, lr=0.1, weight_decay=0.0, gradient_bound=1 / (0.1 * C))
    assert radii.with_M <= radii.without
    if C <= (1 - 0.01) ** (5 / 6):
        assert radii.with_eps <= radii.without


@given(p=st.floats(0.02, 0.98), u=st.floats(1e-4, 10), dim=st.integers(1, 1000))
@settings(deadline=None)
def test_clipping_trades_gradient_for_error(p, u, dim):
    """Theorem on clipping: a gradient bound of sqrt(d) excludes a small error, for both kinds."""
    constant, tangent = theory.constant_clipping(p, u, dim), theory.l1_clipping(p, u, dim)
    assert not (constant.gradient_bound <= math.sqrt(dim) and constant.approximation_error <= dim / (2 * math.e))
    c = max(1.0, 1 / (dim * (1 - p)) * 1.001)  # p < 1 - 1/(c d)
    assert not (tangent.gradient_bound <= math.sqrt(dim) and tangent.approximation_error <= 1 / (c * math.e))


def test_clipping_costs_are_those_of_the_clipped_functions():
    p, u = 0.4, 0.3
    x = np.linspace(0, 2, 200_001)
    line = p * u ** (p - 1) * x + (1 - p) * u**p
    tangent = np.where(x < u, line, x**p)
    constant = np.maximum(x**p, u**p)
    for clipped, cost in ((tangent, theory.l1_clipping(p, u, 1)), (constant, theory.constant_clipping(p, u, 1))):
        assert np.abs(clipped - x**p).max() == pytest.approx(cost.approximation_error)
        assert (np.diff(clipped) / np.diff(x)).max() == pytest.approx(cost.gradient_bound, rel=1e-3)
    # As printed, with a maximum for every x, the tangent wins everywhere and the error grows without bound.
    np.testing.assert_allclose(np.maximum(x**p, line)[x > u], line[x > u], rtol=1e-14)


def test_scad_critical_radius():
    assert theory.scad_critical_radius(3.7) == pytest.approx(4.03, abs=0.005)
    radii = [theory.scad_critical_radius(a) for a in np.linspace(2.001, 60, 400)]
    assert min(radii) >= 2.56
    assert min(radii) == pytest.approx(2.56, abs=0.01)
    assert theory.scad_critical_radius(3.7, lam=0.1) == pytest.approx(0.403, abs=0.0005)
    # At the radius the sparse and the dense point cost the same.
    r = theory.scad_critical_radius(3.7)
    dense = 2 * theory.scad((1 - math.sqrt(0.5)) * r, lam=1.0)
    assert theory.scad(r, lam=1.0) == pytest.approx(float(dense))


def test_recovery_bounds():
    assert theory.elimination_threshold(18, 2.0) == pytest.approx(math.exp(-6))
    assert theory.sparsity_bound(K=200, gamma=1.0, B=1.0) == pytest.approx(1 + math.sqrt(2 / 200))
    assert theory.sparsity_bound(K=10_000, gamma=1.0, B=math.e) == pytest.approx(1 + 5 * math.sqrt(2 / 10_000))
    with pytest.raises(ValueError, match="needs K >= "):
        theory.sparsity_bound(K=3, gamma=2.0, B=1.0)
    # Dropping what lies below the threshold changes a Lipschitz loss by no more than the bound.
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50) * 0.1
    small = np.abs(x) < theory.elimination_threshold(9, 1.0)
    direction = rng.standard_normal(50)
    direction /= np.linalg.norm(direction)
    change = abs(direction @ np.where(small, 0, x) - direction @ x)
    assert change <= theory.elimination_loss_bound(9, 1.0, lipschitz=1.0, dim=50)


@pytest.mark.parametrize("K", [3, 5, 7, 9])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_example_adaptive_rate_crosses_zero_and_the_plain_product_does_not(K, share):
    """f(x) = (x - 1)^2 from y = -1: both bounds of the example, at every T up to 1000."""
    lr, plain_lr = share / (2 * K), share / 4
    adaptive = plain = -1.0
    for T in range(1, 1001):
        adaptive -= lr * 2 * (adaptive**K - 1)
        plain -= plain_lr * plain ** (K - 1) * 2 * (plain**K - 1)
        assert abs(adaptive - 1) <= 2 * (1 - 2 * lr / (K - 1)) ** T + 1e-12
        assert abs(plain - 1) >= 1


def test_example_weight_decay_both_directions():
    """x' Lambda x of rank 2 in 4 dimensions, from y = 1: without decay the null coordinates stay, with it all vanish."""
    Lambda = torch.tensor([1.0, 0.5, 0.0, 0.0])
    finals = {}
    for decay in (0.0, 1e-2):
        layer = nn.Module()
        layer.weight = nn.Parameter(torch.ones(1, 4))
        rewa.reparametrize(layer, form="factors", K=3)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.05, weight_decay=decay)
        for _ in range(20_000):
            optimizer.zero_grad()
            (Lambda * layer.weight**2).sum().backward()
            optimizer.step()
        finals[decay] = layer.weight.detach().flatten()
    torch.testing.assert_close(finals[0.0][2:], torch.ones(2))  # untouched, of order one
    assert finals[1e-2].abs().max() < 1e-6


@pytest.mark.parametrize("dim", [2, 3, 5, 20])
def test_example_l1_is_dense_where_lp_is_sparse(dim):
    """On the ball around (u, ..., u) that touches the axes: l1 takes the dense point, l_p with p <= 1/2 a sparse one."""
    u = 1.3
    center, radius = np.full(dim, u), math.sqrt(dim - 1) * u
    dense = center * (1 - radius / np.linalg.norm(center))  # the point nearest to the origin, by symmetry
    sparse = np.zeros(dim)
    sparse[0] = u
    for point in (dense, sparse):
        assert np.linalg.norm(point - center) <= radius * (1 + 1e-12)
    assert np.count_nonzero(dense) == dim
    rng = np.random.default_rng(dim)
    steps = rng.standard_normal((200_000, dim)) * rng.exponential(1, (200_000, dim)) ** 2  # some near the axes
    steps *= radius / np.linalg.norm(steps, axis=1, keepdims=True)
    feasible = np.abs(center + steps)
    assert dense.sum() <= feasible.sum(1).min() + 1e-12
    assert dense.sum() < sparse.sum()
    for p in (0.1, 0.3, 0.5):
        assert u**p <= (feasible**p).sum(1).min() + 1e-6  # a coordinate of 1e-16 may be rounded to zero
        assert u**p < (dense**p).sum()


def test_lp_prefers_the_sparse_point_of_the_circle_below_0_564():
    """The paper's two-dimensional comparison: 1 against 2 (1 - 1/sqrt 2)^p, equal at p = 0.564."""
    near = 1 - math.sqrt(0.5)
    assert 2 * near**0.564 > 1 > 2 * near**0.566


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.effective_p(0.5, 1), "Invalid K value: 0.5"),
        (lambda: theory.regularizer(1.0, 9, -1), "Invalid M value: -1"),
        (lambda: theory.decay_budget([0.1], K=9, weight_decay=-1), "Invalid weight_decay value: -1"),
        (lambda: theory.decay_budget([0.1], K=9, weight_decay=1, momentum=1.0), "Invalid momentum value: 1.0"),
        (lambda: theory.weight_decay_for(2.0, [0.1], K=9), "Invalid shrink_to: 2.0"),
        (lambda: theory.weight_decay_for(0.1, [0.0], K=9), "sum to nothing"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
