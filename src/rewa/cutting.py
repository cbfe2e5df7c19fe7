"""Cutting the smallest weights, of one tensor or of a whole model: by a threshold, or by an exact number to keep."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor

__all__ = ["LAWS", "cubic", "cut", "global_masks", "largest", "largest_of_all", "largest_one_by_one", "window"]


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


def window(steps: int, begin: float, end: float) -> tuple[int, int]:
    """The steps after which the first cut and the last cut are made; at the earliest after one step.

    Args:
        steps: Steps of the run.
        begin: Where cutting begins, as a share of the run.
        end: Where it ends.

    Example:
        >>> window(1000, 0.25, 0.75), window(1, 0.25, 0.75)
        ((250, 750), (1, 1))
    """
    first = max(1, round(begin * steps))
    return first, max(first, round(end * steps))


# By name: the share of the cut that is made at a time between 0 and 1.
LAWS: dict[str, Callable[[float], float]] = {"cubic": cubic, "linear": float}


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


def largest_one_by_one(sizes: Callable[[int], Tensor], number: int, count: int) -> Iterator[Tensor]:
    """The masks of :func:`largest_of_all` with every layer spared, for tensors that are too large to be held together.

    At most one tensor is in memory at a time, and of all the others a histogram: magnitudes that are not negative are ordered
    as the bits of their numbers are, so that the upper 16 bits find the neighbourhood of the smallest one kept.

    Args:
        sizes: Returns the magnitudes of a tensor, by its index; called a few times for each.
        number: How many tensors.
        count: How many weights to keep.

    Yields:
        For each tensor which of its weights to keep.

    Example:
        >>> tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
        >>> [mask.tolist() for mask in largest_one_by_one(tensors.__getitem__, 2, count=2)]
        [[False, True], [False, True]]
    """
    tops = [_top(sizes(index)) for index in range(number)]
    # Bits can be compared in one type only.
    dtype = functools.reduce(torch.promote_types, (sizes(index).dtype for index in range(number)), torch.float32)
    alive = sum(value > 0 for value, _ in tops)
    if count <= alive:  # one weight for each layer is more than there are: the largest of their largest
        chosen = largest(torch.tensor([value for value, _ in tops], dtype=torch.float64), count).tolist()
        for index, (_, place) in enumerate(tops):
            size = sizes(index)
            mask = torch.zeros(size.numel(), dtype=torch.bool, device=size.device)
            if chosen[index]:
                mask[place] = True
            yield mask.view(size.shape)
        return

    def spared(index: int) -> Tensor:
        """The magnitudes, the top one as the largest of all: its layer keeps it."""
        values, (value, place) = sizes(index).flatten().to(dtype, copy=True), tops[index]
        if value > 0:
            values[place] = math.inf
        return values

    bins = sum(torch.bincount(_upper_bits(spared(index)), minlength=1 << 15).cpu() for index in range(number))
    assert isinstance(bins, Tensor)
    above = bins.flip(0).cumsum(0).flip(0)  # how many are in a bin or above it
    at = int((above >= count).nonzero().max())
    near = torch.cat([(values := spared(index))[_upper_bits(values) == at].cpu() for index in range(number)])
    needed = count - (int(above[at + 1]) if at + 1 < len(above) else 0)
    bar = near.kthvalue(len(near) - needed + 1).values.item()
    ties = needed - int((near > bar).sum())
    for index in range(number):
        values = spared(index)
        mask = values > bar
        if ties:
            places = (values == bar).nonzero().flatten()[:ties]
            mask[places] = True
            ties -= len(places)
        yield mask.view(sizes(index).shape)


def _top(values: Tensor) -> tuple[float, int]:
    """The largest value and its place, the first one of equals."""
    if not values.numel():
        return 0.0, 0
    place = int(values.flatten().argmax())
    return float(values.flatten()[place]), place


def _upper_bits(values: Tensor) -> Tensor:
    """The upper 16 bits of numbers in float32 or float64 that are not negative, as an index."""
    if values.dtype is torch.float64:
        return values.view(torch.int64) >> 48
    return (values.view(torch.int32) >> 16).long()


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
