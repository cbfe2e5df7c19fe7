"""The logistic loss against scikit-learn for p = 1, and against the conditions of its solutions for p < 1."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from rewa.estimators import path, penalty
from rewa.estimators.logistic import Logistic
from rewa.estimators.standardized import Standardized

CLASSES = pytest.mark.parametrize("classes", [2, 3])


def problem(classes, rows=120, columns=30, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, columns)) + random.exponential(size=columns)
    b = np.zeros((columns, classes))
    b[:4] = random.normal(size=(4, classes)) * 1.5
    y = np.argmax((X - X.mean(axis=0)) @ b + 0.5 * np.arange(classes) + random.gumbel(size=(rows, classes)), axis=1)
    return X, y


def logistic(X, y, classes, weights=None, *, fit_intercept=True, standardize=True):
    weights = np.ones(len(y)) if weights is None else weights
    Z = Standardized(X, weights / weights.sum(), center=fit_intercept, standardize=standardize)
    return Logistic(Z, y, classes, fit_intercept=fit_intercept)


def last(loss, alphas, p, factors=None, **options):
    return list(path.follow(loss, np.atleast_1d(alphas), p, np.ones(loss.size) if factors is None else factors, **options))[-1]


def dense(point, columns, classes):
    coef = np.zeros((1 if classes == 2 else classes) * columns)
    coef[point.index] = point.values
    return coef.reshape(-1, columns)


def assert_solved(loss, alpha, p, factors=None, positive=False, tol=1e-8):
    """Slopes balance the penalty where a coefficient is not zero, and do not suffice to enter where it is."""
    a = alpha * (np.ones(loss.size) if factors is None else factors)
    slope, curvature = loss.slopes()
    on = loss.b != 0
    pull = np.where(a[on] > 0, a[on] * np.abs(loss.b[on]) ** (p - 1), 0.0)
    np.testing.assert_allclose(slope[on] + np.sign(loss.b[on]) * pull, 0.0, atol=tol)
    push = (-slope if positive else np.abs(slope))[~on]
    assert np.all(push <= np.maximum(penalty.entry_threshold(a, curvature, p)[~on] * (1 + 1e-6), tol))
    held = np.abs(curvature * loss.b - slope)[on]
    if not positive:
        assert np.all(held >= penalty.entry_threshold(a, curvature, p)[on] * (1 - 1e-6))
    rest = loss.Z.weights * (loss.probabilities(loss.margins) - loss.truth)
    if loss.fit_intercept:
        np.testing.assert_allclose(rest.sum(axis=1), 0.0, atol=tol)


def test_slopes_are_derivatives_of_the_loss():
    for classes in (2, 3):
        X, y = problem(classes, columns=5)
        loss = logistic(X, y, classes)
        coef, intercept = np.random.default_rng(1).normal(size=(2, loss.size)) * 0.3
        loss.start(coef, intercept[: loss.outputs])
        slope, curvature = loss.slopes()
        for j in range(loss.size):

            def along(step, j=j):
                margins = loss.margins.copy()
                margins[j // 5] += step * loss.Z.take(np.arange(loss.Z.columns))[:, j % 5]
                return loss.loss(margins)

            assert slope[j] == pytest.approx((along(1e-5) - along(-1e-5)) / 2e-5, abs=1e-9)
            assert curvature[j] == pytest.approx((along(1e-3) - 2 * along(0.0) + along(-1e-3)) / 1e-6, abs=1e-6)


@CLASSES
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_p_1_is_the_lasso_of_scikit_learn(classes, fit_intercept):
    X, y = problem(classes)
    loss = logistic(X, y, classes, fit_intercept=fit_intercept, standardize=False)
    alpha = 0.2 * path.alpha_max(loss, 1.0, np.ones(loss.size))
    point = last(loss, [3 * alpha, alpha], 1.0)
    rival = LogisticRegression(
        l1_ratio=1, C=1 / (len(y) * alpha), solver="saga", tol=1e-10, max_iter=100_000, fit_intercept=fit_intercept
    ).fit(X, y)
    assert 3 < len(point.index) < loss.size
    np.testing.assert_allclose(dense(point, 30, classes), rival.coef_, atol=1e-5)
    np.testing.assert_allclose(point.intercept, rival.intercept_, atol=1e-5)


@CLASSES
@pytest.mark.parametrize("p", [1.0, 2 / 3, 1 / 2])
@pytest.mark.parametrize("positive", [False, True])
def test_no_coefficient_of_a_path_can_improve(classes, p, positive):
    loss = logistic(*problem(classes), classes)
    ones = np.ones(loss.size)
    alphas = path.grid(path.alpha_max(loss, p, ones, positive), p, 15, 0.03)
    sizes = []
    for alpha, point in zip(alphas, path.follow(loss, alphas, p, ones, positive=positive), strict=True):
        assert point.converged
        assert_solved(loss, alpha, p, positive=positive)
        assert not positive or loss.b.min() >= 0
        sizes.append(len(point.index))
    assert sizes[0] == 0
    assert sizes[-1] > 8


@CLASSES
@pytest.mark.parametrize("p", [1.0, 2 / 3, 1 / 3])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_alpha_max_is_where_the_path_begins(classes, p, fit_intercept):
    loss = logistic(*problem(classes), classes, fit_intercept=fit_intercept)
    largest = path.alpha_max(loss, p, np.ones(loss.size))
    assert not last(loss, 1.001 * largest, p).index.size
    assert last(loss, 0.99 * largest, p).index.size


@pytest.mark.parametrize("p", [2 / 3, 1 / 2])
def test_binary_solution_is_a_minimum_on_its_support(p):
    X, y = problem(2)
    loss = logistic(X, y, 2, standardize=False)
    alpha = 0.2 * path.alpha_max(loss, p, np.ones(loss.size))
    point = last(loss, alpha, p)
    sign = 2 * y - 1

    def objective(x):
        return np.mean(np.logaddexp(0, -sign * (x[0] + X[:, point.index] @ x[1:]))) + alpha * penalty.value(x[1:], p).sum()

    found = np.append(point.intercept, point.values)
    best = minimize(objective, found * 1.05, method="BFGS", options={"gtol": 1e-9, "xrtol": 1e-12})
    assert len(point.index) > 2
    assert objective(found) <= best.fun + 1e-12
    np.testing.assert_allclose(found, best.x, atol=1e-5)


@CLASSES
def test_sparse_equals_dense(classes):
    X, y = problem(classes)
    X[np.random.default_rng(1).random(X.shape) < 0.7] = 0.0
    p = 2 / 3
    results = []
    for each in (X, sparse.csc_matrix(X)):
        loss = logistic(each, y, classes)
        alpha = path.alpha_max(loss, p, np.ones(loss.size))
        point = last(loss, [0.5 * alpha, 0.1 * alpha], p)
        results.append((dense(point, 30, classes), point.intercept, *loss.refit(point.index)))
    assert np.count_nonzero(results[0][0]) > 3
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


@CLASSES
@pytest.mark.parametrize("p", [1.0, 1 / 2])
def test_integer_weights_equal_repeated_rows(classes, p):
    X, y = problem(classes, rows=60)
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    weighted = logistic(X, y, classes, weights.astype(float))
    repeated = logistic(np.repeat(X, weights, axis=0), np.repeat(y, weights), classes)
    alpha = 0.2 * path.alpha_max(weighted, p, np.ones(weighted.size))
    one, other = last(weighted, alpha, p), last(repeated, alpha, p)
    assert one.index.size
    np.testing.assert_allclose(dense(one, 30, classes), dense(other, 30, classes), atol=1e-7)
    np.testing.assert_allclose(one.intercept, other.intercept, atol=1e-7)


@CLASSES
def test_factor_0_is_never_penalized(classes):
    X, y = problem(classes)
    loss = logistic(X, y, classes)
    factors = np.ones(loss.size)
    factors[5::30] = 0.0
    point = last(loss, 10.0, 2 / 3, factors)
    assert point.index.tolist() == list(range(5, loss.size, 30))
    assert_solved(loss, 10.0, 2 / 3, factors)
    alone = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X[:, [5]], y)
    np.testing.assert_allclose(point.values, alone.coef_.ravel(), atol=1e-5)
    np.testing.assert_allclose(point.intercept, alone.intercept_, atol=1e-5)


@CLASSES
def test_refit_has_no_slope_and_leaves_the_point(classes):
    X, y = problem(classes)
    loss = logistic(X, y, classes)
    point = last(loss, 0.2 * path.alpha_max(loss, 2 / 3, np.ones(loss.size)), 2 / 3)
    before = loss.b.copy()
    values, intercept = loss.refit(point.index)
    np.testing.assert_array_equal(loss.b, before)
    assert np.abs(values).sum() > np.abs(point.values).sum()
    coef = np.zeros(loss.size)
    coef[point.index] = values
    loss.start(coef, intercept)
    np.testing.assert_allclose(loss.slopes()[0][point.index], 0.0, atol=1e-9)
    np.testing.assert_allclose((loss.Z.weights * (loss.probabilities(loss.margins) - loss.truth)).sum(axis=1), 0.0, atol=1e-9)


@CLASSES
def test_start_and_reset(classes):
    X, y = problem(classes)
    loss = logistic(X, y, classes)
    empty = loss.slopes()[0].copy()
    alpha = 0.2 * path.alpha_max(loss, 2 / 3, np.ones(loss.size))
    point = last(loss, alpha, 2 / 3)
    other = logistic(X, y, classes)
    other.start(dense(point, 30, classes).ravel(), point.intercept)
    np.testing.assert_allclose(other.slopes()[0], loss.slopes()[0], atol=1e-12)
    assert last(other, alpha, 2 / 3).n_iter == 0
    loss.reset()
    np.testing.assert_array_equal(loss.slopes()[0], empty)
    assert not loss.b.any()


@CLASSES
@pytest.mark.parametrize("p", [1.0, 2 / 3])
def test_separable_classes(classes, p):
    X, y = problem(classes)
    X[:, 0] = 10.0 * y
    loss = logistic(X, y, classes)
    ones = np.ones(loss.size)
    alphas = path.grid(path.alpha_max(loss, p, ones), p, 20, 1e-4)
    for alpha, point in zip(alphas, path.follow(loss, alphas, p, ones), strict=True):
        assert point.converged
        assert_solved(loss, alpha, p)
    assert loss.loss(loss.margins) < 0.01
    loss.reset()
    values, intercept = loss.refit(np.arange(0, loss.size, 30))
    assert np.all(np.isfinite(values))
    coef = np.zeros(loss.size)
    coef[::30] = values
    loss.start(coef, intercept)
    assert 1e-5 < loss.loss(loss.margins) < 1e-3


@CLASSES
def test_unpenalized_and_separable_comes_to_an_end(classes):
    X, y = problem(classes)
    X[:, 0] = 10.0 * y
    loss = logistic(X, y, classes)
    point = last(loss, 1.0, 1 / 2, np.where(np.arange(loss.size) % 30 == 0, 0.0, 1.0))
    assert np.all(np.isfinite(point.values))
    assert np.all(np.isfinite(point.intercept))
    assert np.all(loss.truth == (loss.probabilities(loss.margins) > 0.5))


@CLASSES
def test_one_class_has_all_the_weight(classes):
    X, y = problem(classes)
    loss = logistic(X, y, classes, (y == 1).astype(float))
    ones = np.ones(loss.size)
    assert path.alpha_max(loss, 2 / 3, ones) == 0.0
    point = last(loss, 0.0, 2 / 3)
    assert point.converged
    assert not point.index.size
    assert np.all(np.isfinite(point.intercept))
    P = loss.probabilities(loss.margins)
    assert np.all(P[0 if classes == 2 else 1] > 1 - 1e-9)


def test_a_class_without_rows():
    X, y = problem(3)
    with_it, without = logistic(X, np.where(y == 2, 3, y), 4), logistic(X, y, 3)
    alpha = 0.2 * path.alpha_max(without, 2 / 3, np.ones(without.size))
    one, other = last(with_it, alpha, 2 / 3), last(without, alpha, 2 / 3)
    assert one.converged
    np.testing.assert_allclose(dense(one, 30, 4)[[0, 1, 3]], dense(other, 30, 3), atol=1e-6)
    assert not dense(one, 30, 4)[2].any()


@CLASSES
def test_constant_and_duplicated_columns(classes):
    X, y = problem(classes)
    X[:, 1], X[:, 2] = X[:, 0], 7.0
    for p in (1.0, 2 / 3):
        loss = logistic(X, y, classes)
        factors = np.ones(loss.size)
        factors[2] = 0.0
        alpha = 0.05 * path.alpha_max(loss, p, factors)
        point = last(loss, alpha, p, factors)
        assert point.converged
        assert not np.any(point.index % 30 == 2)
        assert np.all(np.isfinite(loss.refit(np.arange(loss.size))[0]))
        assert_solved(loss, alpha, p, factors)


def test_huge_and_tiny_columns():
    X, y = problem(2)
    p = 2 / 3
    results = []
    for unit in (1.0, 1e12, 1e-12):
        loss = logistic(X * unit, y, 2)
        point = last(loss, 0.2 * path.alpha_max(loss, p, np.ones(loss.size)), p)
        results.append(dense(point, 30, 2) * unit)
    np.testing.assert_allclose(results[1], results[0], atol=1e-8)
    np.testing.assert_allclose(results[2], results[0], atol=1e-8)


def test_steps_never_go_up():
    X, y = problem(2, rows=40)
    X = np.sign(X) * np.abs(X) ** 3
    ones = np.ones(30)
    for p in (1.0, 2 / 3, 1 / 3):
        loss = logistic(X, y, 2)
        alpha = 0.01 * path.alpha_max(loss, p, ones)
        values = []
        for _ in range(100):
            values.append(loss.loss(loss.margins) + alpha * penalty.value(loss.b, p).sum())
            steps, done = loss.solve(np.arange(30), alpha * ones, p, False, 1e-8, 1)
            if done:
                break
            assert steps == 1
        assert done
        assert len(values) > 3
        assert np.all(np.diff(values) <= 1e-12)


def test_a_jump_is_judged_by_the_loss():
    # Few of class 1 and a skewed column: by its parabola it should enter at both weights, by the loss only at the lower one.
    p = 1 / 3
    z = np.append(np.zeros(45), np.random.default_rng(0).uniform(0.5, 3.0, 15))
    y = (np.arange(60) >= 52).astype(int)
    loss = logistic(z[:, None], y, 2)
    x, sign = loss.Z.take(np.arange(loss.Z.columns))[:, 0], 2 * y - 1
    largest = path.alpha_max(loss, p, np.ones(1))
    for share, enters in ((0.95, False), (0.6, True)):
        alpha = share * largest

        def objective(point, alpha=alpha):
            return np.mean(np.logaddexp(0, -sign * (point[0] + point[1] * x))) + alpha * penalty.value(point[1], p)

        loss.reset()
        point = last(loss, alpha, p)
        starts = ([-1.0, 0.3], [-1.0, 1.0], [-1.0, 3.0])
        best = min([objective([loss.best[0], 0.0]), *(minimize(objective, start).fun for start in starts)])
        assert point.converged
        assert bool(point.index.size) == enters
        assert loss.loss(loss.margins) + alpha * penalty.value(loss.b, p).sum() <= best + 1e-10


@CLASSES
def test_max_iter_is_respected(classes):
    loss = logistic(*problem(classes), classes)
    point = last(loss, 0.01 * path.alpha_max(loss, 2 / 3, np.ones(loss.size)), 2 / 3, max_iter=2)
    assert not point.converged
    assert point.n_iter == 2
    assert np.all(np.isfinite(point.values))
