"""Dense training: the reference, cut by magnitude at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from rewa.methods.method import Bound, Method, Plan

__all__ = ["Dense"]


@dataclass(frozen=True, kw_only=True)
class Dense(Method):
    r"""The recipe's optimizer with weight decay :math:`\lambda`: :math:`x \leftarrow x - \eta\,(g + \lambda x)` for plain SGD.

    Args:
        strength: Weight decay :math:`\lambda` of the weights.

    References:
        Han et al., "Learning both weights and connections for efficient neural networks", NeurIPS 2015, for the cut.
    """

    name: ClassVar[str] = "dense"
    line: ClassVar[str] = "weight decay, then the smallest weights are cut"
    paper: ClassVar[str] = "Han et al., NeurIPS 2015"
    strength_is: ClassVar[str] = "weight decay"
    shards: ClassVar[bool] = True

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Weights that get no gradient shrink to exp(-b) of their start, for b from 0.01 to 1."""
        return tuple(budget / (plan.rate_sum * plan.coupled) for budget in (0.01, 0.05, 0.2, 1.0))

    def weight_decay(self, plan: Plan) -> float:
        """The strength; the recipe's decay where none was chosen, as inside another method."""
        return plan.weight_decay if self.strength is None else self.strength

    def bind(self, model: nn.Module, plan: Plan) -> Bound[Any]:
        """Dense training of a model; without a strength, with the recipe's weight decay."""
        return (
            super().bind(model, plan)
            if self.strength is not None
            else replace(self, strength=plan.weight_decay).bind(model, plan)
        )
