"""The adaptive lasso: weights that a first half of the run left small are shrunk harder in the second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rewa.methods.l1 import Penalized
from rewa.methods.method import Bound, Plan
from rewa.penalties import soft_threshold
from rewa.weights import full, local

__all__ = ["AdaptiveLasso"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveLasso(Penalized):
    r"""An :math:`\ell_1` penalty :math:`\lambda\sum_j w_j|x_j|` with a slope of its own for each weight, from a pilot.

    The first half of the run is the pilot: dense, with the recipe's weight decay. Its weights :math:`\bar x` give

    .. math:: w_j = \min\Bigl(\bigl(\overline{|\bar x|}\,/\,|\bar x_j|\bigr)^\gamma,\ w_{\max}\Bigr),

    with :math:`\overline{|\bar x|}` the mean size over all weights of the model: a weight of mean size feels what
    :class:`rewa.methods.l1.L1` of that strength does. The second half continues from there, without weight decay, and after
    each step

    .. math:: x_j \leftarrow \mathrm{sign}(x_j)\,\max(|x_j| - \eta\lambda w_j,\ 0).

    Args:
        strength: Slope :math:`\lambda` for a weight of mean size.
        gamma: Exponent :math:`\gamma` of the pilot's weights, positive.
        largest: Bound :math:`w_{\max}` of the factors, for weights that the pilot left at almost zero.

    Note:
        Zou solves the second problem from scratch; a network's second half starts where the pilot ended.

    References:
        Zou, "The adaptive lasso and its oracle properties", JASA 2006.
    """

    name: ClassVar[str] = "adaptive-lasso"
    line: ClassVar[str] = "dense half, then soft thresholds in inverse proportion to the weights"
    paper: ClassVar[str] = "Zou, JASA 2006"
    strength_is: ClassVar[str] = "slope of the penalty for a weight of mean size"

    # Weight units, as for l1.
    budgets: ClassVar[dict[str, tuple[float, ...]]] = {"sgd": (0.2, 0.6, 2.0, 6.0), "adamw": (0.05, 0.1, 0.2, 0.4)}

    gamma: float = 1.0
    largest: float = 100.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if not (self.gamma > 0 and self.largest > 0):
            raise ValueError(f"the adaptive lasso needs gamma > 0 and largest > 0, got {self.gamma} and {self.largest}")

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Slopes that move a weight of mean size by the same distances in short and long runs, in the second half."""
        rate_sum = sum(plan.learning_rates[plan.steps // 2 :])
        return tuple(budget / rate_sum for budget in self.budgets[plan.optimizer])

    def weight_decay(self, plan: Plan) -> float:
        """The pilot's, the recipe's."""
        return plan.weight_decay

    def _bound(self) -> type[Bound[Any]]:
        return BoundAdaptiveLasso


class BoundAdaptiveLasso(Bound[AdaptiveLasso]):
    """The adaptive lasso at work.

    Args:
        method: The settings.
        model: The plain model.
        plan: The run.
    """

    def __init__(self, method: AdaptiveLasso, model: nn.Module, plan: Plan) -> None:
        super().__init__(method, model, plan)
        self.factors: dict[str, Tensor] = {}  # none during the pilot

    @torch.no_grad()
    def before_forward(self, step: int) -> None:
        """When the pilot is over, take the factors from its weights and end the decay."""
        if step < self.plan.steps // 2:
            return
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.0
        if step == self.plan.steps // 2:
            sizes = {name: weight.detach().abs() for name, weight in self.weights.items()}
            total = sum(full(size.sum(dtype=torch.float64)) for size in sizes.values())
            mean = float(total) / sum(size.numel() for size in sizes.values())
            self.factors = {name: self._factor(mean / size) for name, size in sizes.items()}

    def _factor(self, ratio: Tensor) -> Tensor:
        return (ratio**self.method.gamma).clamp(max=self.method.largest)

    @torch.no_grad()
    def after_step(self, step: int, lr: float) -> None:
        """In the second half, apply the soft threshold of each weight."""
        for name, factor in self.factors.items():
            x = local(self.weights[name].detach())
            x.copy_(soft_threshold(x, lr * self.method.chosen * local(factor)))

    def state_dict(self) -> dict[str, Any]:
        """The factors, none during the pilot; sharded as the weights are."""
        return {"factors": dict(self.factors)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the factors back, to the weights' devices and split as they are; all processes must call it together."""
        self.factors = {name: _laid_out(factor, self.weights[name]) for name, factor in state["factors"].items()}


def _laid_out(factor: Tensor, weight: Tensor) -> Tensor:
    factor = factor.to(weight.device)
    if not hasattr(weight, "placements") or hasattr(factor, "placements"):
        return factor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(factor, weight.device_mesh, weight.placements)  # type: ignore[attr-defined]
