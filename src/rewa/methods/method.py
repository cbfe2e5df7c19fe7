"""What a method is: frozen settings, the plan of a run, and both bound to a model, with the hooks of the training loop."""

from __future__ import annotations

import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.sparsity import prunable
from rewa.theory import decays_for

__all__ = ["Bound", "Method", "Plan"]

Settings = TypeVar("Settings", bound="Method")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a method may know of the run it is part of.

    Args:
        learning_rates: The rate of each step; their number is the length of the run.
        steps_per_epoch: Steps in an epoch.
        optimizer: The recipe's optimizer, ``"sgd"`` or ``"adamw"``.
        momentum: Momentum of SGD.
        nesterov: Whether that is Nesterov's.
        betas: Betas of AdamW.
        weight_decay: The recipe's usual decay of weights, for the methods that do not shrink them by themselves.
    """

    learning_rates: tuple[float, ...]
    steps_per_epoch: int
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
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

    def decays(self, budgets: Iterable[float], K: float = 1.0) -> tuple[float, ...]:
        r"""Weight decays for which a weight without gradient ends at :math:`e^{-\text{budget}}` of its start.

        On SGD large budgets are fine: the loss keeps what it needs by its gradient, however large. AdamW's step is
        about the learning rate whatever the gradient, so that no trained tensor can stay above :math:`1/\lambda`: there the
        budgets of a grid are smaller, and given apart.

        Args:
            budgets: Decay budgets, as of :func:`rewa.theory.decay_budget`.
            K: How many decayed tensors make the weight, or which power of one it is.

        Example:
            >>> plan = Plan(learning_rates=(0.125,) * 80, steps_per_epoch=10, momentum=0.5)
            >>> [round(decay, 6) for decay in plan.decays((1.0, 4.0), K=2)]
            [0.025, 0.1]
        """
        return decays_for(budgets, self.rate_sum, K=K, momentum=self.momentum, decoupled=self.optimizer == "adamw")

    def base_optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """The recipe's optimizer over these groups, torch's own.

        Args:
            groups: Parameter groups; the learning rate is set by the loop at every step.
        """
        kinds: dict[str, Callable[[], Optimizer]] = {
            "sgd": lambda: torch.optim.SGD(groups, self.learning_rates[0], momentum=self.momentum, nesterov=self.nesterov),
            "adamw": lambda: torch.optim.AdamW(groups, self.learning_rates[0], betas=self.betas, weight_decay=0.0),
        }
        if self.optimizer not in kinds:
            raise ValueError(f"Invalid optimizer: {self.optimizer!r} (allowed: {', '.join(kinds)})")
        return kinds[self.optimizer]()


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One way to a sparse model: its settings and its strength, and nothing that a run changes.

    :meth:`bind` puts it to work on a model; one method may serve in any number of runs.

    Args:
        strength: How hard it pushes towards zero, in the unit that :attr:`strength_is` names. None until one is chosen.
    """

    name: ClassVar[str]
    line: ClassVar[str]  # what it does, for `rewa list`
    paper: ClassVar[str]

    strength: float | None = None

    @property
    def chosen(self) -> float:
        """The strength, once it is chosen."""
        if self.strength is None:
            raise ValueError(f"{self.label} has no strength yet: give one, or take that of settle(plan)")
        return self.strength

    @property
    def strength_is(self) -> str:
        """What the strength measures, in words."""
        return "strength"

    @property
    def finetune_share(self) -> float:
        """Share of the epochs that the method's own protocol keeps for a masked fine-tune."""
        return 0.0

    @property
    def shards(self) -> bool:
        """Whether it works on weights that are split over processes (FSDP)."""
        return False

    @property
    def exact(self) -> bool:
        """Whether training itself leaves the zeros that were asked for, so that no cut follows it."""
        return False

    @property
    def label(self) -> str:
        """The name; after that of the method it wraps, if it wraps one."""
        return self.name

    @property
    def what(self) -> str:
        """What it does, in a line; with the method it wraps, if it wraps one."""
        return self.line

    @property
    def source(self) -> str:
        """Where it was published; with the source of the method it wraps, if it wraps one."""
        return self.paper

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, without the strength, as records hold them."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "strength"}

    def part(self) -> dict[str, Any]:
        """The method as a part of another in a record: name, strength and settings."""
        return {"name": self.name, "strength": self.strength, **self.settings}

    def levels(self) -> Iterator[Method]:
        """The method, the one it wraps, the one that this wraps, and so on."""
        yield self

    def options(self) -> dict[str, Any]:
        """What :meth:`changed` can change, and the type of each value."""
        hints = typing.get_type_hints(type(self))
        return {one.name: hints[one.name] for one in fields(self)}

    def changed(self, values: Mapping[str, Any]) -> Method:
        """The method with other values.

        Args:
            values: New values by the names of :meth:`options`.
        """
        return replace(self, **values)

    @abstractmethod
    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Four strengths to sweep, weakest first, so chosen that they mean the same for short and long runs.

        Args:
            plan: The run, as :meth:`planned` returns it.
        """

    def planned(self, plan: Plan) -> Plan:
        """The run as this method needs it, with another optimizer or rate perhaps; never longer.

        Args:
            plan: The recipe's plan.
        """
        return plan

    @property
    def settled(self) -> bool:
        """Whether every strength is chosen."""
        return self.strength is not None

    def settle(self, plan: Plan) -> Method:
        """The method with every strength chosen: the second of the grid, to four digits, where there is none.

        Args:
            plan: The run, as :meth:`planned` returned it.
        """
        return self if self.strength is not None else replace(self, strength=float(f"{self.grid(plan)[1]:.4g}"))

    def alike_for(self, plan: Plan) -> int:
        """Steps from the start in which the strength plays no part: until then runs that differ in it alone are the same.

        Args:
            plan: The run, as :meth:`planned` returned it.
        """
        return 0

    def check(self) -> None:
        """Refuse a strength that no run can have."""
        if self.strength is None or not (math.isfinite(self.strength) and self.strength >= 0):
            raise ValueError(f"Invalid strength: {self.strength} (allowed: a finite number >= 0, the {self.strength_is})")

    def weight_decay(self, plan: Plan) -> float:
        """Decay of the weights in the base optimizer: the recipe's, unless the method shrinks them itself.

        Args:
            plan: The run, as :meth:`planned` returned it.
        """
        return plan.weight_decay

    def bind(self, model: nn.Module, plan: Plan) -> Bound[Any]:
        """The method at work on a model, which it parametrizes if that is its way. Open strengths are settled.

        Args:
            model: The plain model, before it is moved, sharded or wrapped.
            plan: The run, as :meth:`planned` returned it.
        """
        return self._bound()(self.settle(plan), model, plan)

    def _bound(self) -> type[Bound[Any]]:
        return Bound


class Bound(Generic[Settings]):
    """A method at work on one model: the hooks of the training loop, and all that a run changes.

    The loop calls :meth:`start` once the model is on its device (and sharded), then in each step :meth:`before_forward`,
    :meth:`penalty`, :meth:`before_step` when all gradients are there, the optimizer's step, :meth:`after_step`; at the end
    :meth:`finish`, which leaves a plain model. Every hook does nothing unless a method needs it.

    Args:
        method: The method, settled.
        model: The plain model.
        plan: The run.
    """

    optimizer: Optimizer

    def __init__(self, method: Settings, model: nn.Module, plan: Plan) -> None:
        self.method, self.model, self.plan = method, model, plan
        self.weights: dict[str, Tensor] = {}

    def start(self) -> Optimizer:
        """Take hold of the weights and make the optimizer, which is kept as ``optimizer``."""
        self.method.check()
        self.weights = self._find_weights()
        self.optimizer = self._make_optimizer()
        return self.optimizer

    def _find_weights(self) -> dict[str, Tensor]:
        return prunable(self.model)

    def _make_optimizer(self) -> Optimizer:
        """By default the recipe's, the weights with the method's decay and the rest without."""
        chosen = {id(weight) for weight in self.weights.values()}
        named = [(name, param) for name, param in self.model.named_parameters() if param.requires_grad]
        groups = [
            {"params": [pair for pair in named if id(pair[1]) in chosen], "weight_decay": self.method.weight_decay(self.plan)},
            {"params": [pair for pair in named if id(pair[1]) not in chosen], "weight_decay": 0.0},
        ]
        return self.plan.base_optimizer([group for group in groups if group["params"]])

    def before_forward(self, step: int) -> None:
        """Act at the start of a step.

        Args:
            step: Steps done so far.
        """

    def penalty(self) -> Tensor | None:
        """A term to add to the loss, once per step."""
        return None

    def before_step(self, step: int) -> None:
        """Act when every gradient is complete, clipped and averaged over the processes.

        Args:
            step: Steps done so far.
        """

    def after_step(self, step: int, lr: float) -> None:
        """Act after the optimizer's step.

        Args:
            step: Steps done so far, this one not counted.
            lr: The learning rate of this step.
        """

    def current(self) -> dict[str, Tensor]:
        """The weights as the model uses them now, by name."""
        return {name: weight.detach() for name, weight in self.weights.items()}

    def finish(self) -> None:
        """Leave a plain model with the weights that were trained; :meth:`start` is not needed for it."""

    def state_dict(self) -> dict[str, Any]:
        """What must be saved beside the model and its optimizer: tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned, after :meth:`start`.

        Args:
            state: The saved state.
        """
