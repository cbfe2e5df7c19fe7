"""The smoothly clipped absolute deviation: l1 near zero, no shrinkage of large weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rewa.methods.l1 import Proximal

__all__ = ["SCAD"]


@dataclass(frozen=True, kw_only=True)
class SCAD(Proximal):
    r"""The SCAD penalty by its proximal map, after each step of the optimizer, with slope and knee set apart.

    Fan and Li's penalty :math:`\mathrm{scad}(x; \ell, a)` has the slope :math:`\ell` at zero and is flat from :math:`a\ell`. In
    a network the slope that is needed far exceeds the weights, and with it the knee: the penalty would be
    :math:`\ell_1`. Here the strength :math:`\lambda` is the slope and the knee k a size of weights:

    .. math:: \psi(x) = \frac{\lambda}{\ell}\,\mathrm{scad}(x; \ell, a), \qquad \ell = k/a.

    With :math:`c = \eta\lambda/\ell` the proximal map is, for :math:`c < a - 1`,

    .. math::
        x \leftarrow \begin{cases}
            \mathrm{sign}(x)\,\max(|x| - c\ell,\ 0) & |x| \le (1 + c)\,\ell \\
            \mathrm{sign}(x)\,\dfrac{(a-1)|x| - c\,a\ell}{a - 1 - c} & (1 + c)\,\ell < |x| \le a\ell \\
            x & |x| > a\ell.
        \end{cases}

    A larger c leaves no minimum in the middle: up to :math:`|x| = \frac{a+1+c}{2}\ell` (:math:`\sqrt{c(a+1)}\,\ell` from
    :math:`c = a + 1`) the map is the first line, above the last.

    Args:
        strength: Slope :math:`\lambda` at zero.
        knee: Size k of a weight from which nothing is shrunk. Far below the weights that survive, which reach 1 in small
            networks, it protects weights before the better ones have won.
            Below ``knee / a`` the penalty is :math:`\ell_1` itself: a network whose weights all stay below 0.27 is trained
            by the defaults exactly as by :class:`~rewa.methods.l1.L1`, and needs a smaller knee to differ.
        a: Ratio of the knee to the end of the :math:`\ell_1` part, above 2.

    References:
        Fan and Li, "Variable selection via nonconcave penalized likelihood and its oracle properties", JASA 2001, equation
        2.8 for :math:`\eta = 1`.
    """

    name: ClassVar[str] = "scad"
    line: ClassVar[str] = "SCAD threshold after each step: l1 near zero, nothing beyond the knee"
    paper: ClassVar[str] = "Fan and Li, JASA 2001"
    strength_is: ClassVar[str] = "slope of the penalty at zero"

    knee: float = 1.0
    a: float = 3.7

    def __post_init__(self) -> None:
        """Check the settings."""
        if not (self.a > 2 and self.knee > 0):
            raise ValueError(f"SCAD needs a > 2 and knee > 0, got a={self.a}, knee={self.knee}")

    def prox(self, z: Tensor, lr: float) -> Tensor:
        """The threshold in three pieces, or in two where a step outruns the curve."""
        a, unit = self.a, self.knee / self.a
        c = lr * self.chosen / unit
        size = z.abs()
        soft = F.softshrink(z, c * unit)
        if c >= a - 1:
            cut = unit * ((a + 1 + c) / 2 if c < a + 1 else math.sqrt(c * (a + 1)))
            return torch.where(size <= cut, soft, z)
        middle = ((a - 1) * z - c * self.knee * z.sign()) / (a - 1 - c)
        return torch.where(size <= (1 + c) * unit, soft, torch.where(size <= self.knee, middle, z))
