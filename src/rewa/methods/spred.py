"""spred: each weight is a product of two, and weight decay on both is an l1 penalty on the product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rewa.methods.method import Plan
from rewa.methods.parametrized import Parametrized

__all__ = ["Spred"]


class _Product(nn.Module):
    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return u * v

    def right_inverse(self, x: Tensor) -> tuple[Tensor, Tensor]:
        size = float(x.square().mean().sqrt().sqrt())
        # A layer of zeros has no size of its own; any v gives it back, and 1 trains it as if it were plain.
        v = torch.full_like(x, size or 1.0)
        return x / v, v


@dataclass(frozen=True, kw_only=True)
class Spred(Parametrized):
    r"""The weight is :math:`x = u\,v`, elementwise, with weight decay :math:`\lambda` on both.

    For plain SGD

    .. math:: u \leftarrow u - \eta\,(g\,v + \lambda u), \qquad v \leftarrow v - \eta\,(g\,u + \lambda v)

    with g the gradient of x. Every minimizer has :math:`|u| = |v|`, where
    :math:`\frac{\lambda}{2}(u^2 + v^2) = \lambda |x|`: the loss that is minimized is :math:`f(x) + \lambda \|x\|_1`.

    The start gives the model's own weights: :math:`v = c` and :math:`u = x/c`, where :math:`c^2` is the root mean square of
    the layer's weights, so that u and v have the same norm. Equal magnitudes would be a trap: from :math:`|u| = |v|` on they
    stay equal for ever, and no weight can change its sign. From this start the smaller of the two can cross zero, while
    the larger holds; a weight of exactly the magnitude :math:`c^2` alone is still trapped.

    Args:
        strength: Weight decay :math:`\lambda` of u and v: the coefficient of the l1 norm.

    References:
        Ziyin and Wang, "spred: Solving L1 penalty with SGD", ICML 2023.
    """

    name: ClassVar[str] = "spred"
    line: ClassVar[str] = "x = uv with weight decay on both: an l1 penalty by SGD"
    paper: ClassVar[str] = "Ziyin and Wang, ICML 2023"
    strength_is: ClassVar[str] = "weight decay of u and v"
    finetune_share: ClassVar[float] = 0.2

    budgets: ClassVar[dict[str, tuple[float, ...]]] = {"sgd": (1.0, 4.0, 12.0, 32.0), "adamw": (0.3, 0.8, 1.8, 3.2)}

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """A weight x that gets no gradient ends at exp(-b) of its start, for the budgets b."""
        return plan.decays(self.budgets[plan.optimizer], K=2)

    def form(self, weight: Tensor) -> nn.Module:
        """Two factors."""
        return _Product()

    def weight_decay(self, plan: Plan) -> float:
        """The strength."""
        return self.chosen
