import numpy as np
import pytest
from joblib import parallel_config
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from rewa.estimators import ReWARegressor, ReWARegressorCV
from rewa.estimators import stability as module
from rewa.estimators.classifier import ReWAClassifier
from rewa.estimators.stability import stability_selection

TRUE = [2, 20, 41]


def data(n=80, d=60):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * rng.uniform(0.1, 10, d)
    y = (X[:, TRUE] / X[:, TRUE].std(axis=0)) @ [1.0, -1.0, 1.0] + rng.standard_normal(n)
    return X, y


def slow_reference(estimator, X, y, q, n_resamples, seed):
    """The same by whole paths of the public estimator: features by where they enter, then by standardized size."""
    generator = np.random.RandomState(seed)
    counts = np.zeros(X.shape[1])
    for _ in range(n_resamples // 2):
        order = generator.permutation(len(X))
        half = len(X) // 2
        for rows in (order[0 : 2 * half : 2], order[1 : 2 * half : 2]):
            coefs = estimator.path(X[rows], y[rows], alphas=100, alpha_ratio=0.01).coefs
            size = np.abs(coefs) * X[rows].std(axis=0)[:, None]
            entries = []
            for feature in np.flatnonzero((size > 0).any(axis=1)):
                step = np.flatnonzero(size[feature])[0]
                entries.append((step, -size[feature, step], feature))
            for _, _, feature in sorted(entries)[:q]:
                counts[feature] += 1
    return counts / n_resamples


@pytest.mark.parametrize("p", [1.0, 0.5])
@pytest.mark.parametrize("n", [80, 81])
def test_frequencies_equal_a_slow_reference(p, n):
    X, y = data(n)
    found = stability_selection(ReWARegressor(p=p), X, y, n_features=6, n_resamples=6, random_state=3)
    expected = slow_reference(ReWARegressor(p=p), X, y, 6, 6, 3)
    np.testing.assert_array_equal(found.frequencies, expected)
    assert found.frequencies.sum() == pytest.approx(6)


def test_true_features_and_bound():
    X, y = data()
    found = stability_selection(ReWARegressor(), X, y, random_state=0)
    assert np.flatnonzero(found.support).tolist() == TRUE
    np.testing.assert_array_equal(found.support, found.frequencies >= 0.75)
    assert (found.n_features, found.n_resamples, found.threshold) == (5, 50, 0.75)  # floor(sqrt(0.5 * 60)) = 5
    assert found.error_bound == pytest.approx(25 / 30)
    assert stability_selection(ReWARegressor(), X, y, n_resamples=2, n_features=6, threshold=0.9).error_bound == 36 / (0.8 * 60)


@pytest.mark.parametrize(("threshold", "d", "q"), [(0.6, 500, 10), (0.75, 2000, 31), (1.0, 100, 10), (0.51, 10, 1)])
def test_default_number_of_features(threshold, d, q):
    assert module._taken(None, d, threshold) == q


def test_noise_is_not_selected():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((60, 200)), rng.standard_normal(60)
    found = stability_selection(ReWARegressor(), X, y, random_state=0)
    assert found.support.sum() <= 1
    assert found.frequencies.max() > 0


def test_settings_are_those_of_the_estimator():
    X, y = data()
    same = {"n_resamples": 4, "n_features": 4, "random_state": 0}
    single = stability_selection(ReWARegressor(p=0.5), X, y, **same).frequencies
    np.testing.assert_array_equal(stability_selection(ReWARegressorCV(p=0.5), X, y, **same).frequencies, single)
    np.testing.assert_array_equal(
        stability_selection(ReWARegressor(alpha=9, p=0.5), sparse.csr_array(X), y, **same).frequencies, single
    )
    with parallel_config("threading"):
        np.testing.assert_array_equal(stability_selection(ReWARegressor(p=0.5), X, y, n_jobs=2, **same).frequencies, single)
    positive = stability_selection(ReWARegressor(p=0.5, positive=True), X, y, **same).frequencies
    assert positive[20] == 0
    assert single[20] == 1
    chosen = ReWARegressorCV(p=[1.0, 0.5], alphas=5, cv=2).fit(X, y)
    chosen.p_ = 0.5
    np.testing.assert_array_equal(stability_selection(chosen, X, y, **same).frequencies, single)
    assert chosen.p_ == 0.5
    with pytest.raises(ValueError, match=r"p='auto' leaves the exponent to a fit"):
        stability_selection(ReWARegressorCV(p="auto"), X, y)


def test_features_without_a_penalty_are_not_counted():
    X, y = data()
    factors = np.ones(60)
    factors[[2, 7]] = 0
    found = stability_selection(ReWARegressor(penalty_factor=factors), X, y, n_features=2, n_resamples=10, random_state=0)
    assert found.frequencies[[2, 7]].tolist() == [0, 0]
    assert found.frequencies[[20, 41]].min() >= 0.8
    assert found.error_bound == pytest.approx(4 / (0.5 * 58))
    with pytest.raises(ValueError, match="nothing to select"):
        stability_selection(ReWARegressor(penalty_factor=np.zeros(60)), X, y)


def test_rows_without_weight_are_left_out():
    X, y = data()
    weights = np.r_[np.ones(60), np.zeros(20)]
    weighted = stability_selection(ReWARegressor(), X, y, sample_weight=weights, n_resamples=4, random_state=0)
    part = stability_selection(ReWARegressor(), X[:60], y[:60], n_resamples=4, random_state=0)
    np.testing.assert_array_equal(weighted.frequencies, part.frequencies)


def test_several_outputs():
    X, y = data()
    other = X[:, 5] / X[:, 5].std() * y.std()
    found = stability_selection(ReWARegressor(), X, np.column_stack([y, other]), n_resamples=4, random_state=0)
    assert set(np.flatnonzero(found.support)) >= {5, 20}
    assert found.frequencies[5] == 1
    assert stability_selection(ReWARegressor(), X, y, n_resamples=4, random_state=0).frequencies[5] < 1


@pytest.mark.parametrize("n", [20, 21])
def test_halves_are_disjoint_and_keep_the_classes(n):
    classes = np.sort(np.arange(n) % 5 > 2).astype(int) + 3
    classes[:2] = 9  # as rare as can be
    rows = np.arange(n) * 10
    first, second = module._halves(rows, classes, np.random.RandomState(0))
    assert len(first) == len(second) == n // 2
    assert not set(first) & set(second)
    assert set(first) | set(second) <= set(rows)
    for label in np.unique(classes):
        shares = [np.count_nonzero(classes[half // 10] == label) for half in (first, second)]
        assert min(shares) >= 1
        assert abs(shares[0] - shares[1]) <= 1
    other, _ = module._halves(rows, classes, np.random.RandomState(1))
    assert set(other) != set(first)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c"]])
def test_classifier(labels):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 30))
    y = np.array(labels)[np.digitize(X[:, 4] + 0.2 * rng.standard_normal(120), [-0.4, 0.4][: len(labels) - 1])]
    found = stability_selection(ReWAClassifier(), X, y, n_resamples=10, random_state=0)
    assert np.flatnonzero(found.support).tolist() == [4]
    y[:] = labels[0]
    y[0] = labels[1]
    with pytest.raises(ValueError, match=r"class .*b.* has a single row"):
        stability_selection(ReWAClassifier(), X, y)


def test_estimator_stays_as_it_is():
    X, y = data()
    model = ReWARegressor().fit(X, y)
    before = {name: np.copy(value) for name, value in vars(model).items()}
    stability_selection(model, X, y, n_resamples=2)
    for name, value in vars(model).items():
        np.testing.assert_array_equal(value, before[name])
    fresh = clone(model)
    stability_selection(fresh, X, y, n_resamples=2)
    assert not hasattr(fresh, "n_features_in_")


def test_says_when_models_are_not_reached():
    X, y = data()
    with pytest.warns(ConvergenceWarning, match="2 of 2 half samples"):
        stability_selection(ReWARegressor(max_iter=1), X, y, n_resamples=2, n_features=20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 0.5}, "threshold=0.5 must be above 0.5"),
        ({"threshold": 1.1}, r"threshold=1\.1 must be"),
        ({"threshold": float("nan")}, "threshold=nan must be"),
        ({"n_resamples": 7}, "n_resamples=7 must be even"),
        ({"n_resamples": 0}, "n_resamples=0 must be even"),
        ({"n_features": 61}, "n_features=61 is more than the 60 features"),
        ({"n_features": 0}, "n_features=0 must be"),
        ({"sample_weight": np.r_[np.ones(3), np.zeros(77)]}, "3 rows with a positive weight are too few"),
    ],
)
def test_errors(settings, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        stability_selection(ReWARegressor(), X, y, **settings)


def test_other_estimators_are_refused():
    X, y = data()
    with pytest.raises(TypeError, match="Lasso"):
        stability_selection(Lasso(), X, y)
