"""The record of a training run: what ``record.json`` and ``timing.json`` hold, written by the loop and read by all others.

Each class turns itself into JSON (``to_json``) and back (``from_json``). JSON has no number for what is not finite: a loss that
is not finite and a compression without bound are ``null``. Times are in a file of their own, since the record of a run that
was resumed has the same bytes as that of a run that was left alone.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rewa
from rewa.sparsity import Count, Layer

__all__ = [
    "FORMAT",
    "METRICS",
    "STATUSES",
    "UNKNOWN",
    "BeganWith",
    "Continuation",
    "Epoch",
    "Final",
    "Histogram",
    "NewerFormat",
    "Point",
    "Run",
    "Timing",
    "provenance",
    "read",
    "read_run",
    "scan",
]

FORMAT = 1  # rises when a reader of an older version would misread a record
METRICS = ("accuracy", "loss")
STATUSES = ("running", "finished", "failed")
SCORES = ("validation_loss", "validation_accuracy", "test_loss", "test_accuracy")
UNKNOWN = "unknown"  # a commit where there was no git; null in JSON


class NewerFormat(ValueError):
    """A record was written by a newer version, whose format this one does not know."""


@dataclass(frozen=True)
class Epoch:
    """The metrics after one epoch; accuracies are in per cent."""

    epoch: int
    phase: str  # "train" or "finetune"
    lr: float
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    compression: float  # of the prunable weights, with those near zero taken for zeros

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Epoch:
        """The epoch that a row describes.

        Args:
            row: What :meth:`to_json` made.
        """
        numbers = {key: _number(row[key]) for key in ("lr", "train_loss", "train_accuracy", *SCORES[:2])}
        return cls(
            epoch=int(row["epoch"]), phase=str(row["phase"]), **numbers, compression=_number(row["compression"], math.inf)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, in the order of the fields."""
        return {key: _finite(value) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Point:
    """A trained model cut at one threshold: weights up to it are zero."""

    threshold: float
    prunable: Count
    model: Count
    validation_loss: float
    validation_accuracy: float
    test_loss: float
    test_accuracy: float

    def validation(self, metric: str) -> float:
        """The number that choices are made by.

        Args:
            metric: ``"accuracy"`` or ``"loss"``.
        """
        return self.validation_accuracy if metric == "accuracy" else self.validation_loss

    def test(self, metric: str) -> float:
        """The number that is read once a choice is made.

        Args:
            metric: ``"accuracy"`` or ``"loss"``.
        """
        return self.test_accuracy if metric == "accuracy" else self.test_loss

    @classmethod
    def from_json(cls, point: Mapping[str, Any]) -> Point:
        """The point that a mapping describes.

        Args:
            point: What :meth:`to_json` made.
        """
        return cls(**_point(point))

    def to_json(self) -> dict[str, Any]:
        """Plain values, in the order of the fields."""
        return {
            "threshold": self.threshold,
            "prunable": asdict(self.prunable),
            "model": asdict(self.model),
            **{score: _finite(getattr(self, score)) for score in SCORES},
        }


@dataclass(frozen=True)
class Final(Point):
    """The model as it would ship, and its file beside the dense one."""

    max_drop: float
    file_bytes: int
    dense_bytes: int

    @classmethod
    def from_json(cls, point: Mapping[str, Any]) -> Final:
        """The final model that a mapping describes.

        Args:
            point: What :meth:`to_json` made.
        """
        return cls(
            **_point(point),
            max_drop=_number(point["max_drop"]),
            file_bytes=int(point["file_bytes"]),
            dense_bytes=int(point["dense_bytes"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        sizes = {"file_bytes": self.file_bytes, "dense_bytes": self.dense_bytes}
        return {"max_drop": self.max_drop, **super().to_json(), **sizes}


@dataclass(frozen=True)
class Histogram:
    """How many weights have each size: ``edges`` are log10|x|, one more than ``counts``; exact zeros apart."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    zeros: int

    @classmethod
    def from_json(cls, histogram: Mapping[str, Any]) -> Histogram:
        """The histogram that a mapping describes.

        Args:
            histogram: What :meth:`to_json` made.
        """
        counts, edges = tuple(map(int, histogram["counts"])), tuple(map(float, histogram["edges"]))
        if len(edges) != len(counts) + 1:
            raise ValueError(f"damaged, its histogram has {len(counts)} counts and {len(edges)} edges (one more is needed)")
        return cls(counts, edges, int(histogram["zeros"]))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"counts": list(self.counts), "edges": list(self.edges), "zeros": self.zeros}


@dataclass(frozen=True)
class BeganWith:
    """The run of another strength that trained the first steps, which both have in common."""

    run: str
    steps: int


@dataclass(frozen=True)
class Continuation:
    """Another commit, or other versions, that resumed the run."""

    commit: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Timing:
    """How long a run took, in ``timing.json``: seconds of each epoch, steps done, and how often the run was resumed."""

    epoch_seconds: tuple[float, ...] = ()
    steps: int = 0
    resumed: int = 0

    @classmethod
    def from_json(cls, timing: Mapping[str, Any]) -> Timing:
        """The times that a mapping describes; files written before ``resumed`` was counted do not have it.

        Args:
            timing: What :meth:`to_json` made.
        """
        try:
            seconds = tuple(float(second) for second in timing.get("epoch_seconds", ()))
            return cls(seconds, int(timing.get("steps", 0)), int(timing.get("resumed", 0)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"damaged ({error})") from error

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"epoch_seconds": list(self.epoch_seconds), "steps": self.steps, "resumed": self.resumed}


@dataclass(frozen=True, kw_only=True)
class Run:
    """The record of one training run. What only a finished run has is empty or None before that.

    Settings, versions, hardware and the like are mappings as their owners made them.
    """

    name: str
    status: str
    recipe: Mapping[str, Any]
    method: str
    strength: float | None
    strength_is: str
    settings: Mapping[str, Any]  # of the method
    seed: int
    command: str
    commit: str  # UNKNOWN where there was no git
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    continued_by: tuple[Continuation, ...] = ()
    numeric: Mapping[str, Any]
    data: Mapping[str, Any]
    prunable: int  # number of weights that can become sparse
    parameters: int  # number of all
    began_with: BeganWith | None = None
    epochs: tuple[Epoch, ...] = ()
    reason: str | None = None  # why it failed
    curve: tuple[Point, ...] = ()
    final: Final | None = None
    layers: tuple[Layer, ...] = ()  # of the final model
    histogram: Histogram | None = None  # of the trained weights
    folder: Path = Path()
    timing: Timing = Timing()

    @property
    def finished(self) -> bool:
        """Whether it has a curve, and so a place in the tables."""
        return self.status == "finished"

    @property
    def lr(self) -> float:
        """The learning rate of its recipe."""
        return float(self.recipe["lr"])

    @property
    def metric(self) -> str:
        """``"accuracy"`` or ``"loss"``."""
        return str(self.recipe["metric"])

    def remarks(self) -> list[str]:
        """What a reader of its numbers should know: why it failed, who trained its first steps, and what resumed it."""
        found = [] if self.reason is None else [self.reason]
        if self.began_with is not None:
            found.append(f"its first {self.began_with.steps:,} steps were trained by {self.began_with.run}")
        for other in self.continued_by:
            changed = [f"{name} {version}" for name, version in other.versions.items() if self.versions.get(name) != version]
            now = ", ".join([f"commit {_short(other.commit)}", *changed])
            found.append(f"begun by commit {_short(self.commit)}, resumed by {now}")
        return found

    @classmethod
    def from_json(cls, record: Mapping[str, Any], folder: Path = Path(), timing: Timing = Timing()) -> Run:  # noqa: B008
        """The run that a record describes.

        Args:
            record: What :meth:`to_json` made.
            folder: Where it was found.
            timing: From the file beside it.

        Raises:
            ValueError: If it is damaged, not a record, or in another format.
        """
        _check_format(record)
        try:
            results = _results(record) if record["status"] == "finished" else {}
            return cls(**_shared(record), **results, folder=folder, timing=timing)
        except KeyError as error:
            raise ValueError(f"damaged, it has no {error}") from error
        except (AttributeError, TypeError) as error:
            raise ValueError(f"damaged ({error})") from error

    def to_json(self) -> dict[str, Any]:
        """Plain values, as ``record.json`` has them. What does not apply is left out: a reason, a beginning, results."""
        method = {
            "name": self.method,
            "strength": self.strength,
            "strength_is": self.strength_is,
            "settings": dict(self.settings),
        }
        record: dict[str, Any] = {"format": FORMAT, "name": self.name, "status": self.status, "recipe": dict(self.recipe)}
        record |= {"method": method, "seed": self.seed, "command": self.command, "commit": _known(self.commit)}
        record |= {"versions": dict(self.versions), "hardware": dict(self.hardware)}
        if self.continued_by:
            record["continued_by"] = [
                {"commit": _known(one.commit), "versions": dict(one.versions)} for one in self.continued_by
            ]
        record |= {"numeric": dict(self.numeric), "data": dict(self.data)}
        record["weights"] = {"prunable": self.prunable, "model": self.parameters}
        if self.began_with is not None:
            record["began_with"] = asdict(self.began_with)
        record["epochs"] = [epoch.to_json() for epoch in self.epochs]
        if self.reason is not None:
            record["reason"] = self.reason
        if self.final is not None and self.histogram is not None:
            layers = [{"name": layer.name, "shape": list(layer.shape), **asdict(layer.count)} for layer in self.layers]
            record |= {"curve": [point.to_json() for point in self.curve], "final": self.final.to_json()}
            record |= {"layers": layers, "histogram": self.histogram.to_json()}
        return record


# ------------------------------------------------------------------------------------------------------ from JSON


def _check_format(record: Mapping[str, Any]) -> None:
    found = record.get("format")
    if found == FORMAT:
        return
    if isinstance(found, int) and found > FORMAT:
        raise NewerFormat(
            f"its format is {found}, of a newer rewa, and rewa {rewa.__version__} reads format {FORMAT}: "
            "upgrade with `pip install --upgrade rewa`"
        )
    raise ValueError(f"not a record of a run in format {FORMAT} (its format is {found!r})")


def _shared(record: Mapping[str, Any]) -> dict[str, Any]:
    """What every run has."""
    recipe, method, began = record["recipe"], record["method"], record.get("began_with")
    for what, value, allowed in (("status", record["status"], STATUSES), ("metric", recipe["metric"], METRICS)):
        if value not in allowed:
            raise ValueError(f"damaged, its {what} is {value!r} (allowed: {', '.join(allowed)})")
    return {
        "name": str(record["name"]),
        "status": record["status"],
        "recipe": {**recipe, "name": str(recipe["name"])},
        "method": str(method["name"]),
        "strength": None if method["strength"] is None else float(method["strength"]),
        "strength_is": str(method["strength_is"]),
        "settings": dict(method["settings"]),
        "seed": int(record["seed"]),
        "command": str(record["command"]),
        "commit": str(record["commit"] or UNKNOWN),
        "versions": dict(record["versions"]),
        "hardware": dict(record["hardware"]),
        "continued_by": tuple(
            Continuation(str(one["commit"] or UNKNOWN), dict(one["versions"])) for one in record.get("continued_by", ())
        ),
        "numeric": dict(record["numeric"]),
        "data": dict(record["data"]),
        "prunable": int(record["weights"]["prunable"]),
        "parameters": int(record["weights"]["model"]),
        "began_with": BeganWith(str(began["run"]), int(began["steps"])) if began else None,
        "epochs": tuple(Epoch.from_json(row) for row in record["epochs"]),
        "reason": record.get("reason"),
    }


def _results(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a finished run has."""
    return {
        "curve": tuple(Point.from_json(point) for point in record["curve"]),
        "final": Final.from_json(record["final"]),
        "layers": tuple(
            Layer(str(layer["name"]), tuple(map(int, layer["shape"])), _count(layer), None, None) for layer in record["layers"]
        ),
        "histogram": Histogram.from_json(record["histogram"]),
    }


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "threshold": float(point["threshold"]),
        "prunable": _count(point["prunable"]),
        "model": _count(point["model"]),
        **{score: _number(point[score]) for score in SCORES},
    }


def _count(count: Mapping[str, Any]) -> Count:
    return Count(int(count["total"]), int(count["nonzero"]))


def _number(value: Any, null: float = math.nan) -> float:
    return null if value is None else float(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _known(commit: str) -> str | None:
    return None if commit == UNKNOWN else commit


def _short(commit: str) -> str:
    digits, mark, _ = commit.partition("+changes")
    return digits[:10] + mark


# ------------------------------------------------------------------------------------------------------ from files


def read_run(folder: Path) -> Run | None:
    """The record of the run in a folder; None if there is none.

    Args:
        folder: The folder of the run.

    Raises:
        ValueError: If it is damaged, not a record, or in another format.
    """
    file = folder / "record.json"
    return Run.from_json(_load(file), folder) if file.exists() else None


def read(paths: Sequence[Path] | Path) -> list[Run]:
    """Read runs, and warn of each record that cannot be used.

    Args:
        paths: Folders of runs, folders that hold such folders at any depth, or ``record.json`` files.

    Returns:
        The runs, ordered by folder.

    Raises:
        FileNotFoundError: If a path does not exist, or no record is found.
        ValueError: If there are records but none can be used.
    """
    runs, problems = scan(paths)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return runs


def scan(paths: Sequence[Path] | Path) -> tuple[list[Run], list[str]]:
    """The runs that can be used, and a sentence about each file that cannot.

    Args:
        paths: What :func:`read` takes.
    """
    files: set[Path] = set()
    given = [paths] if isinstance(paths, Path) else list(paths)
    for path in given:
        if not path.exists():
            raise FileNotFoundError(f"there is no {str(path)!r}: name the folder that holds the runs")
        files |= {path} if path.is_file() else set(path.rglob("record.json"))
    if not files:
        places = ", ".join(repr(str(path)) for path in given)
        raise FileNotFoundError(f"no record.json in {places or 'an empty list of paths'}: name the folder that holds the runs")
    runs, problems = [], []
    for file in sorted(files):
        beside, timing = file.with_name("timing.json"), Timing()
        try:
            record = _load(file)
        except ValueError as error:
            problems.append(f"{file} is left out: {error}")
            continue
        if beside.exists():
            try:
                timing = Timing.from_json(_load(beside))
            except ValueError as error:
                problems.append(f"{beside} is left out, the times of this run are unknown: {error}")
        try:
            runs.append(Run.from_json(record, file.parent, timing))
        except ValueError as error:
            problems.append(f"{file} is left out: {error}")
    if not runs:
        raise ValueError("no run can be used: " + "; ".join(problems))
    return runs, problems


def _load(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise ValueError(f"damaged, not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError("not a record: a JSON object is needed")
    return content


# ------------------------------------------------------------------------------------------------------ provenance


def provenance() -> dict[str, Any]:
    """The command, commit, versions and hardware behind a result.

    Example:
        >>> provenance()["versions"]["rewa"] == rewa.__version__
        True
    """
    return {
        "command": _command(sys.orig_argv),
        "commit": _commit(),
        "versions": {
            "rewa": rewa.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "machine": platform.machine(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }


def _command(words: list[str]) -> str:
    """As a person would type it anywhere: without the folder of the interpreter or of the installed script.

    >>> _command(["/opt/bin/python3", "/opt/bin/rewa", "train", "digits"])
    'rewa train digits'
    >>> _command(["/opt/bin/python3", "-m", "rewa", "train"])
    'python -m rewa train'
    """
    rest = words[1:]
    return " ".join(["rewa", *rest[1:]] if rest and Path(rest[0]).name == "rewa" else ["python", *rest])


def _commit() -> str | None:
    """The commit of the source tree, marked if anything but results changed since; None where there is no git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
