"""The methods that are compared: ours, scikit-learn's, skglm's and abess's. Each imports what it needs when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "ALPHAS",
    "CONTENDERS",
    "CONTEST",
    "DEPTH",
    "FOLDS",
    "SPARSE_PATHS",
    "Contender",
    "Fitter",
    "estimator",
    "largest_alpha",
]

Fitter = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, float]]
"""From X and y to coefficients and intercept."""

ALPHAS, DEPTH, FOLDS = 50, 0.03, 5  # of the rivals: penalties, the least over the largest, and folds


@dataclass(frozen=True)
class Contender:
    """A row of the tables.

    Args:
        label: The name of the row.
        make: Imports what the method needs and returns the fit; None for the oracle, which is told the support.
        needs: The package that is not a dependency of ours, if it needs one.
    """

    label: str
    make: Callable[[], Fitter] | None
    needs: str | None = None


# ------------------------------------------------------------------------------------------ ours and scikit-learn's


def _rewa(**settings: Any) -> Callable[[], Fitter]:
    def make() -> Fitter:
        from rewa.estimators import ReWARegressorCV

        def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
            model = ReWARegressorCV(**settings).fit(X, y)
            return model.coef_, float(model.intercept_)

        return fit

    return make


def _lasso() -> Fitter:
    from sklearn.linear_model import LassoCV

    return lambda X, y: (LassoCV(alphas=ALPHAS, eps=DEPTH, cv=FOLDS, fit_intercept=False).fit(X, y).coef_, 0.0)


def _omp() -> Fitter:
    from sklearn.linear_model import OrthogonalMatchingPursuitCV

    return lambda X, y: (OrthogonalMatchingPursuitCV(cv=FOLDS, fit_intercept=False).fit(X, y).coef_, 0.0)


def _by_folds(path: Callable[[np.ndarray, np.ndarray], np.ndarray], X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of a path's coefficients, one row for each penalty, those whose penalty has the least error over the folds."""
    from sklearn.model_selection import KFold

    errors = []
    for train, test in KFold(FOLDS).split(X):
        coefs = path(X[train], y[train])
        errors.append(((y[test] - coefs @ X[test].T) ** 2).mean(axis=1))
    chosen: np.ndarray = path(X, y)[np.mean(errors, axis=0).argmin()]
    return chosen


def _grid(largest: float, depth: float = DEPTH) -> np.ndarray:
    return largest * np.geomspace(1, depth, ALPHAS)


def _relaxed() -> Fitter:
    """The lasso's supports, each refitted by least squares."""
    from sklearn.linear_model import lasso_path

    def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
        alphas = _grid(np.abs(X.T @ y).max() / len(y))

        def path(X: np.ndarray, y: np.ndarray) -> np.ndarray:
            coefs: np.ndarray = lasso_path(X, y, alphas=alphas)[1].T.copy()
            for coef in coefs:
                support = np.flatnonzero(coef)
                coef[support] = np.linalg.lstsq(X[:, support], y)[0]
            return coefs

        return _by_folds(path, X, y), 0.0

    return fit


def _adaptive() -> Fitter:
    """A lasso by cross-validation, then one whose penalty is divided by its coefficients; both stages in every fold."""
    from sklearn.linear_model import Lasso, LassoCV, lasso_path

    def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
        first = LassoCV(alphas=ALPHAS, eps=DEPTH, cv=FOLDS, fit_intercept=False).fit(X, y)
        weight = np.abs(first.coef_)
        alphas = _grid(np.abs(weight * (X.T @ y)).max() / len(y))

        def path(X: np.ndarray, y: np.ndarray) -> np.ndarray:
            weight = np.abs(Lasso(alpha=first.alpha_, fit_intercept=False).fit(X, y).coef_)
            coefs, kept = np.zeros((ALPHAS, X.shape[1])), np.flatnonzero(weight)
            coefs[:, kept] = lasso_path(X[:, kept] * weight[kept], y, alphas=alphas)[1].T * weight[kept]
            return coefs

        return _by_folds(path, X, y), 0.0

    return fit


# --------------------------------------------------------------------------------------------------- skglm and abess


def largest_alpha(penalty: str, X: Any, y: np.ndarray) -> float:
    """The least weight of one of skglm's penalties at which no coefficient leaves zero, for the loss 1/(2n) ||y - X b||^2.

    Args:
        penalty: The name of skglm's class.
        X: Features, dense or sparse.
        y: Targets.
    """
    slope = np.abs(X.T @ y) / len(y)
    L = np.asarray((X**2).sum(axis=0)) / len(y)
    slope, L = slope[L > 0], L[L > 0]
    if penalty == "L0_5":  # slope / L is the threshold of the prox, 3/2 (alpha / L)^(2/3)
        return float((L * (2 * slope / (3 * L)) ** 1.5).max())
    if penalty == "L2_3":  # 2 (2/3 alpha / L)^(3/4)
        return float((1.5 * L * (slope / (2 * L)) ** (4 / 3)).max())
    return float(slope.max())


def _skglm_path(penalty: str, **settings: float) -> Callable[[Any, np.ndarray, np.ndarray], np.ndarray]:
    """One path of skglm's own solver, warm-started; the working set is chosen as skglm needs it for the penalty."""
    from skglm import penalties
    from skglm.datafits import Quadratic
    from skglm.solvers import AndersonCD

    strategy = "fixpoint" if penalty.startswith("L") else "subdiff"
    # Its default of 50,000 epochs takes ten times as long on design B and selects the same.
    solver = AndersonCD(fit_intercept=False, ws_strategy=strategy, max_epochs=1000)

    def path(X: Any, y: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        start = getattr(penalties, penalty)(alpha=1.0, **settings)
        coefs: np.ndarray = solver.path(X, y, Quadratic(), start, alphas)[1].T
        return coefs

    return path


def _skglm(penalty: str, *, own: bool = False, **settings: float) -> Callable[[], Fitter]:
    """By folds, with the penalties of all rows, as scikit-learn has it, or with each fold's own, matched by their rank."""

    def make() -> Fitter:
        path = _skglm_path(penalty, **settings)

        def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
            alphas = _grid(largest_alpha(penalty, X, y))

            def fold(X: np.ndarray, y: np.ndarray) -> np.ndarray:
                return path(X, y, _grid(largest_alpha(penalty, X, y)) if own else alphas)

            return _by_folds(fold, X, y), 0.0

        return fit

    return make


def _abess(**settings: Any) -> Callable[[], Fitter]:
    def make() -> Fitter:
        from abess import LinearRegression

        return lambda X, y: (LinearRegression(fit_intercept=False, thread=1, **settings).fit(X, y).coef_, 0.0)

    return make


CONTENDERS = {
    "oracle": Contender("least squares on the true support", None),
    "rewa": Contender("**ReWARegressorCV()**", _rewa()),
    "lasso": Contender("sklearn LassoCV", _lasso),
    "omp": Contender("sklearn OrthogonalMatchingPursuitCV", _omp),
    "relaxed": Contender("relaxed lasso, by sklearn", _relaxed),
    "adaptive": Contender("adaptive lasso, by sklearn", _adaptive),
    "mcp": Contender("skglm MCP", _skglm("MCPenalty", gamma=3.0), "skglm"),
    "scad": Contender("skglm SCAD", _skglm("SCAD", gamma=3.7), "skglm"),
    "l0.5": Contender("skglm L0.5", _skglm("L0_5"), "skglm"),
    "l2/3": Contender("skglm L2/3", _skglm("L2_3"), "skglm"),
    "l0.5-own": Contender("skglm L0.5, penalties of each fold's own", _skglm("L0_5", own=True), "skglm"),
    "l2/3-own": Contender("skglm L2/3, penalties of each fold's own", _skglm("L2_3", own=True), "skglm"),
    "abess": Contender("abess, EBIC (its default)", _abess(), "abess"),
    "abess-cv": Contender("abess, 5 folds", _abess(cv=FOLDS), "abess"),
}
CONTEST = {"rewa-50": Contender(f"ReWARegressorCV(alphas={ALPHAS}, cv={FOLDS})", _rewa(alphas=ALPHAS, cv=FOLDS))}


# ------------------------------------------------------------------------------------ for real data, and for wide data


def estimator(method: str, data: str) -> Any:
    """The estimator of scikit-learn's kind for a data set: ours, or the lasso.

    Args:
        method: ``"rewa"`` or ``"lasso"``.
        data: The name of the data set.
    """
    if method == "rewa":
        from rewa.estimators import ReWAClassifierCV, ReWARegressorCV

        return ReWARegressorCV() if data == "diabetes" else ReWAClassifierCV()
    from sklearn.linear_model import LassoCV, LogisticRegressionCV
    from sklearn.multiclass import OneVsRestClassifier

    if data == "diabetes":
        return LassoCV()
    # Of the solvers for l1, saga does not converge in 1,000 passes over this many columns; liblinear does, class by class.
    settings = {"l1_ratios": (1,), "solver": "liblinear", "scoring": "neg_log_loss", "use_legacy_attributes": False}
    return OneVsRestClassifier(LogisticRegressionCV(Cs=10, cv=FOLDS, max_iter=1000, **settings))


def _rewa_sparse() -> Callable[[Any, np.ndarray], int]:
    from rewa.estimators import ReWARegressor

    return lambda X, y: int(ReWARegressor().path(X, y, alphas=ALPHAS, alpha_ratio=DEPTH).n_nonzero[-1])


def _lasso_sparse() -> Callable[[Any, np.ndarray], int]:
    from sklearn.linear_model import lasso_path

    return lambda X, y: int(np.count_nonzero(lasso_path(X, y, alphas=ALPHAS, eps=DEPTH)[1][:, -1]))


def _skglm_sparse() -> Callable[[Any, np.ndarray], int]:
    path = _skglm_path("L0_5")
    depth = DEPTH**1.5  # the threshold goes with alpha^(2/3)
    return lambda X, y: int(np.count_nonzero(path(X, y, _grid(largest_alpha("L0_5", X, y), depth))[-1]))


SPARSE_PATHS = {"rewa": _rewa_sparse, "lasso": _lasso_sparse, "l0.5": _skglm_sparse}
"""For each method of the part on scaling: makes what runs a path and returns the number of coefficients at its end."""
