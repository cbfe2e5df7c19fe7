r"""The algebra of ReWA as pure functions of tensors: :math:`x \leftrightarrow y` and the adaptive scale.

Every other module takes its formulas from here. All functions work on any floating dtype and device, differentiate, and
compile; integer powers are products, because ``pow`` costs ten times as much.
"""

from __future__ import annotations

import math
import numbers

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "adam_step_size",
    "adaptive_scale",
    "check_exponents",
    "flush_subnormal",
    "grown",
    "grown_gradient",
    "lengthening",
    "moved",
    "power",
    "step_size",
    "to_x",
    "to_y",
]

LARGEST_PRODUCT = 64  # above this exponent a product of squares is no faster than pow, and less accurate


def check_exponents(K: float, M: float, eps: float) -> None:
    r"""Raise ``ValueError`` unless :math:`K \ge 1`, :math:`M \ge 0`, :math:`\varepsilon \ge 0`, all finite.

    Example:
        >>> check_exponents(K=9, M=2, eps=0.0)
        >>> check_exponents(K=0.5, M=2, eps=0.0)
        Traceback (most recent call last):
        ...
        ValueError: Invalid K value: 0.5 (allowed: a finite number >= 1, the order of x = sign(y)|y|^K)
    """
    for name, value, low, meaning in (
        ("K", K, 1, "the order of x = sign(y)|y|^K"),
        ("M", M, 0, "the adaptivity exponent of |y|^M"),
        ("eps", eps, 0, "the stabilizer beside |y|^(K-1)"),
    ):
        if isinstance(value, bool) or not (isinstance(value, numbers.Real) and low <= value < math.inf):
            raise ValueError(f"Invalid {name} value: {value!r} (allowed: a finite number >= {low}, {meaning})")


def power(a: Tensor, n: float) -> Tensor:
    r"""Elementwise :math:`a^n` for :math:`a \ge 0` and real :math:`n \ge 0`, by multiplication where ``n`` is whole.

    Args:
        a: Nonnegative tensor.
        n: Exponent; ``power(a, 0)`` is one everywhere, also at zero.

    Raises:
        ValueError: If ``n`` is negative.

    Example:
        >>> power(torch.tensor([0.0, 2.0, 3.0]), 4)
        tensor([ 0., 16., 81.])
    """
    if n < 0:
        raise ValueError(f"Invalid n: {n} (allowed: a number >= 0)")
    if n == 0:
        return torch.ones_like(a)
    if n == 0.5:
        return a.sqrt()
    if n != int(n) or n > LARGEST_PRODUCT:
        return a**n
    result: Tensor | None = None
    remaining = int(n)
    while True:
        if remaining & 1:
            result = a if result is None else result * a
        remaining >>= 1
        if result is not None and not remaining:
            return result
        a = a * a


def to_x(y: Tensor, K: float) -> Tensor:
    r"""The model's weight :math:`x = \mathrm{sign}(y)\,|y|^K`.

    Args:
        y: Reparameterized weight.
        K: Order, any real number from 1.

    Example:
        >>> to_x(torch.tensor([-2.0, 0.0, 0.5]), K=3)
        tensor([-8.0000,  0.0000,  0.1250])
    """
    return y * power(y.abs(), K - 1)


def to_y(x: Tensor, K: float) -> Tensor:
    r"""The reparameterized weight :math:`y = \mathrm{sign}(x)\,|x|^{1/K}`, inverse of :func:`to_x`.

    Args:
        x: Weight of the model.
        K: Order, any real number from 1.

    Example:
        >>> to_y(torch.tensor([-8.0, 0.0, 0.125]), K=3)
        tensor([-2.0000,  0.0000,  0.5000])
    """
    if K == 1:
        return x.clone()
    a = x.abs()
    root = a.sqrt() if K == 2 else a.sqrt().sqrt() if K == 4 else a ** (1 / K)
    return torch.copysign(root, x)


def moved(x: Tensor, y: Tensor, move: Tensor, K: float) -> Tensor:
    r"""The weight :math:`x = \mathrm{sign}(y)|y|^K` after ``move`` was added to y.

    A small move is added to x itself, times the slope in its middle:

    .. math:: x + K \left|y + \tfrac12 \text{move}\right|^{K-1} \text{move}

    The way over :func:`to_x` would bring the error of the rounded root y into x at every step, and lose moves below an ulp
    of y. It is right for large moves and beyond zero. Where the two meet, at a move of :math:`4\sqrt[3]{\epsilon}/K` of y,
    both err by the dtype's :math:`\epsilon` of x or so.

    Args:
        x: Weight of the model.
        y: Its root, :func:`to_y` of ``x``.
        move: Change of y.
        K: Order, any real number from 1.

    Example:
        >>> x = torch.tensor([0.125, 0.125, 0.0])
        >>> moved(x, to_y(x, K=3), torch.tensor([0.5, -1.0, 0.1]), K=3)
        tensor([ 1.0000, -0.1250,  0.0010])
    """
    if K == 1:
        return y + move
    small = move.abs() < (small_move(x.dtype) / K) * y.abs()
    base = y + torch.where(small, 0.5 * move, move)
    return torch.where(small, x, 0.0) + torch.where(small, K * move, base) * power(base.abs(), K - 1)


def small_move(dtype: torch.dtype) -> float:
    """Bound of K |move / y| for :func:`moved`: the error of the slope in the middle is a 24th of its square."""
    return float(4 * torch.finfo(dtype).eps ** (1 / 3))


def adaptive_scale(y: Tensor, K: float, M: float, eps: float = 0.0) -> Tensor:
    r"""Factor of the gradient in the update of :math:`y`.

    .. math:: |y|^M \, \frac{|y|^{K-1}}{|y|^{K-1} + \varepsilon}

    With :math:`\varepsilon = 0` it is :math:`|y|^M`, also at :math:`y = 0`: zero for ``M > 0`` and one for ``M = 0``.

    Args:
        y: Reparameterized weight.
        K: Order of the reparameterization.
        M: Adaptivity exponent. The magnitude is taken: a signed power would turn descent into ascent where ``y < 0``.
        eps: Stabilizer, compared with :math:`|y|^{K-1}` as in the paper.

    Note:
        The authors' public code compares its epsilon with :math:`K|y|^{K-1}`: divide that by ``K`` to use it here.

    Example:
        >>> adaptive_scale(torch.tensor([-2.0, 0.0, 1.0]), K=3, M=2)
        tensor([4., 0., 1.])
        >>> adaptive_scale(torch.tensor([-2.0, 0.0, 1.0]), K=3, M=0, eps=1.0)
        tensor([0.8000, 0.0000, 0.5000])

    References:
        Algorithm 1 and Equation (ReWA iteration) of the paper.
    """
    a = y.abs()
    scale = power(a, M)
    if eps == 0:
        return scale
    derivative = power(a, K - 1)
    # An eps that rounds to 0 in this dtype must not make 0/0.
    return scale * (derivative / (derivative + eps).clamp(min=torch.finfo(a.dtype).tiny))


def step_size(magnitude: float, K: float, M: float, eps: float = 0.0) -> float:
    r"""How far a weight of this magnitude moves in one step, for each unit of learning rate and gradient.

    .. math:: \frac{dx}{dy}\,|y|^M\,\frac{|y|^{K-1}}{|y|^{K-1} + \varepsilon}
        = K\,|x|^{2-p} \quad\text{for } \varepsilon = 0, \qquad p = 1 + \frac{1 - M}{K}

    Plain gradient descent moves every weight by 1. ReWA moves large weights faster than small ones, all the more the smaller
    p is.

    Args:
        magnitude: :math:`|x|`, above 0.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.

    Example:
        >>> step_size(0.25, K=2, M=0), step_size(0.25, K=2, M=1), step_size(0.25, K=1, M=0)
        (1.0, 0.5, 1.0)
    """
    y = float(magnitude) ** (1 / K)
    derivative = float(y ** (K - 1))
    return float(K * derivative * y**M * (derivative / (derivative + eps) if eps > 0 else 1.0))


def adam_step_size(magnitude: float, K: float) -> float:
    r"""How far a weight of this magnitude moves where Adam moves y by one: :math:`dx/dy = K\,|x|^{1-1/K}`, whatever M is.

    Args:
        magnitude: :math:`|x|`, above 0.
        K: Order of the reparameterization.

    Example:
        >>> adam_step_size(0.25, K=2), adam_step_size(0.25, K=1)
        (1.0, 1.0)
    """
    return step_size(magnitude, K, M=0)


def lengthening(
    x: Tensor, *, size: float, growth: float = 1.0, M: float = 1.0, most: float = math.inf, floor: float = 1.0
) -> Tensor:
    r"""By what the step of a weight is lengthened where the weight is large.

    .. math:: \varphi(x) = c + \min\left(a\,(|x|/s)^M,\, b\right)

    For ``floor=0`` and ``growth=1`` it is ReWA's adaptive rate with ``K=1``, matched at :math:`|x| = s`; its penalty has the
    exponent :math:`p = 2 - M`. The floor lets small weights move, and change their sign, as freely as without it.

    Args:
        x: The weight before the step.
        size: A usual magnitude s of the weight.
        growth: What a weight of that size adds to its step, as a multiple: a.
        M: Adaptivity exponent.
        most: The largest multiple b that any weight adds.
        floor: Share c of the optimizer's step that every weight makes.

    Example:
        >>> lengthening(torch.tensor([0.0, -1.0, 2.0]), size=1.0)
        tensor([1., 2., 3.])
    """
    return floor + (growth * power(x.abs() / size, M)).clamp(max=most)


def grown(x: Tensor, move: Tensor, **how: float) -> Tensor:
    r"""A weight after a step :math:`\Delta` of some optimizer that is lengthened, in the same direction.

    .. math:: x + \varphi(x)\,\Delta

    Args:
        x: The weight before the step.
        move: The optimizer's step :math:`\Delta`.
        how: The arguments of :func:`lengthening`.

    Example:
        >>> grown(torch.tensor([0.0, 1.0, 2.0]), torch.tensor(0.01), size=1.0)
        tensor([0.0100, 1.0200, 2.0300])
    """
    return x + lengthening(x, **how) * move


def grown_gradient(x: Tensor, grad: Tensor, *, weight_decay: float, growth: float = 1.0, **how: float) -> Tensor:
    r"""A gradient that makes an optimizer like SGD, which adds :math:`\lambda x` to it, lengthen the steps of large weights.

    .. math:: \varphi(x)\,g + a \lambda x

    Decay is not lengthened by :math:`\varphi`, but by 1 + a for every weight: without a bound its balance with the loss is the
    old one at the usual size :math:`|x| = s`. Below, decay prevails, and above the loss does, as under a penalty
    :math:`\ell_1` (:func:`rewa.theory.grown_penalty`).

    Args:
        x: The weight before the step.
        grad: Its gradient g.
        weight_decay: The optimizer's weight decay :math:`\lambda`, negative where it maximizes.
        growth: What a weight of the usual size adds to its step, as a multiple: a.
        how: The other arguments of :func:`lengthening`.

    Example:
        >>> grown_gradient(torch.tensor([0.0, 1.0, 2.0]), torch.tensor(0.1), weight_decay=0.01, size=1.0)
        tensor([0.1000, 0.2100, 0.3200])
    """
    return lengthening(x, growth=growth, **how) * grad + growth * weight_decay * x


def flush_subnormal(x: Tensor) -> Tensor:
    r"""Zero what lies at or below the smallest normal number of the dtype.

    :math:`|y|^9` reaches the subnormal range quickly, and a forward pass over subnormals is many times slower on a CPU.

    Example:
        >>> flush_subnormal(torch.tensor([1e-40, -1e-30]))
        tensor([ 0.0000e+00, -1.0000e-30])
    """
    return F.hardshrink(x, torch.finfo(x.dtype).tiny)
