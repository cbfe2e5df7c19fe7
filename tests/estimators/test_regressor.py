"""The regressors as scikit-learn's users know them, and what they add."""

import importlib.util
import pickle
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import rewa.estimators.model as model_module
from rewa.estimators import ReWARegressor, ReWARegressorCV, penalty

EXPONENTS = [1.0, 2 / 3, 0.5, 1 / 3]


@pytest.mark.slow
@parametrize_with_checks(
    [
        ReWARegressor(),
        ReWARegressor(p=1.0, standardize=False, refit=True),
        ReWARegressorCV(alphas=20, cv=3),
        ReWARegressorCV(p="auto", alphas=10, selection="ebic"),
    ]
)
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


def data(n=120, d=40, seed=5, noise=0.5):
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, d))
    beta = np.zeros(d)
    beta[[3, 11, 20 % d]] = 2.0, -1.5, 1.0
    return X, X @ beta + 1.0 + noise * random.standard_normal(n), beta


def objective(model, X, y, alpha, p):
    spread = X.std(axis=0)
    loss = ((y - model.predict(X)) ** 2).mean() / 2
    return loss + alpha * penalty.value(spread * model.coef_, p).sum()


def test_p_1_is_the_lasso():
    X, y, _ = data()
    ours = ReWARegressor(alpha=0.1, p=1, standardize=False).fit(X, y)
    theirs = Lasso(alpha=0.1, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-7)
    assert ours.intercept_ == pytest.approx(theirs.intercept_)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_documented_objective_is_minimal_in_each_coefficient(p, fit_intercept):
    """By trying: every coefficient, moved alone to any of many places, makes the documented objective larger."""
    X, y, _ = data(n=40, d=12, noise=1.5)
    X *= np.linspace(0.2, 4, 12)
    random = np.random.default_rng(1)
    w, f = random.integers(1, 4, 40).astype(float), random.uniform(0.5, 2, 12)
    model = ReWARegressor(alpha=0.08, p=p, penalty_factor=f, fit_intercept=fit_intercept).fit(X, y, sample_weight=w)
    center = w @ X / w.sum() if fit_intercept else 0.0
    s = np.sqrt(w @ (X - center) ** 2 / w.sum())

    def value(b):
        residual = y - X @ b
        residual = residual - (w @ residual / w.sum() if fit_intercept else 0.0)
        return w @ residual**2 / (2 * w.sum()) + 0.08 * (f * np.abs(s * b) ** p / p).sum()

    best = value(model.coef_)
    assert 0 < (model.coef_ != 0).sum() < 12
    for j in range(12):
        for place in np.append(np.linspace(-3, 3, 601) / s[j], 0.0):
            other = model.coef_.copy()
            other[j] = place
            assert value(other) >= best - 1e-9


def test_exponents_by_any_name():
    X, y, _ = data()
    expected = ReWARegressor(alpha=0.1, p=0.5).fit(X, y)
    assert ReWARegressor(alpha=0.1, K=4, M=3).fit(X, y).p_ == expected.p_ == 0.5
    np.testing.assert_array_equal(ReWARegressor(alpha=0.1, K=4, M=3).fit(X, y).coef_, expected.coef_)
    assert ReWARegressor().fit(X, y).p_ == 0.5
    assert ReWARegressor(K=3).fit(X, y).p_ == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="contradict"):
        ReWARegressor(p=0.5, M=2).fit(X, y)


@pytest.mark.parametrize("p", EXPONENTS)
def test_sparse_is_dense(p):
    X, y, _ = data()
    X[np.abs(X) < 1] = 0
    for Model in (ReWARegressor(alpha=0.05, p=p), ReWARegressorCV(p=p, alphas=30)):
        dense, thin = clone(Model).fit(X, y), clone(Model).fit(sparse.csr_array(X), y)
        np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(thin.predict(sparse.csr_array(X)), dense.predict(X), rtol=1e-6)


@pytest.mark.parametrize("selection", ["min", "1se", "ebic"])
def test_cross_validation_finds_the_true_features(selection):
    X, y, beta = data(n=150, d=400)
    model = ReWARegressorCV(selection=selection).fit(X, y)
    np.testing.assert_array_equal(np.flatnonzero(model.support_), np.flatnonzero(beta))
    if selection == "ebic":
        assert model.criterion_.shape == model.alphas_.shape == (200,)
        assert not hasattr(model, "mse_path_")
        assert model.alpha_ == model.alphas_[np.nanargmin(model.criterion_)]
    else:
        assert model.mse_path_.shape == (200, 5)


def test_the_least_error_and_one_standard_error():
    X, y, _ = data(n=60, d=100, noise=2.0)
    least = ReWARegressorCV(refit=False, alphas=40).fit(X, y)
    mean = least.mse_path_.mean(axis=1)
    assert least.alpha_ == least.alphas_[np.nanargmin(mean)]
    one = ReWARegressorCV(refit=False, alphas=40, selection="1se").fit(X, y)
    best = np.nanargmin(mean)
    error = least.mse_path_[best].std(ddof=1) / np.sqrt(5)
    assert one.alpha_ == least.alphas_[np.flatnonzero(mean <= mean[best] + error)[0]]
    assert one.alpha_ > least.alpha_


def test_scores_of_a_fold_are_those_of_a_fit_by_hand():
    X, y, _ = data(n=50, d=80, noise=1.5)
    splits = list(KFold(5).split(X))
    for refit in (False, True):
        model = ReWARegressorCV(p=0.5, alphas=12, alpha_ratio=0.1, cv=splits, refit=refit).fit(X, y)
        train, test = splits[2]
        path = ReWARegressor(p=0.5).path(X[train], y[train], alphas=model.alphas_)
        for step in range(12):
            if np.isnan(model.mse_path_[step, 2]):
                break
            coef, intercept = path.coefs[:, step], path.intercepts[step]
            if refit:
                on = np.flatnonzero(coef)
                design = np.column_stack([X[train][:, on], np.ones(40)])
                solved = np.linalg.lstsq(design, y[train], rcond=None)[0]
                coef, intercept = np.zeros(80), solved[-1]
                coef[on] = solved[:-1]
            expected = ((y[test] - X[test] @ coef - intercept) ** 2).mean()
            assert model.mse_path_[step, 2] == pytest.approx(expected, rel=1e-6)
        assert step > 3


def test_ebic_is_the_formula():
    X, y, _ = data(n=60, d=90, noise=1.0)
    model = ReWARegressorCV(selection="ebic", gamma=1.0, alphas=30, alpha_ratio=0.05).fit(X, y)
    path = ReWARegressor().path(X, y, alphas=model.alphas_)
    for step in np.flatnonzero(~np.isnan(model.criterion_)):
        on = np.flatnonzero(path.coefs[:, step])
        design = np.column_stack([X[:, on], np.ones(60)])
        rss = ((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum()
        expected = 60 * np.log(rss / 60) + len(on) * (np.log(60) + 2 * np.log(90))
        assert model.criterion_[step] == pytest.approx(expected, rel=1e-9)
    assert model.refit_


def test_exponent_chosen_too():
    X, y, _ = data(n=100, d=300)
    model = ReWARegressorCV(p="auto", alphas=25).fit(X, y)
    assert model.alphas_.shape == (4, 25)
    assert model.mse_path_.shape == (4, 25, 5)
    assert model.p_ in (1.0, 2 / 3, 0.5, 1 / 3)
    some = ReWARegressorCV(p=[0.5, 0.8], alphas=25).fit(X, y)
    assert some.p_ in (0.5, 0.8)
    alone = min((ReWARegressorCV(p=p, alphas=25).fit(X, y) for p in (0.5, 0.8)), key=lambda m: np.nanmin(m.mse_path_.mean(1)))
    np.testing.assert_array_equal(some.coef_, alone.coef_)


def test_refit_is_least_squares_on_the_support():
    X, y, _ = data()
    plain, again = ReWARegressor(alpha=0.2).fit(X, y), ReWARegressor(alpha=0.2, refit=True).fit(X, y)
    np.testing.assert_array_equal(plain.support_, again.support_)
    on = np.flatnonzero(again.support_)
    expected = np.linalg.lstsq(np.column_stack([X[:, on], np.ones(len(y))]), y, rcond=None)[0]
    np.testing.assert_allclose([*again.coef_[on], again.intercept_], expected, rtol=1e-9)
    assert np.abs(plain.coef_[on]).sum() < np.abs(again.coef_[on]).sum()


def test_a_feature_without_penalty_is_never_left_out():
    X, y, _ = data()
    factor = np.ones(40)
    factor[0] = 0.0
    strong = ReWARegressor(alpha=1e6, penalty_factor=factor).fit(X, y)
    np.testing.assert_array_equal(np.flatnonzero(strong.support_), [0])
    assert strong.coef_[0] == pytest.approx(np.cov(X[:, 0], y)[0, 1] / X[:, 0].var(ddof=1))
    assert ReWARegressorCV(penalty_factor=factor, selection="1se").fit(X, y).support_[0]


def test_many_outputs_are_fitted_one_by_one():
    X, y, _ = data()
    Y = np.column_stack([y, -2 * y + X[:, 5], np.zeros(len(y))])
    together = ReWARegressor(alpha=0.1).fit(X, Y)
    assert together.coef_.shape == (3, 40)
    assert together.predict(X).shape == Y.shape
    for place in range(3):
        np.testing.assert_allclose(together.coef_[place], ReWARegressor(alpha=0.1).fit(X, Y[:, place]).coef_, atol=1e-9)
    assert not together.coef_[2].any()
    assert ReWARegressorCV(alphas=30).fit(X, Y).coef_.shape == (3, 40)


def test_positive():
    X, y, beta = data()
    for model in (ReWARegressor(alpha=0.05, positive=True).fit(X, y), ReWARegressorCV(positive=True, alphas=30).fit(X, y)):
        assert (model.coef_ >= 0).all()
        assert (model.coef_[beta > 0] > 0).all()


def test_warm_start_goes_on_from_where_it_was():
    X, y, _ = data()
    model = ReWARegressor(alpha=0.1, warm_start=True).fit(X, y)
    coef = model.coef_
    assert model.fit(X, y).n_iter_ == 1
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-7)
    assert model.set_params(alpha=0.05).fit(X, y).n_iter_ < ReWARegressor(alpha=0.05).fit(X, y).n_iter_


def test_names_of_features():
    X, y, _ = data()
    frame = pd.DataFrame(X, columns=[f"gene {j}" for j in range(40)])
    model = ReWARegressorCV(alphas=30).fit(frame, y)
    assert list(model.feature_names_in_[model.support_]) == ["gene 3", "gene 11", "gene 20"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"gene 3": "other"}))


def test_with_scikit_learns_tools():
    X, y, _ = data()
    search = GridSearchCV(ReWARegressor(), {"alpha": [0.01, 0.1, 1.0], "p": [0.5, 1.0]}).fit(X, y)
    assert search.best_score_ > 0.9
    pipeline = make_pipeline(StandardScaler(), ReWARegressorCV(alphas=30))
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.9
    model = ReWARegressorCV(alphas=30).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert clone(model).get_params() == model.get_params()
    assert ReWARegressorCV(alphas=30, n_jobs=2).fit(X, y).alpha_ == model.alpha_


def test_sample_weights_count_in_the_folds():
    X, y, _ = data()
    weight = np.random.default_rng(2).integers(0, 3, len(y))
    folds = [(np.arange(60, 120), np.arange(60)), (np.arange(60), np.arange(60, 120))]
    many = np.repeat(np.arange(120), weight)
    place = {True: np.flatnonzero(many < 60), False: np.flatnonzero(many >= 60)}
    weighted = ReWARegressorCV(alphas=30, cv=folds).fit(X, y, sample_weight=weight)
    repeated = ReWARegressorCV(alphas=30, cv=[(place[False], place[True]), (place[True], place[False])]).fit(X[many], y[many])
    np.testing.assert_allclose(weighted.mse_path_, repeated.mse_path_, rtol=1e-7)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-7)


def test_metadata_routing():
    X, y, _ = data()
    groups = np.arange(120) % 6
    with config_context(enable_metadata_routing=True):
        splitter = GroupKFold(3).set_split_request(groups=True)
        model = ReWARegressorCV(alphas=20, cv=splitter).fit(X, y, groups=groups)
        assert model.mse_path_.shape == (20, 3)
        model = ReWARegressor().set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        search = GridSearchCV(model, {"alpha": [0.1]}, cv=3)
        search.fit(X, y, sample_weight=np.ones(120))
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        ReWARegressorCV(cv=GroupKFold(3)).fit(X, y, groups=groups)


def test_callbacks_are_told_of_each_exponent():
    pytest.importorskip("sklearn.callback")

    class Recorder:
        def __init__(self):
            self.ended = []

        def setup(self, estimator, context):
            self.expected = context.max_subtasks

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context):
            self.ended.append(context.task_name)

        def teardown(self, estimator, context):
            self.ended.append("teardown")

    X, y, _ = data()
    recorder = Recorder()
    ReWARegressorCV(alphas=20, p="auto").set_callbacks(recorder).fit(X, y)
    assert recorder.expected == 5
    assert recorder.ended == ["path"] * 5 + ["fit", "teardown"]
    recorder = Recorder()
    ReWARegressor(alpha=0.1).set_callbacks(recorder).fit(X, y)
    assert recorder.ended == ["path", "fit", "teardown"]


def test_too_few_steps_are_said_with_a_remedy():
    X, y, _ = data(noise=2.0)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 steps.*Raise max_iter"):
        ReWARegressor(alpha=0.001, max_iter=1).fit(X, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"penalty_factor": [1.0, 2.0]}, r"shape \(2,\); X has 40 features"),
        ({"penalty_factor": -np.ones(40)}, "finite numbers >= 0"),
        ({"alpha": -1}, "'alpha' parameter"),
        ({"p": 0.0}, "'p' parameter"),
        ({"solver": "cd"}, "'solver' parameter"),
        ({"K": 0.5}, "'K' parameter"),
    ],
)
def test_arguments_that_make_no_sense(change, message):
    X, y, _ = data()
    with pytest.raises(ValueError, match=message):
        ReWARegressor(**change).fit(X, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphas": []}, "alphas must"),
        ({"alphas": [np.nan]}, "alphas must"),
        ({"alpha_ratio": 2.0}, "'alpha_ratio' parameter"),
        ({"selection": "bic"}, "'selection' parameter"),
        ({"p": []}, "p is empty"),
    ],
)
def test_arguments_of_cross_validation_that_make_no_sense(change, message):
    X, y, _ = data()
    with pytest.raises(ValueError, match=message):
        ReWARegressorCV(**change).fit(X, y)


def test_weights_that_make_no_sense():
    X, y, _ = data()
    with pytest.raises(ValueError, match=r"(?i)weights .*zero"):
        ReWARegressor().fit(X, y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        ReWARegressor().fit(X, y, sample_weight=np.linspace(-1, 1, 120))


def test_odd_data_keep_working():
    X, y, _ = data()
    one = ReWARegressor(alpha=0.1).fit(X[:1], y[:1])  # a single row: nothing but its target can be known
    assert not one.support_.any()
    assert one.intercept_ == y[0]
    twice = np.column_stack([X, X, np.ones(120)])
    model = ReWARegressorCV(alphas=30).fit(twice, y)
    assert model.support_.sum() == 3  # of each pair of equal columns only one
    assert not model.support_[-1]
    sizes = np.logspace(-150, 150, 40)
    scaled = ReWARegressorCV(alphas=30).fit(X * sizes, y)
    np.testing.assert_allclose(scaled.coef_ * sizes, ReWARegressorCV(alphas=30).fit(X, y).coef_, rtol=1e-6, atol=1e-9)
    wide = ReWARegressorCV(alphas=30).fit(X[:6], y[:6])  # forty features, six rows
    assert np.isfinite(wide.coef_).all()
    constant = ReWARegressorCV(alphas=30).fit(X, np.full(120, 7.0))
    assert not constant.support_.any()
    assert constant.intercept_ == pytest.approx(7.0)


def test_the_path_starts_empty_ends_full_and_leaves_the_estimator_alone():
    X, y, _ = data()
    model = ReWARegressor(p=0.5)
    path = model.path(X, y, alphas=50, alpha_ratio=1e-6)
    assert not hasattr(model, "coef_")
    assert path.coefs.shape == (40, 50)
    assert path.n_nonzero[0] == 0
    assert path.n_nonzero[-1] == 40
    assert (np.diff(path.alphas) < 0).all()
    fitted = ReWARegressor(alpha=path.alphas[8], p=0.5).fit(X, y)
    np.testing.assert_allclose(fitted.coef_, path.coefs[:, 8], atol=1e-6)


def test_scikit_learn_without_callbacks(monkeypatch):
    """Before 1.9 there were none, and the estimators are made all the same."""
    monkeypatch.setitem(sys.modules, "sklearn.callback", None)
    older = importlib.util.module_from_spec(importlib.util.spec_from_file_location("older_model", model_module.__file__))
    monkeypatch.setitem(sys.modules, "older_model", older)
    older.__spec__.loader.exec_module(older)
    assert older.with_callbacks(len) is len
    assert not hasattr(older.LinearModel, "set_callbacks")


# ------------------------------------------------------------------------------------------------- what a review asked for


def test_a_path_starts_where_the_first_feature_enters_whatever_the_factors():
    X, y, _ = data()
    factor = np.random.default_rng(0).uniform(0.5, 2, 40)
    path = ReWARegressor(penalty_factor=factor).path(X, y, alphas=20)
    assert not ReWARegressor(alpha=path.alphas[0] * 1.001, penalty_factor=factor).fit(X, y).support_.any()
    assert ReWARegressor(alpha=path.alphas[0] * 0.95, penalty_factor=factor).fit(X, y).support_.any()


def test_free_features_come_before_the_path():
    X, y, _ = data()
    y = y + 30 * X[:, 0] + 5 * (X[:, 1] - X[:, 0])
    factor = np.ones(40)
    factor[0] = 0.0
    path = ReWARegressor(penalty_factor=factor).path(X, y, alphas=[*ReWARegressor(penalty_factor=factor).path(X, y).alphas])
    np.testing.assert_array_equal(np.flatnonzero(path.coefs[:, 0]), [0])
    assert path.n_nonzero[1] == 2


def test_a_positive_path_starts_with_the_strongest_positive_feature():
    X, y, _ = data()
    path = ReWARegressor(positive=True).path(X, -y, alphas=30)
    assert path.n_nonzero[:2].tolist() == [0, 1]
    assert path.coefs[:, 1].max() > 0


def test_refits_keep_coefficients_positive():
    random = np.random.default_rng(0)
    A, B = random.standard_normal((2, 200))
    C = 0.7 * (A + B) + 0.15 * random.standard_normal(200)
    X, y = np.column_stack([A, B, C]), A + B - 0.3 * C + 0.05 * random.standard_normal(200)
    assert ReWARegressor(alpha=0.05, p=1).fit(X, y).refit is False
    assert ReWARegressor(alpha=0.05, p=1, refit=True).fit(X, y).coef_[2] < 0  # what it would be
    for model in (
        ReWARegressor(alpha=0.05, p=1, refit=True, positive=True),
        ReWARegressorCV(p=1, positive=True),
        ReWARegressorCV(p=1, positive=True, selection="ebic"),
    ):
        assert (model.fit(X, y).coef_ >= 0).all()
        assert model.coef_[0] > 0.5
    warm = ReWARegressor(alpha=0.05, warm_start=True).fit(X, -y)
    assert (warm.set_params(positive=True).fit(X, -y).coef_ >= 0).all()


@pytest.mark.parametrize("selection", ["min", "1se", "ebic"])
def test_whole_weights_are_repeated_rows_for_every_selection(selection):
    X, y, _ = data(n=60, noise=2.0)
    weight = np.random.default_rng(2).integers(1, 3, 60)
    many = np.repeat(np.arange(60), weight)
    folds = [np.flatnonzero(np.arange(60) % 3 != fold) for fold in range(3)]
    cv = [(rows, np.setdiff1d(np.arange(60), rows)) for rows in folds]
    repeated = [(np.flatnonzero(np.isin(many, train)), np.flatnonzero(np.isin(many, test))) for train, test in cv]
    one = ReWARegressorCV(alphas=30, selection=selection, cv=cv).fit(X, y, sample_weight=weight)
    other = ReWARegressorCV(alphas=30, selection=selection, cv=repeated).fit(X[many], y[many])
    assert one.alpha_ == pytest.approx(other.alpha_, rel=1e-9)
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6, atol=1e-9)


def test_rows_that_a_fold_has_twice_count_twice():
    X, y, _ = data()
    first, second = np.arange(60), np.arange(60, 120)
    twice = ReWARegressorCV(alphas=20, cv=[(np.append(first, first[:30]), second)]).fit(X, y)
    weight = np.ones(120)
    weight[:30] = 2
    path = ReWARegressor().path(X[first], y[first], alphas=twice.alphas_, sample_weight=weight[first])
    for step in range(3):
        expected = ((y[second] - X[second] @ path.coefs[:, step] - path.intercepts[step]) ** 2).mean()
        found = ReWARegressorCV(alphas=20, refit=False, cv=[(np.append(first, first[:30]), second)]).fit(X, y)
        assert found.mse_path_[step, 0] == pytest.approx(expected, rel=1e-6)


def test_ebic_stops_at_half_the_rows_and_adds_up_outputs():
    X, y, _ = data(n=40, d=200, noise=3.0)
    model = ReWARegressorCV(selection="ebic", alphas=60, alpha_ratio=0.001, gamma=0.0).fit(X, y)
    path = ReWARegressor().path(X, y, alphas=model.alphas_)
    assert np.isnan(model.criterion_[path.n_nonzero >= 20]).all()
    random = np.random.default_rng(3)
    Z = random.standard_normal((150, 60))
    weak = 0.35 * Z[:, 2] + random.standard_normal(150)
    alone = ReWARegressorCV(selection="ebic").fit(Z, weak)
    many = ReWARegressorCV(selection="ebic").fit(Z, np.column_stack([weak] * 4))
    np.testing.assert_array_equal(np.flatnonzero(alone.support_), [2])
    np.testing.assert_array_equal(many.support_, alone.support_)
    assert ReWARegressorCV(selection="ebic", penalty_factor=np.zeros(200)).fit(X, y).support_.any()


def test_a_chosen_refit_lies_inside_its_stretch():
    X, y, _ = data(n=150, d=400)
    model = ReWARegressorCV(refit=True).fit(X, y)
    mean = model.mse_path_.mean(axis=1)
    step = int(np.flatnonzero(model.alphas_ == model.alpha_)[0])
    np.testing.assert_allclose(mean[step - 2 : step + 3], mean[step], rtol=1e-9)


def test_how_far_down_a_path_goes():
    X, y, _ = data()
    for rows, ratio in ((120, 1e-4), (30, 1e-2)):
        alphas = ReWARegressor().path(X[:rows], y[:rows], alphas=5).alphas
        assert alphas[-1] / alphas[0] == pytest.approx(ratio**1.5)


def test_no_penalty_at_all():
    X, y, _ = data()
    np.testing.assert_allclose(
        ReWARegressor(alpha=0.0).fit(X, y).coef_, np.linalg.lstsq(X - X.mean(0), y - y.mean(), rcond=None)[0], rtol=1e-6
    )
    assert np.isfinite(ReWARegressorCV(alphas=[0.0, 0.1]).fit(X, y).coef_).all()


def test_odd_folds():
    X, y, _ = data()
    model = ReWARegressorCV(selection="1se", cv=[(np.arange(60), np.arange(60, 120))], alphas=20).fit(X, y)
    assert model.support_.any()
    weight = np.ones(120)
    weight[:24] = 0
    left = ReWARegressorCV(alphas=20).fit(X, y, sample_weight=weight)  # the first fold holds out rows without weight
    assert left.mse_path_.shape == (20, 4)
    with pytest.raises(ValueError, match="a fold has no rows to fit that have a weight"):
        ReWARegressorCV(cv=[(np.arange(24), np.arange(24, 120))]).fit(X, y, sample_weight=weight)
    splits = (split for split in [(np.arange(60), np.arange(60, 120))])
    model = ReWARegressorCV(cv=splits, alphas=20).fit(X, y)
    mask = np.arange(120) < 60
    np.testing.assert_array_equal(ReWARegressorCV(cv=[(mask, ~mask)], alphas=20).fit(X, y).coef_, model.coef_)


def test_rows_without_weight_may_hold_anything():
    X, y, _ = data()
    expected = ReWARegressorCV(alphas=20, cv=3).fit(X[:90], y[:90])
    X[90:], y[90:] = 1e300, -1e300
    splits = list(KFold(3).split(X[:90]))
    found = ReWARegressorCV(alphas=20, cv=splits).fit(X, y, sample_weight=(np.arange(120) < 90).astype(float))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9)


def test_sparse_columns_far_from_zero():
    X, y, _ = data()
    for mean in (1e4, 1e7):
        dense = ReWARegressor(alpha=0.1).fit(X + mean, y)
        thin = ReWARegressor(alpha=0.1).fit(sparse.csc_array(X + mean), y)
        np.testing.assert_array_equal(thin.support_, dense.support_)
        np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-4, atol=1e-4)


def test_what_an_earlier_fit_left_is_gone():
    X, y, _ = data()
    model = ReWARegressorCV(alphas=20).fit(X, y)
    assert not hasattr(model.set_params(selection="ebic").fit(X, y), "mse_path_")
    assert not hasattr(model.set_params(selection="min").fit(X, y), "criterion_")
    warm = ReWARegressor(warm_start=True, solver="rewa", max_iter=5000).fit(X, y)
    assert warm.fit(X[:, :30], y).coef_.shape == (30,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: ReWARegressor().path(X, y, alphas=0), "alphas must be"),
        (lambda X, y: ReWARegressor().path(X, y, alpha_ratio=2.0), "alpha_ratio must be"),
        (lambda X, y: ReWARegressorCV(p="auto").path(X, y), "stands for several exponents"),
        (lambda X, y: ReWARegressorCV(p=[0.5, 1.0], M=7).fit(X, y), "M=7 goes with one exponent"),
        (lambda X, y: ReWARegressor(standardize=False).fit(X * 1e160, y), "of the size .*e[+]160.* use standardize=True"),
        (lambda X, y: ReWARegressorCV().fit(X, y * 1e160), "divide the targets"),
    ],
)
def test_calls_that_make_no_sense(call, message):
    X, y, _ = data()
    with pytest.raises(ValueError, match=message):
        call(X, y)
