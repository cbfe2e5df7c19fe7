"""The one training loop: a recipe, a method and a seed in, a folder with weights and a record out."""

from __future__ import annotations

import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rewa.optim.cuts import Diverged
from rewa.record import UNKNOWN, BeganWith, Continuation, Epoch, Final, Histogram, Run, Timing, provenance
from rewa.sparsity import count, histogram, prunable, summary, whole
from rewa.train.checkpoint import Checkpoint
from rewa.train.data import Data
from rewa.train.evaluate import cut, measure
from rewa.train.job import Job, build_model, load_data
from rewa.train.memory import keep_freed_memory
from rewa.train.processes import World, connected
from rewa.train.run_folder import RunFolder, TrainingError, described
from rewa.train.shared_beginnings import Beginning
from rewa.train.signals import Stopped, stop_signals
from rewa.train.trainer import NotFinite, Trainer, check_world
from rewa.train.watch import Watch

__all__ = ["train"]


def train(
    job: Job,
    out: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    download: bool = False,
    watch: Watch | None = None,
    beginnings: Path | None = None,
    data: Data | None = None,
) -> Run:
    """Train, or resume where an earlier call stopped; a finished run is not repeated.

    Args:
        job: What to train.
        out: Folder of runs; this one is a folder in it.
        root: Where the data is; by default what ``REWA_DATA`` says.
        device: Such as ``"cpu"``; by default a GPU where there is one.
        download: Whether missing data may be fetched.
        watch: The progress callback.
        beginnings: Where to find, or to leave, what is common to runs that differ in strength only; None to train it all.
        data: The data of the recipe, if it was loaded already.

    Returns:
        The record, as in ``record.json``.

    Raises:
        TrainingError: If the folder holds another run, or the loss is not finite.
        Stopped: After SIGTERM or SIGINT; everything is saved, and the same call resumes.
    """
    watch, threads = watch or Watch(), torch.get_num_threads()
    with connected(device) as world:
        folder = RunFolder(out / job.folder_name, world)
        with folder.locked():
            found = folder.read_of(job)
            if found is not None and found.finished:
                folder.remove_checkpoints()
                watch.end(found, folder.path)
                return found
            world.wait()  # no one writes before everyone has looked
            if world.device.type == "cpu":
                keep_freed_memory()
            try:
                if job.recipe.threads is not None:
                    torch.set_num_threads(job.recipe.threads)
                check_world(job, world)
                data = _loaded(job, world, root, download) if data is None else data
                folder.check_data(found, data)
                with stop_signals() as stop:
                    return _Course(folder, Trainer(job, data, world, watch), found, stop, beginnings).go()
            finally:
                torch.set_num_threads(threads)


def _loaded(job: Job, world: World, root: Path | None, download: bool) -> Data:
    if download and not world.first:
        world.wait()  # one process downloads
    data = load_data(job.recipe, root, download)
    if download and world.first:
        world.wait()
    return data


class _Course:
    """The course of a run, from its first or latest checkpoint to its results.

    Args:
        folder: Where it is kept.
        trainer: What trains it.
        found: The record of an earlier part.
        stop: The signals that asked to stop.
        beginnings: Where runs leave what others may begin with.
    """

    def __init__(
        self, folder: RunFolder, trainer: Trainer, found: Run | None, stop: list[int], beginnings: Path | None
    ) -> None:
        self.folder, self.trainer, self.stop, self.beginnings = folder, trainer, stop, beginnings
        self.job, self.recipe, self.world, self.watch = trainer.job, trainer.recipe, trainer.world, trainer.watch
        self.record = _new_record(trainer, found)
        self.rows: list[Epoch] = []
        self.timing = Timing()
        self.beginning: Beginning | None = None  # a resumed run shares none: part of it was trained elsewhere perhaps

    def go(self) -> Run:
        """Train what is not trained yet, and write the results."""
        self._start()
        self._write("running")
        self.watch.begin(self.job, self.trainer.steps, self.trainer.step)
        with self.folder.events(len(self.rows)) as events:
            while self.trainer.step < self.trainer.steps:
                if self.trainer.step == self.trainer.segment.end:
                    self._begin_finetune()
                self._epoch()
                self._save()
                self._write("running")
                events.add(len(self.rows), self.rows[-1])
                self._stop_if_asked()
        return self._conclude()

    # ---------------------------------------------------------------------------------------------------- the start

    def _start(self) -> None:
        """Begin, or resume from the latest checkpoint, or from where a run of another strength was when both were alike."""
        if saved := self.folder.latest():
            self._restore(saved)
            timing = self.folder.read_timing()
            self.timing = replace(timing, epoch_seconds=timing.epoch_seconds[: len(self.rows)], resumed=timing.resumed + 1)
            self.folder.write_timing(self.timing)
            return
        self.record = replace(self.record, began_with=None)  # of an attempt that came to no checkpoint of its own
        self.beginning = self._beginning()
        if shared := self.beginning and self.beginning.take():
            self._restore(shared)
            self.record = replace(self.record, began_with=BeganWith(shared.state["run"], shared.step))
            self.timing = Timing(tuple(shared.state["seconds"]), shared.step)
        else:
            self.trainer.begin()

    def _restore(self, saved: Checkpoint) -> None:
        self.trainer.restore(saved)
        self.rows = [Epoch.from_json(row) for row in saved.state["epochs"]]
        if saved.state["numeric"] != self.record.numeric:
            warnings.warn(
                f"this run began with {saved.state['numeric']} and resumes with {self.record.numeric}: it will not be bit for "
                "bit the run it would have been",
                RuntimeWarning,
                stacklevel=2,
            )

    def _beginning(self) -> Beginning | None:
        """What this run has in common with those of other strengths: whole epochs of one process."""
        first, steps = self.trainer.segments[0], self.trainer.epoch_steps
        epochs = first.method.alike_for(first.plan) // steps
        if self.beginnings is None or self.world.size > 1 or not epochs:
            return None
        settings = self.job.settings()
        method = {key: value for key, value in settings["method"].items() if key != "strength"}
        here = {key: value for key, value in provenance().items() if key in ("versions", "hardware")}
        terms = {**settings, "method": method, **here, "numeric": self.record.numeric, "data": self.record.data}
        return Beginning(self.beginnings, terms, epochs * steps)

    # ---------------------------------------------------------------------------------------------------- the epochs

    def _epoch(self) -> None:
        started = time.perf_counter()
        try:
            row = self.trainer.epoch(self._save_if_asked_to_stop)
        except (NotFinite, Diverged) as error:
            self._write("failed", reason=str(error))
            remedy = f"lower lr={self.recipe.lr:g} or strength={self.job.method.strength:g}, or set clip_norm"
            told = str(error) if isinstance(error, Diverged) else f"{error}: {remedy}"
            raise TrainingError(f"{told}; the last checkpoint in {self.folder.path} is from before") from None
        self.rows.append(row)
        self.timing = replace(self.timing, epoch_seconds=(*self.timing.epoch_seconds, time.perf_counter() - started))
        self.watch.epoch(row)

    def _save_if_asked_to_stop(self) -> None:
        if self.world.agreed(bool(self.stop)):
            self.trainer.check_loss()
            self._save()
            self._end()

    def _stop_if_asked(self) -> None:
        if self.world.agreed(bool(self.stop)):
            self._end()

    def _end(self) -> None:
        raise Stopped(self.stop[0] if self.stop else signal.SIGTERM)

    def _save(self) -> None:
        step = self.trainer.step
        model, state = self.trainer.state()
        state |= {"epochs": [row.to_json() for row in self.rows], "numeric": dict(self.record.numeric)}
        self.timing = replace(self.timing, steps=step)
        self.folder.save(step, model, state)
        if self.beginning and step == self.beginning.step:
            seconds = list(self.timing.epoch_seconds)
            self.beginning.leave(model, {**state, "run": self.job.folder_name, "seconds": seconds})
        self.folder.write_timing(self.timing)
        self.world.wait()

    def _write(self, status: str, **more: Any) -> None:
        self.record = replace(self.record, status=status, epochs=tuple(self.rows), **more)
        self.folder.write(self.record)

    # ------------------------------------------------------------------------------------------------------- the end

    def _doing(self, what: str) -> None:
        """Tell what is done next, or stop at once if that was asked: this work needs no new checkpoint."""
        if self.stop:
            self._end()
        self.watch.doing(what)

    @property
    def _max_drop(self) -> float | None:
        """What a cut after training may cost; None for none, where the method leaves the zeros that were asked for."""
        return None if self.job.method.exact else self.recipe.max_drop

    def _begin_finetune(self) -> None:
        """Cut as far as validation data allows, and continue with the zeros kept."""
        trainer, recipe, model = self.trainer, self.recipe, self.trainer.trained()
        if self.world.first:
            self._doing("cutting before the fine-tune")
            cut(model, max_drop=self._max_drop, metric=recipe.metric, batches=trainer.batches, numeric=trainer.numeric)
        self.world.copy(model.state_dict().values())
        trainer.begin(trainer.index + 1, model)

    def _conclude(self) -> Run:
        """Measure, choose the last cut, write the files. The first process does; the others wait."""
        trainer, recipe, model = self.trainer, self.recipe, self.trainer.trained()
        if self.world.first:
            curve, point, small = measure(
                model,
                compressions=recipe.compressions,
                max_drop=self._max_drop,
                metric=recipe.metric,
                batches=trainer.batches,
                numeric=trainer.numeric,
                tick=self._doing,
            )
            report = {"max_drop": recipe.max_drop, **point.to_json()}
            file_bytes, dense_bytes = self.folder.write_models(model, small, report)
            counts, edges, zeros = histogram(model.cpu())
            self._write(
                "finished",
                curve=tuple(curve),
                final=Final(**vars(point), max_drop=recipe.max_drop, file_bytes=file_bytes, dense_bytes=dense_bytes),
                layers=summary(small).layers,
                histogram=Histogram(tuple(counts.tolist()), tuple(edges.tolist()), zeros),
            )
            self.folder.remove_checkpoints()
            self.watch.end(self.record, self.folder.path)
        self.world.wait()
        record = self.folder.read()
        assert record is not None
        return record


def _new_record(trainer: Trainer, found: Run | None) -> Run:
    """The record of a run that is about to begin, or to resume from an earlier part."""
    job, world, numeric = trainer.job, trainer.world, trainer.numeric
    model, settings, here = build_model(job.recipe, trainer.data), job.settings(), provenance()
    here["commit"] = here["commit"] or UNKNOWN
    began = here if found is None else {key: getattr(found, key) for key in ("command", "commit", "versions", "hardware")}
    return Run(
        name=job.folder_name,
        status="running",
        recipe=settings["recipe"],
        method=settings["method"]["name"],
        strength=settings["method"]["strength"],
        strength_is=settings["method"]["strength_is"],
        settings=settings["method"]["settings"],
        seed=job.seed,
        **began,
        continued_by=() if found is None else _continued(found, Continuation(here["commit"], here["versions"])),
        numeric={
            "device": world.device.type,
            "precision": numeric.precision,
            "channels_last": numeric.channels_last,
            "threads": torch.get_num_threads(),
            "processes": world.size,
        },
        data=described(trainer.data),
        prunable=count(prunable(model).values()).total,
        parameters=whole(model).total,
        began_with=None if found is None else found.began_with,
    )


def _continued(found: Run, now: Continuation) -> tuple[Continuation, ...]:
    """The commits and versions that resumed a run, with the present one if it is another than those before."""
    if now in (Continuation(found.commit, found.versions), *found.continued_by):
        return found.continued_by
    warnings.warn(
        f"this run began with {found.commit} {dict(found.versions)} and resumes with {now.commit} {dict(now.versions)}",
        RuntimeWarning,
        stacklevel=2,
    )
    return (*found.continued_by, now)
