"""Choosing the weight of the penalty, its exponent, and whether to refit: by held-out rows, or by an information criterion."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray

from rewa.estimators import path
from rewa.estimators.path import Fit, Loss
from rewa.estimators.problem import Problem

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

PENALIZED, REFITTED = 0, 1
PATIENCE = 5  # weights of the penalty in a row that must be worse than the best, clearly, for a path to end
EXPONENTS = (1.0, 2 / 3, 1 / 2, 1 / 3)  # of p="auto"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen, and what it was chosen from.

    Args:
        p: Exponent of the penalty.
        alpha: Its weight.
        refit: Whether the coefficients are those of the loss alone.
        alphas: Weights that were tried, of the shape (exponents, weights).
        scores: For penalized and refitted models: errors of the shape (2, exponents, weights, folds), or criteria without the
            last; not a number where a path had ended.
        model: The chosen one, on all rows.
        n_iter: Newton steps on all rows to the chosen model.
        converged: Whether they were enough.
    """

    p: float
    alpha: float
    refit: bool
    alphas: Array
    scores: Array
    model: list[Fit]
    n_iter: int
    converged: bool


def grids(problem: Problem, losses: list[Loss], ps: Sequence[float], alphas: int | Array, ratio: float) -> Array:
    """Weights of the penalty to try for each exponent, falling."""
    if not isinstance(alphas, (int, np.integer)):
        return np.tile(np.sort(np.asarray(alphas, dtype=np.float64))[::-1], (len(ps), 1))
    return np.array([path.grid(problem.alpha_max(losses, p), p, int(alphas), ratio) for p in ps])


def by_cross_validation(
    problem: Problem,
    splits: Sequence[tuple[Rows, Rows]],
    *,
    ps: Sequence[float],
    alphas: int | Array,
    ratio: float,
    refit: bool | str,
    one_standard_error: bool,
    n_jobs: int | None = None,
    progress: Callable[[], Any] = lambda: None,
) -> Choice:
    """The model with the least error on held-out rows, or that with the largest weight within a standard error of it.

    Args:
        problem: Data and penalty.
        splits: Rows to fit and rows to hold out.
        ps: Exponents to try.
        alphas: Weights of the penalty to try, or how many.
        ratio: Ratio of the last threshold to the first.
        refit: Whether coefficients are fitted again without a penalty; ``"auto"``: whichever has the least error.
        one_standard_error: Whether to take the largest weight that is no worse than the best by a standard error.
        n_jobs: Threads.
        progress: Called after each exponent, and at the end.
    """
    losses = problem.losses()
    tried = grids(problem, losses, ps, alphas, ratio)
    kinds = {True: [REFITTED], False: [PENALIZED], "auto": [PENALIZED, REFITTED]}[refit]
    folds = [_Fold(problem, train, test) for train, test in splits if problem.weights[test].sum() > 0]
    if not folds:
        raise ValueError("cv gives no rows to hold out that have a weight; a generator is used up by one fit: pass a list")
    shares = np.array([fold.share for fold in folds])
    shares /= shares.sum()
    scores = np.full((2, *tried.shape, len(folds)), np.nan)
    with _workers(n_jobs) as run:
        for place, p in enumerate(ps):
            patience = _Patience()
            for fold in folds:
                fold.begin(tried[place], p)
            for step in range(tried.shape[1]):
                scores[:, place, step] = np.transpose(run([functools.partial(fold.advance, kinds) for fold in folds]))
                mean = scores[kinds, place, step] @ shares
                if patience.ends(float(mean.min()), scores[kinds, place, step][mean.argmin()]):
                    break
            progress()
    mean = scores @ shares
    kind, place, best = map(int, np.unravel_index(np.nanargmin(mean), mean.shape))
    if one_standard_error:
        error = scores[kind, place, best].std(ddof=1) / np.sqrt(len(folds)) if len(folds) > 1 else 0.0
        best = int(np.flatnonzero(mean[kind, place] <= mean[kind, place, best] + error)[0])
    if kind == REFITTED:
        best = _middle(mean[kind, place], best)
    choice = _finish(problem, losses, ps[place], tried, place, best, kind == REFITTED, scores)
    progress()
    return choice


@contextmanager
def _workers(n_jobs: int | None) -> Iterator[Callable[[list[Callable[[], Any]]], list[Any]]]:
    """Something that makes calls, in turns or in threads: what takes long in them is linear algebra, which lets others run."""
    count = effective_n_jobs(n_jobs)
    if count == 1:
        yield lambda calls: [call() for call in calls]
        return
    with ThreadPoolExecutor(count) as pool:
        yield lambda calls: [future.result() for future in [pool.submit(call) for call in calls]]


def _middle(curve: Array, place: int) -> int:
    """The middle of the equal values around a place.

    Refits are the same as long as their supports are. At the ends of such a stretch other rows have another support already.
    """
    other = np.flatnonzero(~np.isclose(curve, curve[place], rtol=1e-9, atol=0.0))
    if np.isnan(curve[other]).all():
        return place  # nothing that could be an end
    first = other[other < place].max(initial=-1) + 1
    last = other[other > place].min(initial=len(curve)) - 1
    return int(first + last) // 2


class _Patience:
    """Ends a path whose models have become worse than the best by more than chance, for some time."""

    def __init__(self) -> None:
        self.best, self.error, self.waited = np.inf, 0.0, 0

    def ends(self, mean: float, scores: Array) -> bool:
        """Whether the path ends with this model, of which each fold has a score."""
        if mean < self.best:
            self.best, self.error = mean, float(scores.std() / np.sqrt(len(scores)))
        self.waited = self.waited + 1 if mean > self.best + self.error else 0
        return self.waited == PATIENCE


class _Fold:
    """Rows to fit, rows held out, and how far along its path a fold is."""

    def __init__(self, problem: Problem, train: Rows, test: Rows) -> None:
        weights = np.zeros(len(problem.weights))
        np.add.at(weights, train, problem.weights[train])
        if not weights.any():
            raise ValueError("a fold has no rows to fit that have a weight: change cv or sample_weight")
        self.part = problem.reweighted(weights)
        self.losses = self.part.losses()
        self.X, self.y = problem.X[test], problem.y[test]
        self.share = float(problem.weights[test].sum())
        self.weights = problem.weights[test] / self.share

    def begin(self, alphas: Array, p: float) -> None:
        """Back to the empty model."""
        _reset(self.losses)
        self.models = self.part.follow(self.losses, alphas, p)
        self.refitted: list[Fit] | None = None

    def advance(self, kinds: Sequence[int]) -> tuple[float, float]:
        """The errors of the next penalized model and of its refit, or not a number for a kind that is not asked for."""
        fits = next(self.models)
        scores = [np.nan, np.nan]
        if PENALIZED in kinds:
            scores[PENALIZED] = self._score(fits)
        if REFITTED in kinds:
            if self.refitted is None or not _same_support(fits, self.refitted):
                self.refitted = refitted(self.losses, fits, self.part.positive)
            scores[REFITTED] = self._score(self.refitted)
        return scores[PENALIZED], scores[REFITTED]

    def _score(self, fits: list[Fit]) -> float:
        return float(self.weights @ self.part.errors(self.y, self.part.output(self.X, fits)))


def _same_support(fits: list[Fit], others: list[Fit]) -> bool:
    return all(np.array_equal(fit.index, other.index) for fit, other in zip(fits, others, strict=True))


def by_information(
    problem: Problem,
    *,
    ps: Sequence[float],
    alphas: int | Array,
    ratio: float,
    refit: bool,
    gamma: float,
    progress: Callable[[], Any] = lambda: None,
) -> Choice:
    r"""The model with the least extended Bayesian information criterion after a refit of its support.

    .. math:: \mathrm{EBIC} = 2\,n\,\ell + k \log n + 2\,\gamma\,k \log d

    with n the sum of the sample weights, k nonzero coefficients of d that could be, and :math:`2\ell` the log of the mean
    squared error, summed over outputs, or twice the mean log loss. Only supports of less than half the number of rows count.

    Args:
        problem: Data and penalty.
        ps: Exponents to try.
        alphas: Weights of the penalty to try, or how many.
        ratio: Ratio of the last threshold to the first.
        refit: Whether the model is the refitted one; the criterion is always its.
        gamma: How much the number of columns counts; 0 is BIC, which keeps far too much when there are more columns than rows.
        progress: Called after each exponent, and at the end.

    References:
        Chen and Chen, Extended Bayesian information criteria for model selection with large model spaces, Biometrika 2008.
    """
    losses = problem.losses()
    tried = grids(problem, losses, ps, alphas, ratio)
    rows = problem.rows
    scores = np.full((2, *tried.shape), np.nan)
    for place, p in enumerate(ps):
        _reset(losses)
        best, waited = np.inf, 0
        models: list[Fit] | None = None
        for step, fits in enumerate(problem.follow(losses, tried[place], p)):
            if models is None or not _same_support(fits, models):
                size = sum(len(fit.index) for fit in fits)
                if models is not None and size / problem.outputs >= rows / 2:
                    break
                models = refitted(losses, fits, problem.positive)
                fit = problem.deviance(problem.output(problem.X, models))
                value = rows * fit + size * (np.log(rows) + 2 * gamma * np.log(problem.outputs * problem.X.shape[1]))
            scores[REFITTED, place, step] = value
            best = min(best, value)
            waited = waited + 1 if value > best + 2 * np.log(rows) else 0
            if waited == 2 * PATIENCE:
                break
        progress()
    row, column = map(int, np.unravel_index(np.nanargmin(scores[REFITTED]), tried.shape))
    choice = _finish(problem, losses, ps[row], tried, row, column, refit, scores)
    progress()
    return choice


def refitted(losses: list[Loss], fits: list[Fit], positive: bool) -> list[Fit]:
    """The models on the same supports without a penalty."""
    models = []
    for loss, fit in zip(losses, fits, strict=True):
        values, intercept = loss.refit(fit.index, positive)
        models.append(dataclasses.replace(fit, values=values, intercept=intercept))
    return models


def _reset(losses: list[Loss]) -> None:
    for loss in losses:
        loss.reset()


def _finish(
    problem: Problem, losses: list[Loss], p: float, tried: Array, place: int, best: int, refit: bool, scores: Array
) -> Choice:
    """The chosen model on all rows."""
    _reset(losses)
    n_iter, converged = 0, True
    for fits in problem.follow(losses, tried[place, : best + 1], p):
        n_iter += sum(fit.n_iter for fit in fits)
        converged = all(fit.converged for fit in fits)
    return Choice(
        p=p,
        alpha=float(tried[place, best]),
        refit=refit,
        alphas=tried,
        scores=scores,
        model=refitted(losses, fits, problem.positive) if refit else fits,
        n_iter=n_iter,
        converged=converged,
    )
