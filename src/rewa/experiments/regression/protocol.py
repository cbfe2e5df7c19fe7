"""The protocol: what is measured, each in a process of its own with one thread, and the record that is made of it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from rewa.experiments.regression.contenders import CONTENDERS, CONTEST
from rewa.experiments.regression.designs import DATA_SETS, DESIGNS
from rewa.experiments.regression.measure import measure
from rewa.record import provenance

__all__ = ["PARTS", "Measurement", "ahead", "measurements", "origin", "run", "to_record"]

PARTS = ("designs", "data", "scaling")
SPLITS = 5
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
MEASURE = [sys.executable, "-m", "rewa.experiments.regression.measure"]


@dataclass(frozen=True)
class Measurement:
    """What one process measures.

    Args:
        part: A key of :data:`rewa.experiments.regression.measure.MEASURES`.
        where: The design, the data set or the number of columns.
        method: A key of :data:`CONTENDERS` or :data:`CONTEST`.
        arguments: Arguments of the measure.
        cost: A guess at its share of the time, for the time left.
    """

    part: str
    where: str
    method: str
    arguments: dict[str, Any]
    cost: float = 1.0


def measurements(
    parts: Sequence[str], designs: Sequence[str], methods: Sequence[str], *, seeds: int, rounds: int, tiny: bool
) -> Iterator[Measurement]:
    """All that is to be measured, in order.

    Args:
        parts: Some of :data:`PARTS`.
        designs: Keys of :data:`DESIGNS`.
        methods: Keys of :data:`CONTENDERS`.
        seeds: Data sets of designs B and C; A has one.
        rounds: Turns of ours against skglm's L0.5.
        tiny: Whether the data are small, so that the numbers mean nothing.
    """
    cost = {"A": 10.0, "B": 1.0, "C": 1.0}
    if "designs" in parts:
        for name in designs:
            for method in methods:
                count = 1 if name == "A" else seeds
                arguments: dict[str, Any] = {"method": method, "design": name, "seeds": count, "tiny": tiny}
                yield Measurement("designs", name, method, arguments, cost[name] * (1 + count))
        if {"rewa", "l0.5"} <= set(methods):
            for _ in range(rounds):
                for name in designs:
                    for method in (*CONTEST, "l0.5"):
                        arguments = {"method": method, "design": name, "seeds": 1, "tiny": tiny}
                        yield Measurement("contest", name, method, arguments, 2 * cost[name])
    if "data" in parts:
        for name in ("wine",) if tiny else DATA_SETS:
            for method in [each for each in ("rewa", "lasso") if each in methods]:
                arguments = {"method": method, "data": name, "splits": 2 if tiny else SPLITS, "noise": 20 if tiny else 2000}
                yield Measurement("data", name, method, arguments, 20.0)
    if "scaling" in parts:
        for power in (2, 3) if tiny else (3, 4, 5, 6):
            for method in [each for each in ("rewa", "lasso", "l0.5") if each in methods]:
                arguments = {"method": method, "n": 500, "d": 10**power}
                yield Measurement("scaling", f"{10**power}", method, arguments, 4.0 ** (power - 3))


def run(measurement: Measurement, timeout: float | None) -> dict[str, Any]:
    """Run a measurement.

    Args:
        measurement: What to measure.
        timeout: Seconds that its process may take; None to measure in this process, where first calls and times mean nothing.

    Returns:
        What was measured, or the reason why not under ``"failed"``.
    """
    named = {"part": measurement.part, "where": measurement.where, "method": measurement.method}
    needs = (CONTENDERS | CONTEST)[measurement.method].needs
    if needs and find_spec(needs) is None:
        return {**named, "failed": f"{needs} is not installed"}
    if timeout is None:
        return {**named, **measure(measurement.part, measurement.arguments)}
    return {**named, **_in_a_process([*MEASURE, json.dumps([measurement.part, measurement.arguments])], timeout)}


def _in_a_process(command: list[str], timeout: float) -> dict[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **ONE_THREAD})
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {timeout:g} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no words"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ------------------------------------------------------------------------------------------------------- the record


def to_record(results: Sequence[dict[str, Any]], parts: Iterable[str], made: Mapping[str, Any]) -> dict[str, Any]:
    """The record of what was measured, part by part.

    Args:
        results: What :func:`run` returned for each measurement.
        parts: The parts that were run.
        made: Provenance and settings, for each part.
    """
    record: dict[str, Any] = {}
    for part in parts:
        own = [found for found in results if found["part"] == part]
        if part != "designs":
            record[part] = {**made, "results": own}
            continue
        methods: dict[str, Any] = {}
        for found in own:
            told = {"failed": found["failed"]} if "failed" in found else {**_summary(found), "seeds": found["rows"]}
            methods.setdefault(found["where"], {})[found["method"]] = told
        turns = [found for found in results if found["part"] == "contest"]
        races = _contest(turns)
        record[part] = {**made, "targets": _targets(methods, races), "methods": methods, "contest": races, "turns": turns}
    return record


def origin() -> dict[str, Any]:
    """The provenance, with the versions of the rivals."""
    made = provenance()
    for name in ("scikit-learn", "scipy", "skglm", "numba", "abess"):
        try:
            made["versions"][name] = version(name)
        except PackageNotFoundError:
            made["versions"][name] = None
    made["hardware"]["threads"] = 1
    return made


def _summary(found: dict[str, Any]) -> dict[str, Any]:
    """Means over the seeds; the warm-up is what the first call takes above the second fit of the same data."""
    rows = found["rows"]
    means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0] if name not in ("seed", "exact")}
    return {
        **means,
        "exact": sum(row["exact"] for row in rows),
        "runs": len(rows),
        "first_call": found["first_call"],
        "warm_up": max(found["first_call"] - rows[0]["seconds"], 0.0),
    }


def _contest(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For each design the medians of ours and of skglm's L0.5, and the ratios."""
    answer = {}
    for name in DESIGNS:
        found = {
            method: [each for each in results if (each["where"], each["method"]) == (name, method) and "rows" in each]
            for method in (*CONTEST, "l0.5")
        }
        if all(found.values()):
            ours, rival = (
                {
                    "first_call": statistics.median(each["first_call"] for each in runs),
                    "second": statistics.median(each["rows"][0]["seconds"] for each in runs),
                    "turns": len(runs),
                }
                for runs in found.values()
            )
            ratios = {f"ratio_{each}": ours[each] / rival[each] for each in ("first_call", "second")}
            answer[name] = {"rewa-50": ours, "l0.5": rival, **ratios}
    return answer


def _targets(designs: dict[str, Any], races: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """What was to be reached: design, aim, what came out, and whether that is enough."""
    rows = []
    ours = {name: found["rewa"] for name, found in designs.items() if "f1" in found.get("rewa", {})}
    if "B" in ours:
        rows.append(("B", "F1 >= 0.81", f"{ours['B']['f1']:.3f}", ours["B"]["f1"] >= 0.81))
    for name, most in (("A", 0.996), ("B", 1.22), ("C", 1.03)):
        if name in ours:
            reached = ours[name]["error"]
            rows.append((name, f"error / sigma^2 <= {most}", f"{reached:.4f}", reached <= most))
    for name in ("A", "C"):
        if name in ours:
            exact, runs = ours[name]["exact"], ours[name]["runs"]
            rows.append((name, "exact support, every seed", f"{exact} of {runs}", exact == runs))
    for name, race in races.items():
        ratio = race["ratio_first_call"]
        rows.append((name, "first call <= 2x that of skglm's L0.5", f"{ratio:.2f}x", ratio <= 2))
    return sorted(rows)


def ahead(methods: dict[str, Any]) -> dict[str, list[str]]:
    """For each measure the rivals that do better than our default, beyond rounding.

    Args:
        methods: What a design's record has of each method.
    """
    ours = methods.get("rewa", {})
    if "f1" not in ours:
        return {}
    rivals = {name: found for name, found in methods.items() if name not in ("rewa", "oracle") and "f1" in found}
    better = {
        "F1": [name for name, found in rivals.items() if found["f1"] > ours["f1"] + 0.005],
        "error": [name for name, found in rivals.items() if found["error"] < ours["error"] - 0.0005],
        "fit seconds": [name for name, found in rivals.items() if found["seconds"] < ours["seconds"]],
        "first call": [name for name, found in rivals.items() if found["first_call"] < ours["first_call"]],
    }
    return {measured: [CONTENDERS[name].label for name in names] for measured, names in better.items()}
