r"""What a setting does to the weights, as pure functions: the implicit penalty, when a weight grows, how far decay takes it.

The functions take numbers or NumPy arrays and nothing from a model, so they answer before a day of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewa import penalties
from rewa.penalties import lp, lp_derivative
from rewa.reparam import check_exponents

__all__ = [
    "AdamWSetting",
    "Configuration",
    "adamw_advice",
    "adamw_bound",
    "configuration",
    "constant_clipping",
    "decay_budget",
    "decays_for",
    "effective_p",
    "elimination_loss_bound",
    "elimination_threshold",
    "exact_recovery",
    "grown_penalty",
    "grown_potential",
    "growth_start",
    "growth_threshold",
    "l1_clipping",
    "mcp",
    "plain_equivalent",
    "regularizer",
    "regularizer_gradient",
    "scad",
    "scad_critical_radius",
    "sign_flips",
    "sparsity_bound",
    "stagnation_radii",
    "stationarity_residual",
    "strongest_decay",
    "weight_decay_for",
]

Array = NDArray[np.float64]


def effective_p(K: float, M: float) -> float:
    r"""Exponent :math:`p` of the :math:`\ell_p` penalty that ReWA minimizes implicitly with :math:`\varepsilon = 0`.

    .. math:: p = 1 + \frac{1 - M}{K}

    Not clipped to (0, 1): ``M <= 1`` is legal and gives a p from 1, ``M > K + 1`` a negative one.

    Args:
        K: Order of the reparameterization.
        M: Adaptivity exponent. ``M = 1`` is the lasso, ``M = K - 1`` the plain K-fold product with p = 2/K.

    Example:
        >>> effective_p(K=4, M=3)
        0.5

    References:
        Theorem 3.3 (Implicit Bias) of the paper.
    """
    check_exponents(K, M, 0.0)
    return 1 + (1 - M) / K


def regularizer(x: ArrayLike, K: float, M: float, eps: float = 0.0, *, lam: float = 1.0) -> Array:
    r"""The implicit penalty :math:`\lambda R(x)` of Theorem 3.3, coordinate by coordinate.

    .. math::
        R(x) = \frac{K}{K+1-M}\,|x|^{1+(1-M)/K} + \varepsilon\,\frac{K}{2-M}\,|x|^{(2-M)/K}

    Both terms have the form :math:`|x|^q / q`. Where q = 0 (``M = K + 1`` in the first, ``M = 2`` in the second, the paper's
    own ImageNet setting) that degenerates to :math:`\log|x|`, minus infinity at zero.

    Args:
        x: Weights.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        lam: Weight decay :math:`\lambda`, which the paper's statement leaves out: without it the theorem does not hold.

    Example:
        >>> regularizer([0.25, -1.0], K=4, M=3)
        array([1., 2.])

    References:
        Theorem 3.3 (Implicit Bias) of the paper.
    """
    check_exponents(K, M, eps)
    value = lp(x, 1 + (1 - M) / K)
    if eps > 0:
        value = value + eps * lp(x, (2 - M) / K)
    return lam * value


def regularizer_gradient(x: ArrayLike, K: float, M: float, eps: float = 0.0, *, lam: float = 1.0) -> Array:
    r"""Derivative of :func:`regularizer` at nonzero weights.

    .. math:: \lambda R'(x) = \lambda\,\mathrm{sign}(x)\left(|x|^{(1-M)/K} + \varepsilon\,|x|^{(2-M)/K - 1}\right)

    A nonzero weight is at rest when :math:`\nabla f(x) = -\lambda R'(x)`. Where the derivative is unbounded at zero, it is
    given there as 0, the midpoint of its one-sided limits.

    Args:
        x: Weights.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        lam: Weight decay.

    Example:
        >>> regularizer_gradient([1.0, -16.0, 0.0], K=4, M=3)
        array([ 1.  , -0.25,  0.  ])

    References:
        Theorem 3.3 (Implicit Bias) of the paper.
    """
    check_exponents(K, M, eps)
    x = np.asarray(x, dtype=np.float64)
    slope = lp_derivative(x, 1 + (1 - M) / K)
    if eps > 0:
        slope = slope + eps * lp_derivative(x, (2 - M) / K)
    return lam * slope


def stationarity_residual(x: ArrayLike, grad: ArrayLike, K: float, M: float, eps: float = 0.0, *, lam: float) -> Array:
    r"""What Theorem 3.3 says tends to zero: :math:`V(x) \odot (\nabla f(x) + \lambda R'(x))`, by coordinates.

    .. math:: V(x) = \frac{|x|^{1 + (M-2)/(2K)}}{\sqrt{|x|^{1-1/K} + \varepsilon}}

    A coordinate is at rest when it is zero or its gradient balances the penalty. At zero the residual is given as 0.

    Note:
        As a weight tends to zero, so does its residual if ``M < 2``, or ``M < K + 1`` with ``eps = 0``. Beyond that it tends to
        a constant (``M = 2`` with eps: the ImageNet setting) or grows, though the weight is at rest: judge by the weight then.

    Args:
        x: Weights.
        grad: Gradient of the loss f, without any penalty.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        lam: Weight decay.

    Example:
        >>> stationarity_residual([4.0, 0.0], [-0.5, 3.0], K=2, M=2, lam=1.0)
        array([0., 0.])

    References:
        Theorem 3.3 (Implicit Bias) of the paper.
    """
    x, grad = np.asarray(x, dtype=np.float64), np.asarray(grad, dtype=np.float64)
    a = np.abs(x)
    safe = np.where(a > 0, a, 1.0)
    weight = np.where(a > 0, safe ** (1 + (M - 2) / (2 * K)) / np.sqrt(safe ** (1 - 1 / K) + eps), 0.0)
    return weight * (grad + regularizer_gradient(x, K, M, eps, lam=lam))


class Configuration(NamedTuple):
    """Which of the paper's configurations a setting is, and why in words."""

    name: str
    p: float | None
    why: str


def configuration(K: float, M: float, eps: float = 0.0) -> Configuration:
    r"""Whether a setting acts as an :math:`\ell_p` penalty with 0 < p < 1, and through which term.

    Args:
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.

    Returns:
        ``"A"`` (``eps = 0``, ``M > 1``), ``"B"`` (``eps > 0``, ``M < 2``) or ``"neither"``, the exponent p that counts, and
        the reason. The proposition's conditions are not sufficient as printed: A needs ``M < K + 1`` as well and B needs
        ``M > 2 - K``, else p leaves (0, 1).

    Example:
        >>> configuration(K=9, M=2).name, configuration(K=3, M=0, eps=1e-3).name
        ('A', 'B')
        >>> print(configuration(K=3, M=2, eps=1e-3).why)
        M = 2 with eps > 0: the eps term is eps * log|x|, the limit of configuration B, and p = 0.667 comes from the first term

    References:
        Proposition 3.4 of the paper.
    """
    check_exponents(K, M, eps)
    first, second = effective_p(K, M), (2 - M) / K
    if eps == 0:
        if 0 < first < 1:
            return Configuration("A", first, f"eps = 0 and 1 < M < K + 1: the penalty is l_p with p = {first:.3g}")
        reason = "M <= 1 gives p >= 1, no sparser than l1" if M <= 1 else "M >= K + 1 leaves no positive p"
        return Configuration("neither", first, f"eps = 0, but {reason} (p = {first:.3g})")
    if 0 < second < 1:
        return Configuration("B", second, f"eps > 0 and M < 2: the eps term is l_p with p = {second:.3g}")
    if M == 2:
        tail = f"and p = {first:.3g} comes from the first term" if 0 < first < 1 else "and the first term has no p below 1"
        return Configuration(
            "neither", first, f"M = 2 with eps > 0: the eps term is eps * log|x|, the limit of configuration B, {tail}"
        )
    reason = "M > 2 gives its term a negative exponent" if M > 2 else f"its term has p = {second:.3g}, not below 1"
    return Configuration("neither", first, f"eps > 0, but {reason}; the first term has p = {first:.3g}")


def plain_equivalent(K: float, M: float) -> tuple[float, float]:
    r"""The setting without an adaptive rate that has the same penalty: Configuration D for a given C.

    .. math:: K' = \frac{2}{1 + (1-M)/K}, \qquad M' = K' - 1

    Args:
        K: Order of the reparameterization.
        M: Adaptivity exponent, below ``K + 1``.

    Example:
        >>> plain_equivalent(K=4, M=3)
        (4.0, 3.0)
        >>> K, M = plain_equivalent(K=9, M=2)
        >>> effective_p(K, M) == effective_p(9, 2)
        True

    References:
        Remark 3.5 (The role of M) of the paper.
    """
    p = effective_p(K, M)
    if p <= 0:
        raise ValueError(f"K={K}, M={M} has p = {p:g}; a plain product needs p > 0, that is M < K + 1")
    return 2 / p, 2 / p - 1


def grown_penalty(x: ArrayLike, *, size: float, growth: float = 1.0, floor: float = 1.0, lam: float = 1.0) -> Array:
    r"""The penalty of a decay that acts beside steps which :func:`rewa.reparam.grown` lengthens by :math:`\varphi`.

    Where a step is :math:`-\eta\,\varphi(x) f'(x) - \eta\lambda x` with :math:`\varphi(x) = c + a|x|/s`, a weight rests when
    :math:`f'(x) = -\lambda x / \varphi(x)`: the optimality condition of :math:`f(x) + R(x)` with

    .. math:: R(x) = \lambda \int_0^{|x|} \frac{t}{\varphi(t)}\,dt
        = \lambda\,\frac{s}{a} \left(|x| - \frac{cs}{a} \ln\left(1 + \frac{a|x|}{cs}\right)\right).

    It is quadratic near zero and the :math:`\ell_1` norm for large weights. For ``floor=0`` it is :math:`\lambda (s/a) |x|`,
    Theorem 1 with ``K=1, M=1`` and the matched rate. :class:`rewa.Sparsifier` on SGD has this penalty, with 1 + a times the
    optimizer's decay. On other optimizers decay is a part of the step and lengthened with it: there the weights rest where they
    would without, and only the way to them changes (:func:`grown_potential`).

    Args:
        x: The weights.
        size: A usual magnitude s of the weights, above 0.
        growth: What a weight of that size adds to its step, as a multiple: a, above 0.
        floor: Share c of the optimizer's step that every weight makes.
        lam: Weight decay :math:`\lambda`.

    Example:
        >>> grown_penalty([0.0, 1.0], size=1.0, floor=0.0, lam=0.1)
        array([0. , 0.1])
    """
    _check_grown(size, growth)
    magnitude, unit = np.abs(np.asarray(x, dtype=np.float64)), size / growth
    bend = floor * unit
    inner = magnitude - bend * np.log1p(magnitude / bend) if bend > 0 else magnitude
    return np.asarray(lam * unit * inner)


def grown_potential(x: ArrayLike, *, size: float, growth: float = 1.0) -> Array:
    r"""The function that steps lengthened by :math:`\varphi(x) = 1 + a|x|/s` keep small: mirror descent's potential.

    Gradient flow :math:`\dot x = -\varphi(x) \nabla f(x)` is mirror descent with :math:`\Phi'' = 1/\varphi`, so that of all
    minimizers of a convex f it finds the one nearest to the start in the Bregman divergence of

    .. math:: \Phi(x) = \left(\frac{s}{a}\right)^2 \left((1 + u) \ln(1 + u) - u\right), \qquad u = \frac{a|x|}{s}.

    For :math:`|x| \ll s` that is :math:`x^2/2`, as for gradient descent; for large weights it grows as
    :math:`|x| \ln |x|`, nearly as the :math:`\ell_1` norm, and prefers few large weights to many small ones.

    Args:
        x: The weights.
        size: A usual magnitude s of the weights, above 0.
        growth: What a weight of that size adds to its step, as a multiple: a, above 0.

    Example:
        >>> grown_potential([0.0, 1e-3, 1.0], size=1.0).round(9)
        array([0.00000000e+00, 5.00000000e-07, 3.86294361e-01])
    """
    _check_grown(size, growth)
    u = growth * np.abs(np.asarray(x, dtype=np.float64)) / size
    return np.asarray((size / growth) ** 2 * ((1 + u) * np.log1p(u) - u))


def _check_grown(size: float, growth: float) -> None:
    if not (size > 0 and growth > 0):
        raise ValueError(f"Invalid size and growth: {size}, {growth} (allowed: numbers > 0)")


def growth_threshold(x: ArrayLike, K: float, M: float, *, lam: float) -> Array:
    r"""Gradient that a weight needs to grow: it grows if and only if :math:`|g| > \lambda\,|x|^{(1-M)/K}` and g pulls outwards.

    For ``eps = 0``. Read as a screening rule for ``M > 1``: what starts at x and never sees such a gradient dies. There the
    threshold is infinite at zero; for ``M < 1`` it is zero there, and a weight that sees less settles at a smaller size.

    Args:
        x: Weights.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        lam: Weight decay.

    Example:
        >>> growth_threshold([1.0, 0.002, 0.0], K=9, M=4, lam=0.25).round(2)
        array([0.25, 1.98,  inf])

    References:
        The step of Algorithm 1: y grows if and only if :math:`|g|\,|y|^M > \lambda |y|`.
    """
    a = np.abs(np.asarray(x, dtype=np.float64))
    at_zero = math.inf if M > 1 else lam if M == 1 else 0.0
    return np.where(a > 0, regularizer_gradient(a, K, M, lam=lam), at_zero)


def growth_start(gradient: ArrayLike, K: float, M: float, *, lam: float) -> Array:
    r"""Smallest weight that a gradient makes grow, the inverse of :func:`growth_threshold`: a start below it is lost.

    .. math:: |x| > (\lambda / |g|)^{K/(M-1)}

    For ``eps = 0``. For ``M = 1`` it is 0 or infinite, as the gradient exceeds :math:`\lambda` or not; for ``M < 1`` it is 0
    for every gradient, since the smaller a weight the more easily it grows.

    Args:
        gradient: Gradients that pull outwards.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        lam: Weight decay, positive.

    Example:
        >>> growth_start([2.0, 4.0], K=9, M=4, lam=0.25).round(5)
        array([0.00195, 0.00024])

    References:
        The step of Algorithm 1: y grows if and only if :math:`|g|\,|y|^M > \lambda |y|`.
    """
    check_exponents(K, M, 0.0)
    g = np.abs(np.asarray(gradient, dtype=np.float64))
    if M < 1:
        return np.zeros_like(g)
    if M == 1:
        return np.where(g > lam, 0.0, math.inf)
    with np.errstate(divide="ignore"):
        return np.asarray((lam / g) ** (K / (M - 1)))


def decay_budget(
    schedule: Iterable[float], *, K: float, weight_decay: float, momentum: float = 0.0, decoupled: bool = False
) -> float:
    r"""How far a run takes a weight that the loss does not hold: it ends at :math:`e^{-\text{budget}}` of its start.

    .. math:: \text{budget} = \frac{K\,\lambda\,\sum_t \eta_t}{1 - \mu}

    for coupled decay, without the denominator when decoupled.

    Exact as the steps become small. With coupled decay it needs :math:`\eta\lambda` well below :math:`(1 - \sqrt\mu)^2`: from
    there on y swings around zero and shrinks by at most :math:`\sqrt\mu` a step, whatever the decay.

    Args:
        schedule: Learning rate of every step.
        K: Order of the reparameterization.
        weight_decay: Decay :math:`\lambda`.
        momentum: Momentum :math:`\mu`.
        decoupled: Whether the decay bypasses the momentum.

    Example:
        >>> round(decay_budget([0.1] * 1000, K=9, weight_decay=1e-3, momentum=0.9), 6)
        9.0

    References:
        Algorithm 1 with g = 0, and its x = y^K; the momentum is that of the public CIFAR-10 code.
    """
    check_exponents(K, 0, 0.0)
    _check_run(momentum=momentum, weight_decay=weight_decay)
    total = math.fsum(schedule)
    if not 0 <= total < math.inf:
        raise ValueError(f"the learning rates of the schedule sum to {total} (allowed: a finite number >= 0)")
    return K * weight_decay * total / (1.0 if decoupled else 1 - momentum)


def decays_for(
    budgets: Iterable[float], rate_sum: float, *, K: float = 1.0, momentum: float = 0.0, decoupled: bool = False
) -> tuple[float, ...]:
    r"""The weight decays of given budgets, the inverse of :func:`decay_budget`.

    .. math:: \lambda = \frac{\text{budget}}{K\,\sum_t \eta_t / (1 - \mu)}

    for coupled decay, without the momentum when decoupled.

    Args:
        budgets: Decay budgets.
        rate_sum: Sum of the learning rates of the run.
        K: Order of the reparameterization, or the number of factors that are decayed.
        momentum: Momentum :math:`\mu`.
        decoupled: Whether the decay bypasses the momentum.

    Example:
        >>> [round(decay, 6) for decay in decays_for((1.0, 4.0), 10.0, K=2, momentum=0.5)]
        [0.025, 0.1]
    """
    per_unit = K * rate_sum * (1.0 if decoupled else 1 / (1 - momentum))
    return tuple(budget / per_unit for budget in budgets)


def weight_decay_for(
    shrink_to: float,
    schedule: Iterable[float],
    *,
    K: float,
    start: float = 1.0,
    momentum: float = 0.0,
    decoupled: bool = False,
) -> float:
    r"""The weight decay that takes an unsupported weight from ``start`` to ``shrink_to`` by the end of a schedule.

    The inverse of :func:`decay_budget`. It moves a recipe to another length without guessing.

    Args:
        shrink_to: Where the weight shall end, such as the threshold that counts as zero.
        schedule: Learning rate of every step.
        K: Order of the reparameterization.
        start: Where it starts, such as the spread of the initial weights.
        momentum: Momentum.
        decoupled: Whether the decay bypasses the momentum.

    Example:
        >>> round(weight_decay_for(1e-4, [0.1] * 1000, K=9, start=0.05, momentum=0.9), 6)
        0.000691

    Raises:
        ValueError: If the decay would have to be so strong that the weight swings around zero (:func:`strongest_decay`).
    """
    if not 0 < shrink_to <= start < math.inf:
        raise ValueError(f"Invalid shrink_to: {shrink_to} (allowed: 0 < shrink_to <= start, here start={start})")
    schedule = list(schedule)
    per_unit = decay_budget(schedule, K=K, weight_decay=1.0, momentum=momentum, decoupled=decoupled)
    if per_unit <= 0:
        raise ValueError("the schedule's learning rates sum to nothing: no decay shrinks a weight in it")
    decay = math.log(start / shrink_to) / per_unit
    if max(schedule) * decay > strongest_decay(0.0 if decoupled else momentum):
        raise ValueError(
            f"weight_decay = {decay:.3g} would be needed, and with lr = {max(schedule):g} and momentum = {momentum:g} that is "
            "too strong for a weight to follow; make the schedule longer or shrink_to larger"
        )
    return decay


def adamw_bound(K: float, weight_decay: float) -> float:
    r"""Largest weight that AdamW on y can hold: :math:`|x| \le \lambda^{-K}`, whatever the loss.

    Adam divides the gradient by its own size, so a step moves y by about :math:`\eta` and decay takes :math:`\eta\lambda y`.
    The two balance at :math:`|y| = 1/\lambda`.

    Note:
        Exact for a gradient of constant size. One that comes rarely takes Adam further, by :math:`(1-\beta_1)/\sqrt{1-\beta_2}`
        at most, for a single step.

    Args:
        K: Order of the reparameterization.
        weight_decay: Decoupled decay :math:`\lambda` of y.

    Returns:
        The bound on \|x\|; infinite without decay.

    Example:
        >>> adamw_bound(K=9, weight_decay=2.0)
        0.001953125

    References:
        Algorithm 2 of the paper at rest.
    """
    check_exponents(K, 0, 0.0)
    _check_run(momentum=0.0, weight_decay=weight_decay)
    log_bound = math.inf if weight_decay == 0 else -K * math.log(weight_decay)
    return math.exp(log_bound) if log_bound < 709 else math.inf  # what float64 holds


class AdamWSetting(NamedTuple):
    """A peak learning rate and a decay for ReWA on AdamW."""

    lr: float
    weight_decay: float


ADAMW_STEP = 0.028  # of y's start in a step at full rate: lr = 0.02 for K = 9, as in the recorded runs
ADAMW_BUDGET = 20.0  # the recorded runs at this rate had 94 to 97 % zeros within a point of accuracy
ADAMW_ROOM = 4.0  # the largest weight must be at least so many times the usual one


def adamw_advice(K: float, full_steps: float, *, start: float = 0.05) -> AdamWSetting:
    r"""A rate and a decay with which ReWA on AdamW can learn and become sparse, for a run of a given length.

    The rate moves y, which starts at :math:`y_0 = a^{1/K}`, by 3 % per step, and by :math:`y_0` at least in the whole run.
    The decay is the one whose budget is 20, unless that bounds \|x\| below four times the usual weight a:

    .. math:: \eta = y_0 \max(0.028, 1/n), \qquad \lambda = \min\left(\frac{20}{K\,\eta\,n},\ (4a)^{-1/K}\right)

    Args:
        K: Order of the reparameterization.
        full_steps: Length n of the run in steps at the full rate: the sum of the schedule over its peak.
        start: Usual size a of a weight.

    Example:
        >>> setting = adamw_advice(K=9, full_steps=3000)
        >>> round(setting.lr, 3), round(setting.weight_decay, 3)
        (0.02, 0.037)
    """
    check_exponents(K, 0, 0.0)
    if not (0 < full_steps < math.inf and 0 < start < math.inf):
        raise ValueError(f"adamw_advice needs full_steps > 0 and start > 0, got full_steps={full_steps}, start={start}")
    y = start ** (1 / K)
    lr = y * max(ADAMW_STEP, 1 / full_steps)
    return AdamWSetting(lr, min(ADAMW_BUDGET / (K * lr * full_steps), (ADAMW_ROOM * start) ** (-1 / K)))


def strongest_decay(momentum: float = 0.0) -> float:
    r"""Largest :math:`\eta\lambda` for which a weight without gradient shrinks without swinging around zero.

    .. math:: (1 - \sqrt\mu)^2

    The roots of :math:`z^2 - (1 + \mu - \eta\lambda) z + \mu`, by which y shrinks in a step, are real up to there.

    Args:
        momentum: Momentum of coupled decay; 0 for decoupled.

    Example:
        >>> round(strongest_decay(0.875), 4)
        0.0042
    """
    return (1 - math.sqrt(momentum)) ** 2


class SignFlips(NamedTuple):
    r"""Sizes \|y\| at which a step can change a weight's sign: strictly between the two; both infinite if at none."""

    low: float
    high: float


def sign_flips(*, K: float, M: float, eps: float, lr: float, weight_decay: float, gradient_bound: float) -> SignFlips:
    r"""Where one step of ReWA can take a weight across zero, for gradients bounded by B.

    The step must exceed what decay leaves of y: :math:`\eta\,s(|y|)\,B > (1 - \eta\lambda)\,|y|`, that is

    .. math:: \frac{|y|^{M+K-2}}{|y|^{K-1} + \varepsilon} > C = \frac{1 - \eta\lambda}{\eta B}.

    The left side rises throughout for ``M >= 1``: small weights keep their sign. For ``M < 1`` it falls in the end, and with
    ``eps = 0`` from the start: large weights keep their sign and small ones can always cross.

    Args:
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        lr: Learning rate.
        weight_decay: Weight decay; ``lr * weight_decay < 1``.
        gradient_bound: Bound B of the gradient's coordinates.

    Example:
        >>> flips = sign_flips(K=5, M=3, eps=0.0, lr=0.5, weight_decay=0.0, gradient_bound=8.0)
        >>> round(flips.low, 3), flips.high
        (0.5, inf)

    References:
        Theorem 3.10 of the paper, whose three cases are ``eps = 0``, ``M = 0`` and ``M = K - 1, eps = 0``.
    """
    check_exponents(K, M, eps)
    if not (lr > 0 and gradient_bound > 0 and 0 <= lr * weight_decay < 1):
        raise ValueError(
            f"sign flips need lr > 0, gradient_bound > 0 and 0 <= lr * weight_decay < 1; got lr={lr}, "
            f"gradient_bound={gradient_bound}, weight_decay={weight_decay}"
        )
    log_C = math.log((1 - lr * weight_decay) / (lr * gradient_bound))

    def flips(t: float) -> bool:
        """The condition at size exp(t), in logarithms: no power overflows."""
        stabilizer = float(np.logaddexp(0.0, math.log(eps) - (K - 1) * t)) if eps > 0 else 0.0
        return (M - 1) * t - stabilizer > log_C

    def edge(outside: float, inside: float) -> float:
        """Where the condition starts to hold between a size without flips and one with."""
        for _ in range(200):
            middle = (outside + inside) / 2
            outside, inside = (outside, middle) if flips(middle) else (middle, inside)
        return math.exp(inside)

    # The top of the left side, within the range of float64.
    rises = K + M - 2
    if M >= 1:
        top = 700.0
    elif eps == 0 or rises <= 0:
        top = -700.0
    else:
        top = (math.log(eps) + math.log(rises / (1 - M))) / (K - 1)
    if not flips(top):
        return SignFlips(math.inf, math.inf)
    return SignFlips(0.0 if flips(-700.0) else edge(-700.0, top), math.inf if flips(700.0) else edge(700.0, top))


class StagnationRadii(NamedTuple):
    r"""Where a step cannot change a weight's sign: for \|y\| up to the radius (infinite: everywhere; 0: nowhere)."""

    with_M: float
    with_eps: float
    without: float


def stagnation_radii(
    *, K: float, M: float, eps: float, lr: float, weight_decay: float, gradient_bound: float
) -> StagnationRadii:
    r"""The radii :math:`U_1, U_2, U_3` of the theorem on adaptive rates, for gradients bounded by B.

    With :math:`C = (1-\eta\lambda)/(\eta B)`:

    .. math::
        U_1 = C^{1/(M-1)}, \qquad U_2 + \varepsilon U_2^{-(K-2)} = 1/C, \qquad U_3 = C^{1/(K-2)}

    for the scale :math:`|y|^M`, for :math:`M = 0` with :math:`\varepsilon > 0`, and for the plain product. The setting with
    all its parts together is :func:`sign_flips`.

    Args:
        K: Order of the reparameterization, above 2.
        M: Adaptivity exponent, for the first radius.
        eps: Stabilizer, for the second.
        lr: Learning rate.
        weight_decay: Weight decay; ``lr * weight_decay < 1``.
        gradient_bound: Bound B of the gradient's coordinates.

    Note:
        The printed first condition holds for ``M > 1`` only. For ``M < 1`` the inequality turns around: a sign is kept for
        :math:`|y| \ge U_1`, and small weights can always cross, so the radius is 0; for ``M = 1`` it is everything or nothing.
        The second equation has no root when the right side lies below its minimum: then no sign can change anywhere. The
        printed condition for a root is turned upside down; it is :math:`\varepsilon \le [(K-2)/(C(K-1))]^{K-1}/(K-2)`.

    Example:
        >>> radii = stagnation_radii(K=5, M=3, eps=0.01, lr=0.5, weight_decay=0.0, gradient_bound=8.0)
        >>> [round(radius, 3) for radius in radii]
        [0.5, 0.137, 0.63]

    References:
        Theorem 3.10 and Proposition 3.11 of the paper.
    """
    if K <= 2:
        raise ValueError(f"stagnation radii need K > 2; got K={K}")
    check_exponents(K, M, eps)
    run = {"K": K, "lr": lr, "weight_decay": weight_decay, "gradient_bound": gradient_bound}
    settings = ({"M": M, "eps": 0.0}, {"M": 0.0, "eps": eps}, {"M": K - 1, "eps": 0.0})
    return StagnationRadii(*(sign_flips(**run, **setting).low for setting in settings))


def elimination_threshold(K: float, gamma: float) -> float:
    r"""Size :math:`e^{-\gamma\sqrt{K/2}}` below which the recovery theorem drops a weight.

    Args:
        K: Number of factors.
        gamma: The theorem's constant, positive.

    Example:
        >>> round(elimination_threshold(K=8, gamma=1.0), 4)
        0.1353

    References:
        Theorem 3.14 of the paper.
    """
    check_exponents(K, 0, 0.0)
    if not gamma > 0:
        raise ValueError(f"Invalid gamma: {gamma} (allowed: a number > 0)")
    return math.exp(-gamma * math.sqrt(K / 2))


def sparsity_bound(K: float, gamma: float, B: float) -> float:
    r"""Factor by which the recovered support may exceed the sparsest one, after dropping what lies below the threshold.

    .. math:: \|\bar x\|_0 \le e^{\gamma\sqrt{2/K} + 2B'/K}\,\|x_0\|_0, \qquad B' = \max(0, \log B)

    Each weight kept adds at least :math:`e^{-\gamma\sqrt p}` to :math:`\|x\|_p^p` with p = 2/K, each of the sparsest solution
    at most :math:`e^{pB'}`, and the first sum is not above the second.

    Note:
        The theorem prints :math:`1 + (4B' + \gamma)\sqrt{2/K}` for K large enough. Its proof ends with :math:`4B' + 2\gamma`,
        and with the printed constant the statement is wrong: for K = 9, gamma = 1, B = 1 a problem keeps 16 weights
        where 14 are promised. The factor here holds for every K and cannot be improved.

    Args:
        K: Number of factors.
        gamma: Constant of the elimination threshold.
        B: Bound of the sparsest solution's coordinates.

    Example:
        >>> round(sparsity_bound(K=9, gamma=1.0, B=1.0), 3)
        1.602

    References:
        Theorem 3.14 of the paper.
    """
    check_exponents(K, 0, 0.0)
    if not (gamma > 0 and B > 0):
        raise ValueError(f"sparsity_bound needs gamma > 0 and B > 0, got gamma={gamma}, B={B}")
    return math.exp(gamma * math.sqrt(2 / K) + 2 * max(0.0, math.log(B)) / K)


def exact_recovery(K: float, gamma: float, B: float, *, nonzeros: int, smallest: float) -> bool:
    r"""Whether the minimizer's support is guaranteed to be as small as the sparsest one's.

    Two conditions: nothing of the minimizer lies below the threshold, and the bound leaves no room for one weight more.

    .. math:: \gamma \ge -\sqrt{2/K}\,\log M_K, \qquad \|x_0\|_0\,(e^{\gamma\sqrt{2/K} + 2B'/K} - 1) < 1

    Note:
        The corollary prints the first condition without its minus and the second with the theorem's constant; both fail.

    Args:
        K: Number of factors.
        gamma: Constant of the elimination threshold.
        B: Bound of the sparsest solution's coordinates.
        nonzeros: Size :math:`\|x_0\|_0` of the sparsest solution.
        smallest: Smallest nonzero magnitude :math:`M_K` of the minimizer.

    Example:
        >>> exact_recovery(K=201, gamma=1.0, B=1.0, nonzeros=3, smallest=0.01)
        True

    References:
        Corollary 3.15 of the paper.
    """
    return smallest >= elimination_threshold(K, gamma) and nonzeros * (sparsity_bound(K, gamma, B) - 1) < 1


def elimination_loss_bound(K: float, gamma: float, *, lipschitz: float, dim: int) -> float:
    r"""Most that dropping small weights can add to an L-Lipschitz loss: :math:`L\sqrt{d}\,e^{-\gamma\sqrt{K/2}}`.

    Args:
        K: Number of factors.
        gamma: Constant of the elimination threshold.
        lipschitz: Lipschitz constant L of the loss in the 2-norm.
        dim: Number of weights d.

    Example:
        >>> round(elimination_loss_bound(K=8, gamma=1.0, lipschitz=2.0, dim=4), 4)
        0.5413

    References:
        Corollary 3.16 of the paper.
    """
    return lipschitz * math.sqrt(dim) * elimination_threshold(K, gamma)


class Clipping(NamedTuple):
    """What clipping an l_p penalty costs: the largest gradient left, and the largest error made."""

    gradient_bound: float
    approximation_error: float


def constant_clipping(p: float, u: float, dim: int) -> Clipping:
    r"""Cost of replacing :math:`\sum|x_j|^p` by :math:`\sum\max(|x_j|^p, u^p)`.

    .. math:: \mathcal{E}_1 = \sqrt{d}\,p\,u^{p-1}, \qquad \mathcal{E}_2 = d\,u^p

    Args:
        p: Exponent between 0 and 1.
        u: Where the penalty is clipped, positive.
        dim: Number of weights d.

    Example:
        >>> constant_clipping(p=0.5, u=0.25, dim=4)
        Clipping(gradient_bound=2.0, approximation_error=2.0)

    References:
        Definition 3.6 and Theorem 3.7 of the paper.
    """
    return Clipping(_clipped_gradient(p, u, dim), dim * u**p)


def l1_clipping(p: float, u: float, dim: int) -> Clipping:
    r"""Cost of replacing :math:`|x|^p` by its tangent at u where :math:`|x| < u`, an :math:`\ell_1` penalty there.

    .. math:: \mathcal{E}_1 = \sqrt{d}\,p\,u^{p-1}, \qquad \mathcal{E}_2 = d\,(1-p)\,u^p

    Note:
        The paper's definition takes the maximum of both for every x. A tangent of a concave function lies above it
        everywhere, so that maximum is the tangent alone, with an unbounded error; the costs above are those meant.

    Args:
        p: Exponent between 0 and 1.
        u: Where the penalty is clipped, positive.
        dim: Number of weights d.

    Example:
        >>> l1_clipping(p=0.5, u=0.25, dim=4)
        Clipping(gradient_bound=2.0, approximation_error=1.0)

    References:
        Definition 3.6 and Theorem 3.7 of the paper.
    """
    return Clipping(_clipped_gradient(p, u, dim), dim * (1 - p) * u**p)


def _clipped_gradient(p: float, u: float, dim: int) -> float:
    """The largest gradient that either clipping leaves: that of the penalty at u, in every coordinate."""
    if not (0 < p < 1 and 0 < u < math.inf):
        raise ValueError(f"clipping needs 0 < p < 1 and u > 0, got p={p}, u={u}")
    bound: float = math.sqrt(dim) * p * u ** (p - 1)
    return bound


def scad(x: ArrayLike, *, lam: float, a: float = 3.7) -> Array:
    r"""The SCAD penalty: :math:`\lambda|x|` up to :math:`\lambda`, then a parabola, constant from :math:`a\lambda`.

    Args:
        x: Weights.
        lam: Strength.
        a: Where it becomes constant, above 2.

    Example:
        >>> scad([0.5, 10.0], lam=1.0)
        array([0.5 , 2.35])

    References:
        Fan and Li, Variable selection via nonconcave penalized likelihood, JASA 2001.
    """
    if not (a > 2 and lam > 0):
        raise ValueError(f"SCAD needs a > 2 and lam > 0, got a={a}, lam={lam}")
    return penalties.scad(x, slope=lam, knee=a * lam, a=a)


def mcp(x: ArrayLike, *, lam: float, a: float = 3.0) -> Array:
    r"""The minimax concave penalty: :math:`\lambda|x| - x^2/(2a)`, constant from :math:`a\lambda`.

    Args:
        x: Weights.
        lam: Strength.
        a: Where it becomes constant, in units of lam; positive.

    Example:
        >>> mcp([1.0, 10.0], lam=1.0, a=2.0)
        array([0.75, 1.  ])

    References:
        Zhang, Nearly unbiased variable selection under minimax concave penalty, Annals of Statistics 2010.
    """
    if not (a > 0 and lam > 0):
        raise ValueError(f"MCP needs a > 0 and lam > 0, got a={a}, lam={lam}")
    return penalties.mcp(x, slope=lam, knee=a * lam)


def scad_critical_radius(a: float = 3.7, *, lam: float = 1.0) -> float:
    r"""Signal strength :math:`r_c` below which SCAD prefers the dense point of the paper's circle to the sparse one.

    On :math:`(x_0 - r)^2 + (x_1 - r)^2 = r^2` the sparse points are :math:`(r, 0)` and :math:`(0, r)`, the dense one nearest
    to the origin is :math:`(1 - 1/\sqrt2)\,r` in both coordinates; :math:`r_c` is where their penalties are equal.

    Args:
        a: SCAD's constant, above 2.
        lam: SCAD's strength, to which the radius is proportional.

    Example:
        >>> round(scad_critical_radius(3.7), 2)
        4.03

    References:
        Appendix B of the paper.
    """
    if not lam > 0:
        raise ValueError(f"Invalid lam: {lam} (allowed: a number > 0)")

    def sparse_is_cheaper(r: float) -> bool:
        return bool(scad(r, lam=1.0, a=a) < 2 * scad((1 - math.sqrt(0.5)) * r, lam=1.0, a=a))

    low, high = 1.0, 10.0 * a  # dense is cheaper at 1, where SCAD is l1; sparse is once both are on the flat part
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if sparse_is_cheaper(middle) else (middle, high)
    return lam * high


def _check_run(**values: Any) -> None:
    if not 0 <= values["momentum"] < 1:
        raise ValueError(f"Invalid momentum value: {values['momentum']} (allowed: 0 <= momentum < 1)")
    if not 0 <= values["weight_decay"] < math.inf:
        raise ValueError(f"Invalid weight_decay value: {values['weight_decay']} (allowed: a finite number >= 0)")
