"""L0 regularization: each weight has a random gate that can be exactly zero, and open gates cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rewa.methods.method import Bound, Plan
from rewa.methods.parametrized import BoundParametrized, Parametrized

__all__ = ["HardConcrete"]

BETA = 2 / 3  # temperature of the gates
GAMMA, ZETA = -0.1, 1.1  # the interval that the gates are stretched to before they are cut to [0, 1]
SHIFT = BETA * math.log(-GAMMA / ZETA)  # a gate is open with probability sigmoid(log_alpha - SHIFT)


class _Gated(nn.Module):
    def __init__(self, log_alpha: Tensor) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(log_alpha)

    def forward(self, w: Tensor) -> Tensor:
        s = self.log_alpha.sigmoid()
        if self.training:
            # Never exactly 0 or 1, where the logarithms are infinite.
            tiny = torch.finfo(w.dtype).eps
            u = torch.rand_like(w).clamp(tiny, 1 - tiny)
            s = ((u.log() - (-u).log1p() + self.log_alpha) / BETA).sigmoid()
        return w * (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)

    def right_inverse(self, x: Tensor) -> Tensor:
        return x

    def open_gates(self) -> Tensor:
        """Expected number of gates that are not zero."""
        return (self.log_alpha - SHIFT).sigmoid().sum()


@dataclass(frozen=True, kw_only=True)
class HardConcrete(Parametrized):
    r"""L0 regularization by hard concrete gates: :math:`x = w\,z`, with a gate for each weight.

    In training

    .. math:: z = \min(1, \max(0,\; \sigma\bigl((\log u - \log(1-u) + \log\alpha)/\beta\bigr)(\zeta-\gamma) + \gamma)),
        \qquad u \sim U(0, 1),

    and in evaluation :math:`z = \min(1, \max(0,\; \sigma(\log\alpha)(\zeta-\gamma)+\gamma))`, where
    :math:`\beta = 2/3, \gamma = -0.1, \zeta = 1.1`. The expected number of open gates is added to the mean loss,

    .. math:: \text{strength} \cdot \sum_i \sigma\bigl(\log\alpha_i - \beta \log(-\gamma/\zeta)\bigr),

    and w and :math:`\log\alpha` follow the gradient. The gate of a weight is zero in evaluation once
    :math:`\log\alpha \le -\log 11`.

    Args:
        strength: Cost of an open gate, as a term of the mean loss: the paper's lambda over the number of training examples.
        droprate_init: The gates start at :math:`\log\alpha \sim N(\log\frac{1-d}{d}, 0.01^2)` with this d.
        gate_time: The gates' own time: their learning rate is that of the weights times a constant for which, without
            momentum, the rates of a run sum to this. The gradient of a gate is that of its weight times the
            weight, so small that the weights' own rate would never close one. AdamW's steps do not depend on the
            size of gradients: there the rates sum to ``adam_gate_time``.
        adam_gate_time: See above: about the farthest that a gate can move.

    Note:
        On SGD a penalty of strength c closes a gate that the loss does not hold after the time :math:`T/c`, in the sense of
        ``gate_time``, where :math:`T = \int d\log\alpha / \sigma'`; see :meth:`grid`. On AdamW it closes after about the
        same time whatever the strength, which only decides which gradients are too small to hold one open. Beside the
        gates, w is decayed as the recipe says.

    References:
        Louizos, Welling and Kingma, "Learning sparse neural networks through L0 regularization", ICLR 2018.
    """

    name: ClassVar[str] = "hard-concrete"
    line: ClassVar[str] = "random gates that can be zero, with a cost for open ones (L0)"
    paper: ClassVar[str] = "Louizos et al., ICLR 2018"
    strength_is: ClassVar[str] = "cost of an open gate"

    droprate_init: float = 0.1
    gate_time: float = 1e5
    adam_gate_time: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.droprate_init < 1:
            raise ValueError(f"Invalid droprate_init: {self.droprate_init} (allowed: between 0 and 1)")

    @property
    def log_alpha_init(self) -> float:
        """Mean of the gates' logits at the start."""
        return math.log((1 - self.droprate_init) / self.droprate_init)

    def closing_time(self) -> float:
        r"""The time T in which a penalty of strength 1 alone closes a gate.

        The logit follows :math:`\dot a = -\sigma'(a - b)` from its start :math:`a_0` to :math:`a_1 = -\log 11`, with b the
        shift of the penalty, and :math:`1/\sigma'(t) = e^t + 2 + e^{-t}` integrates to :math:`e^t + 2t - e^{-t}`.
        """

        def antiderivative(t: float) -> float:
            return math.exp(t) + 2 * t - math.exp(-t)

        return antiderivative(self.log_alpha_init - SHIFT) - antiderivative(math.log(-GAMMA / ZETA) - SHIFT)

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """On SGD, costs that alone would close a gate in 2/3, 1/3, 1/6 and 1/12 of the run; on AdamW, sizes of gradients.

        Neither depends on the length of the run.
        """
        if plan.optimizer == "adamw":
            return (5e-6, 3e-5, 2e-4, 1e-3)
        return tuple(times * self.closing_time() / self.gate_time for times in (1.5, 3.0, 6.0, 12.0))

    def form(self, weight: Tensor) -> nn.Module:
        """The gates of one weight."""
        return _Gated(self.log_alpha_init + 0.01 * torch.randn_like(weight))

    def form_settings(self, plan: Plan) -> dict[str, Any]:
        """No decay, and a rate that gives the gates their own time."""
        if plan.optimizer == "adamw":
            return {"weight_decay": 0.0, "lr_scale": self.adam_gate_time / plan.rate_sum}
        return {"weight_decay": 0.0, "lr_scale": self.gate_time / (plan.rate_sum * plan.coupled)}

    def _bound(self) -> type[Bound[Any]]:
        return BoundHardConcrete


class BoundHardConcrete(BoundParametrized[HardConcrete]):
    """The gates at work."""

    def penalty(self) -> Tensor:
        """The cost of the gates that are expected to be open."""
        gates = [form.open_gates() for form in self.forms() if isinstance(form, _Gated)]
        return self.method.chosen * torch.stack(gates).sum()
