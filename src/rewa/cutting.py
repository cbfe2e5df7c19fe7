"""Cutting the smallest weights, of one tensor or of a whole model: by a threshold, or by an exact number to keep."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

__all__ = ["cubic", "cut", "global_masks", "largest", "largest_of_all"]


def cubic(time: float) -> float:
    """The law of gradual pruning: the share of the cut that is made at a time between 0 and 1, fast at first.

    Args:
        time: 0 at the first cut, 1 at the last.

    Example:
        >>> [cubic(time) for time in (0.0, 0.5, 1.0)]
        [0.0, 0.875, 1.0]

    References:
        Zhu and Gupta, "To prune, or not to prune", ICLR workshop 2018.
    """
    return 1 - (1 - time) ** 3


def cut(tensors: Iterable[Tensor], threshold: float) -> None:
    """Set what is at most the threshold to zero, in place.

    Args:
        tensors: The weights; of sharded ones the parts that this process holds.
        threshold: The largest magnitude that becomes zero.
    """
    for tensor in tensors:
        tensor.masked_fill_(tensor.abs() <= threshold, 0)


def largest(values: Tensor, count: int, *, last: bool = False) -> Tensor:
    """Mask of exactly ``count`` largest values; of equal ones the first, so that every machine chooses the same.

    Args:
        values: A tensor of any shape.
        count: How many.
        last: Choose the last of equal ones instead.

    Example:
        >>> largest(torch.tensor([3.0, 1.0, 2.0, 2.0]), 2)
        tensor([ True, False,  True, False])
    """
    flat = values.flatten()
    if not 0 < count < flat.numel():
        return torch.full_like(values, count > 0, dtype=torch.bool)
    bar = flat.kthvalue(flat.numel() - count + 1).values
    chosen = flat > bar
    at_bar = (flat == bar).nonzero().flatten()
    needed = count - int(chosen.sum())
    chosen[at_bar[len(at_bar) - needed :] if last else at_bar[:needed]] = True
    return chosen.view_as(values)


def largest_of_all(sizes: Mapping[str, Tensor], count: int, *, spare: Collection[str], last: bool = False) -> dict[str, Tensor]:
    """Masks of exactly ``count`` largest magnitudes of all layers together; but a layer that is spared keeps its largest one.

    If there are more such layers than ``count``, the largest of their largest ones are kept.

    Args:
        sizes: The magnitudes by layer.
        count: How many to keep.
        spare: The names of the layers that shall not lose their last weight.
        last: As for :func:`largest`.

    Example:
        >>> masks = largest_of_all({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}, 2, spare=["a"])
        >>> [mask.tolist() for mask in masks.values()]
        [[False, True], [False, True]]
    """
    flat = torch.cat([size.flatten() for size in sizes.values()])
    tops = [largest(size, int(name in spare), last=last).flatten() for name, size in sizes.items()]
    spared = torch.cat(tops)
    if count > int(spared.sum()):
        chosen = largest(flat.masked_fill(spared, math.inf), count, last=last)
    else:
        chosen = largest(flat.masked_fill(~spared, -1), count, last=last)
    parts = torch.split(chosen, [size.numel() for size in sizes.values()])
    return {name: part.view(size.shape) for (name, size), part in zip(sizes.items(), parts, strict=True)}


def global_masks(weights: Mapping[str, Tensor], zeros: float) -> dict[str, Tensor]:
    """Masks that keep the largest of all weights, whatever their layer; but no layer loses its last one.

    A layer without any weight passes nothing on and gets no gradient, so that it could never come back.

    Args:
        weights: The weights by name.
        zeros: Share of all weights that is not kept; less where one weight for each layer is more than the rest.
    """
    sizes = {name: weight.detach().abs() for name, weight in weights.items()}
    count = max(len(sizes), round((1 - zeros) * sum(size.numel() for size in sizes.values())))
    return largest_of_all(sizes, count, spare=sizes.keys())
