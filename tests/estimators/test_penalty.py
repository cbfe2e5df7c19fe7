"""The l_p penalty of one coefficient, against a search over a fine grid."""

import numpy as np
import pytest

from rewa.estimators import penalty
from rewa.theory import regularizer

EXPONENTS = [1.0, 0.9, 2 / 3, 0.5, 1 / 3, 0.1]


def searched(z, a, L, p):
    """The minimizer by trying: a grid, and a finer one around the best."""
    b = np.linspace(-1.2 * abs(z) - 1, 1.2 * abs(z) + 1, 200_001)
    for _ in range(3):
        best = b[np.argmin(L / 2 * (b - z) ** 2 + a / p * np.abs(b) ** p)]
        width = b[1] - b[0]
        b = np.append(np.linspace(best - 2 * width, best + 2 * width, 200_001), 0.0)
    return b[np.argmin(L / 2 * (b - z) ** 2 + a / p * np.abs(b) ** p)]


@pytest.mark.parametrize("p", EXPONENTS)
def test_prox_is_the_global_minimizer(p):
    random = np.random.default_rng(0)
    for _ in range(12):
        z, a, L = random.normal() * 3, random.uniform(0.05, 2), random.uniform(0.2, 4)
        assert penalty.prox(z, a, L, p) == pytest.approx(searched(z, a, L, p), abs=1e-6)


@pytest.mark.parametrize("p", EXPONENTS)
def test_the_minimizer_leaves_zero_at_the_threshold(p):
    a, L = np.array([0.3, 1.0, 2.5]), np.array([1.0, 0.4, 3.0])
    z = penalty.entry_threshold(a, L, p) / L
    assert not penalty.prox(z * (1 - 1e-9), a, L, p).any()
    above = penalty.prox(z * (1 + 1e-9), a, L, p)
    assert (above > 0).all()
    # At the threshold both minimizers cost the same.
    both = L / 2 * (above - z) ** 2 + a * penalty.value(above, p)
    np.testing.assert_allclose(both, L / 2 * z**2, rtol=1e-6)


@pytest.mark.parametrize("p", EXPONENTS)
def test_largest_alpha_inverts_the_threshold(p):
    a, L = np.array([1e-6, 0.3, 70.0]), np.array([2.0, 0.1, 1.0])
    np.testing.assert_allclose(penalty.largest_alpha(penalty.entry_threshold(a, L, p), L, p), a, rtol=1e-12)


def test_p_to_one_is_the_lasso():
    z, a, L = np.array([3.0, -0.5, 1.0]), 0.7, 2.0
    np.testing.assert_allclose(penalty.prox(z, a, L, 1 - 1e-9), penalty.prox(z, a, L, 1.0), atol=1e-7)
    np.testing.assert_allclose(penalty.entry_threshold(a, L, 1 - 1e-9), a, rtol=1e-6)


def test_the_penalty_is_the_one_of_the_theory():
    b = np.array([-2.0, 0.3, 1.0])
    for K, M in ((3, 2), (4, 3), (9, 2)):
        p, same = penalty.exponents(None, K, M)
        assert same == M
        np.testing.assert_allclose(penalty.value(b, p), regularizer(b, K, M), rtol=1e-14)


def test_prox_of_nothing_is_nothing():
    assert penalty.prox(0.0, 1.0, 1.0, 0.5) == 0
    assert penalty.prox(2.0, 0.0, 1.0, 0.5) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, 3, 0.5), "p = 1 \\+ \\(1 - M\\)/K = 1.16667; allowed"),
        ((None, 3, 4), "= 0; allowed"),
        ((1.5, 3, None), "p=1.5 is not in"),
        ((0.0, 3, None), "p=0.0 is not in"),
        ((0.5, 3, 2), "contradict .* leave M out, it would be 2.5"),
        ((0.5, 0.5, None), "Invalid K value"),
    ],
)
def test_exponents_that_make_no_sense(given, message):
    with pytest.raises(ValueError, match=message):
        penalty.exponents(*given)
