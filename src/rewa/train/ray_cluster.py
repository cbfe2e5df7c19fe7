"""The runs of a sweep on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rewa.train.attempts import ATTEMPTS, Failure, Terms
from rewa.train.job import Job
from rewa.train.shared_beginnings import beginnings_in
from rewa.train.signals import Stopped, stop_signals

__all__ = ["run_ray"]


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
        address: The cluster: ``"auto"``, ``"host:6379"`` or ``"ray://host:10001"``; ``"local"`` starts one here.
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

    failures = [] if failures is None else failures
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    # Ray prints what it has to say of lost processes, whatever it is told; the standard output is for results.
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        stack.callback(ray.shutdown)
        submit = _submitter(address, device)
        beginnings = stack.enter_context(beginnings_in(out))
        stack.callback(ray.shutdown)  # first of all, so that no task writes to a folder that is being removed
        terms = Terms(out.resolve(), root and root.resolve(), device, sys.orig_argv, beginnings)
        running = {submit(job, terms): job for job in jobs}
        with stop_signals() as stop:
            while running and not stop:
                done, _ = ray.wait(list(running), timeout=0.5)
                for reference in done:
                    job = running.pop(reference)
                    if (reason := _reason(reference)) is not None:
                        failures.append(Failure(job.folder_name, reason))
                tick()
            if stop and running:
                for reference in running:
                    ray.cancel(reference)
                ray.wait(list(running), num_returns=len(running), timeout=60)
                raise Stopped(stop[0])
    return failures


def _attempt(job: Job, terms: Terms) -> str | None:
    return terms.attempt(job)


def _submitter(address: str, device: str | None) -> Callable[[Job, Terms], Any]:
    """What starts a run with as many cores, and GPUs, as it needs."""
    import ray

    gpus = 1 if (device or ("cuda" if torch.cuda.is_available() else "cpu")) == "cuda" else 0
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    if resources.get("GPU", 0) < gpus:
        raise ValueError(f"the Ray cluster {address} has no GPU: say --device cpu")
    nodes = sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]
    cores = max(1, int(resources.get("CPU", 1)) // nodes)
    # A node that is lost takes its runs with it: Ray starts them again elsewhere, and they resume from their checkpoints.
    work = ray.remote(max_retries=ATTEMPTS - 1, num_gpus=gpus)(_attempt)

    def submit(job: Job, terms: Terms) -> Any:
        # More cores than a node has would wait forever.
        return work.options(num_cpus=min(job.recipe.threads or cores, cores)).remote(job, terms)

    return submit


def _reason(reference: Any) -> str | None:
    """What went wrong with a run that ended; None if nothing did."""
    import ray

    try:
        reason: str | None = ray.get(reference)
    except ray.exceptions.RayError as error:
        return str(error).partition("\n")[0]
    return reason
