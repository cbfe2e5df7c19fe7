"""Hyperbolic aware minimization: a multiplicative step after each step of another method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from rewa.methods.dense import Dense
from rewa.methods.method import Bound, Plan
from rewa.methods.wrapper import BoundWrapper, Wrapper
from rewa.weights import local

__all__ = ["HAM"]


@dataclass(frozen=True, kw_only=True)
class HAM(Wrapper):
    r"""A hyperbolic mirror step after each step of another method, with the gradient g that it used.

    .. math:: x \leftarrow x\,\exp\bigl(\operatorname{clip}_{\pm b}(-\eta\alpha\,\mathrm{sign}(x)\,g) - \eta\beta\bigr)

    The sign is that of x after the first step. Zero stays zero, and no weight becomes zero: alone, the smallest are cut
    at the end.

    Around :class:`rewa.methods.dense.Dense` the strength is :math:`\beta`, and the recipe's weight decay stays unless ``on``
    has a strength. Around every other method both have one strength, that method's, and :math:`\beta` is the field.

    Args:
        strength: :math:`\beta` around dense training; else the strength of ``on``, by default what it has already.
        on: The method that takes the first step.
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

    alpha: float = 200.0
    beta: float = 1e-3
    bound: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings, and hand the strength to the other method if it is meant for it."""
        if not (self.alpha >= 0 and self.beta >= 0 and self.bound > 0):
            raise ValueError(
                f"HAM needs alpha >= 0, beta >= 0 and bound > 0, got alpha={self.alpha}, beta={self.beta}, bound={self.bound}"
            )
        if not self.alone:
            strength = self.on.strength if self.strength is None else self.strength
            object.__setattr__(self, "strength", strength)  # both have the same, whichever was given
            object.__setattr__(self, "on", replace(self.on, strength=strength))

    @property
    def alone(self) -> bool:
        """Whether the strength is beta: around dense training."""
        return type(self.on) is Dense

    @property
    def strength_is(self) -> str:
        """What the strength measures, in words: that of the other method, unless alone."""
        return "shrinkage beta" if self.alone else self.on.strength_is

    @property
    def shards(self) -> bool:
        """Whether the other method works on weights that are split over processes."""
        return self.on.shards

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name; the strength of ``on`` is among them only if it is one of its own."""
        on = self.on.part()
        if not self.alone or self.on.strength is None:
            del on["strength"]
        return {**super().settings, "on": on}

    def part(self) -> dict[str, Any]:
        """The method as a part of another in a record, with the strength at every level."""
        return {"name": self.name, "strength": self.strength, **super().settings}

    def _own_options(self) -> dict[str, Any]:
        own = super()._own_options()
        if not self.alone:
            del own["on_strength"]  # it is the strength
        return own

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Alone, weights without gradient shrink to exp(-b) of their start for b from 0.5 to 10; else that of ``on``."""
        return tuple(budget / plan.rate_sum for budget in (0.5, 2.0, 5.0, 10.0)) if self.alone else self.on.grid(plan)

    def alike_for(self, plan: Plan) -> int:
        """Alone, none; else those of ``on``, whose strength it is."""
        return 0 if self.alone else self.on.alike_for(plan)

    def _bound(self) -> type[Bound[Any]]:
        return BoundHAM


class BoundHAM(BoundWrapper[HAM]):
    """HAM at work."""

    @torch.no_grad()
    def after_step(self, step: int, lr: float) -> None:
        """Do what the other method does, then the mirror step."""
        super().after_step(step, lr)
        method = self.method
        beta = method.chosen if method.alone else method.beta
        for weight in self.weights.values():
            if weight.grad is not None:
                x, grad = local(weight.detach()), local(weight.grad)
                exponent = (-lr * method.alpha * x.sign() * grad).clamp(-method.bound, method.bound)
                x.mul_(exponent.sub_(lr * beta).exp_())
