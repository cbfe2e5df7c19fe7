"""Columns as the penalty sees them, the squared loss, and the path of its minimizers."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import lasso_path

from rewa.estimators import path, penalty
from rewa.estimators.least_squares import Correlations, LeastSquares
from rewa.estimators.standardized import Standardized

EXPONENTS = [1.0, 2 / 3, 0.5, 1 / 3]


def data(seed=0, n=50, d=30):
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, d)) * random.uniform(0.1, 5, d) + random.normal(size=d)
    X[random.uniform(size=X.shape) < 0.5] = 0.0
    y = X[:, :4] @ [1.0, -1.0, 2.0, 0.5] + random.standard_normal(n)
    weights = random.uniform(0.2, 1, n)
    return X, y, weights / weights.sum()


def loss_of(X, y, weights, *, center=True, standardize=True):
    Z = Standardized(X, weights, center=center, standardize=standardize)
    return LeastSquares(Correlations(Z), y, fit_intercept=center)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_columns_are_what_they_are_said_to_be(center, standardize, kind):
    X, y, weights = data()
    mean = weights @ X if center else np.zeros(X.shape[1])
    scale = np.sqrt(weights @ (X - mean) ** 2) if standardize else np.ones(X.shape[1])
    expected = (X - mean) / scale
    given = X.copy() if kind == "dense" else sparse.csc_array(X)
    Z = Standardized(given, weights, center=center, standardize=standardize)
    index = np.array([3, 0, 7])
    np.testing.assert_allclose(Z.take(index), expected[:, index], atol=1e-12)
    np.testing.assert_allclose(Z.correlate(y), expected.T @ y, atol=1e-10)
    np.testing.assert_allclose(Z.squares(y**2), (expected**2).T @ y**2, rtol=1e-10)
    np.testing.assert_allclose(Z.curvature, weights @ expected**2, rtol=1e-10)
    assert (given == X).all() if kind == "dense" else (given.toarray() == X).all()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_columns_of_any_size(kind, size):
    X, _, weights = data()
    given = X * size if kind == "dense" else sparse.csc_array(X * size)
    Z = Standardized(given, weights, center=True, standardize=True)
    expected = Standardized(X, weights, center=True, standardize=True)
    np.testing.assert_allclose(Z.take(np.arange(5)), expected.take(np.arange(5)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_constant_column_is_no_column(kind):
    X, y, weights = data()
    X[:, 2] = 0.1  # not a number that a float holds exactly
    given = X if kind == "dense" else sparse.csc_array(X)
    Z = Standardized(given, weights, center=True, standardize=True)
    assert Z.curvature[2] == 0
    assert Z.correlate(y)[2] == 0
    loss = LeastSquares(Correlations(Z), y, fit_intercept=True)
    last = list(path.follow(loss, path.grid(path.alpha_max(loss, 0.5, np.ones(30)), 0.5, 20, 1e-4), 0.5, np.ones(30)))[-1]
    assert 2 not in last.index


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_path_starts_empty_and_ends_full(p):
    X, y, weights = data()
    loss = loss_of(X, y, weights)
    factors = np.ones(30)
    largest = path.alpha_max(loss, p, factors)
    alphas = np.array([largest * (1 + 1e-6), largest * (1 - 1e-6), *path.grid(largest, p, 40, 1e-4)[1:]])
    sizes = [len(point.index) for point in path.follow(loss, alphas, p, factors)]
    assert sizes[:2] == [0, 1]
    assert sizes[-1] == 30


@pytest.mark.parametrize("p", EXPONENTS)
def test_the_largest_alpha_is_that_of_a_search(p):
    """At the empty model, no coefficient alone is worth its penalty above it, and one is below."""
    X, y, weights = data()
    loss = loss_of(X, y, weights, standardize=False)
    largest = path.alpha_max(loss, p, np.ones(30))
    Z = X - weights @ X
    rest = y - weights @ y

    def gain(alpha):
        b = np.sign(weights @ (Z * rest[:, None])) * np.geomspace(1e-4, 10, 20_001)[:, None]
        fit = 0.5 * (weights @ rest**2) - b * (weights @ (Z * rest[:, None])) + 0.5 * b**2 * (weights @ Z**2)
        return (0.5 * (weights @ rest**2) - fit - alpha * np.abs(b) ** p / p).max()

    assert gain(largest * 1.001) <= 0
    assert gain(largest * 0.999) > 0


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_every_model_of_a_path_is_optimal_in_the_units_of_the_data(p, kind):
    X, y, weights = data(n=40, d=60)
    given = X if kind == "dense" else sparse.csc_array(X)
    factors = np.random.default_rng(1).uniform(0.5, 2, 60)
    factors[5] = 0.0
    Z = Standardized(given, weights, center=True, standardize=True)
    loss = LeastSquares(Correlations(Z), y, fit_intercept=True)
    alphas = path.grid(path.alpha_max(loss, p, factors), p, 25, 0.02)
    spread = np.sqrt(weights @ (X - weights @ X) ** 2)
    for alpha, point in zip(alphas, path.follow(loss, alphas, p, factors, tol=1e-11), strict=True):
        assert point.converged
        b = np.zeros(60)
        b[point.index] = point.values
        residual = y - X @ b - point.intercept
        assert weights @ residual == pytest.approx(0, abs=1e-9)
        slope = -X.T @ (weights * residual)
        on = b != 0
        a = alpha * factors * spread**p
        np.testing.assert_allclose(slope[on] + a[on] * np.sign(b[on]) * np.abs(b[on]) ** (p - 1), 0, atol=1e-7)
        assert (np.abs(slope[~on]) <= penalty.entry_threshold(a[~on], spread[~on] ** 2, p) * (1 + 1e-6)).all()
        assert on[5]


def test_p_1_is_the_path_of_scikit_learn():
    X, y, _ = data(n=40, d=60)
    Xc, yc = X - X.mean(axis=0), y - y.mean()
    loss = loss_of(X, y, np.full(40, 1 / 40), standardize=False)
    alphas = path.grid(path.alpha_max(loss, 1.0, np.ones(60)), 1.0, 15, 0.01)
    _, expected, _ = lasso_path(Xc, yc, alphas=alphas, tol=1e-13, max_iter=1_000_000)
    for column, point in zip(expected.T, path.follow(loss, alphas, 1.0, np.ones(60)), strict=True):
        b = np.zeros(60)
        b[point.index] = point.values
        np.testing.assert_allclose(b, column, atol=1e-6)


@pytest.mark.parametrize("p", EXPONENTS)
def test_sparse_and_dense_agree(p):
    X, y, weights = data(n=40, d=60)
    dense = loss_of(X, y, weights)
    thin = LeastSquares(
        Correlations(Standardized(sparse.csc_array(X), weights, center=True, standardize=True)), y, fit_intercept=True
    )
    alphas = path.grid(path.alpha_max(dense, p, np.ones(60)), p, 30, 0.01)
    for one, other in zip(*(path.follow(loss, alphas, p, np.ones(60)) for loss in (dense, thin)), strict=True):
        np.testing.assert_array_equal(one.index, other.index)
        np.testing.assert_allclose(one.values, other.values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [1e-140, 1e140])
def test_targets_of_any_size(size):
    X, y, weights = data()
    for p in EXPONENTS:
        one, other = loss_of(X, y, weights), loss_of(X, y * size, weights)
        largest = path.alpha_max(one, p, np.ones(30))
        assert path.alpha_max(other, p, np.ones(30)) == pytest.approx(largest * size ** (2 - p), rel=1e-9)
        alphas = path.grid(largest, p, 10, 0.05)
        for point, scaled in zip(
            path.follow(one, alphas, p, np.ones(30)),
            path.follow(other, alphas * size ** (2 - p), p, np.ones(30)),
            strict=True,
        ):
            np.testing.assert_allclose(scaled.values / size, point.values, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-220, 1e220])
def test_targets_whose_square_has_no_number(size):
    X, y, weights = data()
    with pytest.raises(ValueError, match=r"of the size .*e[+-]220.*divide the targets"):
        path.alpha_max(loss_of(X, y * size, weights), 0.5, np.ones(30))


def test_targets_that_are_constant():
    X, _, weights = data()
    loss = loss_of(X, np.full(50, 0.3), weights)
    assert path.alpha_max(loss, 0.5, np.ones(30)) == 0
    (point,) = path.follow(loss, np.array([0.0]), 0.5, np.ones(30))
    assert not point.index.size
    assert point.intercept == pytest.approx([0.3])


def test_a_refit_is_least_squares():
    X, y, weights = data()
    loss = loss_of(X, y, weights)
    index = np.array([0, 2, 9])
    values, intercept = loss.refit(index)
    root = np.sqrt(weights)[:, None]
    expected = np.linalg.lstsq(root * np.column_stack([X[:, index], np.ones(50)]), root[:, 0] * y, rcond=None)[0]
    np.testing.assert_allclose([*values, *intercept], expected, rtol=1e-9)


def test_starting_from_a_model_finds_it_again():
    X, y, weights = data()
    loss = loss_of(X, y, weights)
    alphas = path.grid(path.alpha_max(loss, 0.5, np.ones(30)), 0.5, 20, 0.05)
    *_, last = path.follow(loss, alphas, 0.5, np.ones(30))
    coef = np.zeros(30)
    coef[last.index] = last.values
    loss.reset()
    assert not loss.b.any()
    loss.start(coef, last.intercept)
    (again,) = path.follow(loss, alphas[-1:], 0.5, np.ones(30))
    assert again.n_iter == 0
    np.testing.assert_allclose(again.values, last.values, rtol=1e-9)
