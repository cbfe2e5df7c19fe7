"""The minimax concave penalty: its slope falls linearly from zero on, to nothing at the knee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rewa.methods.l1 import Proximal

__all__ = ["MCP"]


@dataclass(frozen=True, kw_only=True)
class MCP(Proximal):
    r"""The minimax concave penalty by its proximal map, after each step of the optimizer, with slope and knee set apart.

    Zhang's penalty with slope :math:`\lambda` is flat from :math:`a\lambda`. In a network the slope that is needed far
    exceeds the weights, and with a fixed a so would the knee. Here the strength :math:`\lambda` is the slope and the knee k a
    size of weights, :math:`a = k/\lambda`:

    .. math:: \psi(x) = \lambda\,\Bigl(|x| - \frac{x^2}{2k}\Bigr) \text{ for } |x| \le k, \qquad \lambda k / 2 \text{ beyond}.

    With :math:`t = \eta\lambda` the proximal map is, for :math:`t < k`,

    .. math::
        x \leftarrow \begin{cases}
            \mathrm{sign}(x)\,\dfrac{\max(|x| - t,\ 0)}{1 - t/k} & |x| \le k \\
            x & |x| > k
        \end{cases}

    and for larger t the hard threshold at :math:`\sqrt{tk}`.

    Args:
        strength: Slope :math:`\lambda` at zero.
        knee: Size k of a weight from which nothing is shrunk. Far below the weights that survive, which reach 1 in small
            networks, it protects weights before the better ones have won.
            Weights far below it are shrunk nearly as by :class:`~rewa.methods.l1.L1`: the slope is less by the share
            :math:`|x|/k`.

    References:
        Zhang, "Nearly unbiased variable selection under minimax concave penalty", Annals of Statistics 2010.
    """

    name: ClassVar[str] = "mcp"
    line: ClassVar[str] = "MCP threshold after each step: nothing beyond the knee"
    paper: ClassVar[str] = "Zhang, Annals of Statistics 2010"
    strength_is: ClassVar[str] = "slope of the penalty at zero"

    knee: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.knee > 0:
            raise ValueError(f"Invalid knee: {self.knee} (allowed: a number > 0)")

    def prox(self, z: Tensor, lr: float) -> Tensor:
        """The firm threshold, or the hard one where a step outruns the curve."""
        t = lr * self.chosen
        if t >= self.knee:
            return F.hardshrink(z, math.sqrt(t * self.knee))
        return torch.where(z.abs() <= self.knee, F.softshrink(z, t) / (1 - t / self.knee), z)
