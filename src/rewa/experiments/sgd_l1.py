"""Is ReWA ahead of SGD with an l1 penalty? The paper's claim, for every decay and for two schedules of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rewa.experiments import designs
from rewa.experiments.fig2 import table, weights_left
from rewa.experiments.linear import Score, as_numbers, from_numbers, publish, read_record, train
from rewa.experiments.result import How, Result
from rewa.lockstep import Column
from rewa.presets import SYNTHETIC
from rewa.report.panel import Panel

__all__ = ["SGDL1", "SGD_L1"]


@dataclass(frozen=True, kw_only=True)
class SGDL1(Result):
    """Both methods over the decays of Figure 2d.

    Args:
        n: Samples.
        d: Features.
        epochs: Passes over the data.
        seeds: Runs of each setting.
        kappas: Decays of a step, or strengths of the penalty times the learning rate.
        schedules: Schedules of the learning rate.
    """

    redraws: ClassVar[bool] = True
    line: str = "the paper's claim that ReWA is ahead of SGD-l1, over four strengths and with a rate that falls or stays"
    quick: bool = True
    n: int = 2000
    d: int = 10_000
    epochs: int = SYNTHETIC.epochs or 800
    seeds: int = 3
    kappas: tuple[float, ...] = (1e-5, 2.5e-5, 5e-5, 1e-4)
    schedules: tuple[str, ...] = ("cosine", "constant")

    def settings(self) -> dict[str, Column]:
        """What is compared; ReWA as a pair, so that no start has the wrong sign."""
        rewa = Column(K=9, M=2, lr=SYNTHETIC.lr, form="pair")
        l1 = Column(K=1, M=0, lr=SYNTHETIC.lr, form="l1")
        return {
            f"{name}, {kappa:g}": replace(column, weight_decay=kappa / SYNTHETIC.lr)
            for name, column in (("ReWA K=9 M=2", rewa), ("SGD-l1", l1))
            for kappa in self.kappas
        }

    def run(self, out: Path, how: How) -> list[Path]:
        """Train both with both schedules, or draw again what was trained."""
        study = replace(self, n=100, d=200, epochs=10, seeds=2) if how.quick else self
        if how.trained:
            record = read_record(out, "sgd-l1")
            return study.write(out, {schedule: from_numbers(record[schedule]) for schedule in study.schedules}, again=True)
        how.progress.stage("drawing the paper's data", 1)
        design = designs.paper(n=study.n, d=study.d, n_test=study.n)
        how.progress.advance(1)
        settings = study.settings()
        found = {}
        for schedule in study.schedules:
            how.progress.stage(f"training {len(settings)} settings from {study.seeds} seeds, {schedule} rate", 1)
            found[schedule] = train(
                design,
                settings.values(),
                range(study.seeds),
                epochs=study.epochs,
                schedule=schedule,
                progress=how.progress.advance,
                threads=how.workers,
            )
        return study.write(out, found)

    def write(self, out: Path, found: Mapping[str, Mapping[Column, Sequence[Score]]], *, again: bool = False) -> list[Path]:
        """Write the figure from what was trained with each schedule; its record only if it is not drawn again from that."""
        shown: list[Panel] = []
        tables: list[tuple[str, Sequence[Score]]] = []
        for schedule, trained in found.items():
            series = [(label, trained[column]) for label, column in self.settings().items()]
            shown.append(weights_left(f"{schedule} learning rate", series, self.d))
            tables += [(f"{label}, {schedule}", scores) for label, scores in series]
        numbers = {"n": self.n, "d": self.d, "epochs": self.epochs, **{key: as_numbers(each) for key, each in found.items()}}
        lead = (
            f"The paper's synthetic data, {self.epochs} epochs, {self.seeds} seeds. The number is the decay of a step: "
            "weight decay times learning rate, or for SGD-l1 what a step takes from every weight."
        )
        return publish(
            out,
            "sgd-l1",
            title="Is ReWA ahead of SGD with an l1 penalty?",
            message=self.message(found),
            lead=lead,
            shown=[*shown, table(tables)],
            numbers=None if again else numbers,
        )

    def message(self, found: Mapping[str, Mapping[Column, Sequence[Score]]]) -> str:
        """At how many strengths each method recovers the true weight in every run, by schedule."""
        said = []
        for schedule, trained in found.items():
            sure = [all(score.recovered for score in trained[column]) for column in self.settings().values()]
            rewa, l1 = sum(sure[: len(self.kappas)]), sum(sure[len(self.kappas) :])
            said.append(f"with a {schedule} rate at {rewa} by ReWA and {l1} by SGD-l1")
        return f"Of {len(self.kappas)} strengths, the one true weight is recovered in every run {', '.join(said)}"


SGD_L1 = SGDL1()
