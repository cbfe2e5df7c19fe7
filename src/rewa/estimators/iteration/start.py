r"""Where pairs start.

With the others at rest a coefficient solves :math:`\frac L2 (b - z)^2 + \frac{\alpha_j}{p} |b|^p`, whose minimizer is not 0
above the entry threshold :math:`\tau` of :mod:`rewa.estimators.penalty`. In units of :math:`(\alpha_j / L)^{1/(2-p)}` its pair
follows an equation that holds nothing but p and the slope, so one number c(p) makes a pair grow above that threshold and die
below it. It lies just above the start whose growth threshold (:func:`rewa.theory.growth_start`) is :math:`\tau`: the growing
part lowers its own gradient before the other one has left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from rewa.estimators import penalty
from rewa.estimators.iteration.loss import quotient
from rewa.theory import growth_start

LASSO_START = 0.1  # for p = 1, in units of alpha / L: every start has the same threshold there


def starts(decay: Tensor, L: Tensor, p: float, *, start: float | Literal["auto"], positive: bool) -> Tensor:
    r"""Starts of s and t; a constant column stays at zero.

    Args:
        decay: Weights :math:`\alpha_j` of the penalty.
        L: Curvatures of the loss in the coefficients.
        p: Exponent in (0, 1].
        start: One number for all, or ``"auto"`` for :func:`unit_start` in its units.
        positive: Whether there is no second part.
    """
    if start != "auto":
        return (L > 0).to(L) * float(start)
    return unit_start(p, positive=positive) * units(decay, L, p)


def units(a: Tensor, L: Tensor, p: float) -> Tensor:
    r"""Units :math:`(a/L)^{1/(2-p)}` of a coefficient, in which its own problem depends on p alone; 0 for a constant column."""
    return quotient(a, L) ** (1 / (2 - p))


def least_slope(p: float) -> float:
    r"""The size b at which the slope :math:`b + b^{p-1}` of standing still is least, in units: a larger one grows by itself.

    Example:
        >>> b = least_slope(0.5)
        >>> print(round(b, 3), round(b + b**-0.5, 3), 1.89 < 0.6 + 0.6**-0.5)
        0.63 1.89 True
    """
    return float((1 - p) ** (1 / (2 - p)))


@functools.cache
def unit_start(p: float, *, positive: bool = False) -> float:
    r"""The start c(p), in units of :math:`(\alpha_j/L)^{1/(2-p)}`, that grows above the entry threshold and dies below it.

    With ``positive`` there is one part, and its own size counts against it from the first step: c is the lower of the two sizes
    at which a slope at the threshold is balanced, :math:`c + c^{p-1} = \tau`. For a pair it lies below, found by bisection.

    Args:
        p: Exponent in (0, 1].
        positive: Whether there is no second part.

    Example:
        >>> print(round(unit_start(0.5, positive=True), 3), 0.17 < unit_start(0.5) < 0.22)
        0.213 True
    """
    if p == 1:
        return LASSO_START
    threshold = float(penalty.entry_threshold(1.0, 1.0, p))
    least = float(growth_start(threshold, K=1, M=2 - p, lam=1.0))
    barrier = _first(lambda c: c + c ** (p - 1) <= threshold, least, least_slope(p), halvings=60)
    return barrier if positive else _first(lambda c: _grows(c, threshold, p), least, barrier, halvings=30)


def _first(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Where a condition begins to hold, between a value at which it does not and one at which it does."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _grows(start: float, slope: float, p: float) -> bool:
    """Whether a pair of equal parts grows, by its equation in logarithms of the parts."""
    s = t = start
    enough = least_slope(p)
    for _ in range(20_000):
        left = slope - s + t
        rate = s ** (1 - p) * left - 1
        if s > enough or rate <= 0:
            return s > enough
        s *= math.exp(0.01 * rate)
        t *= math.exp(-0.01 * (t ** (1 - p) * left + 1))
    return True
