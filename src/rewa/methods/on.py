"""Methods that stand on another, which trains the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.methods.dense import Dense
from rewa.methods.method import Method, Plan

__all__ = ["On"]


@dataclass(kw_only=True)
class On(Method):
    """A method on top of another: every call goes to the other, and a subclass adds what it does itself.

    Args:
        strength: That of the upper method.
        on: The method below. A copy of it is used, so one may serve in many runs.
    """

    on: Method = field(default_factory=Dense)

    def __post_init__(self) -> None:
        self.on = replace(self.on)  # its state is this method's alone

    @property
    def label(self) -> str:
        """The name, after that of the method below: ``rewa+rigl``; dense training is not named."""
        return self.name if self.on.name == "dense" else f"{self.on.label}+{self.name}"

    @property
    def what(self) -> str:
        """What both do, in a line."""
        return self.line if self.on.name == "dense" else f"{self.line}, while {self.on.label} trains"

    @property
    def source(self) -> str:
        """Where both were published, in the order of the label."""
        return self.paper if self.on.name == "dense" else f"{self.on.source} + {self.paper}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, those of the method below with its name."""
        return {**super().settings, "on": {"name": self.on.name, **self.on.settings}}

    def check(self) -> None:
        """Refuse strengths that make no sense, the other's too, unless the run is to choose it."""
        super().check()
        if not math.isnan(self.on.strength):
            self.on.check()

    def planned(self, plan: Plan) -> Plan:
        """The run that the other method needs."""
        return self.on.planned(plan)

    def prepare(self, model: nn.Module) -> None:
        """What the other method does."""
        self.on.prepare(model)

    def start(self, model: nn.Module, plan: Plan) -> Optimizer:
        """Start the other method; its weights are this one's."""
        self.check()
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

    def after_step(self, step: int, lr: float) -> None:
        """What the other method does."""
        self.on.after_step(step, lr)

    def current(self) -> dict[str, Tensor]:
        """The weights as the other method gives them."""
        return self.on.current()

    def finish(self, model: nn.Module) -> None:
        """What the other method does."""
        self.on.finish(model)

    def state_dict(self) -> dict[str, Any]:
        """The other method's."""
        return self.on.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The other method's."""
        self.on.load_state_dict(state)
