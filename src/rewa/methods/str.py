"""STR: each layer learns the threshold below which its weights are zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rewa.methods.method import Plan
from rewa.methods.parametrized import Parametrized, decays

__all__ = ["STR"]


class _SoftThreshold(nn.Module):
    def __init__(self, s: Tensor) -> None:
        super().__init__()
        self.s = nn.Parameter(s)

    def forward(self, w: Tensor) -> Tensor:
        return w.sign() * F.relu(w.abs() - self.s.sigmoid())

    def right_inverse(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, kw_only=True)
class STR(Parametrized):
    r"""Soft threshold reparameterization with a learned threshold for each layer.

    With one s for each layer and :math:`\sigma` the logistic function,

    .. math:: x = \mathrm{sign}(w)\,\max(|w| - \sigma(s),\,0).

    Both are trained by their true gradients with weight decay :math:`\lambda`; for plain SGD, with g the gradient of x and
    the sum over the layer's nonzero x,

    .. math:: w \leftarrow w - \eta\,(g\,[x \ne 0] + \lambda w), \qquad
        s \leftarrow s - \eta\,\Bigl(\lambda s - \sigma'(s) \sum_i \mathrm{sign}(w_i)\,g_i\Bigr).

    The decay pulls s from its negative start towards 0, that is the threshold towards 1/2, until the loss holds it. A
    weight below the threshold gets no gradient: it comes back only if the threshold falls.

    Args:
        strength: Weight decay :math:`\lambda` of w and of s.
        s_init: Where s starts. -5 is a threshold of 0.0067, below the spread of usual initial weights.

    Note:
        w starts at the model's weights, so that x starts as their soft threshold. The paper starts s at -3200 for long runs
        on ImageNet, which keeps the threshold at 0 for most of the run; what the decay does to such an s depends on
        the length of the run by far more than what it does to one that starts near the thresholds that matter.

    References:
        Kusupati et al., "Soft threshold weight reparameterization for learnable sparsity", ICML 2020.
    """

    name: ClassVar[str] = "str"
    line: ClassVar[str] = "soft threshold of each layer, learned under weight decay"
    paper: ClassVar[str] = "Kusupati et al., ICML 2020"
    strength_is: ClassVar[str] = "weight decay of w and s"

    s_init: float = -5.0

    budgets: ClassVar[dict[str, tuple[float, ...]]] = {"sgd": (0.5, 1.0, 2.0, 4.0), "adamw": (0.15, 0.3, 0.6, 0.8)}

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Without gradients s ends at exp(-b) of its start, for the budgets b."""
        return decays(plan, self.budgets)

    def form(self, weight: Tensor) -> nn.Module:
        """The soft threshold, with its s."""
        return _SoftThreshold(torch.full((), self.s_init, dtype=weight.dtype, device=weight.device))

    def form_settings(self, plan: Plan) -> dict[str, Any]:
        """The thresholds are decayed like the weights: this is what makes them rise."""
        return {"weight_decay": self.chosen}

    def weight_decay(self, plan: Plan) -> float:
        """The strength."""
        return self.chosen
