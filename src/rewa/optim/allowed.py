"""As sparse as the value of the model allows: cuts that are judged, and taken back where they cost too much."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from rewa.modes import keeping_modes
from rewa.optim.cuts import Cuts
from rewa.optim.target import SPARSEST, Course, Evaluate
from rewa.weights import reshard

__all__ = ["Allowed"]


class Allowed:
    """Cuts of one pool, level by level, as long as the model is worth enough.

    Args:
        cuts: What cuts, and takes back.
        course: When.
        evaluate: Returns the value of the model, larger is better.
        max_drop: Most that the value may lie below the best one of the run.
    """

    def __init__(self, cuts: Cuts, course: Course, evaluate: Evaluate, max_drop: float) -> None:
        self.cuts, self.course, self.evaluate, self.max_drop = cuts, course, evaluate, max_drop

    def begin(self, state: dict[str, Any]) -> None:
        """Add what the state lacks.

        Args:
            state: How far the run is.
        """
        for key, value in {"best": -math.inf, "stride": 1.0, "taken": {}, "share_before": 0.0}.items():
            state.setdefault(key, value)

    @torch.no_grad()
    def cut(self, state: dict[str, Any]) -> None:
        """Go to the next level if the model is still worth enough; else take the last cut back, and try half of it later.

        Args:
            state: How far the run is.
        """
        if state["done"] > self.course.last:
            return
        value = self.value()
        state["best"] = max(state["best"], value)
        if value < state["best"] - self.max_drop:
            state["stride"] /= 2
            self.cuts.take_back(state)
            return
        state["taken"] = {}
        if state["done"] < self.course.last and state["share"] < SPARSEST:
            density = max(1 - SPARSEST, (1 - state["share"]) * (1 - SPARSEST) ** (state["stride"] / self.course.levels))
            total = self.cuts.pools[0].total
            self.cuts.make(state, [min(total - 1, round((1 - density) * total))], remember=True)

    def end(self, state: dict[str, Any]) -> tuple[float, float]:
        """The value of the model as it stays, and the best one of the run; a last cut that cost too much is taken back.

        Args:
            state: How far the run is.
        """
        value = self.value()
        best = max(state["best"], value)
        if value < best - self.max_drop and state["taken"]:
            self.cuts.take_back(state)
            value = self.value()
        if value < best - self.max_drop:
            warnings.warn(
                f"the value is {value:.6g}, more than max_drop={self.max_drop:g} below the best of the run, {best:.6g}: it did "
                "not recover from the last cut. Train longer, or allow more",
                stacklevel=3,
            )
        return value, best

    def value(self) -> float:
        """The value of the model now, the mean over the processes."""
        model = self.cuts.model
        with keeping_modes(model), torch.no_grad():
            found: Any = self.evaluate(model.eval())
        reshard(model)
        try:
            value = float(found)
        except TypeError:
            raise TypeError(f"evaluate returned {type(found).__name__}: it must return a number, larger is better") from None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            values = [0.0] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(values, value)  # each may have seen its part of the data
            value = sum(values) / len(values)
        if math.isnan(value):
            raise ValueError("evaluate returned NaN: no cut can be judged by it")
        return value
