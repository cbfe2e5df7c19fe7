"""RigL: sparse from the start, with weak connections exchanged for those with the largest gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rewa.cutting import largest
from rewa.methods.masks import BoundMasked, Masked
from rewa.methods.method import Bound

__all__ = ["RigL", "erdos_renyi_kernel"]


@dataclass(frozen=True, kw_only=True)
class RigL(Masked):
    r"""The rigged lottery: every layer keeps its number of connections, which move to where the gradient is.

    The run starts with random masks of the Erdős–Rényi-kernel density (:func:`erdos_renyi_kernel`). At every update, a layer
    with n connections

    .. math:: k = \Bigl[\,n\,\frac{\alpha}{2}\Bigl(1 + \cos\frac{\pi t}{T_\text{end}}\Bigr)\Bigr]

    drops the k smallest :math:`|x|` of them, and gains the k largest :math:`|g|` of all weights that are then inactive,
    by the gradient g of the whole layer. One that is dropped and gained at once keeps its value; new ones start at zero
    in dense training, and under ReWA as :class:`~rewa.methods.masks.Masked` says.

    Args:
        strength: Share of zeros, from the first step on.
        on: What trains the connections.
        alpha: Share of a layer's connections that move at the first update.
        stop: Where the updates end, as a share of the run: :math:`T_\text{end}`.
        every: Steps between two updates; by default there are about 30.

    Note:
        The paper skips the optimizer's step when it updates masks; here the connections that stay make it. The first masks
        are drawn from torch's random numbers when the run starts, which must therefore stand at the same point on all
        processes.

    References:
        Evci et al., "Rigging the lottery: Making all tickets winners", ICML 2020.
    """

    name: ClassVar[str] = "rigl"
    line: ClassVar[str] = "sparse from the start: drop small weights, grow where the gradient is"
    paper: ClassVar[str] = "Evci et al., ICML 2020"

    alpha: float = 0.3
    stop: float = 0.75
    every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "stop"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)} (allowed: between 0 and 1)")
        if self.every is not None and self.every < 1:
            raise ValueError(f"Invalid every: {self.every} (allowed: a whole number of steps >= 1, or None)")

    def moving_share(self, step: int, steps: int) -> float | None:
        """Share of a layer's connections to move at this step, or None where nothing changes.

        Args:
            step: Steps done so far.
            steps: Steps of the run.
        """
        end = round(self.stop * steps)
        if not 0 < step < end or step % (self.every or max(1, end // 30)):
            return None
        return self.alpha / 2 * (1 + math.cos(math.pi * step / end))

    def _bound(self) -> type[Bound[Any]]:
        return BoundRigL


class BoundRigL(BoundMasked[RigL]):
    """RigL at work."""

    def first_masks(self) -> dict[str, Tensor]:
        """Random ones."""
        shapes = [tuple(weight.shape) for weight in self.weights.values()]
        counts = erdos_renyi_kernel(shapes, 1 - self.method.chosen)
        # On the CPU whatever the device, so that a seed means the same everywhere.
        masks = [largest(torch.rand(shape), count) for shape, count in zip(shapes, counts, strict=True)]
        return {name: mask.to(self.weights[name].device) for name, mask in zip(self.weights, masks, strict=True)}

    def masks_before_step(self, step: int) -> dict[str, Tensor] | None:
        """Drop by size and grow by gradient, layer by layer."""
        share = self.method.moving_share(step, self.plan.steps)
        if share is None:
            return None
        masks = {}
        for name, weight in self.weights.items():
            mask = masks[name] = self.masks[name]
            if weight.grad is not None:
                active = int(mask.sum())
                moving = round(share * active)
                kept = largest(torch.where(mask, weight.detach().abs(), -1.0), active - moving)
                # In mixed precision a gradient may have overflowed; a NaN could not be ranked, and a connection would be lost.
                slopes = weight.grad.abs().nan_to_num(nan=0.0)
                masks[name] = kept | largest(torch.where(kept, -1.0, slopes), moving)
        return masks


def erdos_renyi_kernel(shapes: Sequence[tuple[int, ...]], density: float) -> list[int]:
    r"""How many weights each layer keeps, so that large layers are the sparsest.

    The density of a layer of shape :math:`(d_1, \ldots, d_r)` is proportional to :math:`\sum_i d_i / \prod_i d_i`. Layers for
    which this would exceed 1 stay dense and the others share what is left. Remainders go to the layers that lose most
    by rounding, so that the sum is exact. No layer is left without any: the largest give one to those that would be.

    Args:
        shapes: Shapes of the layers' weights.
        density: Share of all weights that is kept, at least one for each layer.

    Example:
        >>> erdos_renyi_kernel([(2, 3), (100, 50), (100, 150)], 0.1)
        [6, 748, 1247]
    """
    sizes = [math.prod(shape) for shape in shapes]
    total = max(len(shapes), round(density * sum(sizes)))
    full: set[int] = set()
    while True:
        others = [index for index in range(len(shapes)) if index not in full]
        budget = total - sum(sizes[index] for index in full)
        scale = budget / max(1, sum(sum(shapes[index]) for index in others))
        exceeding = {index for index in others if scale * sum(shapes[index]) > sizes[index]}
        if not exceeding:
            break
        full |= exceeding
    wanted = [sizes[index] if index in full else scale * sum(shape) for index, shape in enumerate(shapes)]
    counts = [math.floor(want) for want in wanted]
    by_remainder = sorted(range(len(shapes)), key=lambda index: counts[index] - wanted[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    # A layer without any weight passes nothing on and gets no gradient, so that none could ever be gained.
    for index, count in enumerate(counts):
        if count == 0:
            counts[counts.index(max(counts))] -= 1
            counts[index] = 1
    return counts
