"""Many runs: methods times strengths times seeds, on local processes or on a Ray cluster. Finished runs are not repeated."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewa.methods import make
from rewa.names import nearest, plain
from rewa.train.job import Job, load_data
from rewa.train.loop import Stopped, TrainingError, Watch, stop_signals, train
from rewa.train.recipes import Recipe, override, setting_names
from rewa.train.runs import check_same

__all__ = ["Contender", "Failure", "Progress", "RunsFailed", "Sweep", "run_jobs", "run_local", "run_ray", "workers_for"]

ATTEMPTS = 3  # of a run whose process died


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One line of a comparison: a method, and the strengths that it is tried at.

    Args:
        method: Its name.
        changes: Settings of its own, ``key=value``; the names of its runs hold them.
        strengths: To sweep; None for the method's own grid of four.
    """

    method: str
    changes: tuple[str, ...] = ()
    strengths: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to compare: every method with its own strengths, all with the same seeds and epochs.

    Args:
        recipe: The recipe.
        methods: Names of methods, or contenders where a name does not say it all.
        strengths: The same for all methods, or None for each method's own.
        seeds: How many; they are 0, 1, ...
        changes: Settings to change, ``key=value``, of the recipe or of the methods that have them.
    """

    recipe: Recipe
    methods: tuple[str | Contender, ...]
    strengths: tuple[float, ...] | None = None
    seeds: int = 3
    changes: tuple[str, ...] = ()

    def small(self) -> Sweep:
        """A sweep that tries the command in seconds: two methods, an epoch, a seed; residual networks of width 4."""
        contenders = [Contender(method=one) if isinstance(one, str) else one for one in self.methods[:2]]
        methods = [
            one.method if one.strengths is None else dataclasses.replace(one, strengths=one.strengths[:1]) for one in contenders
        ]
        width = 4 if self.recipe.width is not None else None
        recipe = dataclasses.replace(self.recipe, epochs=1, width=width, compressions=(1, 5, 50), finetune_epochs=None)
        return dataclasses.replace(self, recipe=recipe, methods=tuple(methods), seeds=1)

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
        recipe = prepared[0][0]
        steps = load_data(recipe, root, download).steps_per_epoch(recipe.batch_size)
        found: list[tuple[float, Job]] = []
        for contender, (_, method) in zip(contenders, prepared, strict=True):
            plan = method.planned(recipe.plan(steps, finetune=recipe.finetuned(method)))
            grid = self.strengths or contender.strengths or method.grid(plan)
            strengths = list(dict.fromkeys(float(f"{strength:.4g}") for strength in grid))
            for place, strength in enumerate(strengths):
                settled = dataclasses.replace(method, strength=strength).settle(plan)
                # The second of four is a method's default: it comes first.
                distance = abs(place - (len(strengths) - 1.5) / 2)
                found.append((distance, Job(recipe=recipe, method=settled, variant=",".join(contender.changes))))
        found.sort(key=lambda pair: pair[0])
        jobs = [dataclasses.replace(job, seed=seed) for seed in range(self.seeds) for _, job in found]
        return list({job.folder_name: job for job in jobs}.values())  # what is said twice is run once


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and why."""

    name: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason))

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class RunsFailed(Exception):
    """Some runs of a sweep did not finish; the others did.

    Args:
        failures: Those.
        total: How many runs the sweep has.
    """

    def __init__(self, failures: Sequence[Failure], total: int) -> None:
        super().__init__("\n  ".join([f"{len(failures)} of {total} runs failed:", *map(str, failures)]))


@dataclass
class Progress:
    """How far a sweep is, read from the records on disk."""

    out: Path
    jobs: Sequence[Job]
    finished: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)  # told by who does the runs

    def record(self, name: str) -> dict[str, Any]:
        """The record of one run.

        Args:
            name: Its folder.
        """
        record: dict[str, Any] = json.loads((self.out / name / "record.json").read_text())
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
            with contextlib.suppress(OSError, ValueError, KeyError, TrainingError):
                record = self.record(job.folder_name)
                check_same(record, job, self.out / job.folder_name)
                done += len(record["epochs"])
                if record["status"] == "finished":
                    self.finished.add(job.folder_name)
        return done, total


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
        show: Who shows how far it is, such as :func:`rewa.terminal.sweeping`.
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


@contextlib.contextmanager
def _beginnings(out: Path) -> Iterator[Path]:
    """Where the runs of one sweep leave what others may go on from, see :mod:`rewa.train.beginnings`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".beginnings-") as folder:
        yield Path(folder).resolve()


# ------------------------------------------------------------------------------------------ local processes


class _Orphaned(Watch):
    """Ends the process when the sweep that started it is gone; the run can go on later from its checkpoint."""

    def step(self, done: int, loss: Tensor) -> None:
        """Look whether it is still there."""
        parent = multiprocessing.parent_process()
        if parent is not None and os.getppid() != parent.pid:
            os._exit(1)


def _serve(
    connection: Connection,
    out: Path,
    root: Path | None,
    device: str | None,
    command: list[str],
    beginnings: Path,
    threads: int,
) -> None:
    """The life of a worker: take a job, train it, say None or what went wrong."""
    torch.set_num_threads(threads)
    watch = _Orphaned()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # nobody gives jobs any more, or wants an answer
        while (job := connection.recv()) is not None:
            connection.send(_attempt(job, out, root, device, command, beginnings, watch))


def _attempt(
    job: Job,
    out: Path,
    root: Path | None,
    device: str | None,
    command: list[str],
    beginnings: Path,
    watch: Watch | None = None,
) -> str | None:
    sys.orig_argv = command  # records name what a person typed, not how this process was started
    try:
        train(job, out, root=root, device=device, watch=watch, beginnings=beginnings)
    except Stopped as stopped:
        return str(stopped)
    except (TrainingError, ValueError, OSError) as error:
        return str(error)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
    return None


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """For a process that starts now: Ctrl-C reaches every process of a terminal, but only this one acts on it, a bit later."""
    resource_tracker.ensure_running()  # its start would let interrupts through again
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


class _Worker:
    def __init__(self, *settings: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        # Not daemonic: a run may start processes of its own, to decode images.
        self.process = context.Process(target=_serve, args=(other, *settings), daemon=False)
        with _interrupts_held():
            self.process.start()
        other.close()
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # a process that died while it was idle: `answer` will say so
            self.connection.send(job)

    def answer(self) -> tuple[Job, str | None, bool]:
        """The job, what went wrong with it if anything, and whether the process died of it."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            return job, self.connection.recv(), False
        except (EOFError, OSError):
            self.process.join(10)
            return job, f"its process ended with code {self.process.exitcode}", True


def run_local(
    jobs: Sequence[Job],
    out: Path,
    *,
    workers: int,
    root: Path | None = None,
    device: str | None = None,
    tick: Callable[[], None] = lambda: None,
    failures: list[Failure] | None = None,
) -> list[Failure]:
    """Do the runs on processes of this machine; a run whose process dies is taken up again from its checkpoint.

    Args:
        jobs: The runs.
        out: Folder of runs.
        workers: How many at a time.
        root: Where the data is.
        device: Such as ``"cpu"``.
        tick: Called about twice a second.
        failures: Where to put the runs that failed, as soon as they do.

    Returns:
        The runs that failed.

    Raises:
        Stopped: After SIGTERM or SIGINT, when every run has saved itself.
    """
    if workers < 1:
        raise ValueError(f"Invalid workers: {workers} (allowed: a whole number >= 1)")
    waiting, attempts, failures = deque(jobs), Counter[str](), [] if failures is None else failures
    threads = max(1, (os.cpu_count() or 1) // workers)
    crew: list[_Worker] = []
    with stop_signals() as stop, _beginnings(out) as beginnings:
        try:
            while (waiting or any(worker.job for worker in crew)) and not stop:
                while len(crew) < min(workers, len(waiting) + sum(worker.job is not None for worker in crew)):
                    crew.append(_Worker(out, root, device, sys.orig_argv, beginnings, threads))
                for worker in crew:
                    if worker.job is None and waiting:
                        worker.give(waiting.popleft())
                busy = {worker.connection: worker for worker in crew if worker.job}
                for ready in wait(list(busy), timeout=0.5):
                    worker = busy[ready]  # type: ignore[index]
                    job, reason, died = worker.answer()
                    attempts[job.folder_name] += 1
                    if died:
                        crew.remove(worker)
                    if died and attempts[job.folder_name] < ATTEMPTS:
                        waiting.append(job)
                    elif reason is not None:
                        failures.append(Failure(job.folder_name, reason))
                tick()
        finally:
            _dismiss(crew)
    if stop:
        raise Stopped(stop[0])
    return failures


def _dismiss(crew: list[_Worker]) -> None:
    """Let every worker save what it does, and end."""
    for worker in crew:
        if worker.job is not None:
            worker.process.terminate()
        else:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
    for worker in crew:
        worker.connection.close()
        worker.process.join(60)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


# -------------------------------------------------------------------------------------------------- a cluster


def run_ray(
    jobs: Sequence[Job],
    out: Path,
    *,
    address: str,
    root: Path | None = None,
    device: str | None = None,
    tick: Callable[[], None] = lambda: None,
    failures: list[Failure] | None = None,
) -> list[Failure]:
    """Do the runs on a Ray cluster; ``out`` and ``root`` must be folders that every node sees.

    Args:
        jobs: The runs.
        out: Folder of runs.
        address: Of the cluster: ``"auto"``, ``"host:6379"`` or ``"ray://host:10001"``; ``"local"`` starts one here.
        root: Where the data is.
        device: Such as ``"cpu"``.
        tick: Called about twice a second.
        failures: Where to put the runs that failed, as soon as they do.

    Returns:
        The runs that failed.

    Raises:
        Stopped: After SIGTERM or SIGINT, when every run has saved itself.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anyone
    import ray

    gpus = 1 if (device or ("cuda" if torch.cuda.is_available() else "cpu")) == "cuda" else 0
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    # Ray prints what it has to say of lost processes, whatever it is told; the standard output is for results.
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        stack.callback(ray.shutdown)
        # A node that is lost takes its runs with it: Ray starts them again elsewhere, and they go on from their checkpoints.
        work = ray.remote(max_retries=ATTEMPTS - 1, num_gpus=gpus)(_attempt)
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        if resources.get("GPU", 0) < gpus:
            raise ValueError(f"the Ray cluster {address} has no GPU: say --device cpu")
        nodes = sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]
        cores = max(1, int(resources.get("CPU", 1)) // nodes)
        beginnings = stack.enter_context(_beginnings(out))
        stack.callback(ray.shutdown)  # first of all, so that no task writes to a folder that is being removed
        arguments = out.resolve(), root and root.resolve(), device, sys.orig_argv, beginnings
        running, failures = {}, [] if failures is None else failures
        for job in jobs:
            here = work.options(num_cpus=min(job.recipe.threads or cores, cores))  # more than a node has would wait forever
            running[here.remote(job, *arguments)] = job
        with stop_signals() as stop:
            while running and not stop:
                done, _ = ray.wait(list(running), timeout=0.5)
                for reference in done:
                    job = running.pop(reference)
                    try:
                        reason = ray.get(reference)
                    except ray.exceptions.RayError as error:
                        reason = str(error).partition("\n")[0]
                    if reason is not None:
                        failures.append(Failure(job.folder_name, reason))
                tick()
            if stop and running:
                for reference in running:
                    ray.cancel(reference)
                ray.wait(list(running), num_returns=len(running), timeout=60)
                raise Stopped(stop[0])
    return failures
