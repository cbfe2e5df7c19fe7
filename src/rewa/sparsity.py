"""The one definition of sparsity: a weight counts as zero when its modulus is at most the threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rewa.optim.groups import ParamGroups, param_groups

__all__ = ["Count", "count", "prunable", "thresholded"]


@dataclass(frozen=True)
class Count:
    """How many weights there are and how many are not zero."""

    total: int
    nonzero: int

    @property
    def compression_ratio(self) -> float:
        """Parameters over nonzero parameters, infinite when none is left."""
        return self.total / self.nonzero if self.nonzero else math.inf

    def __add__(self, other: Count) -> Count:
        return Count(self.total + other.total, self.nonzero + other.nonzero)


def prunable(model: nn.Module | ParamGroups) -> dict[str, Tensor]:
    """The weights that can become sparse, by name.

    Args:
        model: A model, for the weights that :func:`rewa.param_groups` makes sparse by default; or what it returned for the
            model with your own rules.

    Raises:
        ValueError: If weights are parametrized: there is no tensor to count or cut until the parametrization is removed.

    Example:
        >>> list(prunable(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))))
        ['0.weight']
    """
    decisions = (model if isinstance(model, ParamGroups) else param_groups(model)).decisions
    if hidden := [decision.name for decision in decisions if ".parametrizations." in f".{decision.name}"]:
        raise ValueError(f"{hidden[0]!r} stands behind a parametrization: call rewa.remove_reparametrization on a copy first")
    return {decision.name: decision.param for decision in decisions if decision.is_sparse}


def count(tensors: Iterable[Tensor], threshold: float = 0.0) -> Count:
    r"""Count weights and those with :math:`|x| > t`.

    Args:
        tensors: The weights.
        threshold: The largest modulus t that counts as zero.

    Example:
        >>> count([torch.tensor([0.0, -0.1, 2.0])], threshold=0.1)
        Count(total=3, nonzero=1)
    """
    if isinstance(tensors, nn.Module):
        raise TypeError("count needs tensors: pass rewa.sparsity.prunable(model).values(), or model.parameters()")
    if not threshold >= 0:
        raise ValueError(f"Invalid threshold: {threshold} (allowed: a number >= 0)")
    tensors = [tensor.detach() for tensor in tensors]
    return Count(sum(t.numel() for t in tensors), sum(int((t.abs() > threshold).sum()) for t in tensors))


@contextmanager
def thresholded(tensors: Iterable[Tensor], threshold: float) -> Iterator[Count]:
    """Set the weights at or below the threshold to zero inside the block; afterwards every bit is back.

    Args:
        tensors: The weights, changed in place.
        threshold: The largest modulus that counts as zero.

    Example:
        >>> weight = torch.tensor([0.05, -0.1, 2.0])
        >>> with thresholded([weight], 0.1) as left:
        ...     print(weight, left.compression_ratio)
        tensor([0., 0., 2.]) 3.0
        >>> weight
        tensor([ 0.0500, -0.1000,  2.0000])
    """
    tensors = list(tensors)
    left = count(tensors, threshold)
    saved = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            for tensor in tensors:
                tensor.masked_fill_(tensor.abs() <= threshold, 0)
        yield left
    finally:
        with torch.no_grad():
            for tensor, original in zip(tensors, saved, strict=True):
                tensor.copy_(original)
