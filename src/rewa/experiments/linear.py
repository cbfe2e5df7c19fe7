"""What the studies of linear models share: training many settings on a design, scoring each, and publishing the figures."""

from __future__ import annotations

import json
import math
import statistics
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rewa import sparsity
from rewa.experiments import designs
from rewa.experiments.designs import Design
from rewa.experiments.result import How, Result
from rewa.files import write_atomically
from rewa.lockstep import Column, fit
from rewa.presets import SYNTHETIC
from rewa.record import provenance
from rewa.report import files
from rewa.report.panel import Panel

__all__ = [
    "FORMS",
    "KAPPA",
    "LARGEST_THRESHOLD",
    "THRESHOLDS",
    "PaperStudy",
    "Score",
    "as_numbers",
    "from_numbers",
    "lasso_scores",
    "mean_sd",
    "publish",
    "read_record",
    "score",
    "to_score",
    "train",
]

# Appendix "Synthetic Dataset": below which magnitude a weight counts as zero.
THRESHOLDS = (1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3)
LARGEST_THRESHOLD = THRESHOLDS[-1]
KAPPA = SYNTHETIC.lr * SYNTHETIC.weight_decay  # 5e-5, the decay of a step, which the paper prints as its lambda
NEAR_BAYES = 1.05
FORMS: dict[Literal["tied", "pair"], str] = {
    "tied": "the paper's form, x = sign(y)|y|^K",
    "pair": "as a pair, x = |u|^K - |v|^K",
}


@dataclass(frozen=True, kw_only=True)
class Score:
    """What became of one model.

    Args:
        seed: Seeds its start and the order of its batches.
        counts: Weights above each of the thresholds.
        test_loss: On the test data.
        recovered: Whether the weights above the largest threshold are exactly the true ones and the test loss is within 5 %
            of that of the true coefficients on the same test data.
        start: Where the first weight started.
        found: True weights above the largest threshold.
        error: Distance to the true coefficients.
        first: Where the first weight ended; it is a true one.
    """

    seed: int
    counts: tuple[int, ...]
    test_loss: float
    recovered: bool
    start: float
    found: int
    error: float
    first: float


def score(design: Design, coef: Tensor, bias: Tensor | float, *, seed: int = 0, start: float = 0.0) -> Score:
    """Score one model.

    Args:
        design: The data it was trained on.
        coef: Its weights.
        bias: Its bias.
        seed: The seed of its run.
        start: Where its first weight started.
    """
    true = design.beta != 0
    chosen = coef.abs() > LARGEST_THRESHOLD
    loss = float(design.test_loss(coef, bias))
    return Score(
        seed=seed,
        counts=tuple(sparsity.count([coef], threshold).nonzero for threshold in THRESHOLDS),
        test_loss=loss,
        recovered=bool(torch.equal(chosen, true)) and loss <= NEAR_BAYES * design.realised,
        start=start,
        found=int((chosen & true).sum()),
        error=float((coef - design.beta).norm()),
        first=float(coef[0]),
    )


def train(
    design: Design,
    columns: Iterable[Column],
    seeds: Sequence[int],
    *,
    epochs: int,
    schedule: str = "cosine",
    drop: float | None = 1e-8,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[Column, list[Score]]:
    """Train every setting from every seed, which decides the start and the order of the batches.

    Args:
        design: The data.
        columns: The settings; their own seeds are replaced.
        seeds: One run of each setting for each.
        epochs: Passes over the data.
        schedule: Schedule of the learning rate.
        drop: As in :func:`rewa.lockstep.fit`.
        threads: As in :func:`rewa.lockstep.fit`.
        progress: Called with shares of the work, 1 in all.
    """
    settings = list(dict.fromkeys(replace(column, seed=0, loss=design.loss) for column in columns))
    result: dict[Column, list[Score]] = {setting: [] for setting in settings}
    for seed in seeds:
        seeded = [replace(setting, seed=seed) for setting in settings]
        done = fit(
            design.X,
            design.y,
            seeded,
            epochs=epochs,
            batch_size=SYNTHETIC.batch_size or 25,
            seed=seed,
            schedule=schedule,
            drop=drop,
            threads=threads,
            progress=(lambda share: progress(share / len(seeds))) if progress else None,
        )
        starts = [float(column.initial(design.X.shape[1])[0][0]) for column in seeded]
        for setting, coef, bias, start in zip(settings, done.coef, done.bias, starts, strict=True):
            result[setting].append(score(design, coef, bias, seed=seed, start=start))
    return result


def lasso_scores(design: Design, seeds: Sequence[int], *, threads: int | None = None) -> list[Score]:
    """The lasso of scikit-learn's ``LassoCV``; the seed shuffles its folds.

    Args:
        design: The data.
        seeds: One fit for each.
        threads: Folds at a time; all cores by default.
    """
    fits = [designs.lasso(design, seed=seed, n_jobs=threads or -1) for seed in seeds]
    return [score(design, one.coef, one.intercept, seed=seed) for seed, one in zip(seeds, fits, strict=True)]


def mean_sd(values: Iterable[float]) -> tuple[float, float]:
    """The mean and the standard deviation (n - 1; 0 for one value).

    Example:
        >>> mean_sd([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    values = list(values)
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def publish(
    out: Path,
    name: str,
    *,
    title: str,
    lead: str,
    shown: Sequence[Panel],
    numbers: Mapping[str, Any] | None,
    message: str = "",
    columns: int | None = None,
) -> list[Path]:
    """Write figures, page and tables of a study, and ``NAME.json`` with the numbers behind them and their origin.

    Args:
        out: The folder.
        name: Name of the files.
        title: What the page says at its top.
        lead: The sentence below.
        shown: The panels.
        numbers: The numbers; None if the record has them already, which is then left as it is.
        message: What was found, in a sentence.
        columns: Panels side by side in the figure.
    """
    origin = provenance()
    record = out / f"{name}.json"
    if numbers is None:
        kept = json.loads(record.read_text())
        origin = {key: kept[key] for key in origin if key in kept}
    else:
        write_atomically(record, json.dumps(_finite({**origin, **numbers}), allow_nan=False))
    written = files.publish(
        out, name, title=title, message=message, lead=lead, panels=shown, provenance=origin, columns=columns
    )
    return [*written, record]


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for: a run that diverged must not cost the record of the others."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_record(out: Path, name: str) -> dict[str, Any]:
    """What an earlier run of a study left, to draw it again.

    Args:
        out: The folder.
        name: Name of the files.
    """
    record = out / f"{name}.json"
    if not record.exists():
        raise ValueError(f"there is no {record}, from which --trained would draw: leave out --trained")
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def from_numbers(found: Iterable[Mapping[str, Any]]) -> dict[Column, list[Score]]:
    """Every run by its setting, from a record: the inverse of :func:`as_numbers`.

    Args:
        found: The runs of the record.
    """
    return {Column(**each["setting"]): [to_score(run) for run in each["runs"]] for each in found}


def to_score(run: Mapping[str, Any]) -> Score:
    """A score of a record, with NaN for what JSON has no number for."""
    values: dict[str, Any] = {field.name: math.nan if run[field.name] is None else run[field.name] for field in fields(Score)}
    return Score(**values | {"counts": tuple(run["counts"])})


def as_numbers(trained: Mapping[Column, Sequence[Score]]) -> list[dict[str, Any]]:
    """Every run with its setting, for a record."""
    named = [field.name for field in fields(Column) if field.name != "seed"]
    return [
        {"setting": {name: getattr(column, name) for name in named}, "runs": [asdict(score) for score in scores]}
        for column, scores in trained.items()
    ]


@dataclass(frozen=True, kw_only=True)
class PaperStudy(Result):
    """A figure on the paper's synthetic data: the settings it needs and the panels it shows.

    Args:
        n: Samples.
        d: Features.
        epochs: Passes over the data.
        seeds: Runs of each setting.
    """

    redraws: ClassVar[bool] = True
    quick: bool = True
    n: int = 2000
    d: int = 10_000
    epochs: int = SYNTHETIC.epochs or 800
    seeds: int = 3
    name: str
    title: str
    lasso: bool = False

    @abstractmethod
    def columns(self) -> list[Column]:
        """The settings to train."""

    @abstractmethod
    def panels(self, trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score]) -> list[Panel]:
        """What is shown."""

    @abstractmethod
    def message(self, trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score]) -> str:
        """What was found, in a sentence."""

    def lead(self) -> str:
        """What was done, in a sentence."""
        return (
            f"Linear regression with one true feature of {self.d:,}, {self.n:,} samples and noise of variance 1; {self.epochs} "
            f"epochs of SGD in batches of {SYNTHETIC.batch_size}, learning rate {SYNTHETIC.lr:g} (cosine), {self.seeds} seeds."
        )

    def small(self) -> PaperStudy:
        """A version that takes seconds."""
        return replace(self, n=100, d=200, epochs=10, seeds=2)

    def run(self, out: Path, how: How) -> list[Path]:
        """Train what the figure needs and write it."""
        study = self.small() if how.quick else self
        if how.trained:
            record = read_record(out, study.name)
            return study.write(out, from_numbers(record["trained"]), [to_score(run) for run in record["lasso"]], again=True)
        trained, lasso = study.trained(study.columns(), how, lasso=study.lasso)
        return study.write(out, trained, lasso)

    def trained(self, columns: Sequence[Column], how: How, *, lasso: bool) -> tuple[dict[Column, list[Score]], list[Score]]:
        """Train settings on the paper's data, and the lasso if asked for."""
        how.progress.stage("drawing the paper's data", 1)
        design = designs.paper(n=self.n, d=self.d, n_test=self.n)
        how.progress.advance(1)
        settings = len(set(columns))
        how.progress.stage(f"training {settings} settings from {self.seeds} seeds", 1)
        trained = train(
            design, columns, range(self.seeds), epochs=self.epochs, progress=how.progress.advance, threads=how.workers
        )
        scores = []
        if lasso:
            how.progress.stage("cross-validating the lasso", self.seeds)
            for seed in range(self.seeds):
                scores += lasso_scores(design, [seed], threads=how.workers)
                how.progress.advance(1)
        return trained, scores

    def write(
        self, out: Path, trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score], *, again: bool = False
    ) -> list[Path]:
        """Write the figure from what was trained; its record only if it is not drawn again from that."""
        mine = {column: trained[column] for column in self.columns()}
        scores = lasso if self.lasso else ()
        settings = {"n": self.n, "d": self.d, "epochs": self.epochs, "thresholds": THRESHOLDS}
        numbers = {**settings, "trained": as_numbers(mine), "lasso": [asdict(score) for score in scores]}
        shown = self.panels(mine, scores)
        return publish(
            out,
            self.name,
            title=self.title,
            message=self.message(mine, scores),
            lead=self.lead(),
            shown=shown,
            numbers=None if again else numbers,
        )
