"""Methods that wrap another, which trains the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from rewa._moved import names_moved
from rewa.methods.dense import Dense
from rewa.methods.method import Bound, Method, Plan

__all__ = ["BoundWrapper", "Wrapper"]

PATH = "on."  # before a setting of the method that is wrapped
Wrapping = TypeVar("Wrapping", bound="Wrapper")


@dataclass(frozen=True, kw_only=True)
class Wrapper(Method):
    """A method that wraps another: every answer is the other's, and a subclass adds what it does itself.

    Wrappers can be nested: ``GMP(on=HAM(on=ReWA()))``. Dense training may be left without a strength; it then takes the
    recipe's weight decay.

    Args:
        strength: Strength of the wrapper.
        on: The method that is wrapped, with its own strength.
    """

    on: Method = field(default_factory=Dense)

    @property
    def finetune_share(self) -> float:
        """The share that the other method keeps."""
        return self.on.finetune_share

    @property
    def exact(self) -> bool:
        """Whether the other method leaves the zeros that were asked for."""
        return self.on.exact

    @property
    def label(self) -> str:
        """The name, after that of the method inside: ``rewa+rigl``; dense training is not named."""
        return self.name if self.on.name == "dense" else f"{self.on.label}+{self.name}"

    @property
    def what(self) -> str:
        """What both do, in a line."""
        return self.line if self.on.name == "dense" else f"{self.line}; wraps {self.on.label}"

    @property
    def source(self) -> str:
        """Where both were published, in the order of the label."""
        return self.paper if self.on.name == "dense" else f"{self.on.source} + {self.paper}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name; ``on`` has the name, the strength and the settings of the method inside."""
        return {**super().settings, "on": self.on.part()}

    def levels(self) -> Iterator[Method]:
        """This method, then those inside, outermost first."""
        yield self
        yield from self.on.levels()

    def options(self) -> dict[str, Any]:
        """The settings of all levels.

        ``on_strength`` is the strength of the method inside, and ``on.K`` its K. The path may be left out where the
        name is free: ``K`` alone is the outermost K.
        """
        own, inside = self._own_options(), self.on.options()
        inside.pop("strength")
        free = {key: kind for key, kind in inside.items() if key not in own and not key.startswith(PATH)}
        return {**own, **free, **{PATH + key: kind for key, kind in inside.items()}}

    def _own_options(self) -> dict[str, Any]:
        own = {key: kind for key, kind in super().options().items() if key != "on"}
        return {**own, "on_strength": own["strength"]}

    def changed(self, values: Mapping[str, Any]) -> Method:
        """The method with other values, each at the level that its name says."""
        known = self._own_options()
        own = {key: value for key, value in values.items() if key in known}
        inside = {key.removeprefix(PATH): value for key, value in values.items() if key not in known}
        if "on_strength" in own:
            inside["strength"] = own.pop("on_strength")
        return replace(self, **own, on=self.on.changed(inside)) if inside else replace(self, **own)

    @property
    def settled(self) -> bool:
        """Whether the strengths inside are chosen too; dense training needs none."""
        return super().settled and (isinstance(self.on, Dense) or self.on.settled)

    def settle(self, plan: Plan) -> Method:
        """The method with every strength chosen, at all levels; inside the second of the grid is taken as it is."""
        method = super().settle(plan)
        assert isinstance(method, Wrapper)
        on = method.on
        if isinstance(on, Dense) or on.settled:
            return method
        if on.strength is None:
            on = replace(on, strength=on.grid(plan)[1])
        return replace(method, on=on.settle(plan))

    def check(self) -> None:
        """Refuse strengths that make no sense at any level; those inside may still be open."""
        super().check()
        if self.on.strength is not None:
            self.on.check()

    def planned(self, plan: Plan) -> Plan:
        """The run that the other method needs."""
        return self.on.planned(plan)

    def weight_decay(self, plan: Plan) -> float:
        """The other method's."""
        return self.on.weight_decay(plan)

    def _bound(self) -> type[Bound[Any]]:
        return BoundWrapper


class BoundWrapper(Bound[Wrapping]):
    """A wrapper at work: every hook calls that of the method inside, which is bound to the same model as ``on``.

    Args:
        method: The wrapper, settled.
        model: The plain model.
        plan: The run.
    """

    def __init__(self, method: Wrapping, model: nn.Module, plan: Plan) -> None:
        super().__init__(method, model, plan)
        self.on = method.on.bind(model, plan)

    def start(self) -> Optimizer:
        """Start the other method; its weights and its optimizer are this one's."""
        self.method.check()
        self.optimizer = self.on.start()
        self.weights = self.on.weights
        return self.optimizer

    def before_forward(self, step: int) -> None:
        """Do what the other method does."""
        self.on.before_forward(step)

    def penalty(self) -> Tensor | None:
        """The other method's."""
        return self.on.penalty()

    def before_step(self, step: int) -> None:
        """Do what the other method does."""
        self.on.before_step(step)

    def after_step(self, step: int, lr: float) -> None:
        """Do what the other method does."""
        self.on.after_step(step, lr)

    def current(self) -> dict[str, Tensor]:
        """The weights as the other method gives them."""
        return self.on.current()

    def finish(self) -> None:
        """Do what the other method does."""
        self.on.finish()

    def state_dict(self) -> dict[str, Any]:
        """The other method's."""
        return self.on.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hand the state to the other method."""
        self.on.load_state_dict(state)


if not TYPE_CHECKING:  # a type checker that saw it would accept any name
    __getattr__ = names_moved(
        __name__,
        {
            "On": "rewa.methods.wrapper.Wrapper",
        },
    )
