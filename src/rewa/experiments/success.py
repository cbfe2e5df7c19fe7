"""How often ReWA works: shares of runs that find the true weights, beside what the growth condition predicts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from rewa.experiments import designs
from rewa.experiments.designs import Design
from rewa.experiments.linear import FORMS, LARGEST_THRESHOLD, Score, as_numbers, from_numbers, publish, read_record, train
from rewa.experiments.result import How, Result
from rewa.lockstep import Column
from rewa.presets import SYNTHETIC
from rewa.report.panel import Axis, Cell, Heat, Lines, Mark, Panel, Series, Table
from rewa.theory import growth_start

__all__ = ["LOGISTIC", "SUCCESS", "LogisticSuccess", "PaperSuccess", "Success", "predicted"]

CENTRE = (9, 4)  # the paper's K and M, around which the rest is moved


def predicted(column: Column, design: Design) -> float:
    r"""The share of starts from which every true weight grows, by the growth condition.

    A weight starts uniformly between :math:`\pm` scale/:math:`\sqrt d`. In the tied form it must have the sign that its
    gradient wants and be large enough; as a pair, the part with that sign, which is larger by ``start``, must be. For ``M < 1``
    a weight crosses zero.

    Args:
        column: The setting.
        design: The data; the gradient is the one before training, with all weights zero.
    """
    gradient = design.gradient_at_zero()[design.beta != 0].numpy()
    if column.M < 1:
        return 1.0
    bound = column.scale / math.sqrt(design.X.shape[1])
    least = growth_start(gradient, column.K, column.M, lam=column.weight_decay)
    if column.form == "tied":
        return float(np.clip((bound - least) / (2 * bound), 0, 0.5).prod())
    missing = least - column.start
    return float(np.where(missing <= 0, 1.0, np.clip((bound - missing) / (2 * bound), 0, 0.5)).prod())


@dataclass(frozen=True, kw_only=True)
class Success(Result):
    """A study of how often the true weights are found.

    Args:
        name: Name of the files.
        title: Title of the page.
        seeds: Runs of each setting.
        epochs: Passes over the data.
        lr: Learning rate.
        weight_decay: Decay.
        orders: Values of K.
        exponents: Values of M.
        scales: Factors of the initial weights.
        factors: Factors of the learning rate, and of the decay.
    """

    redraws: ClassVar[bool] = True
    quick: bool = True
    name: str
    title: str
    seeds: int = 20
    epochs: int = SYNTHETIC.epochs or 800
    lr: float = SYNTHETIC.lr
    weight_decay: float = SYNTHETIC.weight_decay
    orders: tuple[int, ...] = (3, 5, 9)
    exponents: tuple[int, ...] = (0, 1, 2, 4, 5)
    scales: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    factors: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)

    @abstractmethod
    def design(self) -> Design:
        """The data."""

    @abstractmethod
    def small(self) -> Success:
        """A version that takes seconds."""

    def column(self, K: int, M: int, form: Literal["tied", "pair"]) -> Column:
        """A setting of the map."""
        return Column(K=K, M=M, lr=self.lr, weight_decay=self.weight_decay, form=form)

    def moves(self, form: Literal["tied", "pair"]) -> dict[str, list[tuple[float, Column]]]:
        """The centre of the map with one thing moved: the values and the settings."""
        centre = self.column(*CENTRE, form)
        return {
            "initial scale": [(scale, replace(centre, scale=scale)) for scale in self.scales],
            "learning rate": [(self.lr * factor, replace(centre, lr=self.lr * factor)) for factor in self.factors],
            "weight decay": [
                (self.weight_decay * factor, replace(centre, weight_decay=self.weight_decay * factor))
                for factor in self.factors
            ],
        }

    def columns(self) -> list[Column]:
        """All settings."""
        grid = [self.column(K, M, form) for form in FORMS for K in self.orders for M in self.exponents]
        return grid + [column for form in FORMS for moved in self.moves(form).values() for _, column in moved]

    def run(self, out: Path, how: How) -> list[Path]:
        """Train every setting from every seed and write the maps."""
        study = self.small() if how.quick else self
        how.progress.stage("drawing the data", 1)
        design = study.design()
        how.progress.advance(1)
        if how.trained:
            record = read_record(out, study.name)
            trained = from_numbers(record["trained"])
            shares = {column: each["predicted"] for column, each in zip(trained, record["trained"], strict=True)}
            return study.write(out, design, trained, shares, None)
        columns = [replace(column, loss=design.loss) for column in study.columns()]
        how.progress.stage(f"training {len(set(columns))} settings from {study.seeds} seeds", 1)
        # Success is judged at 1e-3: a thousandth of that is an error that cannot change it.
        drop = LARGEST_THRESHOLD / 1000
        trained = train(
            design,
            columns,
            range(study.seeds),
            epochs=study.epochs,
            drop=drop,
            threads=how.workers,
            progress=how.progress.advance,
        )
        shares = {column: predicted(column, design) for column in trained}
        numbers = {
            "design": design.name,
            "bayes": design.bayes,
            "epochs": study.epochs,
            "drop": drop,
            "trained": [
                {**entry, "predicted": share} for entry, share in zip(as_numbers(trained), shares.values(), strict=True)
            ],
        }
        return study.write(out, design, trained, shares, numbers)

    def write(
        self,
        out: Path,
        design: Design,
        trained: Mapping[Column, Sequence[Score]],
        shares: Mapping[Column, float],
        numbers: Mapping[str, Any] | None,
    ) -> list[Path]:
        """Write the maps; the record only if there are numbers for it."""
        lead = (
            f"{len(design.X):,} samples, {design.X.shape[1]:,} features, {self.epochs} epochs, learning rate {self.lr:g}, "
            f"weight decay {self.weight_decay:g}, {self.seeds} seeds. A run succeeds if the weights above 1e-3 are the true "
            "ones and no others, and the test loss is within 5 % of that of the true coefficients."
        )
        shown = self.panels(trained, shares, design)
        message = self.message(trained, design)
        return publish(out, self.name, title=self.title, message=message, lead=lead, shown=shown, numbers=numbers)

    def message(self, trained: Mapping[Column, Sequence[Score]], design: Design) -> str:
        """How often either form succeeds over the map."""
        shares = {}
        for form in FORMS:
            columns = [replace(self.column(K, M, form), loss=design.loss) for K in self.orders for M in self.exponents]
            runs = [score.recovered for column in columns for score in trained[column]]
            shares[form] = sum(runs) / len(runs)
        return f"As a pair {shares['pair']:.0%} of the runs over K and M succeed, in the paper's form {shares['tied']:.0%}"

    def panels(self, trained: Mapping[Column, Sequence[Score]], shares: Mapping[Column, float], design: Design) -> list[Panel]:
        """The maps, the moves and the starts."""
        shown: list[Panel] = [self.heat(form, trained, shares, design) for form in FORMS]
        shown += [self.moved(name, trained, shares, design) for name in ("initial scale", "learning rate", "weight decay")]
        return [*shown, self.kept(trained, shares, design), self.starts(trained, design)]

    def heat(
        self,
        form: Literal["tied", "pair"],
        trained: Mapping[Column, Sequence[Score]],
        shares: Mapping[Column, float],
        design: Design,
    ) -> Heat:
        """Shares of success over K and M."""
        true = int((design.beta != 0).sum())
        cells, overlay = [], []
        for M in self.exponents:
            row, predictions = [], []
            for K in self.orders:
                column = replace(self.column(K, M, form), loss=design.loss)
                scores, prediction = trained[column], shares[column]
                recovered = sum(score.recovered for score in scores)
                kept = sum(score.found == true for score in scores)
                says = (
                    f"K = {K}, M = {M}, {form}",
                    f"recovered in {recovered} of {len(scores)} runs",
                    f"true weights kept in {kept}; the growth condition predicts {prediction:.0%}",
                    f"median test loss {np.median([score.test_loss for score in scores]):.3f}",
                    f"median of weights above 1e-3: {np.median([score.counts[-1] for score in scores]):g}",
                )
                row.append(Cell(value=recovered / len(scores), text=f"{recovered}/{len(scores)}", says=says))
                predictions.append(prediction)
            cells.append(row)
            overlay.append(predictions)
        return Heat(
            title=FORMS[form],
            caption="Share of runs that recover the true weights and nothing else. Lower strip: the share of starts from which "
            "the growth condition lets the true weights grow; of the others it says nothing, and M = 0 leaves some above 1e-3.",
            x=Axis(label="K", values=self.orders),
            y=Axis(label="M", values=self.exponents),
            cells=cells,
            label="share of runs",
            low=0.0,
            high=1.0,
            reverse=True,
            overlay=overlay,
            overlay_label="predicted by the growth condition",
        )

    def moved(
        self, name: str, trained: Mapping[Column, Sequence[Score]], shares: Mapping[Column, float], design: Design
    ) -> Lines:
        """The share of success when one thing is moved."""
        series = []
        for form in FORMS:
            measured, prediction = [], []
            for value, setting in self.moves(form)[name]:
                column = replace(setting, loss=design.loss)
                runs = trained[column]
                hits = sum(score.recovered for score in runs)
                low, high = wilson(hits, len(runs))
                says = (f"{form}, {name} {value:g}", f"{hits} of {len(runs)} runs", f"predicted {shares[column]:.0%}")
                measured.append(Mark(x=value, y=hits / len(runs), low=low, high=high, says=says))
                prediction.append(Mark(x=value, y=shares[column], low=None, high=None))
            series += [
                Series(label=form, marks=measured, bars=True),
                Series(label=f"{form}, predicted", marks=prediction, dashed=True, markers=False, of=form),
            ]
        K, M = CENTRE
        return Lines(
            title=f"{name}, K = {K} and M = {M}",
            caption=f"Share of {self.seeds} runs that succeed, with 95 % intervals (Wilson). Dashed: the share of starts from "
            "which the growth condition lets the true weights grow, given time; whether the others die it does not say.",
            x=name,
            y="share of runs",
            x_log=True,
            y_range=(0, 1),
            series=series,
        )

    def kept(self, trained: Mapping[Column, Sequence[Score]], shares: Mapping[Column, float], design: Design) -> Table:
        """What success is made of when one thing is moved: true weights kept, others gone, the loss."""
        true = int((design.beta != 0).sum())
        rows = []
        for form in FORMS:
            for name, moved in self.moves(form).items():
                for value, setting in moved:
                    column = replace(setting, loss=design.loss)
                    runs = trained[column]
                    rows.append(
                        [
                            f"{form}, {name} {value:g}",
                            f"{shares[column]:.0%}",
                            f"{sum(score.found == true for score in runs)}/{len(runs)}",
                            f"{sum(score.found == true == score.counts[-1] for score in runs)}/{len(runs)}",
                            f"{sum(score.recovered for score in runs)}/{len(runs)}",
                            f"{np.median([score.test_loss for score in runs]):.3f}",
                        ]
                    )
        K, M = CENTRE
        return Table(
            title=f"K = {K} and M = {M}, one thing moved",
            caption="The prediction is of the third column.",
            header=(
                "setting",
                "predicted to grow",
                "true weights kept",
                "and no others",
                "and the loss: recovered",
                "median loss",
            ),
            rows=rows,
        )

    def starts(self, trained: Mapping[Column, Sequence[Score]], design: Design) -> Table:
        """Where the tied form's first weight started in the runs that kept or lost it, beside the prediction."""
        gradient = float(design.gradient_at_zero()[0])
        rows = []
        for K in self.orders:
            for M in (each for each in self.exponents if each >= 1):
                scores = trained[replace(self.column(K, M, "tied"), loss=design.loss)]
                lost, kept = (
                    [score.start for score in scores if (abs(score.first) > LARGEST_THRESHOLD) is which]
                    for which in (False, True)
                )
                least = float(growth_start(gradient, K, M, lam=self.weight_decay))
                rows.append(
                    [
                        str(K),
                        str(M),
                        f"{least:.2g}",
                        f"{max(lost):+.2g}" if lost else "none",
                        f"{min(kept):+.2g}" if kept else "none",
                    ]
                )
        return Table(
            title="Starts of the first true weight, tied form",
            caption="The growth condition predicts that a start above the third column is kept and one below, or of the wrong "
            "sign, is lost. Kept: above 1e-3 at the end.",
            header=("K", "M", "predicted least start", "largest start lost", "smallest start kept"),
            rows=rows,
        )


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a share.

    Example:
        >>> [round(bound, 3) for bound in wilson(10, 20)]
        [0.299, 0.701]
    """
    share, weight = hits / total, z**2 / total
    centre, half = share + weight / 2, z * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    low, high = (centre - half) / (1 + weight), (centre + half) / (1 + weight)
    return (low if hits else 0.0), (high if hits < total else 1.0)


@dataclass(frozen=True, kw_only=True)
class PaperSuccess(Success):
    """On the paper's data."""

    n: int = 2000
    d: int = 10_000

    def design(self) -> Design:
        """The paper's data."""
        return designs.paper(n=self.n, d=self.d, n_test=self.n)

    def small(self) -> Success:
        """A version that takes seconds."""
        return replace(self, n=100, d=200, epochs=10, seeds=3)


@dataclass(frozen=True, kw_only=True)
class LogisticSuccess(Success):
    """On labels that depend on two features, with coefficients 1 and 0.5."""

    n: int = 2000
    d: int = 1000

    def design(self) -> Design:
        """Two true features."""
        return designs.logistic(seed=0, n=self.n, d=self.d)

    def small(self) -> Success:
        """A version that takes seconds."""
        return replace(self, n=200, d=50, epochs=10, seeds=3)


SUCCESS = PaperSuccess(
    name="success",
    title="How often ReWA finds the one true weight",
    line="how often ReWA recovers the paper's signal: K, M, tied or pair, 20 seeds, and the growth condition's prediction",
)
LOGISTIC = LogisticSuccess(
    name="logistic",
    title="How often ReWA finds two true weights of a logistic regression",
    line="the same on logistic regression, in small",
    epochs=200,
    lr=0.01,
    weight_decay=0.03,
)
