"""Is ReWA ahead of SGD with an l1 penalty? The paper's claim, for every decay and for two schedules of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rewa.experiments import designs
from rewa.experiments.fig2 import table, weights_left
from rewa.experiments.linear import Score, as_numbers, publish, train
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
        schedules: Of the learning rate.
    """

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
        """Train both with both schedules."""
        study = replace(self, n=100, d=200, epochs=10, seeds=2) if how.quick else self
        how.progress.stage("drawing the paper's data", 1)
        design = designs.paper(n=study.n, d=study.d, n_test=study.n)
        how.progress.advance(1)
        settings = study.settings()
        shown: list[Panel] = []
        tables: list[tuple[str, list[Score]]] = []
        numbers: dict[str, Any] = {"n": study.n, "d": study.d, "epochs": study.epochs}
        for schedule in study.schedules:
            how.progress.stage(f"training {len(settings)} settings from {study.seeds} seeds, {schedule} rate", 1)
            trained = train(
                design,
                settings.values(),
                range(study.seeds),
                epochs=study.epochs,
                schedule=schedule,
                progress=how.progress.advance,
                threads=how.workers,
            )
            series = [(label, trained[column]) for label, column in settings.items()]
            rewa, l1 = list(settings)[: len(study.kappas)], list(settings)[len(study.kappas) :]
            beside = dict(zip(l1, rewa, strict=True))
            shown.append(weights_left(f"{schedule} learning rate", series, study.d, beside=beside))
            tables += [(f"{label}, {schedule}", scores) for label, scores in series]
            numbers[schedule] = as_numbers(trained)
        lead = (
            f"The paper's synthetic data, {study.epochs} epochs, {study.seeds} seeds. The number is the decay of a step: "
            "weight decay times learning rate, or for SGD-l1 what a step takes from every weight."
        )
        title = "Is ReWA ahead of SGD with an l1 penalty?"
        return publish(out, "sgd-l1", title=title, lead=lead, shown=[*shown, table(tables)], numbers=numbers)


SGD_L1 = SGDL1()
