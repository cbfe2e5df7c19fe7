"""Which features enter the model whatever half of the rows it is shown."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed

from rewa.estimators import path
from rewa.estimators.model import LinearModel
from rewa.estimators.problem import Problem

__all__ = ["Stability", "stability_selection"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

STEPS, RATIO = 100, 0.01  # thresholds of a path, and the last of them over the first


@dataclass(frozen=True, eq=False)
class Stability:
    """What :func:`stability_selection` finds.

    Args:
        frequencies: Share of the half samples in which each feature was among the first to enter.
        support: Which features were so in at least the share ``threshold``.
        threshold: That share.
        n_features: How many were taken from each half sample.
        n_resamples: Number of half samples.
        error_bound: The expected number of features in the support that should not be there is at most this.
    """

    frequencies: Array
    support: NDArray[np.bool_]
    threshold: float
    n_features: int
    n_resamples: int
    error_bound: float


def stability_selection(
    estimator: LinearModel,
    X: ArrayLike,
    y: ArrayLike,
    *,
    n_features: int | None = None,
    n_resamples: int = 50,
    threshold: float = 0.75,
    sample_weight: ArrayLike | None = None,
    random_state: Any = None,
    n_jobs: int | None = None,
) -> Stability:
    r"""Features that enter early on the paths of most half samples, with a bound on how many of them are false.

    The rows are halved at random, again and again. On each half the path of the penalty is followed from the empty model until
    q features have entered, and a feature is selected if it is one of them in at least the share :math:`\tau` of the halves. Of
    d features with a penalty, the expected number of false ones among the selected is at most

    .. math:: E = \frac{q^2}{(2\tau - 1)\,d}

    where false means: among the q of a half sample no more often than by a blind draw. No weight of the penalty is chosen.

    Of features that enter at the same point of the path, those with the largest coefficients for their spread come first.
    Features with penalty factor 0 are in every model; they are not counted and have frequency 0.

    Args:
        estimator: :class:`ReWARegressor`, :class:`ReWAClassifier` or one of their CV kind, for the penalty's exponent, its
            factors and the other settings; neither ``alpha`` nor folds are used. It need not be fitted, unless it has several
            exponents to choose from, and stays as it is.
        X: Features, dense or sparse.
        y: Targets; the halves of a classifier keep the shares of the classes.
        n_features: q, by default the largest for which E is at most 1.
        n_resamples: Number of half samples, even: each comes with the other half of the rows.
        threshold: :math:`\tau`, above 0.5 and at most 1.
        sample_weight: Weights of the rows; rows without weight are left out.
        random_state: Seed of the halves.
        n_jobs: Processes.

    Raises:
        ValueError: If a setting is out of range or there are too few rows to halve.

    Example:
        >>> import numpy as np
        >>> from rewa.estimators import ReWARegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((100, 200))
        >>> y = X[:, 3] - X[:, 50] + rng.standard_normal(100)
        >>> found = stability_selection(ReWARegressor(), X, y, random_state=0)
        >>> print(np.flatnonzero(found.support), found.n_features, found.error_bound)
        [ 3 50] 10 1.0

    References:
        Meinshausen and Buehlmann, Stability selection, JRSS B 2010, Theorem 1; Shah and Samworth, Variable selection with error
        control: another look at stability selection, JRSS B 2013, Theorem 1, which needs no exchangeable noise features.
    """
    if not isinstance(estimator, LinearModel):
        raise TypeError(
            f"stability_selection follows the paths of rewa's own estimators, such as ReWARegressor(); got {estimator!r}"
        )
    if not 0.5 < threshold <= 1:
        raise ValueError(
            f"threshold={threshold:g} must be above 0.5, where the bound begins, and at most 1; 0.6 to 0.9 is usual"
        )
    if not isinstance(n_resamples, Integral) or n_resamples < 2 or n_resamples % 2:
        raise ValueError(
            f"n_resamples={n_resamples} must be even and at least 2, since halves come in pairs; 50 or 100 is usual"
        )
    copy = clone(estimator)
    data, targets, weights = copy._check(X, y, sample_weight)
    p = _exponent(estimator)
    problem = copy._problem(data, targets, weights, **copy._settings(data.shape[1], weights))
    penalized = int(np.count_nonzero(problem.factors))
    q = _taken(n_features, penalized, threshold)
    rows = np.flatnonzero(problem.weights > 0)
    classes = np.asarray(targets).ravel()[rows] if is_classifier(copy) else None
    _check_rows(rows, classes, copy)

    generator = check_random_state(random_state)
    halves = [half for _ in range(n_resamples // 2) for half in _halves(rows, classes, generator)]
    jobs = (delayed(_first)(problem, half, p, q) for half in halves)
    results = Parallel(n_jobs=n_jobs)(jobs)
    unfinished = sum(not converged for _, converged in results)
    if unfinished:
        warnings.warn(
            f"On {unfinished} of {n_resamples} half samples a model did not come below tol={copy.tol:g} in "
            f"max_iter={copy.max_iter} steps: features may have entered in another order. "
            "Raise max_iter or tol of the estimator.",
            ConvergenceWarning,
            stacklevel=2,
        )
    entered = np.concatenate([first for first, _ in results])
    frequencies = np.bincount(entered, minlength=data.shape[1]) / n_resamples
    return Stability(
        frequencies=frequencies,
        support=frequencies >= threshold,
        threshold=float(threshold),
        n_features=q,
        n_resamples=int(n_resamples),
        error_bound=q**2 / ((2 * threshold - 1) * penalized),
    )


def _exponent(estimator: LinearModel) -> float:
    ps = estimator._exponents()
    if len(ps) == 1:
        return ps[0]
    if not hasattr(estimator, "p_"):
        raise ValueError(
            f"p={estimator.p!r} leaves the exponent to a fit: fit the estimator before, or give a single p such as 2/3"
        )
    return float(estimator.p_)


def _taken(n_features: int | None, penalized: int, threshold: float) -> int:
    """How many features are taken from each half sample."""
    if penalized == 0:
        raise ValueError("penalty_factor is 0 for all features: there is nothing to select; give some of them a positive one")
    if n_features is None:
        # What a threshold such as 0.6 loses to rounding must not cost a feature.
        return max(1, int(np.sqrt((2 * threshold - 1) * penalized) + 1e-9))
    if not isinstance(n_features, Integral) or n_features < 1:
        raise ValueError(f"n_features={n_features} must be a whole number of at least 1, or None for what keeps the bound at 1")
    if n_features > penalized:
        raise ValueError(f"n_features={n_features} is more than the {penalized} features with a penalty; take fewer, or None")
    return int(n_features)


def _check_rows(rows: Index, classes: NDArray[Any] | None, estimator: Any) -> None:
    if len(rows) < 4:
        raise ValueError(f"{len(rows)} rows with a positive weight are too few to halve: at least 4 are needed")
    if classes is not None:
        labels, counts = np.unique(classes, return_counts=True)
        rarest = int(np.argmin(counts))
        if counts[rarest] < 2:
            label = np.asarray(getattr(estimator, "classes_", labels))[int(labels[rarest])]
            raise ValueError(f"class {label!r} has a single row, and each half needs one: add rows, or leave that class out")


def _halves(rows: Index, classes: NDArray[Any] | None, generator: np.random.RandomState) -> tuple[Index, Index]:
    """Two halves of equal size; an odd row is left out."""
    order = generator.permutation(len(rows))
    if classes is not None:
        # In turns within each class. The largest comes last, so that the odd row is one of it: others may have just two.
        _, number, counts = np.unique(classes, return_inverse=True, return_counts=True)
        order = order[np.argsort(np.argsort(counts, kind="stable").argsort()[number][order], kind="stable")]
    even = len(order) // 2 * 2
    return rows[np.sort(order[0:even:2])], rows[np.sort(order[1:even:2])]


def _first(problem: Problem, rows: Index, p: float, count: int) -> tuple[Index, bool]:
    """The first penalized features to enter on the path of some of the rows, and whether all models were reached."""
    weights = np.zeros(len(problem.weights))
    weights[rows] = problem.weights[rows]
    part = problem.reweighted(weights)
    losses = part.losses()
    columns = len(part.factors)
    entered = np.empty(0, dtype=np.intp)
    known = part.factors == 0
    converged = True
    for fits in part.follow(losses, path.grid(part.alpha_max(losses, p), p, STEPS, RATIO), p):
        converged &= all(fit.converged for fit in fits)
        size = np.max([np.abs(loss.b).reshape(-1, columns).max(axis=0) for loss in losses], axis=0)
        new = np.flatnonzero((size > 0) & ~known)
        known[new] = True
        entered = np.append(entered, new[np.argsort(-size[new], kind="stable")])
        if len(entered) >= count:
            break
    return entered[:count], converged
