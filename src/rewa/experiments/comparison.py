"""A comparison of methods on a training recipe, as a result: what is trained in which order, and what is published of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from rewa import report
from rewa.experiments import deployed, shrinkage, standings
from rewa.experiments.deployed import Deployed, has_weights
from rewa.experiments.result import How, Result
from rewa.experiments.shrinkage import Shrinkage
from rewa.files import write_atomically
from rewa.methods.rewa import ReWA
from rewa.record import provenance
from rewa.report import Comparison, Run
from rewa.report.tables import Chosen, choose
from rewa.train.cost import run_cost
from rewa.train.job import Job, load_data
from rewa.train.run_folder import RunFolder
from rewa.train.sweep import RunsFailed, Sweep, diverged, run_jobs

__all__ = ["Rules", "SweepResult", "best_rates", "middles", "repeated", "whole"]

MODELS = "models.json"
GPU_SPEED = 6e13  # operations a second, a fifth of an A100's bfloat16 peak


@dataclass(frozen=True)
class Rules:
    """Which runs of the first seed are worth repeating with others.

    Args:
        within: Methods that are further behind the best at every compression are not repeated.
        margin: Runs that are at most so far behind the chosen one of their method are repeated, too: some thousand validation
            images do not tell them apart.
        methods: Names of methods that are repeated; None for all.
    """

    within: float = math.inf
    margin: float = 0.0
    methods: tuple[str, ...] | None = None


ALL = Rules()


@dataclass(frozen=True, kw_only=True)
class SweepResult(Result):
    """A sweep and what is published of it.

    Args:
        sweep: What is trained.
        table: Compressions for which the first seed's runs decide, on validation data, which strengths the other seeds repeat,
            see :func:`repeated`. Empty for all strengths with all seeds.
        rules: Which of the first seed's runs are repeated.
        rates_at: A compression at which the first seed compares the learning rates of each method, with its middle strength,
            see :func:`best_rates`; only the best goes on to other strengths. None for all strengths with all rates.
        needs_gpu: Whether its runs are too long for a CPU: then the cost is told first, and the memory of the GPU checked.
        judged_on: What the first table shows: ``"test"``, or ``"validation"`` where the comparison is itself a choice.
    """

    trains_networks: ClassVar[bool] = True

    quick: bool = True
    sweep: Sweep
    table: tuple[float, ...] = ()
    rules: Rules = ALL
    rates_at: float | None = None
    needs_gpu: bool = False
    judged_on: str = "test"

    def run(self, out: Path, how: How) -> list[Path]:
        """Train what is not trained yet, in ``out/runs``, and write the report.

        Args:
            out: The folder of the result.
            how: On what it is made, and the progress callback.

        Raises:
            RunsFailed: When the other runs are done.
            Stopped: After SIGTERM or SIGINT, when every run has saved itself.
        """
        if how.quick:
            return self.small().run(out, dataclasses.replace(how, quick=False))
        runs = out / "runs"
        do = partial(run_jobs, out=runs, show=how.progress.sweep, root=how.root, device=how.device, workers=how.workers)
        if not how.trained:
            jobs = self.sweep.jobs(how.root, how.download)
            if self.needs_gpu:
                self._tell_cost(jobs, runs, how)
            if self.table:
                for part in self._parts([job for job in jobs if job.seed == 0]):
                    first = part if self.rates_at is None else self._at_best_rates(part, runs, do)
                    do(first)
                    do([*first, *repeated(_of(runs, first), first, self.table, self.sweep.seeds, self.rules)])
            else:
                do(jobs)
        if self.table:
            self._measure(out, how)
        return self.write(out)

    def small(self) -> SweepResult:
        """The quick version: two methods, an epoch, a seed, and one compression to choose for."""
        return dataclasses.replace(self, sweep=self.sweep.small(), table=self.table[:1], needs_gpu=False)

    def _parts(self, first: list[Job]) -> list[list[Job]]:
        """The first seed's jobs of the methods that are repeated, which are done with all seeds first, and the others'."""
        names = self.rules.methods
        parts = [[job for job in first if (names is None or job.method.label in names) is again] for again in (True, False)]
        return [part for part in parts if part]

    def _at_best_rates(self, jobs: list[Job], runs: Path, do: Callable[[list[Job]], None]) -> list[Job]:
        """What :func:`best_rates` leaves of the jobs, when those that find the rates are done."""
        assert self.rates_at is not None
        trials = middles(jobs)
        before = diverged(trials, runs)
        try:
            do([job for job in trials if job.folder_name not in before])
        except RunsFailed as failed:  # a rate that is too high is no rate for the method, and no reason to end
            if {failure.name for failure in failed.failures} - diverged(trials, runs):
                raise
        return best_rates(_of(runs, trials), jobs, self.rates_at)

    def _tell_cost(self, jobs: Sequence[Job], runs: Path, how: How) -> None:
        """Say what the runs will take, and refuse a device that cannot carry them."""
        recipe, data = self.sweep.recipe, load_data(self.sweep.recipe, how.root, how.download)
        device = torch.device(how.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        records = (RunFolder(runs / job.folder_name).read() for job in jobs)
        done = sum(record is not None and record.finished for record in records)
        cost, left = run_cost(recipe, data, device), len(jobs) - done
        words = f"at most {left} runs of {cost.operations:.2g} operations and {cost.memory / 1e9:.1f} GB"
        hours = left * cost.operations / GPU_SPEED / 3600
        how.progress.stage(f"{words}: {hours:.0f} hours and more on a GPU that makes {GPU_SPEED:.0e} a second", 1)
        how.progress.advance()
        if device.type == "cpu" and how.device is None:
            raise ValueError(
                f"this takes a GPU, and there is none: {words}. Results for CPUs are in `rewa list`; --device cpu insists"
            )
        if device.type == "cuda" and (free := torch.cuda.mem_get_info(device)[0]) < cost.memory:
            raise ValueError(
                f"{device} has {free / 1e9:.1f} GB free and a run takes {cost.memory / 1e9:.1f} GB: stop what else uses it, or "
                "give another --device"
            )

    def _measure(self, out: Path, how: How) -> None:
        """What takes the weights of the runs, for which records do not suffice: bytes, latency, and how far ReWA's shrank.

        What was measured before is kept, and what has no weights any more is left out.
        """
        comparison = _only(out / "runs", self._published(out / "runs"))
        if not any(has_weights(run) for run in comparison.runs):
            return
        before = _models(out)
        shrunk = [run for run in comparison.runs if run.finished and _is_papers(run) and run.strength and run.seed == 0]
        recipe, data = self.sweep.recipe, load_data(self.sweep.recipe, how.root, how.download)
        how.progress.stage("bytes and latency of the models", len(comparison.entries) * len(self.table) + len(shrunk))
        cells = deployed.deploy_cells(comparison, self.table, recipe, data, before.deployed, how.progress.advance)
        known, rows = {(row.run, row.commit): row for row in before.shrinkage}, []
        for run in shrunk:
            if (run.name, run.commit) in known:
                rows.append(known[run.name, run.commit])
            elif has_weights(run):
                rows.append(shrinkage.shrinkage(run, recipe, data))
            how.progress.advance()
        if _Models(cells, rows) != before:
            record = {**provenance(), "deployed": [asdict(row) for row in cells], "shrinkage": [asdict(row) for row in rows]}
            write_atomically(out / MODELS, json.dumps(record, indent=1, allow_nan=False))

    def _published(self, runs: Path) -> list[Run]:
        """The runs that the report shows: all but those of a seed that their method is not done with."""
        found = report.read([runs])
        return whole(_only(runs, found), self.table, self.rules) if self.table else found

    def write(self, out: Path) -> list[Path]:
        """Write the report of the runs in ``out/runs``, and the numbers behind every cell of its tables.

        Args:
            out: The folder of the result.
        """
        runs = out / "runs"
        found = self._published(runs)
        paths = report.write([run.folder / "record.json" for run in found], out / "report.html")
        numbers = {
            "recipe": self.sweep.recipe.settings(),
            "methods": [one if isinstance(one, str) else asdict(one) for one in self.sweep.methods],
            **({"rates": self.sweep.rates} if self.sweep.rates else {}),
            "seeds": self.sweep.seeds,
            "commits_of_runs": sorted({run.commit for run in found}),
            "comparisons": [_numbers(comparison) for comparison in report.compare(found)],
        }
        _keep(out / "numbers.json", numbers)
        measured, lines = _models(out), []
        if self.table:
            comparison = _only(runs, found)
            what = "accuracy, %" if comparison.metric == "accuracy" else comparison.metric
            lines += [f"{self.judged_on.capitalize()} {what}, mean ± standard deviation over the seeds:", ""]
            lines += [*standings.standings(comparison, self.table, self.judged_on), ""]
            if self.judged_on == "test":
                lines += [
                    "The best ReWA and the best of the others, each by its mean on validation data, among those with all "
                    "seeds; differences seed by seed, mean ± standard deviation over the seeds, which share one test set:",
                    "",
                ]
                lines += [*standings.leads(comparison, self.table), ""]
        if self.judged_on == "test":  # what is chosen by validation data is chosen without a look at the test data
            lines.append(report.to_markdown(found))
        if measured.deployed:
            paths.append(out / MODELS)
            lines += [
                "Packed file of the model of each cell, first seed, and how many times as fast as the dense network it runs:",
                "",
            ]
            lines += [*deployed.to_markdown(measured.deployed), ""]
        if measured.shrinkage:
            lines += [
                "How far ReWA's weights shrank, as natural logarithms: predicted for one without gradient, and measured:",
                "",
            ]
            lines += [*shrinkage.to_markdown(measured.shrinkage), ""]
        write_atomically(out / "table.md", "\n".join(lines))
        return [*paths, out / "numbers.json", out / "table.md"]


def _keep(path: Path, numbers: dict[str, Any]) -> None:
    """Write numbers with their origin, unless they are there already: what only draws them again did not make them."""
    origin = provenance()

    def told(record: dict[str, Any]) -> dict[str, Any]:
        """All but the origin and the words that describe the recipe."""
        recipe = {key: value for key, value in record.get("recipe", {}).items() if key != "line"}
        return {key: value for key, value in record.items() if key not in origin} | {"recipe": recipe}

    known = json.loads(path.read_text()) if path.exists() else {}
    if told(known) != told(json.loads(json.dumps(numbers, allow_nan=False))):
        write_atomically(path, json.dumps({**origin, **numbers}, indent=1, allow_nan=False))


@dataclass(frozen=True)
class _Models:
    """What was measured on the models of a result."""

    deployed: list[Deployed]
    shrinkage: list[Shrinkage]


def _models(out: Path) -> _Models:
    """What ``models.json`` holds, nothing if it is not there."""
    path = out / MODELS
    found = json.loads(path.read_text()) if path.exists() else {"deployed": [], "shrinkage": []}
    return _Models([Deployed(**row) for row in found["deployed"]], [Shrinkage(**row) for row in found["shrinkage"]])


def _is_papers(run: Run) -> bool:
    """Whether it is ReWA with the paper's exponents, whose shrinkage the paper's weight decay was chosen for."""
    return run.method == "rewa" and dict(run.settings) == ReWA().settings


def _only(folder: Path, runs: Sequence[Run]) -> Comparison:
    """The one comparison that the runs of a folder make."""
    found = report.compare(runs)
    if len(found) != 1:
        titles = "; ".join(comparison.title for comparison in found)
        raise ValueError(f"{folder} holds runs on unequal terms ({titles}): move those of other settings away")
    return found[0]


def _of(folder: Path, jobs: Sequence[Job]) -> Comparison:
    """The comparison of what these jobs trained."""
    names = {job.folder_name for job in jobs}
    return _only(folder, [run for run in report.read([folder]) if run.folder.name in names])


def _numbers(comparison: Comparison) -> dict[str, Any]:
    """Each cell with the runs and thresholds that were chosen for it, seed by seed."""
    several = len({run.lr for run in comparison.runs}) > 1
    rows = []
    for entry in comparison.entries:
        for compression, cell in entry.table.items():
            chosen = [
                {
                    "seed": choice.run.seed,
                    "strength": choice.run.strength,
                    **({"lr": choice.run.lr} if several else {}),
                    "threshold": choice.point.threshold,
                    "validation": choice.point.validation(comparison.metric),
                    "test": choice.test,
                }
                for choice in cell.chosen
            ]
            rows.append(
                {"method": entry.label, "compression": compression, "mean": cell.mean, "sd": cell.sd, "n": cell.n}
                | {"prunable_ratio": cell.prunable, "model_ratio": cell.model, "chosen": chosen}
            )
    smallest = [
        {
            "method": entry.label,
            "seeds": len(entry.deployed.chosen),
            "of": entry.deployed.seeds,
            "file_bytes": entry.deployed.file_bytes if entry.deployed.chosen else None,
            "dense_bytes": entry.deployed.dense_bytes if entry.deployed.chosen else None,
            "test": entry.deployed.cell.mean if entry.deployed.chosen else None,
        }
        for entry in comparison.entries
    ]
    weights = asdict(comparison.runs[0].curve[0].prunable)["total"] if comparison.runs[0].curve else None
    return {"title": comparison.title, "metric": comparison.metric, "weights": weights, "cells": rows, "deployed": smallest}


def _line(job: Job) -> tuple[str, str]:
    """What its runs with other strengths, rates and seeds share."""
    return job.method.label, ",".join(part for part in job.variant.split(",") if not part.startswith("lr="))


def middles(jobs: Sequence[Job]) -> list[Job]:
    """Of each method and learning rate the first job, which has the middle strength.

    Args:
        jobs: Those of one seed, as :meth:`Sweep.jobs` orders them.
    """
    first: dict[tuple[tuple[str, str], float], Job] = {}
    for job in jobs:
        first.setdefault((_line(job), job.recipe.lr), job)
    return list(first.values())


def best_rates(comparison: Comparison, jobs: Sequence[Job], compression: float) -> list[Job]:
    """The jobs of each method with its best rate, after those that found it.

    Args:
        comparison: Of the runs of :func:`middles`.
        jobs: All jobs of the seed.
        compression: Where the runs are compared, on validation data. One that does not reach it is worse than all that do, and
            one that diverged is left out, unless the others are no better.
    """
    worth: dict[str, float] = {}
    trials = middles(jobs)
    for run in comparison.runs:
        choice = choose((Chosen(run, point) for point in run.curve), compression)
        worth[run.folder.name] = comparison.sign * choice.point.validation(comparison.metric) if choice else -math.inf
    best: dict[tuple[str, str], Job] = {}
    for job in trials:
        other = best.setdefault(_line(job), job)
        if worth[job.folder_name] > worth[other.folder_name]:
            best[_line(job)] = job
    kept = {(line, job.recipe.lr) for line, job in best.items()}
    lost = {run.folder.name for run in comparison.runs if run.status == "failed"} - {job.folder_name for job in best.values()}
    trials = [job for job in trials if job.folder_name not in lost]
    return [*trials, *(job for job in jobs if job not in trials and (_line(job), job.recipe.lr) in kept)]


def repeated(
    comparison: Comparison,
    first: Sequence[Job],
    compressions: Sequence[float],
    seeds: int,
    rules: Rules = ALL,
) -> list[Job]:
    """The runs of the further seeds: those that the first seed's validation data chose for one of the compressions.

    A method is repeated with all of them or not at all: with some only, its further seeds would have less to choose from.

    Seed by seed, and in each seed the methods that come closest to the best one first: three of them together, one run of each,
    then the next, so runs of one method that begin alike seldom meet before the first has left its beginning to the others.

    Args:
        comparison: The comparison of the first seed's runs.
        first: Those.
        compressions: What counts.
        seeds: How many, the first among them.
        rules: Which are worth it.
    """
    by_name = {job.folder_name: job for job in first}
    methods = defaultdict[str, list[Job]](list)
    for run in _chosen(comparison, compressions, rules):
        methods[comparison.labels[str(run.folder)]].append(by_name[run.folder.name])
    order = list(methods.values())
    threes = [order[start : start + 3] for start in range(0, len(order), 3)]
    jobs = [job for three in threes for turn in itertools.zip_longest(*three) for job in turn if job]
    return [dataclasses.replace(job, seed=seed) for seed in range(1, seeds) for job in jobs]


def whole(comparison: Comparison, compressions: Sequence[float], rules: Rules = ALL) -> list[Run]:
    """The runs of the first seed, and of each further one what is repeated of the methods that are done with it.

    A mean over seeds of which one had fewer strengths to choose from would be worse than what the method does. So methods may
    have different numbers of seeds; the leads of :mod:`rewa.experiments.standings` are between those that have all.

    Args:
        comparison: The comparison of all runs.
        compressions: As of :func:`repeated`.
        rules: As of :func:`repeated`.
    """

    def strengths(runs: Iterable[Run]) -> dict[tuple[str, int], set[tuple[float | None, float]]]:
        """With their learning rates, by method and seed."""
        found = defaultdict[tuple[str, int], set[tuple[float | None, float]]](set)
        for run in runs:
            found[comparison.labels[str(run.folder)], run.seed].add((run.strength, run.lr))
        return found

    wanted = strengths(_chosen(comparison, compressions, rules))
    done = strengths(run for run in comparison.runs if run.finished)

    def counts(run: Run) -> bool:
        label = comparison.labels[str(run.folder)]
        again = wanted[label, 0]
        return run.seed == 0 or ((run.strength, run.lr) in again and again <= done[label, run.seed])

    return [run for run in comparison.runs if counts(run)]


def _chosen(comparison: Comparison, compressions: Sequence[float], rules: Rules) -> list[Run]:
    """The runs of the first seed that are worth repeating, those of the methods nearest to the front first."""
    behind: dict[str, float] = {}
    chosen: list[tuple[str, Run]] = []  # with their methods
    for compression in compressions:
        worth: dict[str, list[tuple[float, Run]]] = {}
        for run in comparison.runs:
            if run.seed == 0 and (choice := choose((Chosen(run, point) for point in run.curve), compression)):
                value = comparison.sign * choice.point.validation(comparison.metric)
                worth.setdefault(comparison.labels[str(run.folder)], []).append((value, run))
        best = max((value for pairs in worth.values() for value, _ in pairs), default=math.nan)
        for label, pairs in worth.items():
            top = max(value for value, _ in pairs)
            behind[label] = min(behind.get(label, math.inf), best - top)
            chosen += [(label, run) for value, run in pairs if value >= top - rules.margin]
    chosen = [one for one in chosen if rules.methods is None or one[1].method in rules.methods]
    order = sorted((one for one in chosen if behind[one[0]] <= rules.within), key=lambda one: (behind[one[0]], one[0]))
    return list({run.folder: run for _, run in order}.values())
