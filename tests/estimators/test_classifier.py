"""The classifiers as scikit-learn's users know them, and what they add."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from rewa.estimators import ReWAClassifier, ReWAClassifierCV, ReWARegressor


@pytest.mark.slow
@parametrize_with_checks([ReWAClassifier(), ReWAClassifierCV(alphas=10, cv=3)])
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


def two(n=250, d=60, seed=0):
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, d))
    y = np.where(2 * X[:, 4] - 2 * X[:, 9] + random.logistic(size=n) > 0, "yes", "no")
    return X, y


def three():
    wine = load_wine()
    noise = np.random.default_rng(0).standard_normal((178, 40))
    return np.column_stack([StandardScaler().fit_transform(wine.data), noise]), wine.target


def test_p_1_is_the_logistic_regression_of_scikit_learn():
    X, y = two()
    ours = ReWAClassifier(alpha=0.02, p=1.0, standardize=False).fit(X, y)
    theirs = LogisticRegression(C=1 / (0.02 * len(y)), l1_ratio=1.0, solver="saga", tol=1e-10, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("make", [two, three])
@pytest.mark.parametrize("p", [2 / 3, 0.5])
def test_slopes_balance_the_penalty_in_the_units_of_the_data(make, p):
    X, y = make()
    X = X * np.linspace(0.5, 3, X.shape[1])
    model = ReWAClassifier(alpha=0.03, p=p).fit(X, y)
    truth = (y[:, None] == model.classes_).astype(float)
    slope = (model.predict_proba(X) - truth).T @ X / len(y)
    slope = slope[1:] if len(model.classes_) == 2 else slope
    on = model.coef_ != 0
    assert 0 < on.sum() < on.size / 2
    expected = -0.03 * X.std(axis=0) ** p * np.sign(model.coef_) * np.abs(np.where(on, model.coef_, 1.0)) ** (p - 1)
    np.testing.assert_allclose(slope[on], expected[on], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["min", "1se", "ebic"])
def test_cross_validation_finds_the_true_features(selection):
    X, y = two(d=300)
    model = ReWAClassifierCV(selection=selection).fit(X, y)
    np.testing.assert_array_equal(np.flatnonzero(model.support_), [4, 9])
    assert hasattr(model, "criterion_") == (selection == "ebic")


def test_scores_are_log_losses_of_held_out_rows():
    X, y = two(n=120, d=30)
    model = ReWAClassifierCV(alphas=8, alpha_ratio=0.2, cv=4, refit=False).fit(X, y)
    train, test = list(StratifiedKFold(4).split(X, y))[1]
    path = ReWAClassifier().path(X[train], y[train], alphas=model.alphas_)
    for step in range(8):
        output = X[test] @ path.coefs[0, :, step] + path.intercepts[0, step]
        probability = 1 / (1 + np.exp(-output))
        assert model.log_loss_path_[step, 1] == pytest.approx(log_loss(y[test] == "yes", probability), rel=1e-6)


@pytest.mark.slow
def test_many_classes_and_sparse_data():
    X, y = three()
    X[np.abs(X) < 0.3] = 0
    dense, thin = ReWAClassifierCV(alphas=25).fit(X, y), ReWAClassifierCV(alphas=25).fit(sparse.csr_array(X), y)
    assert dense.coef_.shape == (3, 53)
    assert dense.score(X, y) > 0.95
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.exp(dense.predict_log_proba(X)), dense.predict_proba(X), rtol=1e-9)
    np.testing.assert_allclose(dense.predict_proba(X).sum(axis=1), 1)


def test_class_weights_are_sample_weights():
    X, y = two()
    weight = np.where(y == "yes", 3.0, 1.0)
    expected = ReWAClassifier(alpha=0.02).fit(X, y, sample_weight=weight)
    given = ReWAClassifier(alpha=0.02, class_weight={"yes": 3.0}).fit(X, y)
    np.testing.assert_allclose(given.coef_, expected.coef_, rtol=1e-9)
    few = np.append(np.flatnonzero(y == "yes"), np.flatnonzero(y == "no")[:20])
    balanced = ReWAClassifier(alpha=0.02, class_weight="balanced").fit(X[few], y[few])
    assert balanced.intercept_[0] < ReWAClassifier(alpha=0.02).fit(X[few], y[few]).intercept_[0]
    both = ReWAClassifier(alpha=0.02, class_weight={"yes": 3.0}).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(both.coef_, ReWAClassifier(alpha=0.02).fit(X, y, sample_weight=weight**2).coef_, rtol=1e-9)
    there = np.random.default_rng(0).integers(0, 2, len(y))
    some = ReWAClassifier(alpha=0.02, class_weight="balanced").fit(X, y, sample_weight=there)
    removed = ReWAClassifier(alpha=0.02, class_weight="balanced").fit(X[there > 0], y[there > 0])
    np.testing.assert_allclose(some.coef_, removed.coef_, rtol=1e-7)
    with pytest.raises(ValueError, match="needs all rows at once"):
        ReWAClassifier(class_weight="balanced").partial_fit(X, y)
    with pytest.raises(ValueError, match=r"names classes that y does not have: \['maybe'\]"):
        ReWAClassifier(class_weight={"maybe": 2.0}).fit(X, y)


def test_separable_data_stay_finite():
    X, _ = two(n=60)
    y = X[:, 4] > 0
    for model in (ReWAClassifier(alpha=1e-4), ReWAClassifierCV(alphas=30), ReWAClassifier(alpha=1e-3, refit=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = clone(model).fit(X, y)
        assert np.isfinite(fitted.coef_).all()
        assert fitted.support_[4]
        assert fitted.score(X, y) == 1


def test_refits_keep_coefficients_positive():
    X, y = two()
    X = np.column_stack([X[:, 4], X[:, 9], 0.7 * (X[:, 4] - X[:, 9]) + 0.1 * X[:, 0]])
    model = ReWAClassifier(alpha=0.001, p=1, refit=True, positive=True).fit(X, y)
    assert (model.coef_ >= 0).all()
    assert model.coef_.any()


def test_one_class_is_no_classification():
    X, y = two()
    with pytest.raises(ValueError, match=r"at least 2 classes.*one class only: \['no'\]"):
        ReWAClassifier().fit(X, np.full(len(y), "no"))


@pytest.mark.slow
def test_with_scikit_learns_tools():
    X, y = two()
    frame = pd.DataFrame(X, columns=[f"gene {j}" for j in range(60)])
    search = GridSearchCV(ReWAClassifier(), {"alpha": [0.001, 0.03], "p": [0.5, 1.0]}, cv=3).fit(frame, y)
    assert search.best_score_ > 0.8
    assert cross_val_score(make_pipeline(StandardScaler(), ReWAClassifierCV(alphas=20)), X, y, cv=3).min() > 0.75
    model = ReWAClassifierCV(alphas=20).fit(frame, y)
    assert list(model.feature_names_in_[model.support_]) == ["gene 4", "gene 9"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(frame), model.predict(frame))


# ------------------------------------------------------------------------------------------------- the paper's iteration


def residual(model, X, y):
    """How far the slopes of nonzero coefficients are from balance, by the documented objective."""
    if isinstance(model, ReWAClassifier):
        truth = (y[:, None] == model.classes_).astype(float)
        slope = (model.predict_proba(X) - truth).T @ X / len(y)
        slope = slope[1:] if len(model.classes_) == 2 else slope
    else:
        slope = np.atleast_2d((model.predict(X) - y) @ X / len(y))
    coef, spread = np.atleast_2d(model.coef_), X.std(axis=0)
    on = coef != 0
    pull = model.alpha * spread**model.p_ * np.sign(coef) * np.abs(np.where(on, coef, 1.0)) ** (model.p_ - 1)
    return np.abs((slope + pull)[on]).max()


@pytest.mark.parametrize("p", [1.0, 2 / 3, 0.5])
@pytest.mark.parametrize("task", ["regression", "two", "three"])
def test_both_solvers_reach_the_same_residual_and_support(p, task):
    if task == "regression":
        X, _ = two()
        y = 2 * X[:, 4] - X[:, 9] + np.random.default_rng(1).standard_normal(len(X))
        Model, alpha = ReWARegressor, 0.2
    else:
        X, y = two()
        if task == "three":
            y = np.argmax(X[:, [4, 9, 20]] + 0.3 * np.random.default_rng(1).standard_normal((len(X), 3)), axis=1)
        Model, alpha = ReWAClassifier, 0.05
    path = Model(alpha=alpha, p=p).fit(X, y)
    rewa = Model(alpha=alpha, p=p, solver="rewa", max_iter=20_000).fit(X, y)
    assert path.coef_.any()
    np.testing.assert_array_equal(rewa.coef_ != 0, path.coef_ != 0)
    np.testing.assert_allclose(rewa.coef_, path.coef_, rtol=1e-4, atol=1e-6)
    for model in (path, rewa):
        assert residual(model, X, y) < 1e-7


def test_the_iteration_takes_what_the_path_takes():
    X, y = two()
    y = 2 * X[:, 4] - X[:, 9] + np.random.default_rng(1).standard_normal(len(X))
    X = X * np.linspace(0.01, 50, 60)
    factor = np.ones(60)
    factor[0] = 0.0
    weight = np.random.default_rng(2).uniform(0.5, 2, len(y))
    for change in (
        {"standardize": False, "alpha": 0.5},
        {"penalty_factor": factor},
        {"fit_intercept": False},
        {"positive": True},
        {"refit": True},
    ):
        settings = {"alpha": 0.2, **change}
        path = ReWARegressor(**settings).fit(X, y, sample_weight=weight)
        rewa = ReWARegressor(**settings, solver="rewa", max_iter=20_000).fit(X, y, sample_weight=weight)
        np.testing.assert_array_equal(rewa.support_, path.support_)
        np.testing.assert_allclose(rewa.predict(X), path.predict(X), rtol=1e-4, atol=1e-4)
    thin = ReWARegressor(alpha=0.2, solver="rewa", max_iter=20_000).fit(sparse.csr_array(X), y)
    np.testing.assert_allclose(thin.coef_, ReWARegressor(alpha=0.2).fit(X, y).coef_, rtol=1e-4, atol=1e-6)
    both = ReWARegressor(alpha=0.2, solver="rewa", max_iter=20_000).fit(X, np.column_stack([y, -y]))
    np.testing.assert_allclose(both.coef_[0], -both.coef_[1], rtol=1e-4)


def test_batches_reach_the_support_of_the_path():
    X, _ = two(n=400)
    target = 2 * X[:, 4] - X[:, 9] + 0.5 * np.random.default_rng(1).standard_normal(len(X))
    settings = {"alpha": 0.1, "solver": "rewa", "batch_size": 50, "max_iter": 60, "random_state": 0}
    model = ReWARegressor(**settings).fit(X, target)
    np.testing.assert_array_equal(np.flatnonzero(model.support_), [4, 9])
    np.testing.assert_array_equal(model.support_, ReWARegressor(alpha=0.1).fit(X, target).support_)
    np.testing.assert_array_equal(model.coef_, ReWARegressor(**settings).fit(X, target).coef_)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "two", "three"])
def test_a_stream_finds_the_features(task):
    if task == "three":
        X, y = three()
        X, y = np.tile(X, (6, 1)), np.tile(y, 6)
        model, expected = ReWAClassifier(alpha=0.05, K=3, random_state=0), ReWAClassifier(alpha=0.05, K=3).fit(X, y)
    elif task == "two":
        X, y = two(n=2000)
        model, expected = ReWAClassifier(alpha=0.1, random_state=0), ReWAClassifier(alpha=0.1).fit(X, y)
    else:
        X, _ = two(n=2000)
        X = X * np.linspace(0.1, 10, 60)
        y = 200 * X[:, 4] - X[:, 9] + np.random.default_rng(1).standard_normal(len(X))
        model, expected = ReWARegressor(alpha=0.5, random_state=0), ReWARegressor(alpha=0.5).fit(X, y)
    order = np.random.default_rng(3).permutation(len(y))
    for _ in range(20):
        for chunk in np.array_split(order, 20):
            extra = {} if task == "regression" else {"classes": np.unique(y)}
            model.partial_fit(X[chunk], y[chunk], **extra)
    assert model.score(X, y) == pytest.approx(expected.score(X, y), abs=0.03)
    assert model.support_.sum() <= expected.support_.sum() + 2
    assert (model.support_ & expected.support_).sum() >= expected.support_.sum() - 1
    again = pickle.loads(pickle.dumps(model))
    again.partial_fit(X[:50], y[:50])
    model.partial_fit(X[:50], y[:50])
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_a_stream_keeps_its_settings_and_its_classes():
    X, y = two()
    model = ReWAClassifier(alpha=0.1).partial_fit(X[:50], y[:50])
    with pytest.raises(ValueError, match="alpha changed since the first call of partial_fit"):
        model.set_params(alpha=0.2).partial_fit(X[50:], y[50:])
    model.set_params(alpha=0.1).partial_fit(X[50:], y[50:])
    with pytest.raises(ValueError, match=r"classes that were not there before: \['maybe'\]"):
        model.partial_fit(X[:3], ["yes", "no", "maybe"])
    with pytest.raises(ValueError, match="are not those of the first call"):
        model.partial_fit(X, y, classes=["yes", "no", "maybe"])
    model.fit(X, y)
    np.testing.assert_allclose(model.coef_, ReWAClassifier(alpha=0.1).fit(X, y).coef_)
