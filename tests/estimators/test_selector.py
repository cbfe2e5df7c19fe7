import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import Lasso, LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from rewa.estimators import ReWARegressor, ReWARegressorCV
from rewa.estimators.classifier import ReWAClassifier, ReWAClassifierCV
from rewa.estimators.selector import ReWASelector

TRUE = [3, 11, 25]


def data(small=0.3):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 40))
    return X, X[:, TRUE] @ [2.0, -2.0, small] + 0.1 * rng.standard_normal(120)


SELECTORS = [ReWASelector(ReWARegressor()), ReWASelector(ReWARegressorCV(alphas=5, cv=2)), ReWASelector(ReWAClassifier())]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No features were selected:UserWarning")  # some of the checks' targets are noise
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # the array API is not switched on
@parametrize_with_checks(SELECTORS)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_keeps_a_small_coefficient_that_the_mean_threshold_drops():
    X, y = data()
    model = ReWARegressor(alpha=0.01)
    assert ReWASelector(model).fit(X, y).get_support(indices=True).tolist() == TRUE
    # Among few features the mean of the coefficients is above 0.3.
    few = X[:, [*TRUE, 0]]
    assert ReWASelector(model).fit(few, y).get_support().tolist() == [True, True, True, False]
    assert SelectFromModel(model).fit(few, y).get_support().tolist() == [True, True, False, False]


def test_pipeline_equals_columns_selected_by_hand():
    X, y = data()
    pipeline = make_pipeline(ReWASelector(ReWARegressor(alpha=0.01)), LinearRegression()).fit(X, y)
    columns = np.flatnonzero(ReWARegressor(alpha=0.01).fit(X, y).coef_)
    by_hand = LinearRegression().fit(X[:, columns], y)
    np.testing.assert_array_equal(pipeline.predict(X), by_hand.predict(X[:, columns]))
    search = GridSearchCV(pipeline, {"rewaselector__estimator__alpha": [0.01, 0.5]}, cv=3).fit(X, y)
    assert search.best_params_ == {"rewaselector__estimator__alpha": 0.01}


def test_any_output_counts():
    X, _ = data()
    Y = np.column_stack([X[:, 3], X[:, 11] - X[:, 3]])
    assert ReWASelector(ReWARegressor(alpha=0.01)).fit(X, Y).get_support(indices=True).tolist() == [3, 11]


def test_default_is_cross_validated():
    X, y = data()
    selector = ReWASelector().fit(X, y)
    assert isinstance(selector.estimator_, ReWARegressorCV)
    assert selector.estimator is None
    assert set(TRUE) <= set(selector.get_support(indices=True))
    # Amounts that happen to be whole are amounts.
    assert isinstance(ReWASelector().fit(X, np.round(y)).estimator_, ReWARegressorCV)


@pytest.mark.parametrize("labels", [np.array([0, 1]), np.array(["no", "yes"]), np.array([False, True])])
def test_default_for_labels_is_a_classifier(labels):
    X, y = data()
    selector = ReWASelector().fit(X, labels[(y > 0).astype(int)])
    assert isinstance(selector.estimator_, ReWAClassifierCV)
    assert {3, 11} <= set(selector.get_support(indices=True))


def test_sparse_x():
    X, y = data()
    X[np.abs(X) < 1] = 0
    y = X[:, TRUE] @ [2.0, -2.0, 0.3]
    dense = ReWASelector(ReWARegressor()).fit(X, y)
    selector = ReWASelector(ReWARegressor()).fit(sparse.csr_array(X), y)
    np.testing.assert_array_equal(selector.get_support(), dense.get_support())
    kept = selector.transform(sparse.csr_array(X))
    assert sparse.issparse(kept)
    np.testing.assert_array_equal(kept.toarray(), X[:, TRUE])


def test_sparse_coefficients_of_another_linear_model():
    X, y = data()
    selector = ReWASelector(Lasso(alpha=0.1)).fit(X, y)
    before = selector.get_support()
    selector.estimator_.coef_ = selector.estimator_.sparse_coef_
    np.testing.assert_array_equal(selector.get_support(), before)
    assert 2 <= before.sum() < 40


def test_weights_reach_the_model():
    X, y = data()
    rng = np.random.default_rng(1)
    weights = np.r_[np.ones(60), np.zeros(60)]
    y[60:] = 5 * rng.standard_normal(60)
    expected = ReWARegressor(alpha=0.01).fit(X[:60], y[:60]).coef_
    selector = ReWASelector(ReWARegressor(alpha=0.01)).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(selector.estimator_.coef_, expected, rtol=1e-6, atol=1e-9)
    pipeline = make_pipeline(ReWASelector(ReWARegressor(alpha=0.01)), LinearRegression())
    pipeline.fit(X, y, rewaselector__sample_weight=weights)
    np.testing.assert_allclose(pipeline[0].estimator_.coef_, expected, rtol=1e-6, atol=1e-9)
    with sklearn.config_context(enable_metadata_routing=True):
        asks = ReWARegressor(alpha=0.01).set_fit_request(sample_weight=True)
        routed = make_pipeline(ReWASelector(asks), LinearRegression().set_fit_request(sample_weight=False))
        routed.fit(X, y, sample_weight=weights)
        np.testing.assert_allclose(routed[0].estimator_.coef_, expected, rtol=1e-6, atol=1e-9)
        with pytest.raises(ValueError, match="sample_weight"):
            ReWASelector(ReWARegressor()).fit(X, y, sample_weight=weights)
        default = ReWASelector().fit(X, y, sample_weight=weights)  # takes weights without being told
    np.testing.assert_array_equal(default.estimator_.coef_, ReWARegressorCV().fit(X, y, sample_weight=weights).coef_)


def test_feature_names():
    pandas = pytest.importorskip("pandas")
    X, y = data()
    frame = pandas.DataFrame(X, columns=[f"column {number}" for number in range(40)])
    selector = ReWASelector(ReWARegressor()).set_output(transform="pandas").fit(frame, y)
    assert list(selector.transform(frame).columns) == [f"column {number}" for number in TRUE]
    assert list(selector.get_feature_names_out()) == [f"column {number}" for number in TRUE]


def test_made_up_feature_names():
    X, y = data()
    selector = ReWASelector(ReWARegressor()).fit(X, y)
    assert selector.get_feature_names_out().tolist() == ["x3", "x11", "x25"]
    assert selector.get_feature_names_out([f"g{number}" for number in range(40)]).tolist() == ["g3", "g11", "g25"]
    np.testing.assert_array_equal(selector.inverse_transform(X[:, TRUE])[:, TRUE], X[:, TRUE])


def test_nothing_selected_is_said():
    X, y = data()
    selector = ReWASelector(ReWARegressor(alpha=1e3)).fit(X, y)
    with pytest.warns(UserWarning, match="No features were selected"):
        assert selector.transform(X).shape == (120, 0)


def test_passes_nothing_else_on():
    X, y = data()
    model = ReWARegressor()
    selector = ReWASelector(model).fit(X, y)
    assert not hasattr(model, "coef_")
    for name in ("predict", "score", "coef_", "intercept_", "path", "partial_fit", "alpha"):
        assert not hasattr(selector, name), name
    assert {name for name in vars(selector) if name.endswith("_")} == {"estimator_", "n_features_in_"}


def test_errors():
    X, y = data()
    with pytest.raises(NotFittedError):
        ReWASelector().transform(X)
    with pytest.raises(TypeError, match="KNeighborsRegressor has no coef_"):
        ReWASelector(KNeighborsRegressor()).fit(X, y)
    with pytest.raises(ValueError, match="'estimator' parameter"):
        ReWASelector("lasso").fit(X, y)
