"""The one training loop: a recipe, a method and a seed in, a folder with weights and a record out.

Data order, augmentation and every other random number are functions of the seed and the step, so a run that resumes, from any
step and on any number of processes, goes on as if it had never stopped.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewa.deploy.freezing import freeze_zeros
from rewa.deploy.packed import save_packed
from rewa.files import replacing, write_atomically
from rewa.methods.dense import Dense
from rewa.methods.method import Bound, Method, Plan
from rewa.record import provenance
from rewa.sparsity import count, histogram, prunable, summary, whole
from rewa.train import checkpoint
from rewa.train.beginnings import Beginning
from rewa.train.data import Batch, mix
from rewa.train.evaluate import calibration, cut, fresh_norms, losses, measure, score
from rewa.train.job import WEIGHTS, Job, build_model, load_data, new_model
from rewa.train.numeric import choose
from rewa.train.processes import World, connected, full_state, load_state, wrap
from rewa.train.runs import TrainingError, alone, check_data, check_same, continued, data_of, read_record

__all__ = ["Stopped", "TrainingError", "Watch", "stop_signals", "train"]

NOISE = 4  # what a seed is for, beside the data's own and the first weights
STALE = 100  # steps after which a running average with torch's momentum of 0.1 has forgotten the start
NEAR_ZERO = 1e-3  # for the compression that is shown while a run goes on


class Stopped(Exception):
    """A run was told to stop, saved itself and did.

    Args:
        number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Watch:
    """Who looks on: told of everything, does nothing."""

    def begin(self, job: Job, steps: int, done: int) -> None:
        """A run begins, or goes on.

        Args:
            job: The run.
            steps: All its steps.
            done: Those done already.
        """

    def step(self, done: int, loss: Tensor) -> None:
        """A step was done.

        Args:
            done: Steps done.
            loss: Its loss, still on its device.
        """

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch was done.

        Args:
            row: Its line of the record.
        """

    def doing(self, what: str) -> None:
        """Something else takes time.

        Args:
            what: In words.
        """

    def end(self, record: dict[str, Any], folder: Path) -> None:
        """The run is over.

        Args:
            record: Its record.
            folder: Where it is.
        """


def train(
    job: Job,
    out: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    download: bool = False,
    watch: Watch | None = None,
    beginnings: Path | None = None,
) -> dict[str, Any]:
    """Train, or go on where an earlier call stopped; a finished run is not repeated.

    Args:
        job: What to train.
        out: Folder of runs; this one is a folder in it.
        root: Where the data is; by default what ``REWA_DATA`` says.
        device: Such as ``"cpu"``; by default a GPU where there is one.
        download: Whether missing data may be fetched.
        watch: Told what happens.
        beginnings: Where to find, or to leave, what is common to runs that differ in strength only; None to train it all.

    Returns:
        The record, as in ``record.json``.

    Raises:
        TrainingError: If the folder holds another run, or the loss is not finite.
        Stopped: After SIGTERM or SIGINT; everything is saved, the same call goes on.
    """
    folder, watch = out / job.folder_name, watch or Watch()
    threads = torch.get_num_threads()
    with connected(device) as world:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder) if world.first else contextlib.nullcontext():
            found = read_record(folder)
            check_same(found, job, folder)
            if found is not None and found["status"] == "finished":
                checkpoint.remove_all(folder / "checkpoints")
                watch.end(found, folder)
                return found
            world.wait()  # no one writes before everyone has looked
            try:
                if job.recipe.threads is not None:
                    torch.set_num_threads(job.recipe.threads)
                with stop_signals() as stop:
                    return _Run(job, folder, world, root, download, watch, stop, beginnings).go()
            finally:
                torch.set_num_threads(threads)


@dataclass
class _Segment:
    """A part of the run with one method: the training itself, or the masked fine-tune after it."""

    phase: str
    method: Method
    plan: Plan
    start: int

    @property
    def end(self) -> int:
        return self.start + self.plan.steps


class _Run:
    def __init__(
        self,
        job: Job,
        folder: Path,
        world: World,
        root: Path | None,
        download: bool,
        watch: Watch,
        stop: list[int],
        beginnings: Path | None,
    ) -> None:
        recipe = job.recipe
        self.job, self.recipe, self.folder, self.world, self.watch, self.stop = job, recipe, folder, world, watch, stop
        if world.size > 1 and recipe.parallel == "fsdp" and not job.method.shards:
            raise TrainingError(f"method {job.method.label} needs whole weights: leave parallel=fsdp out")
        if recipe.batch_size % (world.size * recipe.accumulate):
            raise TrainingError(
                f"batch_size={recipe.batch_size} cannot be split over {world.size} processes, each in "
                f"accumulate={recipe.accumulate} equal parts"
            )
        if download and not world.first:
            world.wait()  # one process downloads
        self.data = load_data(recipe, root, download)
        if download and world.first:
            world.wait()
        self.found = read_record(folder)
        check_data(self.found, self.data, folder)
        self.numeric = choose(world.device, recipe.precision, recipe.channels_last)
        self.epoch_steps = self.data.steps_per_epoch(recipe.batch_size)
        self.segments = self._segments()
        self.steps = self.segments[-1].end
        self.step, self.index = 0, 0
        self.bound: Bound[Any]  # the method of this segment, at work
        self.rows: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        self.totals = torch.zeros(3, dtype=torch.float64, device=world.device)  # of the epoch: loss, right ones, seen
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.numeric.precision == "float16")
        self.beginnings = beginnings
        self.beginning: Beginning | None = None  # a run that goes on shares none: part of it was trained elsewhere perhaps

    def _segments(self) -> list[_Segment]:
        recipe, method = self.recipe, self.job.method
        finetune = recipe.finetuned(method)
        if finetune and recipe.parallel == "fsdp" and self.world.size > 1:
            raise TrainingError("a masked fine-tune needs whole weights: leave parallel=fsdp out, or set finetune_epochs=0")
        plan = method.planned(recipe.plan(self.epoch_steps, finetune=finetune))
        segments = [_Segment("train", method, plan, 0)]
        if finetune:
            segments.append(_Segment("finetune", Dense(), recipe.finetune_plan(self.epoch_steps, finetune), plan.steps))
        return segments

    # ------------------------------------------------------------------------------------------------ the course

    def go(self) -> dict[str, Any]:
        saved = self._latest()
        self.record = self._new_record()
        if saved is None:
            saved = self._begun_by_another()
        if saved is None:
            self._enter(0, None)
        else:
            self._restore(saved)
        self._write_record("running")
        self.watch.begin(self.job, self.steps, self.step)
        with self._events() as events:
            while True:
                if self.step == self.segments[self.index].end:
                    if self.index + 1 == len(self.segments):
                        break
                    self._begin_finetune()
                self._epoch()
                self._save()
                self._write_record("running")
                if events is not None:
                    for key, value in self.rows[-1].items():
                        if isinstance(value, float):
                            events.add_scalar(key, value, len(self.rows))
                self._stop_if_asked(saved=True)
        return self._conclude()

    def _latest(self) -> checkpoint.Checkpoint | None:
        """The newest whole checkpoint; the first process decides which, so that all go on from the same."""
        checkpoints = self.folder / "checkpoints"
        saved = checkpoint.load_latest(checkpoints) if self.world.first else None
        step = self.world.told(saved and saved.step)
        return saved if self.world.first or step is None else checkpoint.load(checkpoints, step)

    def _begun_by_another(self) -> checkpoint.Checkpoint | None:
        """Where a run of another strength was when both were still the same."""
        self.record.pop("began_with", None)  # of an attempt that came to no checkpoint of its own
        self.beginning = self._beginning()
        saved = self.beginning.take() if self.beginning else None
        if saved:
            self.record["began_with"] = {"run": saved.state["run"], "steps": saved.step}
            self.seconds = saved.state["seconds"]
        return saved

    def _beginning(self) -> Beginning | None:
        """What this run has in common with those of other strengths: whole epochs of one process."""
        first = self.segments[0]
        epochs = first.method.alike_for(first.plan) // self.epoch_steps
        if self.beginnings is None or self.world.size > 1 or not epochs:
            return None
        settings = self.job.settings()
        method = {key: value for key, value in settings["method"].items() if key != "strength"}
        here = {key: value for key, value in provenance().items() if key in ("versions", "hardware")}
        terms = {**settings, "method": method, **here, "numeric": self.record["numeric"], "data": self.record["data"]}
        return Beginning(self.beginnings, terms, epochs * self.epoch_steps)

    def _stop_if_asked(self, saved: bool = False) -> None:
        if not self.world.agreed(bool(self.stop)):
            return
        if not saved:
            self._check_finite(float(self.world.sum(self.totals.clone())[0]))
            self._save()
        raise Stopped(self.stop[0] if self.stop else signal.SIGTERM)

    def _doing(self, what: str) -> None:
        """Of work that needs no new checkpoint: tell what is next, or stop at once if that was asked."""
        if self.stop:
            raise Stopped(self.stop[0])
        self.watch.doing(what)

    def _enter(self, index: int, model: nn.Module | None, state: dict[str, Tensor] | None = None) -> None:
        """Begin a segment with this model, or with a new one, and with this state of it if there is one."""
        self.index = index
        segment = self.segments[index]
        torch.manual_seed(mix(self.job.seed, WEIGHTS))  # also for what a method draws when it starts
        if model is None:
            model = new_model(self.recipe, self.data, self.job.seed)
        self.bound = segment.method.bind(model, segment.plan)
        if state is not None:
            model.load_state_dict(state)
        self.plain = self.numeric.place_model(model)
        self.model = wrap(self.plain, self.world, self.recipe.parallel, self.recipe.sync_batchnorm)
        self.optimizer = self.bound.start()
        if segment.phase == "finetune":
            freeze_zeros(self.plain, all_zero=True)

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        state = saved.state
        segment = self.segments[state["segment"]]
        sharded = self.world.size > 1 and self.recipe.parallel == "fsdp"
        self._enter(state["segment"], None, saved.model if sharded else None)
        if not sharded:
            # Only now: an optimizer refuses to begin with a layer of zeros, but a run may have come to one.
            self.plain.load_state_dict(saved.model)
            if segment.phase == "finetune":
                freeze_zeros(self.plain, all_zero=True)
        load_state(self.optimizer, state["optimizer"])
        self.bound.load_state_dict(state["method"])
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.step, self.rows = saved.step, state["epochs"]
        if self.world.first:  # the totals are of all processes, and will be added up again
            self.totals = state["totals"].to(self.world.device)
        timing = self.folder / "timing.json"
        if timing.exists():
            self.seconds = json.loads(timing.read_text())["epoch_seconds"][: len(self.rows)]
        if state["numeric"] != self.record["numeric"]:
            warnings.warn(
                f"this run began with {state['numeric']} and goes on with {self.record['numeric']}: it will not be bit for bit "
                "the run it would have been",
                RuntimeWarning,
                stacklevel=2,
            )

    def _epoch(self) -> None:
        recipe, epoch, started = self.recipe, self.step // self.epoch_steps, time.perf_counter()
        segment = self.segments[self.index]
        self.model.train()
        batches = self.data.batches(
            epoch,
            seed=self.job.seed,
            batch_size=recipe.batch_size,
            start=self.step - epoch * self.epoch_steps,
            shard=self.world.shard,
            image_size=recipe.image_size_at(epoch),
        )
        lr = 0.0
        for batch in batches:
            lr = self._step(segment, batch)
            # An epoch that is complete is evaluated first; many processes ask each other now and then.
            if self.step % self.epoch_steps and (self.world.size == 1 or self.step % 10 == 0):
                self._stop_if_asked()
        loss, right, seen = self.world.sum(self.totals.clone()).tolist()
        self._check_finite(loss)
        self._share_buffers()
        with self._norms_of_now():
            worth = score(self.model, self._batches("validation", self.world), self.numeric, self.world)
        self._check_finite(worth.loss, "validation loss")
        weights = full_state(self.bound.current()).values()
        self.totals.zero_()
        self.seconds.append(time.perf_counter() - started)
        self.rows.append(
            {
                "epoch": epoch + 1,
                "phase": segment.phase,
                "lr": lr,
                "train_loss": loss / seen,
                "train_accuracy": 100 * right / seen,
            }
            | worth.named("validation")
            | {"compression": _finite(count(weights, NEAR_ZERO).compression_ratio)}
        )
        self.watch.epoch(self.rows[-1])

    def _step(self, segment: _Segment, batch: Batch) -> float:
        recipe, bound, local = self.recipe, self.bound, self.step - segment.start
        lr = segment.plan.learning_rates[local]
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self._seed_noise()
        bound.before_forward(local)
        self.optimizer.zero_grad()
        parts = list(zip(*(self.numeric.place(tensor).chunk(recipe.accumulate) for tensor in batch), strict=True))
        for number, (inputs, targets) in enumerate(parts, 1):
            with self._gradients_shared(number == len(parts)):
                with self.numeric.autocast():
                    logits = self.model(inputs)
                loss, right = losses(logits, targets, recipe.label_smoothing)
                total = loss / len(parts)
                if number == len(parts) and (penalty := bound.penalty()) is not None:
                    total = total + penalty
                self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]  # torch's
            seen = targets.numel()
            self.totals += torch.stack([loss.detach().double() * seen, right.double(), right.new_tensor(seen)])
        self.scaler.unscale_(self.optimizer)
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.plain.parameters(), recipe.clip_norm)
        bound.before_step(local)
        self.scaler.step(self.optimizer)
        if not self._overflowed():
            bound.after_step(local, lr)
        self.step += 1
        if self.world.device.type == "cpu" or self.step % 50 == 0:  # on a GPU looking means waiting
            self._check_finite(float(self.totals[0]))
        self.watch.step(self.step, loss.detach())
        return lr

    def _seed_noise(self) -> None:
        """What a method or a layer draws in this step is a function of the seed, the step and the process."""
        number = mix(self.job.seed, self.step, self.world.rank, NOISE)
        if self.world.device.type == "cpu":
            torch.default_generator.manual_seed(number)  # torch.manual_seed looks for GPUs each time: a third of a millisecond
        else:
            torch.manual_seed(number)

    def _overflowed(self) -> bool:
        """Whether float16 gradients were infinite, and the optimizer's step was left out."""
        if not self.scaler.is_enabled():
            return False
        scale = self.scaler.get_scale()
        self.scaler.update()
        return self.scaler.get_scale() < scale

    def _share_buffers(self) -> None:
        """The first process's statistics for all, which DDP does before each forward pass, and FSDP never."""
        if self.world.size > 1 and self.recipe.parallel == "fsdp" and not self.recipe.sync_batchnorm:
            for buffer in self.plain.buffers():
                torch.distributed.broadcast(buffer, 0)

    def _norms_of_now(self) -> contextlib.AbstractContextManager[None]:
        """For a validation early in a run: running averages of batch norms still hold the network of the start."""
        if self.step >= STALE:
            return contextlib.nullcontext()
        inputs = (self.numeric.place(images) for images, _ in self._batches("train", self.world))
        return fresh_norms(self.plain, inputs)

    @contextmanager
    def _gradients_shared(self, share: bool) -> Iterator[None]:
        """Only the last part of a batch exchanges gradients with the other processes."""
        if self.world.size == 1 or share:
            if self.world.size > 1 and self.recipe.parallel == "fsdp":
                self.plain.set_requires_gradient_sync(True)  # type: ignore[operator]
            yield
        elif self.recipe.parallel == "fsdp":
            self.plain.set_requires_gradient_sync(False)  # type: ignore[operator]
            yield
        else:
            with self.model.no_sync():  # type: ignore[operator]
                yield

    def _check_finite(self, loss: float, what: str = "loss") -> None:
        if math.isfinite(loss):
            return
        epoch, step = divmod(self.step - 1, self.epoch_steps)
        reason = f"the {what} is {loss} in epoch {epoch + 1}, step {step + 1}"
        self._write_record("failed", reason=reason)
        raise TrainingError(
            f"{reason}: lower lr={self.recipe.lr:g} or strength={self.job.method.strength:g}, or set clip_norm; "
            f"the last checkpoint in {self.folder} is from before"
        )

    # --------------------------------------------------------------------------------------------- the end of it

    def _trained(self) -> nn.Module:
        """A plain model with the weights as they are now, whole, on every process."""
        state = full_state(self.plain.state_dict())
        model = build_model(self.recipe, self.data)
        segment = self.segments[self.index]
        bound = segment.method.bind(model, segment.plan)
        model.load_state_dict(state)
        bound.finish()
        return self.numeric.place_model(model)

    def _begin_finetune(self) -> None:
        """Cut as far as validation data allows, and go on with the zeros kept."""
        model = self._trained()
        if self.world.first:
            self._doing("cutting before the fine-tune")
            recipe, batches = self.recipe, self._alone_batches
            cut(model, max_drop=recipe.max_drop, metric=recipe.metric, batches=batches, numeric=self.numeric)
        if self.world.size > 1:
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, 0)
        self._enter(self.index + 1, model)

    def _conclude(self) -> dict[str, Any]:
        """Measure, choose the last cut, write the files. By the first process; the others wait."""
        model = self._trained()
        if self.world.first:
            recipe = self.recipe
            curve, final, small = measure(
                model,
                compressions=recipe.compressions,
                max_drop=recipe.max_drop,
                metric=recipe.metric,
                batches=self._alone_batches,
                numeric=self.numeric,
                tick=self._doing,
            )
            from safetensors.torch import save_file

            plain = {name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()}
            with replacing(self.folder / "trained.safetensors") as scratch:
                save_file(plain, scratch)
            packed = save_packed(small.cpu(), self.folder / "model.rewa", report=final)
            dense_bytes = sum(tensor.nbytes for tensor in plain.values())
            counts, edges, zeros = histogram(model.cpu())
            layers = [
                {"name": layer.name, "shape": list(layer.shape), "total": layer.count.total, "nonzero": layer.count.nonzero}
                for layer in summary(small).layers
            ]
            self.record |= {
                "curve": curve,
                "final": {**final, "file_bytes": packed.size, "dense_bytes": dense_bytes},
                "layers": layers,
                "histogram": {"counts": counts.tolist(), "edges": edges.tolist(), "zeros": zeros},
            }
            self._write_record("finished")
            checkpoint.remove_all(self.folder / "checkpoints")
            self.watch.end(self.record, self.folder)
        self.world.wait()
        record = read_record(self.folder)
        assert record is not None
        return record

    # --------------------------------------------------------------------------------------------------- on disk

    def _batches(self, split: str, world: World) -> Iterable[Batch]:
        recipe = self.recipe
        # As many examples at a time as fit in training, on one process too.
        size = recipe.batch_size // (recipe.accumulate * self.world.size) * world.size
        if split == "train":
            return calibration(self.data, recipe, self.job.seed, size, world.shard)
        return self.data.evaluation(split, batch_size=size, shard=world.shard)

    def _alone_batches(self, split: str) -> Iterable[Batch]:
        """For the first process, which measures while the others wait."""
        return self._batches(split, World(device=self.world.device))

    def _save(self) -> None:
        self._share_buffers()
        model, optimizer = full_state(self.plain.state_dict()), full_state(self.optimizer.state_dict())
        state = {
            "segment": self.index,
            "optimizer": optimizer,
            "method": full_state(self.bound.state_dict()),
            "scaler": self.scaler.state_dict(),
            "epochs": self.rows,
            "totals": self.world.sum(self.totals.clone()).cpu(),
            "numeric": self.record["numeric"],
        }
        if self.world.first:
            checkpoint.save(self.folder / "checkpoints", self.step, model, state)
            if self.beginning and self.step == self.beginning.step:
                self.beginning.leave(model, {**state, "run": self.job.folder_name, "seconds": self.seconds})
            timing = {"epoch_seconds": self.seconds, "steps": self.step}
            write_atomically(self.folder / "timing.json", json.dumps(timing))
        self.world.wait()

    def _new_record(self) -> dict[str, Any]:
        model = build_model(self.recipe, self.data)
        kept = continued(self.found, provenance())
        return {
            "format": 1,
            "name": self.job.folder_name,
            "status": "running",
            **self.job.settings(),
            **kept,
            "numeric": {
                "device": self.world.device.type,
                "precision": self.numeric.precision,
                "channels_last": self.numeric.channels_last,
                "threads": torch.get_num_threads(),
                "processes": self.world.size,
            },
            "data": data_of(self.data),
            "weights": {"prunable": count(prunable(model).values()).total, "model": whole(model).total},
        }

    def _write_record(self, status: str, **more: Any) -> None:
        self.record |= {"status": status, "epochs": self.rows, **more}
        if self.world.first:
            write_atomically(self.folder / "record.json", json.dumps(self.record, indent=1, allow_nan=False))

    @contextmanager
    def _events(self) -> Iterator[Any]:
        """TensorBoard's event file, without what a killed run wrote beyond its last checkpoint."""
        if not self.world.first:
            yield None
            return
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder / "tensorboard"), purge_step=len(self.rows) + 1) as writer:
            yield writer


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that holds the number of the signal that asked the run to stop; signals reach main threads only."""
    asked: list[int] = []
    previous = {}
    with contextlib.suppress(ValueError):
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, lambda number, frame: asked.append(number))
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
