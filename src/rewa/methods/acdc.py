"""AC/DC: phases with the largest weights only take turns with phases in which all are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rewa.cutting import global_masks
from rewa.methods.masks import BoundMasked, Masked
from rewa.methods.method import Bound

__all__ = ["ACDC"]


@dataclass(frozen=True, kw_only=True)
class ACDC(Masked):
    r"""Alternating compressed and decompressed training.

    After a dense warm-up, a compressed phase keeps the :math:`(1-s)N` largest :math:`|x|` of all layers as they are at its
    start, :math:`m_i = [\,|x_i| \text{ is among them}\,]`; the decompressed phase after it trains everything,
    :math:`m_i = 1`, and so on with equal lengths. The last compressed phase is longer. All momentum is reset
    at each decompression. Weights come back at zero in dense training, and under ReWA as
    :class:`~rewa.methods.masks.Masked` says.

    Args:
        strength: Share of zeros s in the compressed phases.
        on: What trains the weights.
        dense_start: Length of the dense warm-up, as a share of the run.
        phase: Length of each phase; changed a little, so that whole pairs of phases fit.
        final: Length of the last compressed phase.

    References:
        Peste et al., "AC/DC: Alternating compressed/decompressed training of deep neural networks", NeurIPS 2021.
    """

    name: ClassVar[str] = "acdc"
    line: ClassVar[str] = "phases with the largest weights only, and phases with all (AC/DC)"
    paper: ClassVar[str] = "Peste et al., NeurIPS 2021"

    dense_start: float = 0.1
    phase: float = 0.05
    final: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.dense_start >= 0 and self.final > 0 and self.dense_start + self.final <= 1 and self.phase > 0):
            raise ValueError(
                f"Invalid dense_start, phase and final: {self.dense_start}, {self.phase}, {self.final} "
                "(allowed: shares of the run, the last two above 0, the first and the last at most 1 together)"
            )

    def is_compressed(self, step: int, steps: int) -> bool:
        """Whether a step belongs to a compressed phase.

        Args:
            step: Steps done so far.
            steps: Steps of the run.
        """
        last = min(round((1 - self.final) * steps), steps - 1)
        first = min(round(self.dense_start * steps), last)
        if step < first or step >= last:
            return step >= last
        pairs = max(1, min(round((last - first) / (2 * self.phase * steps)), (last - first) // 2))
        return (step - first) * 2 * pairs // (last - first) % 2 == 0

    def _bound(self) -> type[Bound[Any]]:
        return BoundACDC


class BoundACDC(BoundMasked[ACDC]):
    """AC/DC at work."""

    def _is_compressed(self, step: int) -> bool:
        return self.method.is_compressed(step, self.plan.steps)

    def masks_before_forward(self, step: int) -> dict[str, Tensor] | None:
        """At the start of a compressed phase: the largest weights."""
        begins = self._is_compressed(step) and not (step > 0 and self._is_compressed(step - 1))
        return global_masks(self.weights, self.method.chosen) if begins else None

    def masks_before_step(self, step: int) -> dict[str, Tensor] | None:
        """At the start of a decompressed phase: everything."""
        if step == 0 or self._is_compressed(step) or not self._is_compressed(step - 1):
            return None
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                self._reset_momentum(param, torch.ones_like(param, dtype=torch.bool))
        return {name: torch.ones_like(mask) for name, mask in self.masks.items()}
