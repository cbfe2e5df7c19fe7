"""Cuts in the middle of training: the least worthy weights of a pool become zero, so many as were asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rewa.cutting import largest_one_by_one
from rewa.optim.growth import smallest
from rewa.optim.target import Pool
from rewa.optim.worth import worth
from rewa.sparsity import count
from rewa.weights import full, local, reshard, sharded_like

__all__ = ["Cuts", "Diverged"]


class Diverged(RuntimeError):
    """A weight is infinite or not a number; the message says which, and after how many steps."""


class Cuts:
    """The cuts of a run.

    Args:
        model: The model.
        weights: Its weights that are cut, by name.
        pools: Which of them are cut together.
        squares: Returns the mean square of a weight's gradient, if it is to count and is known.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        pools: Sequence[Pool],
        squares: Callable[[Tensor], Tensor | None],
    ) -> None:
        self.model, self.weights, self.pools, self.squares = model, weights, pools, squares

    def worth(self, name: str, graded: bool) -> Tensor:
        """What the weights of a tensor are worth, not negative: the least are cut first.

        Args:
            name: The name of the tensor.
            graded: Whether gradients count, as they do where they are known of all weights that are compared.
        """
        x, square = full(self.weights[name].detach()), self.squares(self.weights[name]) if graded else None
        return x.abs() if square is None else worth(x, full(square))

    def _worth_at(self, pool: Pool, graded: bool, index: int) -> Tensor:
        return self.worth(pool.names[index], graded)

    @torch.no_grad()
    def make(self, state: dict[str, Any], zeros: Sequence[int], *, last: bool = False, remember: bool = False) -> None:
        """Let each pool have so many zeros, the least of its weights; no more, and no others.

        Args:
            state: How far the run is, and the share of zeros that it has.
            zeros: For each pool, how many.
            last: Whether the number is exact also where it is none: zeros from before get the smallest number.
            remember: Whether the state shall hold what is cut, for :meth:`take_back`.
        """
        if not (any(zeros) or state["share"] or last):
            return
        reshard(self.model)
        for name, param in self.weights.items():
            if not bool(full(param.detach().isfinite().all())):
                raise Diverged(f"{name!r} is not finite after {state['done']:,} steps: training diverged; lower its lr")
        before, taken = state["share"], {}
        for pool, number in zip(self.pools, zeros, strict=True):
            params = [self.weights[name] for name in pool.names]
            if (before or last) and count(params).nonzero == pool.total - number:
                continue
            graded = all(self.squares(param) is not None for param in params)
            masks = largest_one_by_one(functools.partial(self._worth_at, pool, graded), len(params), pool.total - number)
            for name, param, mask in zip(pool.names, params, masks, strict=True):
                x, here = local(param.detach()), local(sharded_like(mask, param))
                if remember:
                    gone = (~here & (x != 0)).flatten().nonzero().flatten()
                    taken[name] = (gone, x.flatten()[gone])
                x.masked_fill_(~here, 0)
                x.masked_fill_(here & (x == 0), smallest(x.dtype))
        state["share"] = sum(zeros) / sum(pool.total for pool in self.pools)
        if remember:
            state["taken"], state["share_before"] = taken, before

    @torch.no_grad()
    def take_back(self, state: dict[str, Any]) -> None:
        """Undo the last cut: the weights have the values again that they were cut at.

        Args:
            state: What holds them.
        """
        for name, (places, values) in state["taken"].items():
            x = local(self.weights[name].detach())
            flat = x.flatten()
            flat[places.to(x.device)] = values.to(x.device, x.dtype)
            x.copy_(flat.view_as(x))
        if state["taken"]:
            state["share"], state["taken"] = state["share_before"], {}
