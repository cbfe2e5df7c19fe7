r"""Following the minimizers from the empty model to the full one.

At each weight of the penalty only a working set of coefficients is solved for: the ones that are not zero, and the ones whose
own problem would rather have them so (:func:`rewa.estimators.penalty.entry_threshold`). Each solution starts the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rewa.estimators import penalty

Array = NDArray[np.float64]
Index = NDArray[np.intp]

SMALLEST = 1e-150
FIRST, SHARE = 10, 2  # most coefficients that join at once: ten, and half as many as there are


@dataclass(frozen=True)
class Fit:
    """A model on the path: its nonzero coefficients and its intercepts, in the units of X."""

    index: Index  # into the coefficients, output by output
    values: Array
    intercept: Array
    n_iter: int
    converged: bool


class Loss(Protocol):
    """A loss of a linear model at a point it can be moved from: coefficients in standardized units, output by output."""

    size: int  # number of coefficients
    unit: float  # of the targets: the loss and b are in units of its square and of itself; 0 if there is nothing to explain
    b: Array  # the coefficients of the point

    def start(self, coef: Array, intercept: Array) -> None:
        """Move to coefficients, output by output, and intercepts in the units of X and y."""

    def reset(self) -> None:
        """Move back to the empty model, with its best intercepts."""

    def slopes(self) -> tuple[Array, Array]:
        """Derivatives of the loss in each coefficient, and its second derivatives."""

    def solve(self, working: Index, a: Array, p: float, positive: bool, tol: float, max_iter: int) -> tuple[int, bool]:
        """Move to where no coefficient of the working set can improve loss and penalty; the steps it took, and success."""

    def in_units(self, index: Index) -> tuple[Array, Array]:
        """Coefficients and intercepts in the units of X and y."""

    def refit(self, index: Index, positive: bool = False) -> tuple[Array, Array]:
        """Coefficients and intercepts in the units of X and y that minimize the loss alone, all others being zero."""


def alpha_max(loss: Loss, p: float, factors: Array, positive: bool = False) -> float:
    """The least weight of the penalty at which no penalized coefficient leaves zero; leaves the loss at the empty model."""
    loss.reset()
    free = np.flatnonzero(factors == 0)
    if free.size:  # the others need only explain what these leave
        loss.solve(free, np.zeros(len(free)), p, positive, 1e-8, 1000)
    slope, curvature = loss.slopes()
    loss.reset()
    push = np.maximum(-slope, 0.0) if positive else np.abs(slope)
    penalized = (factors > 0) & (curvature > 0)
    if not penalized.any():
        return 0.0
    largest = float(np.max(penalty.largest_alpha(push[penalized], curvature[penalized], p) / factors[penalized]))
    return largest * _unit_of_alpha(loss, p)


def _unit_of_alpha(loss: Loss, p: float) -> float:
    """The loss goes with the square of the targets' unit, the penalty with its p-th power."""
    if loss.unit > 0 and not SMALLEST < loss.unit < 1 / SMALLEST:
        raise ValueError(
            f"the targets are of the size {loss.unit:.2g}, whose square is no number: divide the targets by about that much"
        )
    return float(loss.unit ** (2 - p))


def grid(largest: float, p: float, count: int, ratio: float) -> Array:
    r"""Weights of the penalty from the largest down, for which thresholds fall evenly on a log scale to ``ratio``.

    The slope at which a coefficient enters goes with :math:`\alpha^{1/(2-p)}`, so equal thresholds need a longer grid of
    weights the smaller p is.
    """
    return largest * np.geomspace(1.0, ratio, count) ** (2 - p)


def follow(
    loss: Loss,
    alphas: Array,
    p: float,
    factors: Array,
    *,
    positive: bool = False,
    tol: float = 1e-8,
    max_iter: int = 1000,
) -> Iterator[Fit]:
    """The models at each weight of the penalty, in the order given.

    Args:
        loss: At the point to start from.
        alphas: Weights of the penalty, falling.
        p: Exponent.
        factors: Factors of the penalty, one per coefficient.
        positive: Whether coefficients must not be negative.
        tol: Tolerance of :func:`rewa.estimators.active_set.minimize`.
        max_iter: Most Newton steps for a model.
    """
    free = np.flatnonzero(factors == 0)
    for alpha in alphas:
        a = alpha / _unit_of_alpha(loss, p) * factors if loss.unit > 0 else factors
        n_iter, converged = _settle(loss, a, p, free, positive, tol, max_iter)
        index = np.flatnonzero(loss.b)
        yield Fit(index, *loss.in_units(index), n_iter, converged)


def _settle(loss: Loss, a: Array, p: float, free: Index, positive: bool, tol: float, max_iter: int) -> tuple[int, bool]:
    inside = loss.b != 0
    inside[free] = True
    working, joining = np.flatnonzero(inside), np.empty(0, dtype=np.intp)
    taken = 0
    while True:
        if working.size:
            steps, done = loss.solve(working, a[working], p, positive, tol, max_iter - taken)
            taken += steps
            if not done:
                return taken, False
        if joining.size and not loss.b[joining].any():
            return taken, True  # the strongest candidates stay out: their curvature here is not that of the loss further on
        slope, curvature = loss.slopes()
        push = -slope if positive else np.abs(slope)
        threshold = penalty.entry_threshold(a, curvature, p)
        joining = np.flatnonzero((push > threshold * (1 + 1e-9)) & ~inside & (curvature > 0))
        if not joining.size:
            return taken, True
        most = FIRST + len(working) // SHARE
        if len(joining) > most:
            ratio = push[joining] / np.maximum(threshold[joining], np.finfo(float).tiny)
            joining = joining[np.argsort(-ratio, kind="stable")[:most]]
        inside[joining] = True
        working = np.flatnonzero(inside)
