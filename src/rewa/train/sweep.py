"""Many runs: methods times strengths times seeds, on local processes or on a Ray cluster. Finished runs are not repeated."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rewa.methods import make
from rewa.names import nearest
from rewa.record import Run
from rewa.train.attempts import Failure
from rewa.train.job import Job, load_data
from rewa.train.local_workers import run_local
from rewa.train.ray_cluster import run_ray
from rewa.train.recipes import Recipe, override, setting_names
from rewa.train.run_folder import RunFolder, TrainingError

__all__ = ["Contender", "Progress", "RunsFailed", "Sweep", "diverged", "run_jobs", "workers_for"]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One line of a comparison: a method, and the strengths that it is tried at.

    Args:
        method: Its name.
        changes: Settings of its own, ``key=value``; the names of its runs hold them.
        strengths: To sweep; None for the method's own grid of four.
        rates: Learning rates to sweep; empty for the sweep's.
    """

    method: str
    changes: tuple[str, ...] = ()
    strengths: tuple[float, ...] | None = None
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to compare: every method with its own strengths, all with the same seeds and epochs.

    Args:
        recipe: The recipe.
        methods: Names of methods, or contenders where a name does not say it all.
        strengths: The same for all methods, or None for each method's own.
        rates: Learning rates, chosen as strengths are; empty for the recipe's.
        seeds: How many; they are 0, 1, ...
        changes: Settings to change, ``key=value``, of the recipe or of the methods that have them.
    """

    recipe: Recipe
    methods: tuple[str | Contender, ...]
    strengths: tuple[float, ...] | None = None
    rates: tuple[float, ...] = ()
    seeds: int = 3
    changes: tuple[str, ...] = ()

    def small(self) -> Sweep:
        """A sweep that tries the command in seconds: two methods, an epoch, a seed; residual networks of width 4."""
        contenders = [Contender(method=one) if isinstance(one, str) else one for one in self.methods[:2]]
        methods = [
            one.method if one.strengths is None else dataclasses.replace(one, strengths=one.strengths[:1], rates=())
            for one in contenders
        ]
        width = 4 if self.recipe.width is not None else None
        recipe = dataclasses.replace(self.recipe, epochs=1, width=width, compressions=(1, 5, 50), finetune_epochs=None)
        return dataclasses.replace(self, recipe=recipe, methods=tuple(methods), rates=(), seeds=1)

    def jobs(self, root: Path | None = None, download: bool = False) -> list[Job]:
        """The runs, seed by seed, and each seed from the middle of the grids outwards: an early look at them is a fair one.

        Args:
            root: Where the data is; its size decides how many steps a run has, and so the strengths.
            download: Whether missing data may be fetched.
        """
        if self.seeds < 1:
            raise ValueError(f"Invalid seeds: {self.seeds} (allowed: a whole number >= 1)")
        if not self.methods:
            raise ValueError("a sweep needs at least one method: see `rewa list`")
        contenders = [Contender(method=one) if isinstance(one, str) else one for one in self.methods]
        methods = [make(contender.method) for contender in contenders]
        known = [setting_names(self.recipe, method) for method in methods]
        everything = sorted({key for keys in known for key in keys} - {"strength"})
        changes = [(change.partition("=")[0].strip(), change) for change in self.changes]
        for key, change in changes:
            if key == "strength":
                raise ValueError(f"{change}: a sweep has several strengths, which --strengths sets: --strengths 0.1,0.2")
            if key not in everything:
                raise ValueError(nearest("setting", key, everything))
        # What one method does not have, another may; what a contender says of itself it must have.
        prepared = [
            override(self.recipe, method, [*(change for key, change in changes if key in keys), *contender.changes])
            for method, keys, contender in zip(methods, known, contenders, strict=True)
        ]
        if any(recipe != prepared[0][0] for recipe, _ in prepared):
            raise ValueError("contenders of one sweep must share its recipe: change that of the sweep, not of one of them")
        shared = prepared[0][0]
        steps = load_data(shared, root, download).steps_per_epoch(shared.batch_size)
        found: list[tuple[float, Job]] = []
        pairs = zip(contenders, prepared, strict=True)
        rated = [(one, method, lr) for one, (_, method) in pairs for lr in one.rates or self.rates or (shared.lr,)]
        for contender, method, lr in rated:
            recipe, own = dataclasses.replace(shared, lr=lr), () if lr == shared.lr else (f"lr={lr:g}",)
            plan = method.planned(recipe.plan(steps, finetune=recipe.finetuned(method)))
            grid = self.strengths or contender.strengths or method.grid(plan)
            strengths = list(dict.fromkeys(float(f"{strength:.4g}") for strength in grid))
            for place, strength in enumerate(strengths):
                settled = dataclasses.replace(method, strength=strength).settle(plan)
                # The second of four is a method's default: it comes first.
                distance = abs(place - (len(strengths) - 1.5) / 2)
                found.append((distance, Job(recipe=recipe, method=settled, variant=",".join((*contender.changes, *own)))))
        found.sort(key=lambda pair: pair[0])
        jobs = [dataclasses.replace(job, seed=seed) for seed in range(self.seeds) for _, job in found]
        return list({job.folder_name: job for job in jobs}.values())  # what is said twice is run once


class RunsFailed(Exception):
    """Some runs of a sweep did not finish; the others did.

    Args:
        failures: The runs that did not finish.
        total: The number of all runs.
    """

    def __init__(self, failures: Sequence[Failure], total: int) -> None:
        self.failures = tuple(failures)
        super().__init__("\n  ".join([f"{len(failures)} of {total} runs failed:", *map(str, failures)]))


@dataclass
class Progress:
    """How far a sweep is, read from the records on disk."""

    out: Path
    jobs: Sequence[Job]
    finished: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)  # filled while the runs are done

    def record(self, name: str) -> Run:
        """The record of one run.

        Args:
            name: The name of its folder.
        """
        record = RunFolder(self.out / name).read()
        if record is None:
            raise FileNotFoundError(f"there is no record in {self.out / name}")
        return record

    def epochs(self) -> tuple[int, int]:
        """Epochs done and to do, over all runs."""
        total = sum(job.recipe.epochs for job in self.jobs)
        done = 0
        for job in self.jobs:
            if job.folder_name in self.finished:
                done += job.recipe.epochs
                continue
            # Where another run has the folder, this one will fail, and say so.
            with contextlib.suppress(OSError, TrainingError):
                if record := RunFolder(self.out / job.folder_name).read_of(job):
                    done += len(record.epochs)
                    if record.finished:
                        self.finished.add(job.folder_name)
        return done, total


def diverged(jobs: Sequence[Job], out: Path) -> set[str]:
    """Names of the runs whose loss or weights are known not to stay finite: an outcome, where settings are compared.

    Args:
        jobs: The runs.
        out: Folder of runs.
    """
    records = {job.folder_name: RunFolder(out / job.folder_name).read() for job in jobs}
    return {name for name, record in records.items() if record is not None and record.status == "failed"}


def workers_for(jobs: Sequence[Job]) -> int:
    """How many runs fit beside each other: as many as there are cores, if a run uses one thread, else one.

    Args:
        jobs: The runs.
    """
    cores = os.cpu_count() or 1
    threads = max((job.recipe.threads or cores for job in jobs), default=cores)
    return 1 if torch.cuda.is_available() else max(1, cores // threads)


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    show: Callable[[Progress], contextlib.AbstractContextManager[Callable[[], None]]],
    root: Path | None = None,
    device: str | None = None,
    workers: int | None = None,
    ray: str | None = None,
) -> None:
    """Do every run that is not done yet, in their order.

    Args:
        jobs: The runs, such as :meth:`Sweep.jobs`.
        out: Folder of runs.
        show: Shows the progress, such as :func:`rewa.terminal.sweeping`.
        root: Where the data is.
        device: Such as ``"cpu"``.
        workers: Runs at a time on this machine; None for as many as its cores can take.
        ray: The address of a Ray cluster to run on instead.

    Raises:
        RunsFailed: When the other runs are done.
        Stopped: After SIGTERM or SIGINT, when every run has saved itself.
    """
    progress = Progress(out, jobs)
    with show(progress) as tick:
        how: dict[str, Any] = {"root": root, "device": device, "tick": tick, "failures": progress.failures}
        if ray:
            run_ray(jobs, out, address=ray, **how)
        else:
            run_local(jobs, out, workers=workers_for(jobs) if workers is None else workers, **how)
    if progress.failures:
        raise RunsFailed(progress.failures, len(jobs))
