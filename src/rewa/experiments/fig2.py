"""Figure 2 of the paper: how many weights are left above a threshold, by algorithm, K, M and weight decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rewa.experiments.linear import KAPPA, THRESHOLDS, PaperStudy, Score, mean_sd
from rewa.lockstep import Column
from rewa.presets import SYNTHETIC
from rewa.report.panel import Lines, Mark, Panel, Series, Table

__all__ = ["FIG2A", "FIG2B", "FIG2C", "FIG2D", "Fig2", "table", "weights_left"]


@dataclass(frozen=True, kw_only=True)
class Fig2(PaperStudy):
    """One of the four panels.

    Args:
        settings: What is compared: label and setting, in the paper's form.
    """

    settings: tuple[tuple[str, Column], ...]

    def columns(self) -> list[Column]:
        """The settings, and as pairs the ones that can be."""
        return [column for _, column in self.settings] + [column for _, column in self.pairs()]

    def pairs(self) -> list[tuple[str, Column]]:
        """The same settings as pairs; K = 1 has nothing to gain from it."""
        return [(f"{label}, pair", replace(column, form="pair")) for label, column in self.settings if column.K > 1]

    def panels(self, trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score]) -> list[Panel]:
        """Weights left in the paper's form and as pairs, and what the lines do not show: the test loss."""
        rivals = [(label, column) for label, column in self.settings if column.K == 1]
        tied = [(label, trained[column]) for label, column in self.settings]
        pair = [(label, trained[column]) for label, column in [*self.pairs(), *rivals]]
        extra = [("Lasso", lasso)] if lasso else []
        return [
            weights_left("the paper's form", [*tied, *extra], self.d),
            weights_left("as pairs", [*pair, *extra], self.d),
            table([*tied, *pair[: len(pair) - len(rivals)], *extra]),
        ]

    def message(self, trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score]) -> str:
        """Which settings find the true weight, and no other, in every run."""
        named = [(label, trained[column]) for label, column in [*self.settings, *self.pairs()]]
        named += [("Lasso", lasso)] if lasso else []
        sure = [label for label, scores in named if all(score.recovered for score in scores)]
        if len(sure) < 2:
            who = f"only one, {sure[0]}," if sure else "none"
            return f"Of {len(named)} settings {who} recovers the one true weight, and no other, in every run"
        return (
            f"{len(sure)} of {len(named)} settings recover the one true weight, and no other, in every run: {'; '.join(sure)}"
        )


def weights_left(title: str, series: Sequence[tuple[str, Sequence[Score]]], d: int) -> Lines:
    """Weights above each threshold.

    Args:
        title: Title of the panel.
        series: Labels and the runs of each.
        d: Number of weights.
    """
    return Lines(
        title=title,
        caption=f"Weights above a threshold, of {d:,}; mean of {len(series[0][1])} seeds, band: one standard deviation.",
        x="threshold",
        y="weights left",
        x_log=True,
        y_log=True,
        y_range=(0, d),
        series=[Series(label=label, marks=_marks(scores), method=_method(label)) for label, scores in series],
    )


def _method(label: str) -> str | None:
    """The method that a line stands for, None where the lines are settings of one."""
    if label.startswith(("SGD-l1", "Lasso", "ReWA")):
        return label
    return "SGD-l1" if label.endswith(", l1") else None


def _marks(scores: Sequence[Score]) -> list[Mark]:
    shown = []
    for index, threshold in enumerate(THRESHOLDS):
        counts = [score.counts[index] for score in scores]
        mean, sd = mean_sd(counts)
        says = (f"above {threshold:g}: {mean:,.1f} ± {sd:,.1f}", f"by seed: {', '.join(map(str, counts))}")
        shown.append(Mark(x=threshold, y=mean, low=max(mean - sd, 0.0), high=mean + sd, says=says))
    return shown


def table(series: Sequence[tuple[str, Sequence[Score]]]) -> Table:
    """What the lines do not show: the test loss, and whether the true weight was found.

    Args:
        series: Labels and the runs of each.
    """
    rows = []
    for label, scores in series:
        loss, sd = mean_sd(score.test_loss for score in scores)
        counts = [mean_sd(score.counts[THRESHOLDS.index(each)] for score in scores)[0] for each in (1e-7, 1e-5, 1e-3)]
        recovered = f"{sum(score.recovered for score in scores)}/{len(scores)}"
        rows.append([label, f"{loss:.3f} ± {sd:.3f}", recovered, *(f"{count:,.1f}" for count in counts)])
    return Table(
        title="What the lines do not show",
        caption="Means and standard deviations over the seeds: of start and order of the batches, for the lasso of its folds; "
        "the data are the same. Recovered: above 1e-3 there is the true weight and no other, and the test loss is within 5 % "
        "of that of the true coefficients. Few weights are worth nothing when the true one is lost.",
        header=("method", "test loss", "recovered", "weights above 1e-7", "above 1e-5", "above 1e-3"),
        rows=rows,
    )


def _rewa(K: int, M: int, kappa: float = KAPPA) -> Column:
    """A setting as the appendix prints it; its lambda is the decay of a step."""
    return Column(K=K, M=M, lr=SYNTHETIC.lr, weight_decay=kappa / SYNTHETIC.lr)


SGD_L1 = replace(_rewa(1, 0), form="l1")

FIG2A = Fig2(
    name="fig2a",
    title="Figure 2a: weights left by ReWA, SGD with an l1 penalty, and the lasso",
    line="the paper's Figure 2a, sparsity of ReWA, SGD-l1 and Lasso on the synthetic data",
    lasso=True,
    settings=(("ReWA K=9 M=5", _rewa(9, 5)), ("SGD-l1", SGD_L1)),
)
FIG2B = Fig2(
    name="fig2b",
    title="Figure 2b: weights left by K",
    line="the paper's Figure 2b, sparsity by K",
    settings=(
        *((f"K={K} M={M}", _rewa(K, M)) for K, M in ((9, 5), (7, 4), (5, 2), (3, 0))),
        ("K=1 M=0, l1", SGD_L1),
        ("K=1 M=0, decay", _rewa(1, 0)),
    ),
)
FIG2C = Fig2(
    name="fig2c",
    title="Figure 2c: weights left by M, for K = 9",
    line="the paper's Figure 2c, sparsity by M",
    settings=tuple((f"M={M}", _rewa(9, M)) for M in (0, 2, 5)),
)
FIG2D = Fig2(
    name="fig2d",
    title="Figure 2d: weights left by weight decay, for K = 9 and M = 5",
    line="the paper's Figure 2d, sparsity by weight decay",
    settings=tuple((f"decay {kappa:g} a step", _rewa(9, 5, kappa)) for kappa in (1e-5, 2.5e-5, 5e-5, 1e-4)),
)
