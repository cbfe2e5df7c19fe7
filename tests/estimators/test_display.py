import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import same_color
from sklearn.linear_model import Lasso

mpl.use("agg")
plt = pytest.importorskip("matplotlib.pyplot")

from rewa.estimators import ReWARegressor, ReWARegressorCV  # noqa: E402
from rewa.estimators import display as module  # noqa: E402
from rewa.estimators.classifier import ReWAClassifier  # noqa: E402
from rewa.estimators.display import ReWAPathDisplay  # noqa: E402


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 80))
    return X, X[:, [4, 30, 70]] @ [1.0, -1.5, 0.7] + 0.5 * rng.standard_normal(60)


def bright(display):
    """Features in colour."""
    return {feature for (_, feature), line in display.lines_.items() if line.get_linewidth() > 1.5}


def test_lines_are_the_path():
    X, y = data()
    model = ReWARegressorCV(cv=3).fit(X, y)
    path = model.path(X, y)
    shown = ReWAPathDisplay.from_estimator(model, X, y)
    np.testing.assert_array_equal(shown.alphas, path.alphas)
    np.testing.assert_array_equal(shown.coefs, path.coefs)
    assert (shown.p, shown.alpha) == (model.p_, model.alpha_)
    entered = np.flatnonzero(path.coefs.any(axis=1))
    assert sorted(shown.lines_) == [(0, feature) for feature in entered]
    for (_, feature), line in shown.lines_.items():
        np.testing.assert_array_equal(line.get_xdata(), path.alphas)
        drawn = line.get_ydata()
        np.testing.assert_array_equal(np.nan_to_num(drawn), path.coefs[feature])
        first = np.flatnonzero(path.coefs[feature])[0]
        if first:  # the line begins on the axis, one step before
            assert drawn[first - 1] == 0
        assert np.isnan(drawn[: max(first - 1, 0)]).all()
    assert bright(shown) == set(np.flatnonzero(model.coef_))


def test_axes():
    X, y = data()
    model = ReWARegressor(alpha=0.1).fit(X, y)
    shown = ReWAPathDisplay.from_estimator(model, X, y)
    ax = shown.ax_
    assert shown.figure_ is ax.figure
    assert ax.get_xscale() == "log"
    left, right = ax.get_xlim()
    assert left > shown.alphas[0] > shown.alphas[-1] > right
    assert "alpha" in ax.get_xlabel()
    assert "p = 0.5" in ax.get_xlabel()
    assert ax.get_ylabel() == "coefficient"
    (mark,) = [line for line in ax.get_lines() if list(line.get_xdata()) == [0.1, 0.1]]
    assert mark.get_linestyle() == "--"
    assert "chosen alpha: 0.1" in [text.get_text() for text in ax.texts]


def test_names_follow_the_ends_without_overlap():
    X, y = data()
    shown = ReWAPathDisplay.from_estimator(ReWARegressor(alpha=0.02, p=1).fit(X, y), X, y)
    assert len(shown.texts_) == 10
    shown.figure_.canvas.draw()
    order = sorted(shown.texts_, key=lambda feature: shown.coefs[feature, -1])
    boxes = [shown.texts_[feature].get_window_extent() for feature in order]
    for feature, box in zip(order, boxes, strict=True):
        assert shown.texts_[feature].get_text() == f"x{feature}"
        assert same_color(shown.texts_[feature].get_color(), shown.lines_[0, feature].get_color())
        assert box.x1 <= shown.figure_.bbox.x1
    centers = [shown.texts_[feature].xyann[1] for feature in order]
    height = shown.ax_.get_window_extent().height
    assert (np.diff(centers) * height >= 8.5 * shown.figure_.dpi / 72).all()
    chosen = np.count_nonzero(ReWARegressor(alpha=0.02, p=1).fit(X, y).coef_)
    assert f"and {chosen - 10} more" in [text.get_text() for text in shown.ax_.texts]


def test_spread_is_the_nearest():
    np.testing.assert_allclose(module._spread(np.array([0.5, 0.5, 0.9]), 0.1), [0.45, 0.55, 0.9])
    np.testing.assert_allclose(module._spread(np.array([0.0, 0.0, 1.0]), 0.2), [0.0, 0.2, 1.0])
    np.testing.assert_allclose(module._spread(np.array([0.98, 0.99, 1.0]), 0.1), [0.8, 0.9, 1.0])


def test_chosen_exponent_is_drawn():
    X, y = data()
    model = ReWARegressorCV(p=[1.0, 0.5], cv=3, alphas=20).fit(X, y)
    for p in (1.0, 0.5):
        model.p_ = p
        shown = ReWAPathDisplay.from_estimator(model, X, y, alphas=20)
        assert shown.p == p
        np.testing.assert_array_equal(shown.coefs, ReWARegressor(p=p).path(X, y, alphas=20).coefs)


def test_without_a_fit_the_first_to_enter_stand_out():
    X, y = data()
    shown = ReWAPathDisplay.from_estimator(ReWARegressor(), X, y, max_labels=3)
    assert shown.alpha is None
    assert not any("chosen" in text.get_text() for text in shown.ax_.texts)
    assert bright(shown) == {4, 30, 70}


def test_highlight():
    X, y = data()
    ax = plt.figure().subplots()
    model = ReWARegressor(alpha=0.1).fit(X, y)
    shown = ReWAPathDisplay.from_estimator(model, X, y, ax=ax, highlight=["x4", 30], line_kw={"linewidth": 4})
    assert shown.ax_ is ax
    assert bright(shown) == {4, 30}
    assert {shown.lines_[0, feature].get_linewidth() for feature in (4, 30)} == {4}
    assert set(shown.texts_) == {4, 30}
    with pytest.raises(ValueError, match="'nobody'"):
        shown.plot(highlight=["nobody"])
    with pytest.raises(ValueError, match="highlight names 80"):
        shown.plot(highlight=[80])


def test_standardized():
    X, y = data()
    X[:, 4] *= 100
    model = ReWARegressor(alpha=0.1).fit(X, y)
    weights = np.random.default_rng(0).uniform(0.5, 2, 60)
    raw = ReWAPathDisplay.from_estimator(model, X, y, sample_weight=weights)
    shown = ReWAPathDisplay.from_estimator(model, X, y, sample_weight=weights, standardized=True)
    mean = np.average(X, axis=0, weights=weights)
    spread = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(shown.coefs, raw.coefs * spread[:, None])
    assert "standard deviation" in shown.ax_.get_ylabel()


def test_several_outputs():
    X, y = data()
    Y = np.column_stack([y, X[:, 4] - X[:, 11]])
    model = ReWARegressor(alpha=0.1).fit(X, Y)
    shown = ReWAPathDisplay.from_estimator(model, X, Y)
    assert shown.coefs.shape == (2, 80, 200)
    first, second = shown.lines_[0, 4], shown.lines_[1, 4]
    assert first.get_color() == second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
    np.testing.assert_array_equal(np.nan_to_num(second.get_ydata()), shown.coefs[1, 4])
    assert [text.get_text() for text in shown.ax_.get_legend().get_texts()] == ["output 0", "output 1"]
    shown.plot(output=1)
    assert {output for output, _ in shown.lines_} == {1}
    assert shown.ax_.get_legend() is None
    with pytest.raises(ValueError, match="output=2"):
        shown.plot(output=2)


def test_classes_are_named():
    X, y = data()
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [-1, 1])]
    shown = ReWAPathDisplay.from_estimator(ReWAClassifier(alpha=0.05).fit(X, labels), X, labels, alphas=20)
    assert [text.get_text() for text in shown.ax_.get_legend().get_texts()] == ["class high", "class low", "class middle"]
    two = ReWAPathDisplay.from_estimator(ReWAClassifier(alpha=0.05).fit(X, y > 0), X, y > 0, alphas=20)
    assert two.ax_.get_legend() is None


def test_from_numbers():
    coefs = np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    names = ["a $1 and $2", "b", "c" * 50]
    shown = ReWAPathDisplay(alphas=[0.1, 1.0, 10.0], coefs=coefs, p=1.0, feature_names=names, alpha=0.9).plot()
    assert bright(shown) == {0}  # what is not zero at the weight next to 0.9
    assert set(shown.lines_) == {(0, 0), (0, 2)}
    np.testing.assert_array_equal(shown.lines_[0, 0].get_xdata(), [10.0, 1.0, 0.1])
    shown.figure_.canvas.draw()
    assert shown.texts_[0].get_text() == "a $1 and $2"
    every = ReWAPathDisplay(alphas=[0.1, 1.0, 10.0], coefs=coefs, p=1.0, feature_names=names).plot()
    assert every.texts_[2].get_text() == "c" * 27 + "…"
    with pytest.raises(ValueError, match="last axis"):
        ReWAPathDisplay(alphas=[1.0], coefs=coefs, p=1.0).plot()
    with pytest.raises(ValueError, match="none of the alphas is positive"):
        ReWAPathDisplay(alphas=[0.0], coefs=coefs[:, :1], p=1.0).plot()
    assert len(ReWAPathDisplay(alphas=[0.5], coefs=coefs[:, :1], p=1.0, alpha=0.5).plot().lines_) == 2


def test_other_estimators_are_refused():
    X, y = data()
    with pytest.raises(TypeError, match="Lasso"):
        ReWAPathDisplay.from_estimator(Lasso(), X, y)
