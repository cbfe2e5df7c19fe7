"""Gradual magnitude pruning: the smallest weights are dropped bit by bit while the others train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rewa.cutting import cubic, global_masks
from rewa.methods.masks import BoundMasked, Masked
from rewa.methods.method import Bound, Plan

__all__ = ["GMP"]


@dataclass(frozen=True, kw_only=True)
class GMP(Masked):
    r"""Gradual magnitude pruning: the share of zeros rises by a cubic law, and the smallest weights of all layers are dropped.

    With t the time since ``begin``, as a share of that between ``begin`` and ``end``,

    .. math:: s_t = s_f\,(1 - (1 - t)^3), \qquad m_i = [\,|x_i| \text{ is among the } (1 - s_t)\,N \text{ largest}\,].

    What was dropped stays at zero.

    Args:
        strength: Share of zeros :math:`s_f` in the end.
        on: What trains the others.
        begin: Where pruning begins, as a share of the run.
        end: Where it ends.
        every: Steps between two cuts; by default a hundredth of the run.

    References:
        Zhu and Gupta, "To prune, or not to prune: Exploring the efficacy of pruning for model compression", ICLR workshop 2018;
        the cut is over all layers at once.
    """

    name: ClassVar[str] = "gmp"
    line: ClassVar[str] = "drop the smallest weights bit by bit (gradual magnitude pruning)"
    paper: ClassVar[str] = "Zhu and Gupta, 2017"

    begin: float = 0.2
    end: float = 0.8
    every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.begin <= self.end <= 1:
            raise ValueError(f"Invalid begin and end: {self.begin}, {self.end} (allowed: 0 <= begin <= end <= 1)")
        if self.every is not None and self.every < 1:
            raise ValueError(f"Invalid every: {self.every} (allowed: a whole number of steps >= 1, or None)")

    def alike_for(self, plan: Plan) -> int:
        """Up to the first cut."""
        return self._cuts(plan.steps)[0]

    def _cuts(self, steps: int) -> tuple[int, int]:
        """The steps of the first cut and of the last."""
        # A run that is cut to the end must still train one step with its last masks.
        end = min(round(self.end * steps), steps - 1)
        return min(round(self.begin * steps), end), end

    def zeros_at(self, step: int, steps: int) -> float | None:
        """The share of zeros from this step on, or None where nothing changes.

        Args:
            step: Steps done so far.
            steps: Steps of the run.
        """
        begin, end = self._cuts(steps)
        if step == end:
            return self.chosen
        if not begin <= step < end or (step - begin) % (self.every or max(1, steps // 100)):
            return None
        return self.chosen * cubic((step - begin) / (end - begin))

    def _bound(self) -> type[Bound[Any]]:
        return BoundGMP


class BoundGMP(BoundMasked[GMP]):
    """Gradual magnitude pruning at work."""

    def masks_before_forward(self, step: int) -> dict[str, Tensor] | None:
        """The largest weights of all layers."""
        zeros = self.method.zeros_at(step, self.plan.steps)
        if zeros is None:
            return None
        # Where weights became zero by themselves they tie with the dropped ones, which must not come back for that.
        return {name: mask & self.masks[name] for name, mask in global_masks(self.weights, zeros).items()}
