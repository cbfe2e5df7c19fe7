"""What the training loop left in ``runs/NAME/record.json`` and ``timing.json``, read and checked."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewa.sparsity import Count

__all__ = ["FORMAT", "METRICS", "Final", "Layer", "Point", "Run", "read", "scan"]

FORMAT = 1
METRICS = ("accuracy", "loss")
STATUSES = ("running", "finished", "failed")


@dataclass(frozen=True)
class Point:
    """A trained model with the weights up to one threshold set to zero."""

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


@dataclass(frozen=True)
class Final(Point):
    """The model as it would ship, and its file beside the dense one."""

    max_drop: float
    file_bytes: int
    dense_bytes: int


@dataclass(frozen=True)
class Layer:
    """One weight tensor of the final model."""

    name: str
    shape: tuple[int, ...]
    count: Count


@dataclass(frozen=True)
class Histogram:
    """How many weights have each size: ``edges`` are log10|x|, one more than ``counts``; exact zeros apart."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    zeros: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run. What only a finished run has is empty or None before that."""

    folder: Path
    name: str
    status: str
    recipe: Mapping[str, Any]
    metric: str
    method: str
    settings: Mapping[str, Any]
    strength: float | None
    strength_is: str
    seed: int
    command: str
    commit: str
    versions: Mapping[str, Any]
    hardware: Mapping[str, Any]
    numeric: Mapping[str, Any]
    data: Mapping[str, Any]
    prunable: int
    epochs: tuple[Mapping[str, Any], ...]
    epoch_seconds: tuple[float, ...]
    resumed: int
    curve: tuple[Point, ...] = ()
    final: Final | None = None
    layers: tuple[Layer, ...] = ()
    histogram: Histogram | None = None

    @property
    def finished(self) -> bool:
        """Whether it has a curve, and so a place in the tables."""
        return self.status == "finished"


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
        paths: As of :func:`read`.
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
        try:
            record = _load(file)
        except ValueError as error:
            problems.append(f"{file} is left out: {error}")
            continue
        timing: Mapping[str, Any] = {}
        beside = file.with_name("timing.json")
        if beside.exists():
            try:
                timing = _load(beside)
                _seconds(timing)
            except ValueError as error:
                timing = {}
                problems.append(f"{beside} is left out, the times of this run are unknown: {error}")
        try:
            runs.append(_run(file.parent, record, timing))
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


def _seconds(timing: Mapping[str, Any]) -> tuple[tuple[float, ...], int]:
    try:
        return tuple(float(second) for second in timing.get("epoch_seconds", ())), int(timing.get("resumed", 0))
    except (TypeError, ValueError) as error:
        raise ValueError(f"damaged ({error})") from error


def _run(folder: Path, record: Mapping[str, Any], timing: Mapping[str, Any]) -> Run:
    if record.get("format") != FORMAT:
        raise ValueError(f"not a record of a run in format {FORMAT} (its format is {record.get('format')!r})")
    try:
        return _parsed(folder, record, timing)
    except KeyError as error:
        raise ValueError(f"damaged, it has no {error}") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(f"damaged ({error})") from error


def _parsed(folder: Path, record: Mapping[str, Any], timing: Mapping[str, Any]) -> Run:
    status, recipe, method = record["status"], dict(record["recipe"]), record["method"]
    if status not in STATUSES:
        raise ValueError(f"damaged, its status is {status!r} (allowed: {', '.join(STATUSES)})")
    if recipe["metric"] not in METRICS:
        raise ValueError(f"damaged, its metric is {recipe['metric']!r} (allowed: {', '.join(METRICS)})")
    strength = _number(method["strength"])
    seconds, resumed = _seconds(timing)
    shared: dict[str, Any] = {
        "folder": folder,
        "name": str(record["name"]),
        "status": status,
        "recipe": {**recipe, "name": str(recipe["name"])},
        "metric": recipe["metric"],
        "method": str(method["name"]),
        "settings": dict(method["settings"]),
        "strength": None if math.isnan(strength) else strength,
        "strength_is": str(method["strength_is"]),
        "seed": int(record["seed"]),
        "command": str(record.get("command") or "unknown"),
        "commit": str(record.get("commit") or "unknown"),
        "versions": dict(record.get("versions") or {}),
        "hardware": dict(record.get("hardware") or {}),
        "numeric": dict(record["numeric"]),
        "data": dict(record["data"]),
        "prunable": int(record["weights"]["prunable"]),
        "epochs": tuple(dict(epoch) for epoch in record["epochs"]),
        "epoch_seconds": seconds,
        "resumed": resumed,
    }
    if status != "finished":
        return Run(**shared)
    final, histogram = record["final"], record["histogram"]
    counts, edges = tuple(map(int, histogram["counts"])), tuple(map(float, histogram["edges"]))
    if len(edges) != len(counts) + 1:
        raise ValueError(f"damaged, its histogram has {len(counts)} counts and {len(edges)} edges (one more is needed)")
    layers = (Layer(str(layer["name"]), tuple(map(int, layer["shape"])), _count(layer)) for layer in record["layers"])
    return Run(
        **shared,
        curve=tuple(Point(**_point(point)) for point in record["curve"]),
        final=Final(
            **_point(final),
            max_drop=_number(final["max_drop"]),
            file_bytes=int(final["file_bytes"]),
            dense_bytes=int(final["dense_bytes"]),
        ),
        layers=tuple(layers),
        histogram=Histogram(counts, edges, int(histogram["zeros"])),
    )


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    scores = ("validation_loss", "validation_accuracy", "test_loss", "test_accuracy")
    return {
        "threshold": _number(point["threshold"]),
        "prunable": _count(point["prunable"]),
        "model": _count(point["model"]),
        **{score: _number(point.get(score)) for score in scores},
    }


def _count(count: Mapping[str, Any]) -> Count:
    return Count(int(count["total"]), int(count["nonzero"]))


def _number(value: Any) -> float:
    """A float, NaN for what JSON writes as null."""
    return math.nan if value is None else float(value)
