"""The Sparsifier as a method: the recipe's own optimizer, with a target for the share of zeros."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from rewa.cutting import LAWS, window
from rewa.methods.method import Bound, Method, Plan
from rewa.names import nearest
from rewa.optim.worth import KINDS
from rewa.sparsifier import Sparsifier

__all__ = ["Sparsifying"]


@dataclass(frozen=True, kw_only=True)
class Sparsifying(Method):
    """:class:`rewa.Sparsifier` on the recipe's optimizer, with the recipe's weight decay: its hooks do all the work.

    The trained model has exactly ``round(strength * weights)`` zeros, and the run makes no others.

    Args:
        strength: Share of zeros in the end.
        begin: Where the first cut is made, as a share of the run.
        end: Where the last cut is made.
        law: How the share of zeros rises in between, ``"cubic"`` or ``"linear"``; a recipe's ``schedule`` is of its rates.
        growth: What a weight of the usual size adds to its step, as a multiple; by default what the Sparsifier chooses.
        worth: What is cut last: ``"gradient"``, large weights with large gradients, or ``"magnitude"``.
    """

    name: ClassVar[str] = "sparsifier"
    line: ClassVar[str] = "longer steps for large weights, while those worth least are cut to an exact share"
    paper: ClassVar[str] = "this project, on ReWA, ICML 2026"
    strength_is: ClassVar[str] = "share of zeros"
    shards: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    begin: float = 0.25
    end: float = 0.75
    law: str = "cubic"
    growth: float | None = None
    worth: str = "gradient"

    def __post_init__(self) -> None:
        # The Sparsifier checks them as well, but only once the data is loaded and the folder of the run is made.
        if not 0 <= self.begin <= self.end <= 1:
            raise ValueError(f"Invalid begin and end: {self.begin}, {self.end} (allowed: 0 <= begin <= end <= 1)")
        if self.law not in LAWS:
            raise ValueError(nearest("law", self.law, LAWS))
        if self.worth not in KINDS:
            raise ValueError(nearest("worth", self.worth, KINDS))
        if self.growth is not None and not 0 <= self.growth < math.inf:
            raise ValueError(f"Invalid growth: {self.growth} (allowed: a finite number >= 0, or none for the default)")

    def check(self) -> None:
        """Refuse what is not a share of zeros."""
        if self.strength is None or not 0 <= self.strength < 1:
            raise ValueError(f"Invalid strength: {self.strength} (allowed: a share of zeros, at least 0 and below 1)")

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """One to ten weights of a hundred are left."""
        return (0.9, 0.95, 0.98, 0.99)

    def alike_for(self, plan: Plan) -> int:
        """Up to the first cut."""
        first, last = window(plan.steps, self.begin, self.end)
        return first if first < last else first - 1  # the first of several cuts is of no weight

    def _bound(self) -> type[Bound[Any]]:
        return BoundSparsifying


class BoundSparsifying(Bound[Sparsifying]):
    """A Sparsifier at work. Its state is a part of the optimizer's.

    Args:
        method: The method, settled.
        model: The plain model.
        plan: The run.
    """

    def __init__(self, method: Sparsifying, model: nn.Module, plan: Plan) -> None:
        super().__init__(method, model, plan)
        self.sparsifier: Sparsifier | None = None

    def start(self) -> Optimizer:
        """Make the optimizer, and put the Sparsifier on it."""
        optimizer = super().start()
        self.sparsifier = self._make_sparsifier(optimizer)
        return optimizer

    def _make_sparsifier(self, optimizer: Optimizer, kind: type[Sparsifier] = Sparsifier) -> Sparsifier:
        method = self.method
        return kind(
            self.model,
            optimizer,
            sparsity=method.chosen,
            steps=self.plan.steps,
            begin=method.begin,
            end=method.end,
            schedule=method.law,
            growth=method.growth,
            worth=method.worth,
        )

    def finish(self) -> None:
        """Leave exactly the share of zeros, also where steps were skipped, and an optimizer without hooks."""
        if self.sparsifier is None:
            self.start()
            assert self.sparsifier is not None
            # The model is that of a run which is over: nobody need be warned that its steps are missing here.
            self.sparsifier.load_state_dict({**self.sparsifier.state_dict(), "done": self.plan.steps})
        self.sparsifier.finish()
