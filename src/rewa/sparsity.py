"""The one definition of sparsity: a weight counts as zero when its modulus is at most the threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rewa.optim.groups import param_groups

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


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that :func:`rewa.param_groups` makes sparse by default, by name.

    Example:
        >>> list(prunable(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))))
        ['0.weight']
    """
    names = {decision.name for decision in param_groups(model).decisions if decision.is_sparse}
    return {name: param for name, param in model.named_parameters() if name in names}


def count(tensors: Iterable[Tensor], threshold: float = 0.0) -> Count:
    r"""Count weights and those with :math:`|x| > t`.

    Args:
        tensors: The weights.
        threshold: The largest modulus t that counts as zero.

    Example:
        >>> count([torch.tensor([0.0, -0.1, 2.0])], threshold=0.1)
        Count(total=3, nonzero=1)
    """
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
