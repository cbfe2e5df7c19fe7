"""spred: each weight is a product of two, and weight decay on both is an l1 penalty on the product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from rewa.baselines.method import Plan
from rewa.baselines.parametrized import Parametrized
from rewa.forms import Factors

__all__ = ["Spred"]


@dataclass(kw_only=True)
class Spred(Parametrized):
    r"""The weight is :math:`x = u\,v`, elementwise, with weight decay :math:`\lambda` on both.

    For plain SGD

    .. math:: u \leftarrow u - \eta\,(g\,v + \lambda u), \qquad v \leftarrow v - \eta\,(g\,u + \lambda v)

    with g the gradient of x. Every minimizer has :math:`|u| = |v|`, where
    :math:`\frac{\lambda}{2}(u^2 + v^2) = \lambda |x|`: the loss that is minimized is :math:`f(x) + \lambda \|x\|_1`.
    The start is :math:`|u| = |v| = \sqrt{|x|}`, which gives the model's own initial weights.

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

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """A weight x that gets no gradient ends at exp(-b) of its start, for b from 4 to 32."""
        return tuple(budget / (2 * plan.rate_sum * plan.coupled) for budget in (4.0, 8.0, 16.0, 32.0))

    def form(self, weight: Tensor) -> nn.Module:
        """Two factors."""
        return Factors(K=2)

    def weight_decay(self) -> float:
        """The strength."""
        return self.strength
