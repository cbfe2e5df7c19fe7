r"""What the iteration trains: pairs :math:`x = u^K - v^K` with :math:`u, v \ge 0`, and what takes plain gradient steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rewa.estimators import penalty
from rewa.reparam import power
from rewa.theory import effective_p

LARGEST_CHANGE = 0.25  # of a part in one step with lr="auto"


@dataclass
class Parts:
    r"""Pairs for penalized columns, plain coefficients for the others, an intercept of centred columns.

    Attributes:
        u: Parts of the positive side, of the shape ``(outputs, penalized columns)``; :math:`s = u^K`.
        v: Parts of the negative side; :math:`t = v^K`.
        plain: Coefficients without a penalty, of the shape ``(outputs, other columns)``.
        intercept: One for each output.
        decay: Weights :math:`\alpha_j` of the penalty, one for each penalized column.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        positive: Whether coefficients must not be negative: then v stays zero.
    """

    u: Tensor
    v: Tensor
    plain: Tensor
    intercept: Tensor
    decay: Tensor
    K: float
    M: float
    positive: bool

    @property
    def p(self) -> float:
        """Exponent of the penalty."""
        return effective_p(self.K, self.M)

    @property
    def on(self) -> Tensor:
        """Which pairs have a part that is not zero."""
        return (self.u > 0) | (self.v > 0)

    def x(self) -> Tensor:
        """The coefficients, penalized columns first; a row for each output."""
        return torch.cat([power(self.u, self.K) - power(self.v, self.K), self.plain], dim=1)

    def powers(self) -> tuple[Tensor, Tensor]:
        """What the penalty sums: :math:`s^p` and :math:`t^p`."""
        return power(self.u, self.K + 1 - self.M), power(self.v, self.K + 1 - self.M)

    def penalty(self) -> float:
        """What both parts add to the objective."""
        s, t = self.powers()
        return float((self.decay * (s + t)).sum()) / self.p

    def thresholds(self, L: Tensor) -> Tensor:
        """Slopes above which a coefficient leaves zero, for curvatures L of the loss; infinite for a constant column."""
        values = penalty.entry_threshold(self.decay.cpu().numpy(), L.cpu().numpy(), self.p)
        return torch.where(L > 0, torch.as_tensor(np.array(values), dtype=L.dtype).to(L.device), math.inf)

    def relative(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """By which share of itself each part shrinks, for a learning rate of 1."""
        g = gradient[:, : self.u.shape[1]]
        return self.decay + power(self.u, self.M - 1) * g, self.decay - power(self.v, self.M - 1) * g

    def plain_slopes(self, gradient: Tensor) -> Tensor:
        """Slopes of the coefficients without a penalty; none where only the bound at zero holds one."""
        g = gradient[:, self.u.shape[1] :]
        return torch.where((self.plain > 0) | (g < 0), g, 0.0) if self.positive else g

    def speed(self) -> Tensor:
        r"""The learning rate that the coefficients themselves see, :math:`K (s^{2-p} + t^{2-p})`, for a learning rate of 1."""
        return self.K * (power(self.u, self.K - 1 + self.M) + power(self.v, self.K - 1 + self.M))

    def largest_lr(self, h: tuple[Tensor, Tensor]) -> float:
        """The learning rate that changes no part by more than ``LARGEST_CHANGE`` of itself."""
        if not self.u.numel():
            return math.inf
        fastest = max(float((h[0] * (self.u > 0)).abs().max()), float((h[1] * (self.v > 0)).abs().max()))
        return LARGEST_CHANGE / fastest if fastest > 0 else math.inf

    def moved(self, lr: float, h: tuple[Tensor, Tensor], plain_step: Tensor, intercept_step: Tensor) -> Parts:
        """The parts after a step; a part that would cross zero stays there."""
        plain = self.plain - lr * plain_step
        return replace(
            self,
            u=(self.u * (1 - lr * h[0])).clamp_(min=0),
            v=(self.v * (1 - lr * h[1])).clamp_(min=0),
            plain=plain.clamp_(min=0) if self.positive else plain,
            intercept=self.intercept - lr * intercept_step,
        )

    def take(self, index: Tensor) -> Parts:
        """Some of the pairs, and everything else."""
        return replace(self, u=self.u[:, index], v=self.v[:, index], decay=self.decay[index])
