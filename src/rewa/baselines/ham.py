"""Hyperbolic aware minimization: a multiplicative step after each step of another method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.baselines.dense import Dense
from rewa.baselines.method import Method, Plan
from rewa.optim.optimizer import local

__all__ = ["HAM"]


@dataclass(kw_only=True)
class HAM(Method):
    r"""A hyperbolic mirror step after each step of another method, with the gradient g that it used.

    .. math:: x \leftarrow x\,\exp\bigl(\operatorname{clip}_{\pm b}(-\eta\alpha\,\mathrm{sign}(x)\,g) - \eta\beta\bigr)

    The sign is that of x after the first step. Zero stays zero, and no weight becomes zero: alone, the smallest are cut
    at the end.

    On :class:`rewa.baselines.dense.Dense` the strength is :math:`\beta`, and the recipe's weight decay stays unless ``on``
    has a strength. On every other method the strength is that method's, handed over when this one is constructed, and
    :math:`\beta` is the field.

    Args:
        strength: :math:`\beta` on dense training; else the strength of ``on``.
        on: The method that takes the first step. A copy of it is used, so one may serve in many runs.
        alpha: Factor :math:`\alpha` of the gradient.
        beta: Shrinkage :math:`\beta` where the strength is that of ``on``.
        bound: Bound b of the gradient's part of the exponent.

    Note:
        The paper's step has no bound (``bound=math.inf``). In a small network a gradient of 0.1 at a rate of 0.1 makes an
        exponent of 2, and training diverges, as it did at every strength on the digits recipe.

    References:
        Jacobs, Gadhikar, Rubio-Madrigal and Burkholz, "Hyperbolic aware minimization: implicit bias for sparsity", ICLR 2026.
    """

    name: ClassVar[str] = "ham"
    line: ClassVar[str] = "a multiplicative step after each step of another method"
    paper: ClassVar[str] = "Jacobs et al., ICLR 2026"
    strength_is: ClassVar[str] = "shrinkage beta; on another method than dense, the strength of that"
    shards: ClassVar[bool] = True

    on: Method = field(default_factory=Dense)
    alpha: float = 200.0
    beta: float = 1e-3
    bound: float = 1.0

    def __post_init__(self) -> None:
        """Take a copy of the other method, with the strength if it is meant for it."""
        if not (self.alpha >= 0 and self.beta >= 0 and self.bound > 0):
            raise ValueError(
                f"HAM needs alpha >= 0, beta >= 0 and bound > 0, got alpha={self.alpha}, beta={self.beta}, bound={self.bound}"
            )
        self.on = replace(self.on) if self.alone else replace(self.on, strength=self.strength)
        for key in ("shards", "finetune_share"):  # the loop asks this method what only the other knows
            setattr(self, key, getattr(self.on, key))

    @property
    def alone(self) -> bool:
        """Whether the strength is beta: on dense training."""
        return type(self.on) is Dense

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, those of the other method with its name; its strength is this one's, or the recipe's decay."""
        return {**super().settings, "on": {"name": self.on.name, **self.on.settings}}

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Alone, weights without gradient shrink to exp(-b) of their start for b from 0.5 to 10; else that of ``on``."""
        return tuple(budget / plan.rate_sum for budget in (0.5, 2.0, 5.0, 10.0)) if self.alone else self.on.grid(plan)

    def planned(self, plan: Plan) -> Plan:
        """The run that the other method needs."""
        return self.on.planned(plan)

    def prepare(self, model: nn.Module) -> None:
        """Let the other method prepare the model."""
        self.on.prepare(model)

    def start(self, model: nn.Module, plan: Plan) -> Optimizer:
        """The other method's optimizer; the mirror step is for the tensors that it trains as weights."""
        if not self.strength >= 0:
            raise ValueError(f"Invalid strength: {self.strength} (allowed: a number >= 0, such as one of grid(plan))")
        optimizer = self.on.start(model, plan)
        self.weights, self.plan = self.on.weights, plan
        return optimizer

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The other method's."""
        return self.on.optimizer(model)

    def weight_decay(self) -> float:
        """The other method's."""
        return self.on.weight_decay()

    def before_forward(self, step: int) -> None:
        """What the other method does."""
        self.on.before_forward(step)

    def penalty(self) -> Tensor | None:
        """The other method's."""
        return self.on.penalty()

    def before_step(self, step: int) -> None:
        """What the other method does."""
        self.on.before_step(step)

    @torch.no_grad()
    def after_step(self, step: int, lr: float) -> None:
        """What the other method does, then the mirror step."""
        self.on.after_step(step, lr)
        beta = self.strength if self.alone else self.beta
        for weight in self.weights.values():
            if weight.grad is not None:
                x, grad = local(weight.detach()), local(weight.grad)
                exponent = (-lr * self.alpha * x.sign() * grad).clamp(-self.bound, self.bound)
                x.mul_(exponent.sub_(lr * beta).exp_())

    def current(self) -> dict[str, Tensor]:
        """The weights as the other method gives them."""
        return self.on.current()

    def finish(self, model: nn.Module) -> None:
        """What the other method does."""
        self.on.finish(model)

    def state_dict(self) -> dict[str, Any]:
        """The other method's; the mirror step has no state."""
        return self.on.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The other method's."""
        self.on.load_state_dict(state)
