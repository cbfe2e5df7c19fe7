"""The iteration against a slow reference, against closed forms and scikit-learn's lasso, and against the other solver."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.linear_model import Lasso, LogisticRegression

from rewa import theory
from rewa.estimators import active_set, iteration, penalty
from rewa.estimators.iteration.full_batch import MEMORY, FullBatch
from rewa.estimators.iteration.result import fitted
from rewa.estimators.iteration.start import unit_start
from rewa.estimators.iteration.state import receive

SETTINGS = [(3, 2), (4, 3)]  # p = 2/3 and 1/2


def problem(n=100, d=20, noise=0.3, seed=0):
    """Three strong coefficients, columns and target centred."""
    rng = np.random.RandomState(seed)
    X = rng.randn(n, d)
    X -= X.mean(axis=0)
    coef = np.zeros(d)
    coef[[1, 4, 7] if d > 7 else [0, 1, 2]] = 2.0, -1.5, 1.0
    y = X @ coef + noise * rng.randn(n)
    return X, y - y.mean()


def labels(X, classes, seed=1):
    rng = np.random.RandomState(seed)
    scores = np.stack([3 * X[:, c] for c in range(classes)], axis=1) + rng.gumbel(size=(len(X), classes))
    return scores.argmax(axis=1)


def slopes(loss, X, y, result, weights=None):
    """Gradient of the loss in the coefficients and the intercepts, written out; a row for each output."""
    w = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
    coef = np.atleast_2d(result.coef)
    z = X @ coef.T + result.intercept
    if loss == "squared":
        r = z - np.reshape(y, z.shape)
    elif loss == "logistic":
        r = 1 / (1 + np.exp(-z)) - y[:, None]
    else:
        chance = np.exp(z - z.max(axis=1, keepdims=True))
        r = chance / chance.sum(axis=1, keepdims=True) - np.eye(z.shape[1])[y]
    r = w[:, None] * r
    return r.T @ X, r.sum(axis=0)


def check_stationary(loss, X, y, result, *, alpha, p, factors=None, tol=1e-6):
    g, pull = slopes(loss, X, y, result)
    coef = np.atleast_2d(result.coef)
    a = np.broadcast_to(alpha * (1.0 if factors is None else factors), coef.shape)
    on = coef != 0
    balance = a[on] * np.sign(coef[on]) * np.abs(coef[on]) ** (p - 1)
    assert np.abs(g[on] + balance).max() <= tol
    assert np.abs(pull).max() <= tol
    return g


def reference_steps(X, y, u, v, plain, b, *, alpha, K, M, free, lr, steps):
    """Algorithm 1 on pairs, squared loss, one coefficient after the other; X centred."""
    n, d = X.shape
    for _ in range(steps):
        x = [plain[j] if free[j] else u[j] ** K - v[j] ** K for j in range(d)]
        error = [sum(X[i, j] * x[j] for j in range(d)) + b - y[i] for i in range(n)]
        for j in range(d):
            g = sum(error[i] * X[i, j] for i in range(n)) / n
            if free[j]:
                plain[j] -= lr * g
            else:
                u[j] = (1 - lr * alpha) * u[j] - lr * u[j] ** M * g
                v[j] = (1 - lr * alpha) * v[j] + lr * v[j] ** M * g
        b -= lr * sum(error) / n
    return np.array([plain[j] if free[j] else u[j] ** K - v[j] ** K for j in range(d)]), b


@pytest.mark.parametrize(("K", "M"), [*SETTINGS, (2, 1), (2.5, 1.5)])
def test_steps_are_those_of_a_plain_reference(K, M):
    X, y = problem(n=12, d=4)
    y = X[:, 0] - X[:, 1] + y
    free, start, alpha, lr = [False, False, True, False], 0.3, 0.1, 0.02
    u = [start ** (1 / K)] * 4
    coef, b = reference_steps(X, y, u, list(u), [0.0] * 4, 0.5, alpha=alpha, K=K, M=M, free=free, lr=lr, steps=100)
    factors = np.where(free, 0.0, 1.0)
    state = iteration.begin(4, "squared", alpha=alpha, K=K, M=M, factors=factors, lr=lr, start=start, intercept_init=0.5)
    with torch.no_grad():
        design, target, w = receive(state, X, y, None)
        run = FullBatch(state, design, target, w / w.sum())
        for _ in range(100):
            run.step(*run.slopes())
        run.store()
    result = fitted(state, 100, True, 0.0)
    np.testing.assert_allclose(result.coef, coef, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(result.intercept, b, rtol=1e-10)
    assert np.abs(coef).max() > 0.1


def test_without_a_penalty_it_is_gradient_descent():
    X, y = problem(n=40, d=6)
    expected = np.zeros(6)
    for _ in range(50):
        expected -= 0.1 * X.T @ (X @ expected - y) / len(X)
    result = iteration.fit(X, y, "squared", alpha=0.0, K=1, M=1, lr=0.1, max_iter=50, tol=0.0)
    np.testing.assert_allclose(result.coef, expected, rtol=1e-12)
    assert result.n_iter == 50
    assert not result.converged


def test_small_steps_never_raise_the_objective_of_both_parts_and_lower_it_as_predicted():
    X, y = problem()
    state = iteration.begin(20, "squared", alpha=0.1, K=3, M=2, lr=1e-5)
    with torch.no_grad():
        design, target, w = receive(state, X, y, None)
        run = FullBatch(state, design, target, w / w.sum())
        before = run.now.value + run.parts.penalty()
        for _ in range(20):
            gradient, h, pull = run.slopes()
            predicted = sum(
                float((3 * part**2 * each**2).sum()) for part, each in zip((run.parts.u, run.parts.v), h, strict=True)
            )
            run.step(gradient, h, pull)
            after = run.now.value + run.parts.penalty()
            assert before - after == pytest.approx(1e-5 * predicted, rel=1e-3)
            before = after


def test_automatic_rate_keeps_the_objective_below_its_last_values():
    X, y = problem(n=60, d=100)
    state = iteration.begin(100, "squared", alpha=0.05, K=3, M=2)
    values = []
    with torch.no_grad():
        design, target, w = receive(state, X, y, None)
        run = FullBatch(state, design, target, w / w.sum())
        for _ in range(100):
            run.step(*run.slopes())
            values.append(run.objective)
    assert all(value <= max(values[max(0, i - MEMORY) : i]) + 1e-12 for i, value in enumerate(values) if i)
    assert values[-1] < 0.5 * values[0]


def test_lasso_is_scikit_learns():
    X, y = problem(n=100, d=30, noise=1.0)
    X, y = X + 0.7, y + 3
    expected = Lasso(alpha=0.1, tol=1e-12, max_iter=100_000).fit(X, y)
    result = iteration.fit(X, y, "squared", alpha=0.1, K=2, M=1)
    assert result.converged
    np.testing.assert_allclose(result.coef, expected.coef_, atol=1e-6)
    np.testing.assert_allclose(result.intercept, expected.intercept_, atol=1e-6)
    np.testing.assert_array_equal(result.coef != 0, expected.coef_ != 0)
    assert 3 < np.count_nonzero(result.coef) < 30


@pytest.mark.parametrize(("K", "M"), SETTINGS)
@pytest.mark.parametrize("alpha", [0.02, 0.2])
def test_same_point_as_the_active_set(K, M, alpha):
    X, y = problem()
    p = theory.effective_p(K, M)
    expected, _, done = active_set.minimize(X.T @ X / 100, X.T @ y / 100, np.full(20, alpha), p, np.zeros(20))
    result = iteration.fit(X, y, "squared", alpha=alpha, K=K, M=M)
    assert done
    assert result.converged
    assert result.residual <= 1e-8
    np.testing.assert_array_equal(result.coef != 0, expected != 0)
    np.testing.assert_allclose(result.coef, expected, rtol=1e-5)
    check_stationary("squared", X, y, result, alpha=alpha, p=p, tol=1e-7)


@pytest.mark.parametrize(("K", "M"), SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_no_coefficient_can_be_improved_alone(K, M, seed):
    rng = np.random.RandomState(seed)
    X = rng.randn(60, 150)
    X[:, 1:] = 0.6 * X[:, :-1] + 0.8 * X[:, 1:]
    X -= X.mean(axis=0)
    y = X[:, :8] @ rng.randn(8) + rng.randn(60)
    p, alpha = theory.effective_p(K, M), 0.1
    result = iteration.fit(X, y, "squared", alpha=alpha, K=K, M=M)
    assert result.converged
    g = check_stationary("squared", X, y, result, alpha=alpha, p=p)[0]
    L = (X**2).mean(axis=0)
    np.testing.assert_allclose(penalty.prox(result.coef - g / L, alpha, L, p), result.coef, atol=1e-5)
    assert 1 < np.count_nonzero(result.coef) < 60


@pytest.mark.parametrize("p", [0.9, 2 / 3, 0.5, 1 / 3])
@pytest.mark.parametrize("positive", [False, True])
def test_start_grows_above_the_entry_threshold_and_dies_below(p, positive):
    """One coefficient in tiny steps of the real iteration, without any look at what should enter."""
    K = 3.0
    M = 1 + K * (1 - p)
    threshold = float(penalty.entry_threshold(0.2, 1.5, p))
    for factor, grows in ((1.03, True), (0.97, False)):
        s = unit_start(p, positive=positive) * (0.2 / 1.5) ** (1 / (2 - p))
        u = s ** (1 / K)
        v = 0.0 if positive else u
        for _ in range(20_000):
            g = 1.5 * (u**K - v**K) - factor * threshold
            u, v = u * (1 - 0.02 * (0.2 + u ** (M - 1) * g)), v * (1 - 0.02 * (0.2 - v ** (M - 1) * g))
        assert (u**K > s) == grows


def test_start_lies_between_the_growth_threshold_and_the_barrier():
    threshold = penalty.entry_threshold(1.0, 1.0, 0.5)
    least = float(theory.growth_start(threshold, 4, 3, lam=1.0))
    assert least < unit_start(0.5) < unit_start(0.5, positive=True) < 0.5 ** (1 / 1.5)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_logistic_is_stationary(fit_intercept):
    X, _ = problem(n=150, d=30)
    X = X + 0.5
    y = labels(X, 2)
    result = iteration.fit(X, y, "logistic", alpha=0.02, K=3, M=2, fit_intercept=fit_intercept)
    assert result.converged
    g, pull = slopes("logistic", X, y, result)
    on = result.coef != 0
    np.testing.assert_allclose(g[0, on], -0.02 * np.sign(result.coef[on]) * np.abs(result.coef[on]) ** (-1 / 3), atol=1e-7)
    assert set(np.flatnonzero(on)) == {0, 1}
    assert (abs(pull[0]) < 1e-7) == fit_intercept
    assert (result.intercept != 0) == fit_intercept


def test_logistic_with_p_1_is_scikit_learns():
    X, _ = problem(n=150, d=10)
    y = labels(X, 2)
    expected = LogisticRegression(l1_ratio=1, C=1 / (150 * 0.02), solver="saga", tol=1e-10, max_iter=100_000).fit(X, y)
    result = iteration.fit(X, y, "logistic", alpha=0.02, K=2, M=1)
    np.testing.assert_allclose(result.coef, expected.coef_[0], atol=1e-5)
    np.testing.assert_allclose(result.intercept, expected.intercept_[0], atol=1e-5)


@pytest.mark.parametrize(("K", "M"), SETTINGS)
def test_multinomial_is_stationary(K, M):
    X, _ = problem(n=200, d=12)
    y = labels(X, 3)
    result = iteration.fit(X, y, "multinomial", alpha=0.02, K=K, M=M)
    assert result.converged
    assert result.coef.shape == (3, 12)
    assert result.intercept.shape == (3,)
    check_stationary("multinomial", X, y, result, alpha=0.02, p=theory.effective_p(K, M))
    assert set(np.flatnonzero(result.coef.any(axis=0))) == {0, 1, 2}


def test_outputs_are_separate_fits():
    X, y = problem()
    targets = np.stack([y, X[:, 2] - 0.5 * y + 1], axis=1)
    together = iteration.fit(X, targets, "squared", alpha=0.05, K=3, M=2)
    assert together.coef.shape == (2, 20)
    for k in range(2):
        alone = iteration.fit(X, targets[:, k], "squared", alpha=0.05, K=3, M=2)
        np.testing.assert_allclose(together.coef[k], alone.coef, rtol=1e-5)
        np.testing.assert_allclose(together.intercept[k], alone.intercept, atol=1e-7)


@pytest.mark.parametrize(("K", "M"), [(2, 1), *SETTINGS])
def test_positive(K, M):
    X, y = problem()
    result = iteration.fit(X, y, "squared", alpha=0.05, K=K, M=M, positive=True)
    assert result.converged
    assert result.coef.min() == 0
    p = theory.effective_p(K, M)
    expected, _, _ = active_set.minimize(X.T @ X / 100, X.T @ y / 100, np.full(20, 0.05), p, np.zeros(20), positive=True)
    np.testing.assert_allclose(result.coef, expected, atol=1e-6)


def test_unpenalized_columns():
    X, y = problem()
    factors = np.ones(20)
    factors[[0, 3, 4]] = 0.0
    factors[7] = 2.5
    result = iteration.fit(X, y, "squared", alpha=0.05, K=3, M=2, factors=factors)
    assert result.converged
    g = check_stationary("squared", X, y, result, alpha=0.05, p=2 / 3, factors=factors)
    assert np.abs(g[0, [0, 3, 4]]).max() < 1e-7
    assert set(np.flatnonzero(result.coef)) == {0, 1, 3, 4, 7}
    positive = iteration.fit(X, y, "squared", alpha=0.05, K=3, M=2, factors=factors, positive=True)
    assert positive.converged
    assert positive.coef.min() == positive.coef[4] == 0
    check_stationary("squared", X, y, positive, alpha=0.05, p=2 / 3, factors=factors)


@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("batch_size", [None, 40])
def test_sparse_equals_dense(loss, batch_size):
    rng = np.random.RandomState(0)
    X = scipy.sparse.random(120, 30, density=0.3, random_state=rng, format="csr") * 3
    dense = X.toarray()
    y = dense[:, 0] - dense[:, 1] + 0.1 * rng.randn(120) if loss == "squared" else labels(dense, 2 + (loss == "multinomial"))
    run = {
        "alpha": 0.01,
        "K": 3,
        "M": 2,
        "batch_size": batch_size,
        "max_iter": 2000 if batch_size is None else 5,
        "random_state": 0,
    }
    one, other = iteration.fit(X, y, loss, **run), iteration.fit(dense, y, loss, **run)
    assert one.coef.any()
    np.testing.assert_allclose(one.coef, other.coef, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(one.intercept, other.intercept, rtol=1e-6, atol=1e-8)
    assert one.converged == other.converged


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_weights_are_repeated_rows(loss):
    X, y = problem()
    y = y if loss == "squared" else labels(X, 2)
    times = np.random.RandomState(0).randint(0, 4, size=100)
    run = {"alpha": 0.02, "K": 3, "M": 2, "tol": 1e-10}
    weighted = iteration.fit(X, y, loss, weights=times / times.sum(), **run)
    repeated = iteration.fit(np.repeat(X, times, axis=0), np.repeat(y, times), loss, **run)
    assert weighted.converged
    np.testing.assert_allclose(weighted.coef, repeated.coef, rtol=1e-7)
    np.testing.assert_allclose(weighted.intercept, repeated.intercept, rtol=1e-7)


@pytest.mark.parametrize(("K", "M"), SETTINGS)
def test_batches_reach_the_support_of_the_full_batch(K, M):
    X, y = problem(n=200, d=30)
    X, y = X + 0.3, y + 2
    full = iteration.fit(X, y, "squared", alpha=0.05, K=K, M=M)
    batches = iteration.fit(X, y, "squared", alpha=0.05, K=K, M=M, batch_size=20, max_iter=100, random_state=0)
    np.testing.assert_array_equal(batches.coef != 0, full.coef != 0)
    np.testing.assert_allclose(batches.coef, full.coef, atol=0.01)
    np.testing.assert_allclose(batches.intercept, full.intercept, atol=0.02)
    assert batches.converged
    again = iteration.fit(X, y, "squared", alpha=0.05, K=K, M=M, batch_size=20, max_iter=100, random_state=0)
    np.testing.assert_array_equal(batches.coef, again.coef)


def test_batches_leave_no_survivors_among_many_columns():
    X, y = problem(n=200, d=500, noise=1.0)
    full = iteration.fit(X, y, "squared", alpha=0.1, K=3, M=2)
    batches = iteration.fit(X, y, "squared", alpha=0.1, K=3, M=2, batch_size=50, max_iter=50, random_state=0)
    np.testing.assert_array_equal(np.flatnonzero(batches.coef), np.flatnonzero(full.coef))
    assert batches.residual < 0.05


def test_weighted_batches_reach_the_weighted_fit():
    X, y = problem(n=200, d=30)
    y = y + np.where(X[:, 3] > 0, X[:, 1], 0)
    weights = np.where(X[:, 3] > 0, 4.0, 1.0)
    run = {"alpha": 0.05, "K": 3, "M": 2}
    full = iteration.fit(X, y, "squared", weights=weights, **run)
    batches = iteration.fit(X, y, "squared", weights=weights, batch_size=20, max_iter=200, random_state=0, **run)
    unweighted = iteration.fit(X, y, "squared", **run)
    np.testing.assert_allclose(batches.coef, full.coef, atol=0.03)
    assert np.abs(unweighted.coef - full.coef).max() > 0.1


@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
def test_a_stream_of_chunks(loss):
    X, y = problem(n=600, d=20)
    X = X + 0.5
    y = y + 1 if loss == "squared" else labels(X - 0.5, 2 + (loss == "multinomial"))
    full = iteration.fit(X, y, loss, alpha=0.05, K=3, M=2)
    outputs = 3 if loss == "multinomial" else None
    state = iteration.begin(20, loss, alpha=0.05, K=3, M=2, batch_size=20, random_state=0, outputs=outputs)
    for _ in range(40):
        for first in range(0, 600, 200):
            iteration.step(state, X[first : first + 200], y[first : first + 200])
    result = iteration.finalize(state)
    np.testing.assert_array_equal(result.coef != 0, full.coef != 0)
    np.testing.assert_allclose(result.coef, full.coef, atol=0.1)
    np.testing.assert_allclose(state.mean.cpu().numpy(), X.mean(axis=0), rtol=1e-10)
    # finalize() leaves the state as it was: another chunk goes on from parts that are not zero.
    steps = state.steps
    iteration.step(state, X[:200], y[:200])
    assert state.steps == steps + 10


def test_moving_means_leave_predictions_alone():
    X, y = problem(n=100, d=5)
    state = iteration.begin(5, "squared", alpha=0.05, K=3, M=2)
    iteration.step(state, X[:50], y[:50])
    before = fitted(state, 0, True, 0.0)
    with torch.no_grad():
        receive(state, X[50:] + 2.0, y[50:], None)
    after = fitted(state, 0, True, 0.0)
    np.testing.assert_allclose(X @ before.coef + before.intercept, X @ after.coef + after.intercept, atol=1e-12)


def test_a_stream_may_begin_with_one_row_and_be_pickled():
    X, y = problem(n=400, d=20)
    X[:150, 4] = 0.0  # constant in the first chunks
    full = iteration.fit(X, y, "squared", alpha=0.1, K=3, M=2)
    state = iteration.begin(20, "squared", alpha=0.1, K=3, M=2, batch_size=20, random_state=0)
    iteration.step(state, X[:1], y[:1])
    np.testing.assert_array_equal(iteration.finalize(state).coef, 0.0)
    for first in [1, 51, 101, *range(150, 400, 50)] * 40:
        iteration.step(state, X[first : first + 50], y[first : first + 50])
    twin = pickle.loads(pickle.dumps(state))
    for each in (state, twin):
        iteration.step(each, X[:50], y[:50])
    np.testing.assert_array_equal(iteration.finalize(state).coef, iteration.finalize(twin).coef)
    np.testing.assert_array_equal(np.flatnonzero(iteration.finalize(state).coef), np.flatnonzero(full.coef))


def test_warm_start_needs_fewer_steps():
    X, y = problem(d=60)
    cold = iteration.fit(X, y, "squared", alpha=0.05, K=3, M=2)
    warm = iteration.fit(X, y, "squared", alpha=0.05, K=3, M=2, coef_init=cold.coef, intercept_init=cold.intercept, start=1e-4)
    np.testing.assert_allclose(warm.coef, cold.coef, atol=1e-6)
    assert warm.n_iter < cold.n_iter


@pytest.mark.parametrize(("K", "M"), [(2, 1), (3, 2)])
def test_a_warm_start_on_a_constant_column_or_target_is_forgotten(K, M):
    X, y = problem(d=8)
    X[:, 0] = 3.3
    start = {"coef_init": np.ones(8), "intercept_init": 7.0}
    result = iteration.fit(X, y, "squared", alpha=0.05, K=K, M=M, **start)
    assert result.converged
    assert result.coef[0] == 0
    np.testing.assert_allclose(result.coef, iteration.fit(X, y, "squared", alpha=0.05, K=K, M=M).coef, atol=1e-6)
    empty = iteration.fit(X, np.full(100, 1.5), "squared", alpha=0.05, K=K, M=M, **start)
    np.testing.assert_array_equal(empty.coef, 0.0)
    assert empty.intercept == pytest.approx(1.5)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_nothing_to_learn(loss, positive):
    X, _ = problem()
    y = np.full(100, 1.1) if loss == "squared" else np.ones(100)
    result = iteration.fit(X, y, loss, alpha=0.05, K=3, M=2, positive=positive)
    np.testing.assert_array_equal(result.coef, 0.0)
    assert result.converged
    if loss == "squared":
        assert result.intercept == pytest.approx(1.1)


def test_constant_and_duplicated_columns():
    X, y = problem()
    X[:, 0], X[:, 2] = 3.3, X[:, 1]
    for factors in (np.ones(20), np.where(np.arange(20) == 0, 0.0, 1.0)):
        result = iteration.fit(X, y, "squared", alpha=0.05, K=3, M=2, factors=factors)
        assert result.converged
        assert result.coef[0] == 0
        assert np.isfinite(result.coef).all()


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_scale_of_the_target(size):
    """b and y times c, alpha times c^(2-p): the same problem."""
    X, y = problem()
    one = iteration.fit(X, y, "squared", alpha=0.05, K=3, M=2)
    other = iteration.fit(X, size * y, "squared", alpha=0.05 * size ** (4 / 3), K=3, M=2)
    assert other.converged
    np.testing.assert_allclose(other.coef / size, one.coef, rtol=1e-6)


def test_too_few_steps_still_give_exact_zeros():
    X, y = problem()
    result = iteration.fit(X, y, "squared", alpha=0.2, K=3, M=2, max_iter=15)
    assert not result.converged
    assert result.residual > 1e-8
    assert set(np.flatnonzero(result.coef)) == {1, 4, 7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"M": 0.5}, "Invalid M value"),
        ({"M": 4}, "Invalid M value"),
        ({"lr": 0.0}, "Invalid lr value"),
        ({"start": -1.0}, "Invalid start value"),
        ({"alpha": -0.1}, "Invalid alpha value: -0.1"),
        ({"batch_size": 0}, "Invalid batch_size value: 0"),
        ({"factors": np.ones(3)}, "one for each of the 20 columns"),
        ({"coef_init": np.ones(3)}, "does not fit 20 columns"),
        ({"weights": np.zeros(100)}, "sum to 0"),
        ({"lr": 1e6, "K": 1, "M": 1, "alpha": 0.0}, "diverges with lr"),
    ],
)
def test_what_cannot_work_is_said(change, message):
    X, y = problem()
    with pytest.raises(ValueError, match=message):
        iteration.fit(X, y, "squared", **{"alpha": 0.1, "K": 3, "M": 2, **change})


def test_a_stream_refuses_rows_of_another_kind():
    X, _ = problem()
    state = iteration.begin(20, "multinomial", alpha=0.1, K=3, M=2)
    with pytest.raises(ValueError, match=r"seen no rows: call step\(\)"):
        iteration.finalize(state)
    iteration.step(state, X, labels(X, 2))
    with pytest.raises(ValueError, match=r"Invalid labels: 0 to 2 .*outputs=2"):
        iteration.step(state, X, labels(X, 3))
    state = iteration.begin(20, "squared", alpha=0.1, K=3, M=2)
    iteration.step(state, X, X[:, :2])
    with pytest.raises(ValueError, match="y has 1 columns, the rows before had 2"):
        iteration.step(state, X, X[:, 0])
