r"""The :math:`\ell_p` penalty of one coefficient against a parabola: what its minimizer is and when it leaves zero.

Everything here is about :math:`\frac L2 (b - z)^2 + \frac ap |b|^p` for :math:`0 < p \le 1`, the problem that a linear model
poses to one coefficient when the others stand still. Its minimizer is 0 up to a threshold and then jumps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewa.reparam import check_exponents
from rewa.theory import effective_p

__all__ = ["entry_threshold", "exponents", "largest_alpha", "prox", "value"]

Array = NDArray[np.float64]


def value(b: ArrayLike, p: float) -> Array:
    r"""The penalty :math:`|b|^p / p`: :func:`rewa.theory.regularizer` with :math:`p = 1 + (1-M)/K`.

    Example:
        >>> print(value([0.25, -1.0, 0.0], p=0.5))
        [1. 2. 0.]
    """
    result: Array = np.abs(np.asarray(b, dtype=np.float64)) ** p / p
    return result


def entry_threshold(a: ArrayLike, L: ArrayLike, p: float) -> Array:
    r"""The slope :math:`|g| = L|z|` above which the minimizer is not zero.

    .. math:: \tau = \frac{(2-p)\,L}{2(1-p)} \left(\frac{2(1-p)\,a}{p\,L}\right)^{1/(2-p)}, \qquad \tau = a \text{ for } p = 1

    Example:
        >>> print(entry_threshold(1.0, 1.0, p=0.5).round(4), entry_threshold(1.0, 1.0, p=1.0))
        2.3811 1.0

    References:
        Marjanovic and Solo, On l_q optimization and matrix completion, IEEE TSP 2012.
    """
    a, L = np.asarray(a, dtype=np.float64), np.asarray(L, dtype=np.float64)
    if p == 1:
        return np.broadcast_to(a, np.broadcast_shapes(a.shape, L.shape))
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = (2 * (1 - p) / p * a / L) ** (1 / (2 - p))
        return np.where(L > 0, (2 - p) / (2 * (1 - p)) * L * jump, np.inf)


def largest_alpha(slope: ArrayLike, L: ArrayLike, p: float) -> Array:
    r"""The inverse of :func:`entry_threshold`: the least weight a of the penalty that keeps a coefficient at zero.

    .. math:: a = \frac{pL}{2(1-p)} \left(\frac{2(1-p)\,|g|}{(2-p)\,L}\right)^{2-p}

    Example:
        >>> print(largest_alpha(entry_threshold(0.3, 2.0, p=0.5), 2.0, p=0.5).round(12))
        0.3
    """
    g, L = np.abs(np.asarray(slope, dtype=np.float64)), np.asarray(L, dtype=np.float64)
    if p == 1:
        return np.broadcast_to(g, np.broadcast_shapes(g.shape, L.shape))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 2 * (1 - p) * g / ((2 - p) * L)
        return np.where(L > 0, p * L / (2 * (1 - p)) * ratio ** (2 - p), 0.0)


def prox(z: ArrayLike, a: ArrayLike, L: ArrayLike, p: float) -> Array:
    r"""The minimizer of :math:`\frac L2 (b - z)^2 + \frac ap |b|^p`; 0 at the threshold, where there are two.

    Beyond the threshold it is the larger root of :math:`b + \frac aL b^{p-1} = |z|`, to which Newton's iteration from
    :math:`|z|` descends: the left side is convex there.

    Example:
        >>> print(prox([3.0, -3.0, 1.0], a=1.0, L=1.0, p=1.0))
        [ 2. -2.  0.]
        >>> print(prox([3.0, -3.0, 1.0], a=1.0, L=1.0, p=0.5).round(4))
        [ 2.3473 -2.3473  0.    ]
    """
    z, a, L = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in (z, a, L)))
    size = np.abs(z)
    with np.errstate(divide="ignore", invalid="ignore"):
        enters = L * size > entry_threshold(a, L, p)
        pull = np.where(enters, a / L, 0.0)
    b = np.where(enters, size, 0.0)
    if p == 1:
        result: Array = np.sign(z) * (b - pull)
        return result
    b = np.where(enters, b, 1.0)
    for _ in range(60):
        power = b ** (p - 1)
        step = np.where(enters, (b + pull * power - size) / (1 - (1 - p) * pull * power / b), 0.0)
        b = b - step
        if np.all(np.abs(step) <= 1e-15 * b):
            break
    result = np.sign(z) * np.where(enters, b, 0.0)
    return result


def exponents(p: float | None, K: float, M: float | None) -> tuple[float, float]:
    """The exponent p of the penalty and the M that goes with it, from those that are given.

    Args:
        p: Exponent in (0, 1]; by default from K and M.
        K: Order of the reparameterization.
        M: Adaptivity exponent; by default from p, or K - 1, the plain product of K factors, if that is not given, either.

    Returns:
        p and M, with :math:`p = 1 + (1 - M)/K`.

    Raises:
        ValueError: If p is not in (0, 1], or if both are given and contradict each other.

    Example:
        >>> exponents(None, 4, None), exponents(None, 9, 4), exponents(1.0, 3, None)
        ((0.5, 3), (0.6666666666666667, 4), (1.0, 1.0))
    """
    if p is not None:
        p = float(p)
    if p is None:
        M = K - 1 if M is None else M
        p = effective_p(K, M)
        if not 0 < p <= 1:
            raise ValueError(f"K={K} and M={M} make p = 1 + (1 - M)/K = {p:g}; allowed: 0 < p <= 1, so 1 <= M < K + 1")
        return p, M
    if not 0 < p <= 1:
        raise ValueError(f"p={p} is not in (0, 1]: at 1 the penalty is the lasso's, towards 0 it counts the coefficients")
    implied = 1 + K * (1 - p)
    if M is not None and abs(M - implied) > 1e-9 * implied:
        raise ValueError(f"p={p}, K={K} and M={M} contradict p = 1 + (1 - M)/K: leave M out, it would be {implied:g}")
    check_exponents(K, implied, 0.0)
    return p, implied
