"""The small dense problem, against coordinate descent with the exact minimizer of each coordinate."""

import numpy as np
import pytest
from sklearn.linear_model import Lasso

from rewa.estimators import penalty
from rewa.estimators.active_set import minimize

EXPONENTS = [1.0, 2 / 3, 0.5, 1 / 3]


def problem(seed, n=60, m=12, rho=0.0):
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, m)) + rho * random.standard_normal((n, 1))
    beta = np.where(np.arange(m) % 4 == 0, random.choice([-2.0, 1.0, 3.0], m), 0.0)
    y = X @ beta + random.standard_normal(n)
    return X.T @ X / n, X.T @ y / n


def objective(Q, q, a, p, b):
    return 0.5 * b @ Q @ b - q @ b + a @ penalty.value(b, p)


def coordinate_descent(Q, q, a, p, b, sweeps=5000):
    """One coordinate after the other at its global minimizer: slow and obvious."""
    b = b.copy()
    for _ in range(sweeps):
        before = b.copy()
        for j in range(len(b)):
            rest = q[j] - Q[j] @ b + Q[j, j] * b[j]
            b[j] = float(penalty.prox(rest / Q[j, j], a[j], Q[j, j], p))
        if np.abs(b - before).max() < 1e-14:
            break
    return b


def improvement(Q, q, a, p, b):
    """By how much a single coordinate could still move."""
    rest = q - Q @ b + np.diag(Q) * b
    return np.abs(penalty.prox(rest / np.diag(Q), a, np.diag(Q), p) - b).max()


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("rho", [0.0, 1.5])
def test_no_coordinate_can_improve_the_solution(p, rho):
    for seed in range(6):
        Q, q = problem(seed, rho=rho)
        for a in (0.02, 0.2, 1.0):
            b, steps, done = minimize(Q, q, np.full(len(q), a), p, np.zeros(len(q)), tol=1e-12)
            assert done
            assert steps < 200
            assert improvement(Q, q, np.full(len(q), a), p, b) < 1e-8


@pytest.mark.parametrize("p", EXPONENTS)
def test_coordinate_descent_stays_where_it_is_and_does_no_better_from_zero(p):
    worse = 0
    for seed in range(8):
        Q, q = problem(seed)
        a = np.full(len(q), 0.1)
        b, _, _ = minimize(Q, q, a, p, np.zeros(len(q)), tol=1e-13)
        np.testing.assert_allclose(coordinate_descent(Q, q, a, p, b), b, atol=1e-9)
        worse += objective(Q, q, a, p, b) > objective(Q, q, a, p, coordinate_descent(Q, q, a, p, np.zeros(len(q)))) + 1e-9
    assert worse <= (0 if p == 1 else 2)


def test_p_1_is_the_lasso_of_scikit_learn():
    random = np.random.default_rng(1)
    X = random.standard_normal((40, 80))
    y = X[:, :3].sum(axis=1) + 0.5 * random.standard_normal(40)
    expected = Lasso(alpha=0.05, fit_intercept=False, tol=1e-14, max_iter=1_000_000).fit(X, y).coef_
    b, _, done = minimize(X.T @ X / 40, X.T @ y / 40, np.full(80, 0.05), 1.0, np.zeros(80), tol=1e-13)
    assert done
    np.testing.assert_allclose(b, expected, atol=1e-7)
    assert ((b != 0) == (np.abs(expected) > 1e-9)).all()


def test_a_coefficient_without_penalty_has_no_slope_left():
    Q, q = problem(3)
    a = np.full(len(q), 0.5)
    a[[1, 2]] = 0.0
    b, _, done = minimize(Q, q, a, 0.5, np.zeros(len(q)), tol=1e-12)
    assert done
    np.testing.assert_allclose((Q @ b - q)[[1, 2]], 0, atol=1e-10)


@pytest.mark.parametrize("p", EXPONENTS)
def test_positive_coefficients(p):
    Q, q = problem(4)
    a = np.full(len(q), 0.05)
    b, _, done = minimize(Q, q, a, p, np.zeros(len(q)), positive=True, tol=1e-12)
    assert done
    assert (b >= 0).all()
    assert (b > 0).any()
    slope = Q @ b - q
    on = b > 0
    np.testing.assert_allclose(slope[on] + a[on] * b[on] ** (p - 1), 0, atol=1e-9)
    assert (-slope[~on] <= penalty.entry_threshold(a[~on], np.diag(Q)[~on], p) * (1 + 1e-8)).all()


def test_the_same_column_twice():
    Q, q = problem(5)
    twice = np.append(np.arange(len(q)), 0)
    for p in EXPONENTS:
        b, _, done = minimize(Q[np.ix_(twice, twice)], q[twice], np.full(len(twice), 0.1), p, np.zeros(len(twice)))
        alone, _, _ = minimize(Q, q, np.full(len(q), 0.1), p, np.zeros(len(q)))
        assert done
        assert np.isfinite(b).all()
        assert b[0] + b[-1] == pytest.approx(alone[0], abs=1e-6)


def test_a_column_of_zeros_stays_out_even_without_penalty():
    Q, q = problem(6)
    Q[2], Q[:, 2], q[2] = 0.0, 0.0, 0.0
    a = np.full(len(q), 0.1)
    a[2] = 0.0
    b, _, done = minimize(Q, q, a, 0.5, np.ones(len(q)))
    assert done
    assert b[2] == 0


def test_too_few_steps_are_said_to_be_too_few():
    Q, q = problem(7)
    _, steps, done = minimize(Q, q, np.full(len(q), 0.01), 0.5, np.zeros(len(q)), max_iter=2)
    assert steps == 2
    assert not done


def test_nothing_to_explain():
    Q, _ = problem(8)
    b, steps, done = minimize(Q, np.zeros(len(Q)), np.ones(len(Q)), 0.5, np.ones(len(Q)))
    assert (steps, done) == (0, True)
    assert not b.any()
