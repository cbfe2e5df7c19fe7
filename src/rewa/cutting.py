"""Which weights are the largest, of one tensor or of a whole model: what a cut by magnitude keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["cubic", "global_masks", "largest"]


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


def largest(values: Tensor, count: int) -> Tensor:
    """Mask of the ``count`` largest values; of equal ones the first, so that every machine chooses the same.

    Args:
        values: A tensor of any shape.
        count: How many.

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
    chosen[at_bar[: count - int(chosen.sum())]] = True
    return chosen.view_as(values)


def global_masks(weights: Mapping[str, Tensor], zeros: float) -> dict[str, Tensor]:
    """Masks that keep the largest of all weights, whatever their layer; but no layer loses its last one.

    Args:
        weights: The weights by name.
        zeros: Share of all weights that is not kept; less where one weight for each layer is more than the rest.
    """
    layers = [weight.detach().abs().flatten() for weight in weights.values()]
    # A layer without any weight passes nothing on and gets no gradient, so that it could never come back.
    sizes = torch.cat([torch.where(largest(layer, 1), math.inf, layer) for layer in layers])
    chosen = largest(sizes, max(len(layers), round((1 - zeros) * sizes.numel())))
    parts = torch.split(chosen, [weight.numel() for weight in weights.values()])
    return {name: part.view(weight.shape) for (name, weight), part in zip(weights.items(), parts, strict=True)}
