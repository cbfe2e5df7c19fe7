"""Powerpropagation: small weights get small gradients, so that large ones grow and small ones can be cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rewa.methods.method import Plan
from rewa.methods.parametrized import Parametrized, decays
from rewa.reparam import power, to_x, to_y

__all__ = ["PowerPropagation"]


class _Power(torch.autograd.Function):
    """``w |w|^(alpha-1)`` with the derivative ``alpha |w|^(alpha-1)``, also at zero where the factors have none."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(w)
        ctx.alpha = alpha
        return to_x(w, alpha)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (w,) = ctx.saved_tensors
        return ctx.alpha * power(w.abs(), ctx.alpha - 1) * grads[0], None


class _PowerForm(nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, w: Tensor) -> Tensor:
        result: Tensor = _Power.apply(w, self.alpha)  # type: ignore[no-untyped-call]  # torch's
        return result

    def right_inverse(self, x: Tensor) -> Tensor:
        return to_y(x, self.alpha)


@dataclass(frozen=True, kw_only=True)
class PowerPropagation(Parametrized):
    r"""The weight is :math:`x = w\,|w|^{\alpha-1}` and w takes the true gradient.

    For plain SGD, with g the gradient of x,

    .. math:: w \leftarrow w - \eta\,(\alpha\,|w|^{\alpha-1} g + \lambda w).

    The start is :math:`w = \mathrm{sign}(x)\,|x|^{1/\alpha}`, the model's own initial weights. The smallest weights are cut at
    the end. ``alpha=1`` is dense training.

    Args:
        strength: Weight decay :math:`\lambda` of w.
        alpha: The power :math:`\alpha \ge 1`.

    References:
        Schwarz et al., "Powerpropagation: A sparsity inducing weight reparameterisation", NeurIPS 2021.
    """

    name: ClassVar[str] = "powerprop"
    line: ClassVar[str] = "x = w|w|^(alpha-1), trained by its true gradient, then cut"
    paper: ClassVar[str] = "Schwarz et al., NeurIPS 2021"
    strength_is: ClassVar[str] = "weight decay of w"

    alpha: float = 2.0

    budgets: ClassVar[dict[str, tuple[float, ...]]] = {"sgd": (0.2, 2.0, 8.0, 24.0), "adamw": (0.2, 0.4, 0.9, 1.6)}

    def __post_init__(self) -> None:
        if not 1 <= self.alpha < math.inf:
            raise ValueError(f"Invalid alpha: {self.alpha} (allowed: a finite number >= 1, the power of w)")

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Decays for which w without a gradient ends at exp(-b) of its start, for the budgets b."""
        return decays(plan, self.budgets)

    def form(self, weight: Tensor) -> nn.Module:
        """The signed power."""
        return _PowerForm(self.alpha)

    def weight_decay(self, plan: Plan) -> float:
        """The strength."""
        return self.chosen
