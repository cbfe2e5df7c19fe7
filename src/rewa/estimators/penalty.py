r"""The :math:`\ell_p` penalty of one coefficient against a parabola: what its minimizer is and when it leaves zero.

Everything here is about :math:`\frac L2 (b - z)^2 + \frac ap |b|^p` for :math:`0 < p \le 1`, the problem that a linear model
poses to one coefficient when the others stand still. Its minimizer is 0 up to a threshold and then jumps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewa.penalties import entry_threshold
from rewa.penalties import lp as value
from rewa.penalties import lp_prox as prox
from rewa.reparam import check_exponents
from rewa.theory import effective_p

__all__ = ["entry_threshold", "exponents", "largest_alpha", "prox", "value"]

Array = NDArray[np.float64]


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
