r"""ReWA's step after that of another optimizer, in the same direction: what :class:`rewa.Sparsifier` adds to each step.

The optimizer is not asked what it is: its step is the difference between the weights before and after it. The formula is
:func:`rewa.reparam.grown` with ``K=2, M=1``, for which it needs no root.

A weight that is exactly zero once cutting has begun was cut, and stays zero; one that comes to zero by chance gets the smallest
normal number instead. So the zeros are the mask, and no other is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rewa.optim.optimizer import LOW_PRECISION
from rewa.weights import full, local

__all__ = ["Grown", "Growth", "smallest", "start_size"]

MASTER = "master"  # in the optimizer's state of a weight in low precision: its value in float32


def smallest(dtype: torch.dtype) -> float:
    """The magnitude that stands for a weight which came to zero without being cut.

    Args:
        dtype: The type of the weight. Subnormal numbers slow a CPU down; float16 has too few others to do without.
    """
    return 2.0**-24 if dtype is torch.float16 else torch.finfo(dtype).tiny


def start_size(weight: Tensor) -> float:
    r"""The usual magnitude of a weight that trains: the root mean square of the values that are not zero.

    A tensor of zeros has none; it gets that of torch's own first weights for its shape, :math:`1/\sqrt{3n}` for n inputs.

    Args:
        weight: The weight, sharded or not.
    """
    values = weight.detach().double()
    total, nonzero = float(full(values.square().sum())), int(full((values != 0).sum()))
    inputs = max(1, weight.numel() // max(1, weight.shape[0]))
    return (total / nonzero) ** 0.5 if total else float((3 * inputs) ** -0.5)


@dataclass
class Grown:
    """A weight whose steps are followed by ReWA's."""

    param: Tensor
    size: float  # of a usual weight at the start
    growth: float  # 0: the optimizer's step alone


@dataclass
class _Before:
    """What a weight was before the step."""

    one: Grown
    x: Tensor | None  # None where only the zeros matter
    zero: Tensor | None
    low: tuple[Tensor, Tensor | None] | None  # of a weight in low precision: its storage and gradient


class Growth:
    """The steps of an optimizer, followed by ReWA's.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.kept: list[_Before] = []

    @torch.no_grad()
    def before(self, weights: Sequence[Grown], *, cutting: bool, closure: bool) -> None:
        """Note the weights before the optimizer's step.

        Args:
            weights: The weights.
            cutting: Whether zeros were cut, and stay.
            closure: Whether the step evaluates the model.
        """
        self.cancel()
        for one in weights:
            if one.param.grad is None and not closure:
                continue
            low = self._lift(one.param, closure) if self._is_lifted(one) else None
            x = local(one.param.detach())
            zero = x == 0 if cutting else None
            if zero is not None and one.param.grad is not None and one.param.grad.layout is torch.strided:
                # An optimizer that mixes the coordinates of a tensor must not see these, nor build up momentum for them.
                local(one.param.grad).masked_fill_(zero, 0)
            self.kept.append(_Before(one, x.clone() if one.growth else None, zero, low))

    @torch.no_grad()
    def after(self) -> None:
        """Add ReWA's step to that of the optimizer, and keep zeros at zero."""
        for before in self.kept:
            x = local(before.one.param.detach())
            if before.x is not None:
                move = torch.sub(x, before.x, out=before.x)
                factor = move.mul_(torch.sign(x)).mul_(before.one.growth / (2 * before.one.size)).add_(1)
                x.mul_(factor.mul_(factor.abs()))
            if before.zero is not None:
                x.masked_fill_(before.zero, 0)
                x.masked_fill_((x == 0) & ~before.zero, smallest(x.dtype))
        self.cancel()

    @torch.no_grad()
    def cancel(self) -> None:
        """Forget what was noted: also after a step that was skipped, or that failed."""
        for before in self.kept:
            if before.low is not None:
                self._lower(before.one.param, *before.low)
        self.kept = []

    # -------------------------------------------------------------------------------------------- low precision

    def _is_lifted(self, one: Grown) -> bool:
        return one.param.dtype in LOW_PRECISION and bool(one.growth)

    def _lift(self, param: Tensor, closure: bool) -> tuple[Tensor, Tensor | None]:
        """Let the optimizer step the float32 value of a weight in low precision, in which small steps would be lost."""
        if hasattr(param, "to_local"):
            raise ValueError(
                f"a sharded weight is {param.dtype}, too coarse for small steps: keep the shards in float32, as "
                "MixedPrecisionPolicy(param_dtype=torch.bfloat16) of FSDP2 does"
            )
        if closure:
            raise ValueError(
                f"a step with a closure evaluates the model, whose weights are {param.dtype} and take their step in float32: "
                "keep the weights in float32 and use autocast"
            )
        state: dict[str, Any] = self.optimizer.state[param]
        x, grad = param.detach(), param.grad
        kept = state.pop(MASTER, None)
        master = x.float() if kept is None else torch.where(kept.to(x.dtype) == x, kept, x.float())  # an edit of x wins
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dtype in LOW_PRECISION:
                state[key] = value.float()
        param.grad = None
        param.data = master
        param.grad = None if grad is None else grad.float()
        return x, grad

    def _lower(self, param: Tensor, x: Tensor, grad: Tensor | None) -> None:
        """Round the float32 value to the weight again, and keep it."""
        master = param.data
        rounded = master.to(x.dtype)
        x.copy_(rounded.masked_fill((rounded == 0) & (master != 0), smallest(x.dtype)))  # rounding must not cut
        param.grad = None
        param.data = x
        param.grad = grad
        self.optimizer.state[param][MASTER] = master
