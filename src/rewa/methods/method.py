"""What a method is: the calls that the training loop makes, and the plan of the run that it hands over."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.sparsity import prunable

__all__ = ["Method", "Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a method may know of the run it is part of.

    Args:
        learning_rates: Of every step; their number is the length of the run.
        steps_per_epoch: Steps in an epoch.
        optimizer: The recipe's optimizer, ``"sgd"`` or ``"adamw"``.
        momentum: Of SGD.
        betas: Of AdamW.
        weight_decay: The recipe's usual decay of weights, for the methods that do not shrink them by themselves.
    """

    learning_rates: tuple[float, ...]
    steps_per_epoch: int
    optimizer: str = "sgd"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    @property
    def steps(self) -> int:
        """Length of the run."""
        return len(self.learning_rates)

    @property
    def rate_sum(self) -> float:
        """Sum of the learning rates: what a decay or a penalty of strength 1 amounts to over the run, without momentum."""
        return sum(self.learning_rates)

    @property
    def coupled(self) -> float:
        """How many times a term of the gradient acts: momentum repeats it 1/(1 - momentum) times, AdamW once."""
        return 1 / (1 - self.momentum) if self.optimizer == "sgd" else 1.0

    def base_optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """The recipe's optimizer over these groups, torch's own.

        Args:
            groups: Parameter groups; the learning rate is set by the loop at every step.
        """
        kinds: dict[str, Callable[[], Optimizer]] = {
            "sgd": lambda: torch.optim.SGD(groups, self.learning_rates[0], momentum=self.momentum),
            "adamw": lambda: torch.optim.AdamW(groups, self.learning_rates[0], betas=self.betas, weight_decay=0.0),
        }
        if self.optimizer not in kinds:
            raise ValueError(f"Invalid optimizer: {self.optimizer!r} (allowed: {', '.join(kinds)})")
        return kinds[self.optimizer]()


@dataclass(kw_only=True)
class Method(ABC):
    """One way to a sparse model, for one run. Its fields are its settings; what it learns on the way is its state.

    The loop calls, in this order: :meth:`prepare` on the plain model, :meth:`start` once the model is on its device (and
    sharded), then at each step :meth:`before_forward`, :meth:`penalty`, :meth:`before_step` when all gradients are there,
    the optimizer's step, :meth:`after_step`; at the end :meth:`finish`, which leaves a plain model. Every call does nothing
    unless a method needs it.

    Args:
        strength: How hard it pushes towards zero; ``strength_is`` says in which unit.
    """

    name: ClassVar[str]
    line: ClassVar[str]  # what it does, for `rewa list`
    paper: ClassVar[str]
    strength_is: ClassVar[str]
    finetune_share: ClassVar[float] = 0.0  # of the epochs that its own protocol keeps for a masked fine-tune
    shards: ClassVar[bool] = False  # whether it works on weights that are split over processes (FSDP)

    strength: float = math.nan  # until one is chosen
    weights: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    plan: Plan = field(init=False, repr=False)

    @abstractmethod
    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Four strengths to sweep, weakest first, so chosen that they mean the same for short and long runs.

        Args:
            plan: The run, as :meth:`planned` returns it.
        """

    def planned(self, plan: Plan) -> Plan:
        """The run as this method needs it, with another optimizer or rate perhaps; never longer.

        Args:
            plan: The recipe's.
        """
        return plan

    @property
    def label(self) -> str:
        """The name; with that of the method it stands on, if it stands on one."""
        return self.name

    @property
    def what(self) -> str:
        """What it does, in a line; with what the method below does, if it stands on one."""
        return self.line

    @property
    def source(self) -> str:
        """Where it was published; with the source of the method it stands on, if it stands on one."""
        return self.paper

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, the strength aside."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init and one.name != "strength"}

    @property
    def settled(self) -> bool:
        """Whether every strength is chosen."""
        return not math.isnan(self.strength)

    def settle(self, plan: Plan) -> Method:
        """This method with every strength chosen: the second of the grid, to four digits, where there is none.

        Args:
            plan: The run, as :meth:`planned` returned it.
        """
        return replace(self, strength=float(f"{self.grid(plan)[1]:.4g}")) if math.isnan(self.strength) else self

    def alike_for(self, plan: Plan) -> int:
        """Steps from the start in which the strength plays no part: until then runs that differ in it alone are the same.

        Args:
            plan: The run, as :meth:`planned` returned it.
        """
        return 0

    def check(self) -> None:
        """Refuse a strength that no run can have."""
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise ValueError(f"Invalid strength: {self.strength} (allowed: a finite number >= 0, the {self.strength_is})")

    def prepare(self, model: nn.Module) -> None:
        """Change the plain model before it moves or is wrapped: parametrize, for instance.

        Args:
            model: The model.
        """

    def start(self, model: nn.Module, plan: Plan) -> Optimizer:
        """Take hold of the weights and make the optimizer.

        Args:
            model: The model, where it will be trained; never a wrapper of it.
            plan: The run, as :meth:`planned` returned it.
        """
        self.weights, self.plan = prunable(model), plan
        return self.optimizer(model)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer: by default the recipe's, weights with :meth:`weight_decay`, the rest without.

        Args:
            model: The model.
        """
        chosen = {id(weight) for weight in self.weights.values()}
        named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        groups = [
            {"params": [pair for pair in named if id(pair[1]) in chosen], "weight_decay": self.weight_decay()},
            {"params": [pair for pair in named if id(pair[1]) not in chosen], "weight_decay": 0.0},
        ]
        return self.plan.base_optimizer([group for group in groups if group["params"]])

    def weight_decay(self) -> float:
        """Decay of the weights in the base optimizer: the recipe's, unless the method shrinks them itself."""
        return self.plan.weight_decay

    def before_forward(self, step: int) -> None:
        """At the start of each step.

        Args:
            step: Steps done so far.
        """

    def penalty(self) -> Tensor | None:
        """A term to add to the loss, once in each step."""
        return None

    def before_step(self, step: int) -> None:
        """When every gradient is complete, clipped and averaged over the processes.

        Args:
            step: Steps done so far.
        """

    def after_step(self, step: int, lr: float) -> None:
        """After the optimizer's step.

        Args:
            step: Steps done so far, this one not counted.
            lr: The learning rate of this step.
        """

    def current(self) -> dict[str, Tensor]:
        """The weights as the model uses them now, by name."""
        return {name: weight.detach() for name, weight in self.weights.items()}

    def finish(self, model: nn.Module) -> None:
        """Leave a plain model with the weights that were trained.

        Args:
            model: The model.
        """

    def state_dict(self) -> dict[str, Any]:
        """What must be saved beside the model and its optimizer: tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned, after :meth:`start`.

        Args:
            state: The saved state.
        """
