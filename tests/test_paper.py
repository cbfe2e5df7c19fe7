"""The paper's numbered statements in their order: that each holds, or the counterexample and the version that does.

``docs/theory.md`` has one line for each and names the test.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import rewa
from rewa import theory

STATEMENTS = """
Lemma 3.1, Example 3.2, Theorem 3.3, Proposition 3.4, Remark 3.5, Definition 3.6, Theorem 3.7, Example 3.8, Theorem 3.9,
Theorem 3.10, Proposition 3.11, Example 3.12, Assumption 3.13, Theorem 3.14, Corollary 3.15, Corollary 3.16, Remark 3.17,
Remark 3.18, Appendix B, Example C.1, Fact C.2, Remark C.3, Remark C.4, Lemma C.5, Lemma C.6, Lemma C.7, Fact C.8, Fact C.9,
Lemma C.10
"""


def test_the_page_has_every_statement_and_names_every_test():
    page = (Path(__file__).parent.parent / "docs" / "theory.md").read_text()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in page.splitlines() if line[:1] == "|"][2:]
    assert [row[0] for row in rows] == re.split(r",\s+", STATEMENTS.strip())
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row[3])}
    defined = {name for name in globals() if name.startswith("test_")} - {
        test_the_page_has_every_statement_and_names_every_test.__name__
    }
    assert named == defined
    for _, says, holds, tests in rows:
        assert says
        assert tests or holds.startswith("nothing to check")
        for anchor in re.findall(r"\(#([^)]*)\)", holds):
            assert anchor in {heading.lower().replace(" ", "-").replace(".", "") for heading in re.findall("### (.*)", page)}


# ------------------------------------------------------------------------------------------------ Lemma 3.1


def tilted_quartic(x):
    """A loss with two valleys, the deeper one near 1, and its derivative."""
    return (x**2 - 1) ** 2 - 0.3 * x, 4 * x * (x**2 - 1) - 0.3


def descend_in_factors(start, lam, steps=20_000, lr=1e-2):
    """Gradient descent on f(y1 y2 y3) + lam sum y^2, from untied factors."""
    y = np.array(start)
    for _ in range(steps):
        others = np.array([y[1] * y[2], y[0] * y[2], y[0] * y[1]])
        y -= lr * (others * tilted_quartic(y.prod())[1] + 2 * lam * y)
    return y


def test_lemma_3_1_global_minimizers():
    """Over all factors with product x, the sum of squares is least at K |x|^(2/K): both problems have one optimal value."""
    K, lam = 3, 0.05
    x = np.linspace(-2, 2, 40_001)
    penalized = tilted_quartic(x)[0] + K * lam * np.abs(x) ** (2 / K)
    grid = np.linspace(-1.6, 1.6, 161)
    y1, y2, y3 = np.meshgrid(grid, grid, grid, indexing="ij")
    factored = tilted_quartic(y1 * y2 * y3)[0] + lam * (y1**2 + y2**2 + y3**2)
    assert factored.min() >= penalized.min() - 1e-12
    best = np.unravel_index(factored.argmin(), factored.shape)
    polished = descend_in_factors([grid[index] for index in best], lam)
    assert polished.prod() == pytest.approx(x[penalized.argmin()], abs=1e-4)


@pytest.mark.parametrize("start", [(1.2, 0.7, 0.9), (-1.1, 0.8, 1.3), (0.3, 0.2, -0.4), (-1.0, -0.9, -1.2)])
def test_lemma_3_1_local_minimizers_and_stationary_points(start):
    """Descent ends at equal magnitudes, at a substationary point and local minimum of f + K lam |x|^(2/K)."""
    K, lam = 3, 0.05
    y = descend_in_factors(start, lam)
    x = y.prod()
    np.testing.assert_allclose(np.abs(y), np.abs(y[0]), atol=1e-6)
    p = 2 / K
    gradient = tilted_quartic(x)[1] + K * lam * p * np.sign(x) * abs(x) ** (p - 1) if abs(x) > 1e-9 else 0.0
    assert abs(x * gradient) < 1e-6
    around = x + np.linspace(-1e-3, 1e-3, 2001)
    values = tilted_quartic(around)[0] + K * lam * np.abs(around) ** p
    assert values[1000] <= values.min() + 1e-9


def test_lemma_3_1_needs_half_the_parameter_in_the_form_of_the_introduction():
    """The introduction's [Cp] has lam/2 before the squares, the appendix lam; the lemma's K lam belongs to the second."""
    K, lam = 3, 0.2
    target = 1.0  # f(x) = (x - 1)^2 / 2
    y = 1.0
    for _ in range(100_000):
        y -= 1e-2 * (y ** (K - 1) * (y**K - target) + lam * y)  # one factor of lam/2 sum y_i^2
    x = y**K
    gradients = {weight: x - target + weight * (2 / K) * x ** (2 / K - 1) for weight in (K * lam, K * lam / 2)}
    assert abs(gradients[K * lam]) > 0.1
    assert abs(gradients[K * lam / 2]) < 1e-9


# ---------------------------------------------------------------------------------------------- Example 3.2


@pytest.mark.parametrize("K", [3, 5, 7, 9])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_example_3_2_adaptive_rate_crosses_zero_and_the_plain_product_does_not(K, share):
    """f(x) = (x - 1)^2 from y = -1: both bounds of the example, at every T up to 1000."""
    lr, plain_lr = share / (2 * K), share / 4
    adaptive = plain = -1.0
    for T in range(1, 1001):
        adaptive -= lr * 2 * (adaptive**K - 1)
        plain -= plain_lr * plain ** (K - 1) * 2 * (plain**K - 1)
        assert abs(adaptive - 1) <= 2 * (1 - 2 * lr / (K - 1)) ** T + 1e-12
        assert abs(plain - 1) >= 1


# ---------------------------------------------------------------------------------------------- Theorem 3.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("K", "M", "eps"), [(9, 2, 0.0), (5, 3, 0.0), (4, 2.5, 0.0), (3, 0, 0.05), (3, 1.5, 0.05), (5, 1, 0.1)]
)
def test_theorem_3_3_rewa_converges_to_a_stationary_point_of_loss_plus_penalty(K, M, eps):
    """A convex problem with coupled coordinates: each ends at zero or at grad f + lambda R' = 0, to 1e-6."""
    rng = np.random.default_rng(0)
    design = rng.standard_normal((40, 6))
    gram = torch.tensor(design.T @ design / 40)
    target = torch.tensor([2.0, -1.5, 1.0, 0.0, 0.0, 0.0])
    lam = 0.1
    param = nn.Parameter(torch.tensor([0.5, -0.5, 0.5, 0.3, -0.3, 0.2]))
    optimizer = rewa.ReWASGD([param], lr=0.05, K=K, M=M, eps=eps, weight_decay=lam, fused=True)
    for _ in range(10_000):
        param.grad = gram @ (param.detach() - target)
        optimizer.step()
    x, grad = param.detach().numpy(), (gram @ (param.detach() - target)).numpy()
    balance = grad + theory.regularizer_gradient(x, K, M, eps, lam=lam)
    assert (np.minimum(np.abs(x), np.abs(balance)) < 1e-6).all()
    assert (np.abs(x[:3]) > 0.1).all()
    assert np.abs(theory.stationarity_residual(x, grad, K, M, eps, lam=lam)).max() < 1e-6


def test_theorem_3_3_fails_without_lambda():
    """The statement has R without lambda; a weight at rest balances lambda R', not R'."""
    x = theory.regularizer_gradient(2.0, 9, 2, lam=0.1)
    assert theory.stationarity_residual([2.0], [-x], 9, 2, lam=0.1) == pytest.approx([0])
    assert abs(theory.stationarity_residual([2.0], [-x], 9, 2, lam=1.0)[0]) > 0.5


def squared_residuals(K, M, eps, *, lam, steps, gradient, x=1.0, lr=0.1):
    """Of one weight, at every step of Algorithm 1 with the proof's schedule lr / sqrt(t)."""
    y, weights = x ** (1 / K), []
    for t in range(1, steps + 1):
        x = y**K
        weights.append((x, gradient(x)))
        rate = lr / math.sqrt(t)
        y = (1 - rate * lam) * y - rate * y**M * y ** (K - 1) / (y ** (K - 1) + eps) * weights[-1][1]
    return theory.stationarity_residual(*np.array(weights).T, K, M, eps, lam=lam) ** 2


@pytest.mark.parametrize(("K", "M", "eps"), [(3, 2, 0.0), (9, 2, 0.0), (5, 4, 0.0), (3, 0, 0.1)])
def test_theorem_3_3_rate_holds_for_the_best_iterate_up_to_a_constant(K, M, eps):
    """min over t <= T, times sqrt(T) / log T, does not grow."""
    residuals = squared_residuals(K, M, eps, lam=0.1, steps=5000, gradient=lambda x: 2 * (x - 1.5))
    T = np.arange(1, len(residuals) + 1)
    bound = np.log(T) / np.sqrt(T)
    scaled = np.minimum.accumulate(residuals)[1:] / bound[1:]
    assert scaled[-1] <= scaled[:100].max()
    assert residuals[0] > bound[0]  # at T = 1 the printed right side is zero


def test_theorem_3_3_rate_fails_with_constant_1():
    """The printed right side has neither a constant nor the schedule: with 1e-6 / sqrt(t) nothing has moved at T = 5000."""
    residuals = squared_residuals(9, 2, 0.0, lam=0.1, steps=5000, gradient=lambda x: 2 * (x - 3.0), lr=1e-6)
    assert residuals.min() > 100 * math.log(5000) / math.sqrt(5000)


@pytest.mark.parametrize(("K", "M", "eps", "limit"), [(3, 2, 1e-3, 1e-3), (5, 2, 0.1, 0.1), (3, 4, 0.0, 1.0), (2, 3, 0.0, 1.0)])
def test_theorem_3_3_residual_stays_away_from_zero_at_the_degenerate_exponents(K, M, eps, limit):
    """M = 2 with eps > 0 (the ImageNet setting) and M = K + 1: a weight without gradient vanishes, its residual does not.

    The squared residual there is lambda^2 y^(2-M) (y^(K-1) + eps): it tends to zero for M < 2 only, or M < K + 1 if eps = 0.
    """
    lam = 0.5
    residuals = squared_residuals(K, M, eps, lam=lam, steps=20_000, gradient=lambda x: 0.0, lr=0.5)
    assert residuals[-1] == pytest.approx(limit * lam**2, rel=1e-3)
    assert residuals.min() > math.log(1e12) / math.sqrt(1e12)


@pytest.mark.parametrize(("K", "M", "eps"), [(3, 2, 1e-3), (5, 2, 0.1), (3, 3, 1e-2), (3, 4, 0.0), (2, 3, 0.0), (9, 2, 0.0)])
def test_theorem_3_3_holds_for_every_setting_with_the_scale_of_the_step(K, M, eps):
    """|y|^M |y|^(K-1) / (|y|^(K-1) + eps) in the place of V: the change of y over the rate, held weight and free one."""
    lam, held, free = 0.1, 0.9, 0.6
    for t in range(1, 40_001):
        rate = 0.5 / math.sqrt(t)
        scale = held**M * held ** (K - 1) / (held ** (K - 1) + eps)
        held, free = held - rate * (scale * (held**K - 1.0) + lam * held), (1 - rate * lam) * free
    y = np.array([held, free])
    x, gradient = y**K, np.array([held**K - 1.0, 0.0])
    scale = y**M * y ** (K - 1) / (y ** (K - 1) + eps)
    force = scale * (gradient + theory.regularizer_gradient(x, K, M, eps, lam=lam))
    np.testing.assert_allclose(force, scale * gradient + lam * y, atol=1e-12)  # what the loop went by
    assert np.abs(force).max() < 1e-8
    assert x[0] > 0.5
    assert x[1] < 1e-8


def test_theorem_3_3_a_signed_power_ascends_for_odd_M():
    """The statement asks for even M; for any real M the update needs |y|^M, as the remark after the proof says."""
    K, M, y, lr = 3, 3, -0.8, 0.01

    def loss(y):
        return (y**K - 1) ** 2

    gradient = 2 * (y**K - 1)
    signed, absolute = y - lr * y**M * gradient, y - lr * abs(y) ** M * gradient
    assert loss(signed) > loss(y) > loss(absolute)


# ------------------------------------------------------------------------ Proposition 3.4 and Remark 3.5


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
def test_proposition_3_4_configurations(setting, name, p):
    result = theory.configuration(*setting)
    assert result.name == name
    assert result.p == pytest.approx(p)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ((9, 2, 0.0), "eps = 0 and 1 < M < K + 1"),
        ((9, 1, 0.0), "M <= 1 gives p >= 1, no sparser than l1"),
        ((3, 5, 0.0), "M >= K + 1 leaves no positive p"),
        ((3, 0, 1e-3), "eps > 0 and M < 2"),
        ((3, 2, 1e-3), "eps * log|x|, the limit of configuration B, and p = 0.667 comes from the first term"),
        ((1, 2, 1e-3), "and the first term has no p below 1"),
        ((3, 2.5, 1e-3), "M > 2 gives its term a negative exponent"),
        ((1, 0, 1.0), "its term has p = 2, not below 1"),
    ],
)
def test_proposition_3_4_reasons(setting, words):
    assert words in theory.configuration(*setting).why


@given(K=st.floats(1, 20), M=st.floats(0, 10))
@settings(deadline=None)
def test_remark_3_5_configurations_c_and_d(K, M):
    """One penalty, the printed coefficients of the gradient, and the larger K in C exactly when M < K - 1."""
    p = theory.effective_p(K, M)
    if p <= 0:
        with pytest.raises(ValueError, match="needs p > 0"):
            theory.plain_equivalent(K, M)
        return
    plain_K, plain_M = theory.plain_equivalent(K, M)
    assert plain_M == plain_K - 1
    assert theory.effective_p(plain_K, plain_M) == pytest.approx(p)
    x = np.array([0.01, 0.5, 3.0])
    gradients = [theory.regularizer_gradient(x, k, m) for k, m in ((K, M), (plain_K, plain_M))]
    np.testing.assert_allclose(*gradients, rtol=1e-9)
    assert plain_M / plain_K == pytest.approx((M + K - 1) / (2 * K))
    if abs(M - (K - 1)) > 1e-6:
        assert (plain_K < K) is (M < K - 1)


# ---------------------------------------------------------------------- Definition 3.6 and Theorem 3.7


def test_definition_3_6_clipping_costs_are_those_of_the_clipped_functions():
    p, u = 0.4, 0.3
    x = np.linspace(0, 2, 200_001)
    line = p * u ** (p - 1) * x + (1 - p) * u**p
    tangent = np.where(x < u, line, x**p)
    constant = np.maximum(x**p, u**p)
    for clipped, cost in ((tangent, theory.l1_clipping(p, u, 1)), (constant, theory.constant_clipping(p, u, 1))):
        assert np.abs(clipped - x**p).max() == pytest.approx(cost.approximation_error)
        assert (np.diff(clipped) / np.diff(x)).max() == pytest.approx(cost.gradient_bound, rel=1e-3)


def test_definition_3_6_l1_clipping_as_printed_is_the_tangent_everywhere():
    """A tangent of a concave function lies above it, so the printed maximum is l1 alone, with an error beyond any bound."""
    p, u = 0.4, 0.3
    x = np.array([0.0, 0.1, u, 1.0, 1e3, 1e6])
    line = p * u ** (p - 1) * x + (1 - p) * u**p
    printed = np.maximum(x**p, line)
    np.testing.assert_allclose(printed, line, rtol=1e-14)
    assert (printed - x**p)[-1] > 1e5


@pytest.mark.parametrize("dim", [1, 2, 10, 1000, 10**6])
def test_theorem_3_7_clipping_trades_gradient_for_error(dim):
    """Over a grid of p, d and u, for both kinds; for constant clipping even d/e is out of reach, twice what is printed."""
    for p, u in itertools.product(np.linspace(0.01, 0.99, 99), np.logspace(-6, 2, 161)):
        constant, tangent = theory.constant_clipping(p, u, dim), theory.l1_clipping(p, u, dim)
        assert not (constant.gradient_bound <= math.sqrt(dim) and constant.approximation_error <= dim / math.e)
        c = max(1.0, 1.001 / (dim * (1 - p)))  # p < 1 - 1/(c d)
        assert not (tangent.gradient_bound <= math.sqrt(dim) and tangent.approximation_error <= 1 / (c * math.e))


def test_theorem_3_7_constants_are_nearly_reached():
    """At the smallest u allowed the errors come close to d/e and, for p just below 1 - 1/d, to 1/e: no vacuous bounds."""
    for dim in (5, 1000):
        p = 1 - 1 / (1.001 * dim)
        u = p ** (1 / (1 - p))
        assert theory.constant_clipping(p, u, dim).gradient_bound == pytest.approx(math.sqrt(dim))
        assert theory.constant_clipping(p, u, dim).approximation_error < 1.3 * dim / math.e
        assert theory.l1_clipping(p, u, dim).approximation_error < 1.3 / math.e


# ---------------------------------------------------------------------- Example 3.8 and Theorem 3.9


def descend(gradient, y, *, K, lam=0.0, lr=0.01, steps=20_000):
    """Gradient descent on f(y^K) + lam K y^2, the tied form of the theorem's loss divided by K; all updates, too."""
    updates = []
    for _ in range(steps):
        update = -lr * (y ** (K - 1) * gradient(y**K) + 2 * lam * y)
        updates.append(update)
        y = y + update
    return y, np.array(updates)


def test_example_3_8_weight_decay_both_directions():
    """x' Lambda x of rank 2 in 4 dimensions, from y = 1: without decay the null coordinates stay, with it all vanish."""
    Lambda = np.array([1.0, 0.5, 0.0, 0.0])
    lams = np.array([[0.0], [1e-3], [1e-2], [0.3]])
    y, _ = descend(lambda x: 2 * Lambda * x, np.ones((4, 4)), K=3, lam=lams, lr=0.2, steps=50_000)
    assert (y[0, 2:] == 1).all()
    assert (np.abs(y[1:]).max(axis=1) < 1e-6).all()


@pytest.mark.parametrize("lr", [0.05, 0.2])
def test_theorem_3_9_without_decay_fails_in_the_limit(lr):
    """f = |x|^2 / 2 from (1, ..., 1): every update lies on one line, R = 1, and yet all coordinates tend to zero.

    At every finite T none of them is zero, so the printed bound d - R = 3 holds; the proof's "large for all T" does not.
    """
    y, updates = descend(lambda x: x, np.ones(4), K=3, lr=lr, steps=10_000)
    assert np.linalg.matrix_rank(updates, tol=1e-12) == 1
    assert np.count_nonzero(y) >= 3
    assert np.abs(y**3).max() < 1e-2


def test_theorem_3_9_without_decay_for_a_subspace_fixed_before_the_start():
    """y stays in y(0) + S, which for a random start is zero in no R + 1 coordinates at once: d - R stay away from zero."""
    rng = np.random.default_rng(0)
    d = 5
    for R in (1, 2, 3):
        subspace, start = rng.standard_normal((d, R)), rng.standard_normal(d)
        for chosen in itertools.combinations(range(d), R + 1):
            rows = list(chosen)
            nearest, *_ = np.linalg.lstsq(subspace[rows], -start[rows], rcond=None)
            assert np.linalg.norm(start[rows] + subspace[rows] @ nearest) > 1e-3


def test_theorem_3_9_without_decay_holds_where_coordinates_get_no_update():
    y, _ = descend(lambda x: np.array([1.0, 1.0, 0.0, 0.0]) * x, np.ones(4), K=3)
    assert (y[2:] == 1).all()


def waves(x):
    """Derivative of (1 - cos(x/2)) * 4 + x^2/200: least at zero alone, with more valleys; its second derivative >= -0.99."""
    return 2 * np.sin(x / 2) + 0.01 * x


@pytest.mark.parametrize("lam", [0.99 / 6, 0.5 * 0.99 / 6, 1e-3])
def test_theorem_3_9_with_decay_fails_for_a_loss_with_further_valleys(lam):
    """f = w(x1) + w(x2) from y = (2.3, 2.3), whose updates stay on the diagonal: R = 1 < 2.

    The first lam meets the printed condition lam >= 0.99 / (2K), and the limit is no zero; nor is it as lam falls.
    """
    y, updates = descend(waves, np.array([2.3, 2.3]), K=3, lam=lam, lr=1e-3)
    assert np.linalg.matrix_rank(updates, tol=1e-12) == 1
    x = y**3
    assert (x > 11).all()
    assert np.abs(y**2 * waves(x) + 2 * lam * y).max() < 1e-9


@pytest.mark.parametrize("lam", [1e-3, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_theorem_3_9_with_decay_holds_for_every_convex_loss(lam, seed):
    """Where x . grad f(x) >= 0, zero is the only stationary point for any lam > 0: x . grad f = -2 lam |y|^2."""
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((2, 4))  # rank 2 in 4 dimensions
    y, _ = descend(lambda x: design.T @ np.tanh(design @ x), rng.uniform(0.5, 1.5, 4), K=3, lam=lam, lr=0.3, steps=20_000)
    assert np.abs(y).max() < 1e-4


# --------------------------------------------------------------- Theorem 3.10 and Proposition 3.11


def keeps_its_sign(y, *, scale, lr, lam, B):
    """Whether no gradient within the bound can take y across zero in one step."""
    return (1 - lr * lam) * y - lr * scale * B >= -1e-12


@pytest.mark.parametrize("C", [0.05, 0.3, 0.9])
@pytest.mark.parametrize(("K", "M", "eps"), [(5, 3, 0.01), (9, 2, 1e-4), (7, 4, 0.5)])
def test_theorem_3_10_stagnation_radii_are_where_signs_freeze(K, M, eps, C):
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


def test_theorem_3_10_first_radius_turns_around_below_M_1():
    lr, B, M = 0.1, 100.0, 0.5
    C = 1 / (lr * B)
    printed = C ** (1 / (M - 1))
    inside, outside = 0.5 * printed, 2 * printed
    assert not keeps_its_sign(inside, scale=inside**M, lr=lr, lam=0.0, B=B)  # the statement says the sign is kept
    assert keeps_its_sign(outside, scale=outside**M, lr=lr, lam=0.0, B=B)
    assert theory.stagnation_radii(K=5, M=M, eps=0.0, lr=lr, weight_decay=0.0, gradient_bound=B).with_M == 0
    flips = theory.sign_flips(K=5, M=M, eps=0.0, lr=lr, weight_decay=0.0, gradient_bound=B)
    assert flips == (0.0, pytest.approx(printed))


@pytest.mark.parametrize("K", [3, 5, 9])
@pytest.mark.parametrize("C", [0.2, 1.0, 10.0])
def test_theorem_3_10_condition_for_the_second_radius_is_upside_down(K, C):
    """F has a root exactly for eps <= [(K-2)/(C(K-1))]^(K-1)/(K-2); the statement has the inverse in the brackets."""
    run = {"K": K, "M": 0, "lr": 1.0, "weight_decay": 0.0, "gradient_bound": 1 / C}
    largest = ((K - 2) / (C * (K - 1))) ** (K - 1) / (K - 2)
    assert math.isfinite(theory.stagnation_radii(**run, eps=0.999 * largest).with_eps)
    assert theory.stagnation_radii(**run, eps=1.001 * largest).with_eps == math.inf
    printed = (C * (K - 1) / (K - 2)) ** (K - 1) / (K - 2)
    if C >= 1:  # the printed condition allows an eps for which there is no radius
        assert theory.stagnation_radii(**run, eps=0.999 * printed).with_eps == math.inf


def test_theorem_3_10_needs_a_bound_of_the_magnitude():
    """The assumption bounds the gradient from above only; a large negative one carries a negative weight across."""
    lr, B, y, M = 0.1, 1.0, -0.5, 3
    radius = theory.stagnation_radii(K=5, M=M, eps=0.0, lr=lr, weight_decay=0.0, gradient_bound=B).with_M
    gradient = -1000.0
    assert gradient <= B
    assert abs(y) <= radius
    assert y * (y - lr * abs(y) ** M * gradient) < 0


@given(
    K=st.floats(1, 12),
    M=st.floats(0, 8),
    eps=st.sampled_from([0.0, 1e-6, 1e-2, 0.5, 3.0]),
    C=st.floats(0.01, 100),
    t=st.floats(-12, 12),
)
@example(K=5, M=0.5, eps=1e-2, C=0.5, t=-2.0)
@example(K=3, M=1, eps=0.5, C=0.9, t=6.0)
@settings(deadline=None, max_examples=300)
def test_theorem_3_10_for_every_setting(K, M, eps, C, t):
    """`sign_flips` against the update rule, for M and eps together."""
    y = 10.0**t
    flips = theory.sign_flips(K=K, M=M, eps=eps, lr=0.1, weight_decay=0.0, gradient_bound=10 / C)
    ratio = y**M * (y ** (K - 1) / (y ** (K - 1) + eps) if eps else 1.0) / (C * y)
    if abs(ratio - 1) > 1e-9:
        assert (flips.low < y < flips.high) is (ratio > 1)


@pytest.mark.parametrize(
    ("K", "M", "eps", "C"), [(5, 0.0, 1e-2, 0.5), (5, 0.5, 1e-3, 1.0), (9, 0.9, 0.1, 0.7), (3, 0.2, 1e-6, 30.0)]
)
def test_theorem_3_10_below_M_1_signs_flip_between_two_sizes(K, M, eps, C):
    """With eps > 0 and M < 1 small and large weights keep their sign; both edges solve |y|^(M+K-2) = C (|y|^(K-1) + eps)."""
    flips = theory.sign_flips(K=K, M=M, eps=eps, lr=0.1, weight_decay=0.0, gradient_bound=10 / C)
    assert 0 < flips.low < flips.high < math.inf
    for edge in flips:
        assert edge ** (M + K - 2) == pytest.approx(C * (edge ** (K - 1) + eps), rel=1e-9)


@given(K=st.floats(2.1, 15), share=st.floats(0.001, 0.999), eps=st.floats(1e-6, 0.999), C=st.floats(1e-3, 1))
@settings(deadline=None)
def test_proposition_3_11_adaptive_radii_are_smaller(K, share, eps, C):
    """Items 1 and 2, for 1 < M < K - 1; the second whether or not F falls at U3, as the proof assumes."""
    M = 1 + share * (K - 2)
    radii = theory.stagnation_radii(K=K, M=M, eps=eps, lr=0.1, weight_decay=0.0, gradient_bound=10 / C)
    assert radii.with_M <= radii.without * (1 + 1e-9)
    if (1 - eps) ** ((K - 2) / (K - 1)) >= C:
        assert radii.with_eps <= radii.without * (1 + 1e-9)


def test_proposition_3_11_first_item_needs_M_between_1_and_K_minus_1():
    """Below, the printed U1 is 16 against U3 = 0.63, and the true radius zero; above K - 1 it is the larger one."""
    K, C = 5, 0.25
    assert C ** (1 / (0.5 - 1)) > C ** (1 / (K - 2))
    radii = {M: theory.stagnation_radii(K=K, M=M, eps=0.0, lr=0.1, weight_decay=0.0, gradient_bound=10 / C) for M in (0.5, 6)}
    assert radii[0.5].with_M == 0
    assert radii[6].with_M > radii[6].without


def test_proposition_3_11_last_item_fails_for_the_second_radius():
    """C >= 1 with U2 < 1; at C = 1 the others are 1 and not above. For C >= 1 U2 is below 1 or there is none."""
    run = {"K": 5, "M": 3, "lr": 0.1, "weight_decay": 0.0}
    radii = theory.stagnation_radii(**run, eps=1e-3, gradient_bound=8.0)
    assert 1 / (0.1 * 8.0) >= 1
    assert radii.with_eps < 0.2 < 1 < radii.with_M
    at_one = theory.stagnation_radii(**run, eps=1e-3, gradient_bound=10.0)
    assert (at_one.with_M, at_one.without) == (pytest.approx(1), pytest.approx(1))
    for eps, C in itertools.product((1e-4, 1e-2, 0.2, 0.34, 0.5, 2.0), (1.0, 1.3, 3.0, 50.0)):
        second = theory.stagnation_radii(**run, eps=eps, gradient_bound=10 / C).with_eps
        assert second < 1 or second == math.inf
        if eps * (run["K"] - 2) >= 1:
            assert second == math.inf


# --------------------------------------------------------------------------------------------- Example 3.12


def least_penalty(p, dim):
    """The least sum of |x|^p over the ball |x - 1|^2 <= d - 1, and how many nonzeros reach it.

    A minimizer lies in [0, 1]^d on the sphere (mirroring a coordinate above 1 or below 0 costs nothing or less), and its
    nonzero coordinates solve p x^(p-1) = 2 mu (1 - x), an equation with at most two solutions: a of them s, b of them l >= s.
    """
    s = np.concatenate([np.linspace(0, 1, 20_001)[1:-1], np.logspace(-12, -4, 400)])
    found = [(1.0, 1)]  # one coordinate at 1
    for a in range(1, dim + 1):
        for b in range(dim - a + 1):
            left = a + b - 1 - a * (1 - s) ** 2  # what b (1 - l)^2 must be
            if b == 0:
                exact = 1 - math.sqrt((a - 1) / a)
                found.append((a * exact**p, a))
                continue
            ok = (left >= 0) & (left <= b)
            large = 1 - np.sqrt(left[ok] / b)
            ok[ok] = large >= s[ok]
            if ok.any():
                large = 1 - np.sqrt(left[ok] / b)
                found.append((float((a * s[ok] ** p + b * large**p).min()), a + b))
    return min(found)


@pytest.mark.parametrize("dim", [2, 3, 5, 8])
def test_example_3_12_l1_is_dense_where_lp_is_sparse(dim):
    """The exact minimizers on the ball around (u, ..., u) that misses the origin; by scaling u = 1."""
    one = np.eye(dim)[0]
    assert (one - 1) @ (one - 1) <= dim - 1 < np.ones(dim) @ np.ones(dim)  # one coordinate is feasible, the origin is not
    value, nonzeros = least_penalty(1.0, dim)
    assert nonzeros == dim
    assert value == pytest.approx(dim * (1 - math.sqrt((dim - 1) / dim)))
    for p in (0.05, 0.3, 0.5):
        assert least_penalty(p, dim) == (1.0, 1)
    for p in (0.53, 0.56):  # one half is sharp: beyond it a second coordinate pays
        value, nonzeros = least_penalty(p, dim)
        assert value < 1 - 1e-4
        assert nonzeros == 2


def test_example_3_12_no_feasible_point_is_better():
    """The argument of `least_penalty` against 200,000 points of the sphere, many near the axes."""
    dim = 5
    rng = np.random.default_rng(dim)
    steps = rng.standard_normal((200_000, dim)) * rng.exponential(1, (200_000, dim)) ** 2
    steps *= math.sqrt(dim - 1) / np.linalg.norm(steps, axis=1, keepdims=True)
    points = np.abs(1 + steps)
    for p in (0.3, 0.5, 0.8, 1.0):
        assert (points**p).sum(1).min() >= least_penalty(p, dim)[0] - 1e-6


# ------------------------------------------------------------------- Theorem 3.14 and what follows


def two_minimizers(K, gamma, nonzeros):
    """A sparsest solution and the one of least p-norm, which keeps as many weights above the threshold as can be.

    f(x) = |x - x0|^2 |x - xp|^2 has exactly these two minimizers and the expansion property with beta = 2.
    """
    p = 2 / K
    threshold = theory.elimination_threshold(K, gamma) * (1 + 1e-9)
    kept = math.floor(nonzeros * math.exp(gamma * math.sqrt(p)) * (1 - 1e-7))
    x0, xp = np.zeros(nonzeros + kept), np.zeros(nonzeros + kept)
    x0[:nonzeros], xp[nonzeros:] = 1.0, threshold
    assert (xp**p).sum() < (x0**p).sum()  # so [Ap] takes xp
    return x0, xp


@pytest.mark.parametrize(("K", "gamma", "nonzeros"), [(9, 1.0, 10), (33, 2.0, 40), (801, 1.0, 1000)])
def test_theorem_3_14_fails_with_the_printed_constant(K, gamma, nonzeros):
    """B = 1, K as large as asked for: more weights stay than (1 + gamma sqrt(2/K)) |x0|_0; the constant of the proof holds."""
    assert max(2 * gamma**2, 8 * gamma**2) <= K
    _, xp = two_minimizers(K, gamma, nonzeros)
    kept = np.count_nonzero(xp > theory.elimination_threshold(K, gamma))
    z = gamma * math.sqrt(2 / K)
    assert kept > (1 + z) * nonzeros
    assert kept <= (1 + 2 * z) * nonzeros
    assert kept <= theory.sparsity_bound(K, gamma, 1.0) * nonzeros < kept + 1.001  # and no smaller bound would do


def test_theorem_3_14_the_global_minimizer_is_the_one_of_least_p_norm():
    """The counterexample is one of [Cp], too: f + K lam |x|_p^p is less at xp than around x0 and on the way there."""
    K, gamma, nonzeros = 9, 1.0, 10
    x0, xp = two_minimizers(K, gamma, nonzeros)
    p, lam = 2 / K, 1e-7

    def objective(x):
        return ((x - x0) ** 2).sum() * ((x - xp) ** 2).sum() + K * lam * (np.abs(x) ** p).sum()

    rng = np.random.default_rng(0)
    others = [x0, *(x0 + t * (xp - x0) for t in np.linspace(0.01, 0.99, 99))]
    others += [x0 * (1 + 1e-3 * rng.standard_normal(x0.shape)) for _ in range(1000)]
    assert objective(xp) < min(map(objective, others))


@pytest.mark.parametrize("B", [0.2, 1.0, 5.0, 1000.0])
def test_theorem_3_14_as_corrected_cannot_be_improved(B):
    """Ten weights of size max(1, B) and as many at the threshold as their p-norm allows."""
    K, gamma = 9, 1.0
    p = 2 / K
    kept = math.floor(10 * max(1.0, B) ** p / theory.elimination_threshold(K, gamma) ** p)
    assert kept <= 10 * theory.sparsity_bound(K, gamma, B) < kept + 1


def test_assumption_3_13_holds_for_the_counterexample():
    """f = |x - x0|^2 |x - xp|^2 >= (D^2/4) |x - xhat|_2^2 with D = |x0 - xp|, and |.|_p <= d^(1/p - 1/2) |.|_2: beta = 2."""
    x0, xp = two_minimizers(9, 1.0, 10)
    p, d = 2 / 9, len(x0)
    mu = ((x0 - xp) ** 2).sum() / 4 / d ** (2 / p - 1)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.1, 1.0, 30.0):
        for _ in range(500):
            x = rng.choice([0.0, 0.5, 1.0]) * x0 + rng.choice([0.0, 0.5, 1.0]) * xp + scale * rng.standard_normal(d)
            nearest = min((x0, xp), key=lambda point: ((x - point) ** 2).sum())
            f = ((x - x0) ** 2).sum() * ((x - xp) ** 2).sum()
            assert mu * (np.abs(nearest - x) ** p).sum() ** (2 / p) <= f * (1 + 1e-9)


@given(K=st.floats(1, 1e4), gamma=st.floats(0.01, 5), B=st.floats(0.1, 100), seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_theorem_3_14_as_corrected_holds_for_every_K(K, gamma, B, seed):
    """Any two vectors with |xp|_p <= |x0|_p: what xp keeps is within the bound."""
    rng = np.random.default_rng(seed)
    p = 2 / K
    x0 = rng.uniform(0, B, rng.integers(1, 20))
    xp = np.exp(-rng.uniform(0, 3, 200) * gamma / math.sqrt(p))
    keep = np.cumsum(xp**p) <= (x0**p).sum()
    kept = np.count_nonzero(xp[keep] >= theory.elimination_threshold(K, gamma))
    assert kept <= theory.sparsity_bound(K, gamma, B) * len(x0) * (1 + 1e-12)


def test_corollary_3_15_condition_a_lacks_a_minus():
    """As printed it holds for every minimizer with a coordinate below 1, and the threshold may remove that coordinate."""
    K, gamma, smallest = 9, 0.1, 0.01
    assert gamma >= math.sqrt(2 / K) * math.log(smallest)
    assert theory.elimination_threshold(K, gamma) > smallest
    assert not theory.exact_recovery(K, gamma, 1.0, nonzeros=1, smallest=smallest)
    exact = -math.sqrt(2 / K) * math.log(smallest)
    assert theory.elimination_threshold(K, exact) == pytest.approx(smallest)


def test_corollary_3_15_condition_b_has_the_theorems_constant():
    """K = 201 > 2 (gamma |x0|_0)^2 with |x0|_0 = 10, and the minimizer has 11 nonzeros, all above the threshold."""
    K, gamma, nonzeros = 201, 1.0, 10
    assert 2 * (gamma * nonzeros) ** 2 < K
    _, xp = two_minimizers(K, gamma, nonzeros)
    kept = np.count_nonzero(xp > theory.elimination_threshold(K, gamma))
    assert kept == nonzeros + 1
    assert not theory.exact_recovery(K, gamma, 1.0, nonzeros=nonzeros, smallest=xp[xp > 0].min())


@pytest.mark.parametrize("nonzeros", [1, 3, 10])
def test_corollary_3_15_as_corrected_leaves_no_room_for_one_more(nonzeros):
    gamma = 1.0
    K = 2 * gamma**2 / math.log(1 + 1 / nonzeros) ** 2 * 1.001
    _, xp = two_minimizers(K, gamma, nonzeros)
    assert theory.exact_recovery(K, gamma, 1.0, nonzeros=nonzeros, smallest=xp[xp > 0].min())
    assert np.count_nonzero(xp) == nonzeros


def test_corollary_3_16_elimination_changes_a_lipschitz_loss_little():
    K, gamma, dim, L = 9, 1.0, 50, 3.0
    rng = np.random.default_rng(0)
    threshold = theory.elimination_threshold(K, gamma)
    bound = theory.elimination_loss_bound(K, gamma, lipschitz=L, dim=dim)
    for _ in range(200):
        x = rng.standard_normal(dim) * 0.1
        direction = rng.standard_normal(dim)
        direction *= L / np.linalg.norm(direction)
        assert abs(direction @ np.where(np.abs(x) < threshold, 0, x) - direction @ x) <= bound
    # Reached when every weight lies just below the threshold and the loss falls along all of them.
    assert L / math.sqrt(dim) * threshold * dim == pytest.approx(bound)


@pytest.mark.parametrize("p", [0.5, 0.2, 0.1])
def test_remark_3_17_small_coordinates_part_the_norms(p):
    """u = exp(-1/p^2) in d coordinates: the 0-norm is d, the p-norm's power d exp(-1/p)."""
    d = 7
    assert d * math.exp(-1 / p**2) ** p == pytest.approx(d * math.exp(-1 / p))


# ------------------------------------------------------------------------------- Appendix B: SCAD


def circle(r, points=200_001):
    """The quarter of (x - r)^2 + (y - r)^2 = r^2 nearest to the origin, from (0, r) to (r, 0)."""
    angle = np.linspace(math.pi, 1.5 * math.pi, points)
    return np.abs(r + r * np.cos(angle)), np.abs(r + r * np.sin(angle))


@pytest.mark.parametrize("r", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("p", "sparse"), [(0.3, True), (0.5, True), (0.53, False), (0.56, False), (0.8, False)])
def test_appendix_b_lp_prefers_the_sparse_point_of_the_circle_up_to_one_half(r, p, sparse):
    """Printed is p < 0.564, where the two equal coordinates cost as much as one; points between do better from 1/2 on.

    An angle t away from (r, 0) the large coordinate saves p r^p t, the other costs r^p (t^2/2)^p.
    """
    x, y = circle(r)
    values = x**p + y**p
    assert (values.argmin() in (0, len(x) - 1)) is sparse
    equal = 2 * (1 - math.sqrt(0.5)) ** p
    assert (equal > 1) is (p < 0.5645)


def test_appendix_b_scad_critical_radius():
    assert theory.scad_critical_radius(3.7) == pytest.approx(4.03, abs=0.005)
    radii = [theory.scad_critical_radius(a) for a in np.linspace(2.001, 60, 400)]
    assert min(radii) >= 2.56
    assert min(radii) == pytest.approx(2.56, abs=0.01)
    assert theory.scad_critical_radius(3.7, lam=0.1) == pytest.approx(0.403, abs=0.0005)
    # At the radius the sparse and the dense point cost the same.
    r = theory.scad_critical_radius(3.7)
    dense = 2 * theory.scad((1 - math.sqrt(0.5)) * r, lam=1.0)
    assert theory.scad(r, lam=1.0) == pytest.approx(float(dense))


@pytest.mark.parametrize(("r", "sparse"), [(4.036, False), (4.037, True)])
def test_appendix_b_scad_at_3_7_over_the_whole_circle(r, sparse):
    """A little above r_c = 4.032 a point between the sparse and the dense one is still cheaper."""
    x, y = circle(r)
    values = theory.scad(x, lam=1.0) + theory.scad(y, lam=1.0)
    assert bool(values.min() >= min(values[0], values[-1]) - 1e-9) is sparse


@pytest.mark.parametrize("a", [2.2, 3.7, 10.0])
def test_appendix_b_scad_is_dense_below_the_radius_over_the_whole_circle(a):
    radius = theory.scad_critical_radius(a)
    for ratio, sparse in ((0.3, False), (0.98, False), (1.02, True), (3.0, True)):
        x, y = circle(ratio * radius)
        values = theory.scad(x, lam=1.0, a=a) + theory.scad(y, lam=1.0, a=a)
        assert bool(values.min() >= min(values[0], values[-1]) - 1e-9) is sparse


# ------------------------------------------------------------------------------ Appendix C: the proofs


def test_example_c_1_l1_recovers_under_conditions_only():
    """Three columns, the first 0.4 (1, 1): b = that column. l1 takes the other two, l_1/2 the first alone."""
    A = np.array([[0.4, 1.0, 0.0], [0.4, 0.0, 1.0]])
    sparse, dense = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.4, 0.4])
    np.testing.assert_allclose(A @ sparse, A @ dense)
    # All solutions are sparse + t (dense - sparse).
    t = np.linspace(-2, 3, 5001)[:, None]
    solutions = np.abs(sparse + t * (dense - sparse))
    assert t[solutions.sum(1).argmin()] == pytest.approx(1)
    assert t[np.sqrt(solutions).sum(1).argmin()] == pytest.approx(0)


@pytest.mark.parametrize("K", [3, 5, 9, 51])
def test_fact_c_2(K):
    x = np.linspace(-1, 1, 10_001)[:-1]
    assert ((x**K - 1) / (x - 1)).min() >= 1 / (K - 1)


def test_remark_c_3_real_M_needs_no_change():
    """Real M in Algorithm 1 with |y|^M: converges to the same balance as an even one does, within Theorem 3.3's limits."""
    for M in (0.5, 1.7, math.pi):
        residuals = squared_residuals(5, M, 0.0, lam=0.1, steps=5000, gradient=lambda x: 2 * (x - 1.0))
        assert residuals[-1] < 1e-20


def test_remark_c_4_sparse_linear_models_do_not_keep_y_in_a_subspace():
    """The gradient in x stays in the row space of X, of dimension n = 2; for K = 1 so do the updates, for K = 3 they do not."""
    rng = np.random.default_rng(0)
    design, target = rng.standard_normal((2, 6)), np.array([1.0, -2.0])
    ranks = {}
    for K in (1, 3):
        _, updates = descend(lambda x: design.T @ (design @ x - target), rng.uniform(0.5, 1.5, 6), K=K, lr=0.01, steps=300)
        ranks[K] = np.linalg.matrix_rank(updates, tol=1e-6)
    assert ranks[1] == 2
    assert ranks[3] == 6


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
def test_lemma_c_5_minimizers_tend_to_the_least_p_norm(p):
    """f = (x1 + 2 x2 - 2)^2: as lam falls, the minimizer of f + lam |x|_p^p tends to (0, 1)."""
    distances = []
    for lam in (1e-1, 1e-2, 1e-3):
        side = np.unique(np.concatenate([np.linspace(0, 2, 1001), 1 + np.linspace(-0.05, 0.05, 1001)]))
        values = (side[:, None] + 2 * side - 2) ** 2 + lam * (side[:, None] ** p + side**p)
        first, second = np.unravel_index(values.argmin(), values.shape)
        distances.append(math.hypot(side[first], side[second] - 1))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-3


def test_lemma_c_5_no_lambda_above_zero_gives_a_solution():
    """The proof ends with equality for small lam; f = (x - 1)^2 has its minimizer of f + lam |x|^p below 1 for each."""
    for lam in (1e-1, 1e-2, 1e-4):
        below = np.linspace(0, lam, 10_001)  # 1 - x
        assert 0 < below[np.argmin(below**2 + lam * np.sqrt(1 - below))] < lam


def test_lemma_c_6_fails_with_the_printed_constant():
    """The case of Theorem 3.14 in terms of p, with all three conditions on p met."""
    gamma, p, nonzeros = 1.0, 2 / 9, 10
    assert p <= min(1 / gamma**2, (gamma / (2 * gamma**2)) ** 2)
    x0, xp = two_minimizers(2 / p, gamma, nonzeros)
    assert np.count_nonzero(xp) > (1 + gamma * math.sqrt(p)) * np.count_nonzero(x0)
    assert np.count_nonzero(xp) <= (1 + 2 * gamma * math.sqrt(p)) * np.count_nonzero(x0)


@given(
    p=st.floats(0.05, 0.95), over=st.floats(0, 3), delta=st.floats(0.01, 5), seed=st.integers(0, 10**6), dim=st.integers(1, 8)
)
@settings(deadline=None)
def test_lemma_c_7_triangle_inequality(p, over, delta, seed, dim):
    """As printed, and in the stronger form that the proof of Lemma C.5 uses, with the factor on both terms."""
    beta = p * (1 + over)
    rng = np.random.default_rng(seed)
    large, small = rng.standard_normal(dim), rng.standard_normal(dim)
    small *= (np.sum(np.abs(large) ** p) / np.sum(np.abs(small) ** p) / (1 + delta)) ** (1 / p) * rng.uniform(0, 1)
    factor = delta ** (beta / p) / ((1 + delta) ** (beta / p) - 1)
    big, little, apart = (np.sum(np.abs(v) ** p) ** (beta / p) for v in (large, small, large - small))
    assert factor * big - little <= apart * (1 + 1e-9)
    assert factor * (big - little) <= apart * (1 + 1e-9)


@given(b=st.floats(1e-3, 1e3), delta=st.floats(1e-3, 10), over=st.floats(1e-6, 10), c=st.floats(1.001, 8))
@settings(deadline=None)
def test_fact_c_8(b, delta, over, c):
    a = b * (1 + delta) * (1 + over)
    assert (a - b) ** c >= delta**c / ((1 + delta) ** c - 1) * (a**c - b**c) * (1 - 1e-9)


@given(a=st.floats(0, 50), b=st.floats(1e-3, 50), share=st.floats(1e-6, 1))
@settings(deadline=None)
def test_fact_c_9(a, b, share):
    p = share * ((a + b) / (a + 2 * b**2 + a * b)) ** 2
    assert (1 + a * p) / (1 - b * math.sqrt(p)) <= (1 + (a + 2 * b) * math.sqrt(p)) * (1 + 1e-9)


def test_lemma_c_10():
    u = np.linspace(-50, 2, 100_001)
    assert (np.exp(u) <= 1 + 4 * np.maximum(0, u)).all()
