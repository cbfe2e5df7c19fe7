r"""The penalties of one weight: value, derivative and proximal map of :math:`\ell_1`, :math:`\ell_p`, SCAD and MCP.

A proximal map minimizes :math:`\frac12(x - z)^2 + t\,\psi(x)`, or what its docstring says. Everything is elementwise, for NumPy
arrays in double precision and for tensors in their own. :math:`\ell_1` is :math:`\ell_p` with p = 1, and :math:`\ell_{1/2}`
is twice the square root.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = [
    "entry_threshold",
    "half_threshold",
    "lp",
    "lp_derivative",
    "lp_prox",
    "mcp",
    "mcp_derivative",
    "mcp_prox",
    "scad",
    "scad_derivative",
    "scad_prox",
    "soft_threshold",
]

Array = NDArray[np.float64]
Numbers = TypeVar("Numbers", Array, Tensor)


def _library(x: Array | Tensor) -> Any:
    return torch if isinstance(x, Tensor) else np


# ---------------------------------------------------------------------------------------------------------- l_1 and l_p


def lp(x: ArrayLike, p: float) -> Array:
    r"""The penalty :math:`|x|^p / p`, the integral of :math:`|x|^{p-1}`; for p = 0 it is :math:`\log|x|`, up to a constant.

    Example:
        >>> print(lp([0.25, -1.0, 0.0], p=0.5))
        [1. 2. 0.]
    """
    size = np.abs(np.asarray(x, dtype=np.float64))
    if p > 0:
        return size**p / p
    with np.errstate(divide="ignore"):
        return np.log(size) if p == 0 else size**p / p


def lp_derivative(x: Numbers, p: float, smallest: float = 0.0) -> Numbers:
    r"""The derivative :math:`\mathrm{sign}(x)\,|x|^{p-1}` of :func:`lp`, and 0 at zero.

    Args:
        x: Weights.
        p: Exponent.
        smallest: Below this the penalty continues as its tangent: :math:`|x|` counts as no less.

    Example:
        >>> print(lp_derivative(np.array([4.0, -0.25, 0.0, 0.01]), p=0.5, smallest=0.25))
        [ 0.5 -2.   0.   2. ]
    """
    library = _library(x)
    if p == 1:
        return cast(Numbers, library.sign(x))
    size = library.clip(abs(x), smallest, None)
    return cast(Numbers, library.sign(x) * library.where(size > 0, size, 1.0) ** (p - 1))


def soft_threshold(z: Numbers, t: Any) -> Numbers:
    r"""The proximal map of :math:`t\,|x|`: :math:`\mathrm{sign}(z)\,\max(|z| - t,\ 0)`.

    Args:
        z: Where the map is taken.
        t: Threshold, a number or one for each weight.

    Example:
        >>> print(soft_threshold(np.array([3.0, -3.0, 1.0]), 1.0))
        [ 2. -2.  0.]
    """
    if isinstance(z, Tensor) and not isinstance(t, Tensor):
        return F.softshrink(z, t)  # torch's own kernel, in one pass; it takes no tensor of thresholds
    library = _library(z)
    return cast(Numbers, library.sign(z) * library.clip(abs(z) - t, 0, None))


def entry_threshold(a: ArrayLike, L: ArrayLike, p: float) -> Array:
    r"""The slope :math:`|g| = L|z|` above which the minimizer of :func:`lp_prox` is not zero.

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


def lp_prox(z: ArrayLike, a: ArrayLike, L: ArrayLike, p: float) -> Array:
    r"""The minimizer of :math:`\frac L2 (b - z)^2 + \frac ap |b|^p` for :math:`0 < p \le 1`.

    At the threshold there are two, and it is 0. Beyond the threshold it is the larger root of
    :math:`b + \frac aL b^{p-1} = |z|`, to which Newton's iteration from :math:`|z|` descends: the left side is convex there.

    Example:
        >>> print(lp_prox([3.0, -3.0, 1.0], a=1.0, L=1.0, p=1.0))
        [ 2. -2.  0.]
        >>> print(lp_prox([3.0, -3.0, 1.0], a=1.0, L=1.0, p=0.5).round(4))
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


def half_threshold(z: Numbers, t: float) -> Numbers:
    r"""The proximal map of :math:`t\,|x|^{1/2}` in closed form: :func:`lp_prox` with ``p=1/2, a=t/2, L=1``.

    It is 0 for :math:`|z| \le \frac32\,t^{2/3}`, and beyond the largest root :math:`s = |x|^{1/2}` of
    :math:`s^3 - |z|\,s + t/2 = 0`:

    .. math:: x = \tfrac43\,z\,\cos^2(\varphi/3), \qquad \varphi = \arccos\Bigl(-\tfrac t4\,(3/|z|)^{3/2}\Bigr).

    Args:
        z: Where the map is taken.
        t: Factor of the penalty.

    Example:
        >>> print(half_threshold(np.array([3.0, -3.0, 1.0]), 2.0).round(4))
        [ 2.3473 -2.3473  0.    ]

    References:
        Xu, Chang, Xu and Zhang, L1/2 regularization: a thresholding representation theory and a fast solver, IEEE TNNLS 2012.
    """
    library, size = _library(z), abs(z)
    with np.errstate(divide="ignore", invalid="ignore"):
        angle = library.arccos(-t / 4 * (3 / size) ** 1.5)  # not a number below the threshold
        return cast(Numbers, library.where(size <= 1.5 * t ** (2 / 3), 0.0, 4 / 3 * z * library.cos(angle / 3) ** 2))


# ------------------------------------------------------------------------------------------------------------------ SCAD


def scad(x: ArrayLike, *, slope: float, knee: float, a: float = 3.7) -> Array:
    r"""The SCAD penalty: :math:`s|x|` up to :math:`u = k/a`, then a parabola, constant from the knee k.

    Fan and Li's penalty has :math:`s = \lambda` and :math:`k = a\lambda`.

    Args:
        x: Weights.
        slope: Slope s at zero.
        knee: Size k of a weight from which the penalty is constant.
        a: Ratio of the knee to the end of the :math:`\ell_1` part, above 2.

    Example:
        >>> print(scad([0.5, 10.0], slope=1.0, knee=3.7))
        [0.5  2.35]

    References:
        Fan and Li, Variable selection via nonconcave penalized likelihood and its oracle properties, JASA 2001.
    """
    t, u = np.abs(np.asarray(x, dtype=np.float64)), knee / a
    middle = slope * (2 * knee * t - t**2 - u**2) / (2 * u * (a - 1))
    return np.where(t <= u, slope * t, np.where(t <= knee, middle, slope * u * (a + 1) / 2))


def scad_derivative(x: ArrayLike, *, slope: float, knee: float, a: float = 3.7) -> Array:
    r"""The derivative of :func:`scad`, and 0 at zero: :math:`\mathrm{sign}(x)\,s\,\min(1, (k - |x|)_+ / (k - u))`.

    Example:
        >>> print(scad_derivative([-0.5, 2.35, 10.0], slope=1.0, knee=3.7))
        [-1.   0.5  0. ]
    """
    x = np.asarray(x, dtype=np.float64)
    return cast(Array, np.sign(x) * slope * np.clip((knee - np.abs(x)) / (knee - knee / a), 0, 1))


def scad_prox(z: Numbers, t: float, *, knee: float, a: float = 3.7) -> Numbers:
    r"""The minimizer of :math:`\frac12(x - z)^2 + \mathrm{scad}(x)` for the slope t.

    With :math:`u = k/a` and :math:`c = t/u` it is, for :math:`c < a - 1`,

    .. math::
        x = \begin{cases}
            \mathrm{sign}(z)\,\max(|z| - cu,\ 0) & |z| \le (1 + c)\,u \\
            \mathrm{sign}(z)\,\dfrac{(a-1)|z| - c\,k}{a - 1 - c} & (1 + c)\,u < |z| \le k \\
            z & |z| > k.
        \end{cases}

    A larger c leaves no minimum in the middle: up to :math:`|z| = \frac{a+1+c}{2}u` (:math:`\sqrt{c(a+1)}\,u` from
    :math:`c = a + 1`) the map is the first line, above the last.

    Args:
        z: Where the map is taken.
        t: Slope of the penalty at zero, times the step.
        knee: Size of a weight from which nothing is shrunk.
        a: Ratio of the knee to the end of the :math:`\ell_1` part, above 2.

    References:
        Fan and Li, JASA 2001, equation 2.8 for c = 1.
    """
    library, size, unit = _library(z), abs(z), knee / a
    c = t / unit
    soft = soft_threshold(z, c * unit)
    if c >= a - 1:
        cut = unit * ((a + 1 + c) / 2 if c < a + 1 else math.sqrt(c * (a + 1)))
        return cast(Numbers, library.where(size <= cut, soft, z))
    middle = ((a - 1) * z - c * knee * library.sign(z)) / (a - 1 - c)
    return cast(Numbers, library.where(size <= (1 + c) * unit, soft, library.where(size <= knee, middle, z)))


# ------------------------------------------------------------------------------------------------------------------- MCP


def mcp(x: ArrayLike, *, slope: float, knee: float) -> Array:
    r"""The minimax concave penalty: :math:`s\,(|x| - x^2/(2k))`, constant from the knee k.

    Zhang's penalty has :math:`s = \lambda` and :math:`k = a\lambda`.

    Args:
        x: Weights.
        slope: Slope s at zero.
        knee: Size k of a weight from which the penalty is constant.

    Example:
        >>> print(mcp([1.0, 10.0], slope=1.0, knee=2.0))
        [0.75 1.  ]

    References:
        Zhang, Nearly unbiased variable selection under minimax concave penalty, Annals of Statistics 2010.
    """
    t = np.minimum(np.abs(np.asarray(x, dtype=np.float64)), knee)
    return slope * (t - t**2 / (2 * knee))


def mcp_derivative(x: ArrayLike, *, slope: float, knee: float) -> Array:
    r"""The derivative of :func:`mcp`, and 0 at zero: :math:`\mathrm{sign}(x)\,s\,(1 - |x|/k)_+`.

    Example:
        >>> print(mcp_derivative([-0.5, 10.0], slope=1.0, knee=2.0))
        [-0.75  0.  ]
    """
    x = np.asarray(x, dtype=np.float64)
    return cast(Array, np.sign(x) * slope * np.maximum(1 - np.abs(x) / knee, 0))


def mcp_prox(z: Numbers, t: float, *, knee: float) -> Numbers:
    r"""The minimizer of :math:`\frac12(x - z)^2 + \mathrm{mcp}(x)` for the slope t.

    For :math:`t < k` it is the firm threshold, :math:`\mathrm{sign}(z)\,\max(|z| - t,\ 0) / (1 - t/k)` up to the knee k and z
    beyond; for larger t the hard threshold at :math:`\sqrt{tk}`.

    Args:
        z: Where the map is taken.
        t: Slope of the penalty at zero, times the step.
        knee: Size of a weight from which nothing is shrunk.
    """
    library, size = _library(z), abs(z)
    if t >= knee:
        return cast(Numbers, library.where(size <= math.sqrt(t * knee), 0.0, z))
    return cast(Numbers, library.where(size <= knee, soft_threshold(z, t) / (1 - t / knee), z))
