"""Hyperbolic aware minimization: a multiplicative step after each step of another method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from rewa.methods.dense import Dense
from rewa.methods.method import Plan
from rewa.methods.on import On
from rewa.weights import local

__all__ = ["HAM"]


@dataclass(kw_only=True)
class HAM(On):
    r"""A hyperbolic mirror step after each step of another method, with the gradient g that it used.

    .. math:: x \leftarrow x\,\exp\bigl(\operatorname{clip}_{\pm b}(-\eta\alpha\,\mathrm{sign}(x)\,g) - \eta\beta\bigr)

    The sign is that of x after the first step. Zero stays zero, and no weight becomes zero: alone, the smallest are cut
    at the end.

    On :class:`rewa.methods.dense.Dense` the strength is :math:`\beta`, and the recipe's weight decay stays unless ``on``
    has a strength. On every other method the strength is that method's, handed over when this one is constructed, and
    :math:`\beta` is the field.

    Args:
        strength: :math:`\beta` on dense training; else the strength of ``on``.
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
    strength_is: ClassVar[str] = "shrinkage beta"
    shards: ClassVar[bool] = True

    alpha: float = 200.0
    beta: float = 1e-3
    bound: float = 1.0

    def __post_init__(self) -> None:
        """Take a copy of the other method, with the strength if it is meant for it."""
        if not (self.alpha >= 0 and self.beta >= 0 and self.bound > 0):
            raise ValueError(
                f"HAM needs alpha >= 0, beta >= 0 and bound > 0, got alpha={self.alpha}, beta={self.beta}, bound={self.bound}"
            )
        super().__post_init__()
        if not self.alone:
            self.on = replace(self.on, strength=self.strength)
            self.strength_is = self.on.strength_is  # type: ignore[misc]  # it is, here
        for key in ("shards", "finetune_share"):  # the loop asks this method what only the other knows
            setattr(self, key, getattr(self.on, key))

    @property
    def alone(self) -> bool:
        """Whether the strength is beta: on dense training."""
        return type(self.on) is Dense

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Alone, weights without gradient shrink to exp(-b) of their start for b from 0.5 to 10; else that of ``on``."""
        return tuple(budget / plan.rate_sum for budget in (0.5, 2.0, 5.0, 10.0)) if self.alone else self.on.grid(plan)

    def alike_for(self, plan: Plan) -> int:
        """Alone, none; else those of ``on``, whose strength it is."""
        return 0 if self.alone else self.on.alike_for(plan)

    @torch.no_grad()
    def after_step(self, step: int, lr: float) -> None:
        """What the other method does, then the mirror step."""
        super().after_step(step, lr)
        beta = self.strength if self.alone else self.beta
        for weight in self.weights.values():
            if weight.grad is not None:
                x, grad = local(weight.detach()), local(weight.grad)
                exponent = (-lr * self.alpha * x.sign() * grad).clamp(-self.bound, self.bound)
                x.mul_(exponent.sub_(lr * beta).exp_())
