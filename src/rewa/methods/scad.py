"""The smoothly clipped absolute deviation: l1 near zero, no shrinkage of large weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rewa.methods.l1 import Proximal
from rewa.penalties import scad_prox

__all__ = ["SCAD"]


@dataclass(frozen=True, kw_only=True)
class SCAD(Proximal):
    r"""The SCAD penalty by its proximal map, after each step of the optimizer, with slope and knee set apart.

    Fan and Li's penalty :math:`\mathrm{scad}(x; \ell, a)` has the slope :math:`\ell` at zero and is flat from :math:`a\ell`. In
    a network the slope that is needed far exceeds the weights, and with it the knee: the penalty would be
    :math:`\ell_1`. Here the strength :math:`\lambda` is the slope and the knee k a size of weights:

    .. math:: \psi(x) = \frac{\lambda}{\ell}\,\mathrm{scad}(x; \ell, a), \qquad \ell = k/a.

    :func:`rewa.penalties.scad_prox` has the map.

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
        return scad_prox(z, lr * self.chosen, knee=self.knee, a=self.a)
