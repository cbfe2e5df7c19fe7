r"""The :math:`\ell_p` penalties with p < 1: by a clipped subgradient, and for p = 1/2 by the proximal map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rewa.methods.l1 import L1Subgradient, Proximal, Subgradient
from rewa.methods.method import Plan

__all__ = ["ClippedLp", "Half", "L1ClippedLp"]

CLIPPINGS = ("constant", "l1")
COMPARED_AT = 0.01  # the size of a weight for which the grid has the slopes of the l1 penalty


@dataclass(frozen=True, kw_only=True)
class ClippedLp(Subgradient):
    r"""The penalty :math:`\lambda\sum_j |x_j|^p`, clipped at u, by its subgradient: :math:`g \leftarrow g + \lambda\,\psi'(x)`.

    .. math::
        \psi'(x) = \begin{cases} p\,|x|^{p-1}\,\mathrm{sign}(x) & |x| > u \\ c & |x| \le u \end{cases}, \qquad
        c = \begin{cases} 0 & \text{constant clipping} \\ p\,u^{p-1}\,\mathrm{sign}(x) & \ell_1\text{ clipping} \end{cases}

    Constant clipping leaves weights below u alone: all are small, none is zero. The slope of :math:`\ell_1` clipping is
    largest there. :func:`rewa.theory.constant_clipping` and :func:`rewa.theory.l1_clipping` give the price of each.

    Args:
        strength: Factor :math:`\lambda` of the penalty.
        p: Exponent between 0 and 1.
        u: Clipping point, in weight units.
        clipping: ``"constant"`` or ``"l1"``.

    References:
        ReWA, ICML 2026, Definition 3.6; the maximum printed for the second is meant as its tangent below u.
    """

    name: ClassVar[str] = "clipped-lp"
    line: ClassVar[str] = "l_p penalty in the gradient, none below the clipping point"
    paper: ClassVar[str] = "ReWA, ICML 2026, Definition 3.6"
    strength_is: ClassVar[str] = "factor of the penalty"

    p: float = 0.5
    u: float = 1e-3
    clipping: str = "constant"

    def __post_init__(self) -> None:
        """Check the settings."""
        if not (0 < self.p < 1 and self.u > 0):
            raise ValueError(f"clipping needs 0 < p < 1 and u > 0, got p={self.p}, u={self.u}")
        if self.clipping not in CLIPPINGS:
            raise ValueError(f"Invalid clipping: {self.clipping!r} (allowed: {', '.join(CLIPPINGS)})")

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """A weight of 0.01 feels what it does in the grid of the l1 penalty by subgradient."""
        slope = self.p * COMPARED_AT ** (self.p - 1)
        return tuple(strength / slope for strength in L1Subgradient().grid(plan))

    def slope(self, x: Tensor) -> Tensor:
        """The clipped subgradient."""
        size = x.abs()
        slope = self.chosen * self.p * size.clamp(min=self.u) ** (self.p - 1) * x.sign()
        return torch.where(size <= self.u, 0.0, slope) if self.clipping == "constant" else slope


@dataclass(frozen=True, kw_only=True)
class L1ClippedLp(ClippedLp):
    r"""The penalty :math:`\lambda\sum_j |x_j|^p` by its subgradient, with its tangent at u below u.

    .. math:: g \leftarrow g + \lambda\,p\,\max(|x|, u)^{p-1}\,\mathrm{sign}(x)

    Args:
        strength: Factor :math:`\lambda` of the penalty.
        p: Exponent between 0 and 1.
        u: Clipping point, in weight units.
        clipping: ``"l1"``.

    References:
        ReWA, ICML 2026, Definition 3.6.
    """

    name: ClassVar[str] = "clipped-lp-l1"
    line: ClassVar[str] = "l_p penalty in the gradient, l1 below the clipping point"

    clipping: str = "l1"


@dataclass(frozen=True, kw_only=True)
class Half(Proximal):
    r"""The penalty :math:`\lambda\sum_j |x_j|^{1/2}` by its proximal map, after each step of the optimizer.

    With :math:`t = \eta\lambda` the map minimizes :math:`\frac12(x - z)^2 + t\,|x|^{1/2}`. It is 0 for
    :math:`|z| \le \frac32\,t^{2/3}`, and beyond the largest root :math:`s = |x|^{1/2}` of :math:`s^3 - |z|\,s + t/2 = 0`:

    .. math:: x \leftarrow \tfrac43\,z\,\cos^2(\varphi/3), \qquad \varphi = \arccos\Bigl(-\tfrac t4\,(3/|z|)^{3/2}\Bigr).

    The map jumps from 0 to :math:`t^{2/3}`, which for small rates is far more than a step can cover: what is zero
    once stays zero, unless its gradient is large.

    Args:
        strength: Factor :math:`\lambda` of the penalty.

    Note:
        Xu et al. minimize :math:`(x - z)^2 + \lambda_X |x|^{1/2}`, so their :math:`\lambda_X` is our :math:`2t`, and their
        threshold :math:`\frac{\sqrt[3]{54}}{4}\lambda_X^{2/3}` the one above.

    References:
        Xu, Chang, Xu and Zhang, "L1/2 regularization: a thresholding representation theory and a fast solver", IEEE
        TNNLS 2012.
    """

    name: ClassVar[str] = "half"
    line: ClassVar[str] = "half threshold (l_1/2) after each step"
    paper: ClassVar[str] = "Xu et al., TNNLS 2012"
    strength_is: ClassVar[str] = "factor of the penalty"

    # These sizes; the flow of the penalty is dx/dt = -strength / (2 sqrt(x)).
    budgets: ClassVar[dict[str, tuple[float, ...]]] = {"sgd": (0.03, 0.1, 0.3, 0.8), "adamw": (0.03, 0.05, 0.08, 0.12)}

    def grid(self, plan: Plan) -> tuple[float, ...]:
        r"""Weights without gradient, of sizes :math:`\bigl(\frac34\lambda\sum\eta\bigr)^{2/3}`, just reach zero in the run."""
        return tuple(size**1.5 / (0.75 * plan.rate_sum) for size in self.budgets[plan.optimizer])

    def prox(self, z: Tensor, lr: float) -> Tensor:
        """The half threshold."""
        t = lr * self.chosen
        size = z.abs()
        angle = torch.arccos(-t / 4 * (3 / size) ** 1.5)  # not a number below the threshold
        return torch.where(size <= 1.5 * t ** (2 / 3), 0.0, 4 / 3 * z * torch.cos(angle / 3) ** 2)
