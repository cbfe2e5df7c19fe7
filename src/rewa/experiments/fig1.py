"""Figure 1 of the paper: the test loss for every K and M, in the paper's form and as a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rewa.experiments.linear import FORMS, PaperStudy, Score, mean_sd
from rewa.lockstep import Column
from rewa.presets import SYNTHETIC
from rewa.report.panel import Axis, Cell, Heat, Panel
from rewa.theory import effective_p

__all__ = ["FIG1", "Fig1"]


@dataclass(frozen=True, kw_only=True)
class Fig1(PaperStudy):
    """The map of K and M.

    Args:
        orders: Values of K.
        exponents: Values of M; only those below K are trained.
    """

    orders: tuple[int, ...] = (3, 5, 7, 9, 11, 13)
    exponents: tuple[int, ...] = (0, 2, 4, 6, 8, 10)

    def columns(self) -> list[Column]:
        """Every K and M < K in both forms, with the paper's rate and decay."""
        return [self.column(K, M, form) for form in FORMS for K in self.orders for M in self.exponents if M < K]

    @staticmethod
    def column(K: int, M: int, form: Literal["tied", "pair"]) -> Column:
        """One cell."""
        return Column(K=K, M=M, lr=SYNTHETIC.lr, weight_decay=SYNTHETIC.weight_decay, form=form)

    def panels(self, trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score]) -> list[Panel]:
        """One heat map for each form."""
        captions = {
            "tied": "Near 2 the true weight was lost: its start had the wrong sign, or was too small to grow. All cells share "
            "the same starts, one for each seed.",
            "pair": "The same starts, rates and decay. A pair has no wrong sign; near 2 the start was too small to grow.",
        }
        shown: list[Panel] = []
        for form, title in FORMS.items():
            cells = [[self.cell(trained.get(self.column(K, M, form)), K, M) for K in self.orders] for M in self.exponents]
            shown.append(
                Heat(
                    title=title,
                    caption=f"Test loss, mean and standard deviation of {self.seeds} seeds; 1 is the best possible, 2 the loss "
                    f"of predicting nothing. {captions[form]} White: M > K - 1, not trained.",
                    x=Axis(label="K", values=self.orders),
                    y=Axis(label="M", values=self.exponents),
                    cells=cells,
                    label="test loss",
                    low=1.0,
                    high=2.0,
                )
            )
        return shown

    def message(self, trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score]) -> str:
        """How many settings find the true weight from every start, in either form."""
        found = {form: 0 for form in FORMS}
        cells = [(K, M) for K in self.orders for M in self.exponents if M < K]
        for form in FORMS:
            found[form] = sum(all(score.recovered for score in trained[self.column(K, M, form)]) for K, M in cells)
        return (
            f"As a pair, {found['pair']} of {len(cells)} settings of K and M find the one true weight, and no other, from "
            f"every start; in the paper's form {found['tied'] or 'none'} {'does' if found['tied'] < 2 else 'do'}"
        )

    @staticmethod
    def cell(scores: Sequence[Score] | None, K: int, M: int) -> Cell:
        """A cell, blank where nothing was trained."""
        if scores is None:
            return Cell(value=None, text="")
        mean, sd = mean_sd(score.test_loss for score in scores)
        recovered = sum(score.recovered for score in scores)
        left = [score.counts[-1] for score in scores]
        says = (
            f"K = {K}, M = {M}: p = {effective_p(K, M):.2f}",
            f"test loss {mean:.3f} ± {sd:.3f}",
            f"recovered in {recovered} of {len(scores)} runs",
            f"weights above 1e-3: {', '.join(map(str, left))}",
        )
        return Cell(value=mean, text=f"{mean:.2f}\n±{sd:.2f}", says=says)


FIG1 = Fig1(
    name="fig1",
    title="Figure 1: which K and M find the one true weight",
    line="the paper's Figure 1, test loss over K and M on the synthetic data, tied and as a pair",
)
