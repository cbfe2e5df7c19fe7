"""The runs of a sweep on processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
from torch import Tensor

from rewa.train.attempts import ATTEMPTS, Failure, Terms
from rewa.train.job import Job
from rewa.train.shared_beginnings import beginnings_in
from rewa.train.signals import Stopped, stop_signals
from rewa.train.watch import Watch

__all__ = ["run_local"]


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
    """Do the runs on processes of this machine; a run whose process dies is resumed from its checkpoint.

    Args:
        jobs: The runs.
        out: Folder of runs.
        workers: The number of runs at a time.
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
    failures = [] if failures is None else failures
    threads = max(1, (os.cpu_count() or 1) // workers)
    with stop_signals() as stop, beginnings_in(out) as beginnings:
        crew = _Crew(jobs, Terms(out, root, device, sys.orig_argv, beginnings), threads, failures)
        try:
            while crew.has_work and not stop:
                crew.employ(workers)
                crew.listen()
                tick()
        finally:
            crew.dismiss()
    if stop:
        raise Stopped(stop[0])
    return failures


class _Crew:
    """The workers of a sweep and the runs that wait for them."""

    def __init__(self, jobs: Sequence[Job], terms: Terms, threads: int, failures: list[Failure]) -> None:
        self.waiting, self.terms, self.threads, self.failures = deque(jobs), terms, threads, failures
        self.attempts = Counter[str]()
        self.workers: list[_Worker] = []

    @property
    def busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.job is not None]

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.busy)

    def employ(self, most: int) -> None:
        """Start as many workers as have something to do, and give each idle one a run."""
        while len(self.workers) < min(most, len(self.waiting) + len(self.busy)):
            self.workers.append(_Worker(self.terms, self.threads))
        for worker in self.workers:
            if worker.job is None and self.waiting:
                worker.give(self.waiting.popleft())

    def listen(self) -> None:
        """Wait a moment for runs that end; those whose process died wait for another one."""
        busy = {worker.connection: worker for worker in self.busy}
        for ready in wait(list(busy), timeout=0.5):
            worker = busy[ready]  # type: ignore[index]
            job, reason, died = worker.answer()
            self.attempts[job.folder_name] += 1
            if died:
                self.workers.remove(worker)
            if died and self.attempts[job.folder_name] < ATTEMPTS:
                self.waiting.append(job)
            elif reason is not None:
                self.failures.append(Failure(job.folder_name, reason))

    def dismiss(self) -> None:
        """Let every worker save what it does, and end."""
        for worker in self.workers:
            if worker.job is not None:
                worker.process.terminate()
            else:
                with contextlib.suppress(OSError):
                    worker.connection.send(None)
        for worker in self.workers:
            worker.connection.close()
            worker.process.join(60)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


class _Worker:
    """A process that trains one run after the other."""

    def __init__(self, terms: Terms, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        # Not daemonic: a run may start processes of its own, to decode images.
        self.process = context.Process(target=_serve, args=(other, terms, threads), daemon=False)
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


def _serve(connection: Connection, terms: Terms, threads: int) -> None:
    """The life of a worker: take a job, train it, answer None or what went wrong."""
    torch.set_num_threads(threads)
    watch = _Orphaned()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # nobody gives jobs any more, or wants an answer
        while (job := connection.recv()) is not None:
            connection.send(terms.attempt(job, watch))


class _Orphaned(Watch):
    """Ends the process when the sweep that started it is gone; the run can resume later from its checkpoint."""

    def step(self, done: int, loss: Tensor) -> None:
        """Look whether it is still there."""
        parent = multiprocessing.parent_process()
        if parent is not None and os.getppid() != parent.pid:
            os._exit(1)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """For a process that starts now: Ctrl-C reaches every process of a terminal, but only this one acts on it, a bit later."""
    resource_tracker.ensure_running()  # its start would let interrupts through again
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
