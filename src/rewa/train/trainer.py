"""The trainer: the steps and epochs of a run, first with its method and then, perhaps, as a masked fine-tune.

Data order, augmentation and every other random number are functions of the seed and the step. So a trainer that is restored, at
any step and on any number of processes, continues as if it had never stopped.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rewa.deploy.freezing import freeze_zeros
from rewa.methods.dense import Dense
from rewa.methods.method import Bound, Method, Plan
from rewa.record import Epoch
from rewa.sparsity import count
from rewa.train.checkpoint import Checkpoint
from rewa.train.data import Batch, Data, mix
from rewa.train.evaluate import calibration, fresh_norms, losses, score
from rewa.train.job import WEIGHTS, Job, build_model, new_model
from rewa.train.numeric import choose
from rewa.train.processes import World, full_state, gradients_shared, load_state, wrap
from rewa.train.run_folder import TrainingError
from rewa.train.watch import Watch

__all__ = ["NotFinite", "Segment", "Trainer", "check_world"]

NOISE = 4  # what a seed is for, beside the data's own and the first weights
STALE = 100  # steps after which a running average with torch's momentum of 0.1 has forgotten the start
NEAR_ZERO = 1e-3  # for the compression that is shown while a run is training


class NotFinite(Exception):
    """A loss is infinite or not a number; the message says which, and where."""


@dataclass
class Segment:
    """A part of the run with one method: the training itself, or the masked fine-tune after it."""

    phase: str
    method: Method
    plan: Plan
    start: int

    @property
    def end(self) -> int:
        """The number of steps that are done after it."""
        return self.start + self.plan.steps


def check_world(job: Job, world: World) -> None:
    """Refuse what the processes cannot train together.

    Args:
        job: The run.
        world: The processes.
    """
    recipe = job.recipe
    if world.size > 1 and recipe.parallel == "fsdp":
        if not job.method.shards:
            raise TrainingError(f"method {job.method.label} needs whole weights: leave parallel=fsdp out")
        if recipe.finetuned(job.method):
            raise TrainingError("a masked fine-tune needs whole weights: leave parallel=fsdp out, or set finetune_epochs=0")
    if recipe.batch_size % (world.size * recipe.accumulate):
        raise TrainingError(
            f"batch_size={recipe.batch_size} cannot be split over {world.size} processes, each in "
            f"accumulate={recipe.accumulate} equal parts"
        )


class Trainer:
    """A model, its optimizer and its method, at some step of a run.

    Args:
        job: The run.
        data: Its data.
        world: The processes that train together.
        watch: The progress callback.
    """

    def __init__(self, job: Job, data: Data, world: World, watch: Watch) -> None:
        self.job, self.recipe, self.data, self.world, self.watch = job, job.recipe, data, world, watch
        self.numeric = choose(world.device, job.recipe.precision, job.recipe.channels_last)
        self.epoch_steps = data.steps_per_epoch(job.recipe.batch_size)
        self.segments = self._segments()
        self.step, self.index = 0, 0
        self.bound: Bound[Any]  # the method of this segment, at work
        self.totals = torch.zeros(3, dtype=torch.float64, device=world.device)  # of the epoch: loss, right ones, seen
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.numeric.precision == "float16")

    def _segments(self) -> list[Segment]:
        recipe, method = self.recipe, self.job.method
        finetune = recipe.finetuned(method)
        plan = method.planned(recipe.plan(self.epoch_steps, finetune=finetune))
        segments = [Segment("train", method, plan, 0)]
        if finetune:
            segments.append(Segment("finetune", Dense(), recipe.finetune_plan(self.epoch_steps, finetune), plan.steps))
        return segments

    @property
    def segment(self) -> Segment:
        """The segment that is trained now."""
        return self.segments[self.index]

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return self.segments[-1].end

    # -------------------------------------------------------------------------------------------- begin and restore

    def begin(self, index: int = 0, model: nn.Module | None = None, state: dict[str, Tensor] | None = None) -> None:
        """Begin a segment.

        Args:
            index: The number of the segment.
            model: The model to begin with; by default a new one.
            state: What to load into the model once the method is bound to it.
        """
        self.index = index
        torch.manual_seed(mix(self.job.seed, WEIGHTS))  # also for what a method draws when it starts
        if model is None:
            model = new_model(self.recipe, self.data, self.job.seed)
        self.bound = self.segment.method.bind(model, self.segment.plan)
        if state is not None:
            model.load_state_dict(state)
        self.plain = self.numeric.place_model(model)
        self.model = wrap(self.plain, self.world, self.recipe.parallel, self.recipe.sync_batchnorm)
        self.optimizer = self.bound.start()
        if self.segment.phase == "finetune":
            freeze_zeros(self.plain, all_zero=True)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tensors of the model and everything else that :meth:`restore` needs; all processes must call it together."""
        self._share_buffers()
        model, optimizer = full_state(self.plain.state_dict()), full_state(self.optimizer.state_dict())
        return model, {
            "segment": self.index,
            "optimizer": optimizer,
            "method": full_state(self.bound.state_dict()),
            "scaler": self.scaler.state_dict(),
            "totals": self.world.sum(self.totals.clone()).cpu(),
        }

    def restore(self, saved: Checkpoint) -> None:
        """Continue from what :meth:`state` returned.

        Args:
            saved: A checkpoint of it.
        """
        state = saved.state
        sharded = self.world.size > 1 and self.recipe.parallel == "fsdp"
        self.begin(state["segment"], state=saved.model if sharded else None)
        if not sharded:
            # Only now: an optimizer refuses to begin with a layer of zeros, but a run may have come to one.
            self.plain.load_state_dict(saved.model)
            if self.segment.phase == "finetune":
                freeze_zeros(self.plain, all_zero=True)
        load_state(self.optimizer, state["optimizer"])
        self.bound.load_state_dict(state["method"])
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.step = saved.step
        if self.world.first:  # the totals are of all processes, and will be added up again
            self.totals = state["totals"].to(self.world.device)

    # --------------------------------------------------------------------------------------------- epochs and steps

    def epoch(self, pause: Callable[[], None]) -> Epoch:
        """Train to the end of the epoch, and evaluate on validation data.

        Args:
            pause: Called between two steps of the epoch; by several processes now and then, by all after the same step.

        Raises:
            NotFinite: If the training or the validation loss is not finite.
        """
        epoch, segment = self.step // self.epoch_steps, self.segment
        self.model.train()
        batches = self.data.batches(
            epoch,
            seed=self.job.seed,
            batch_size=self.recipe.batch_size,
            start=self.step - epoch * self.epoch_steps,
            shard=self.world.shard,
            image_size=self.recipe.image_size_at(epoch),
        )
        lr = 0.0
        for batch in batches:
            lr = self._step(batch)
            # An epoch that is complete is evaluated first; many processes ask each other now and then.
            if self.step % self.epoch_steps and (self.world.size == 1 or self.step % 10 == 0):
                pause()
        loss, right, seen = self.world.sum(self.totals.clone()).tolist()
        self._check_finite(loss)
        self._share_buffers()
        with self._norms_of_now():
            worth = score(self.model, self.batches("validation", self.world), self.numeric, self.world)
        self._check_finite(worth.loss, "validation loss")
        weights = full_state(self.bound.current()).values()
        self.totals.zero_()
        return Epoch(
            epoch=epoch + 1,
            phase=segment.phase,
            lr=lr,
            train_loss=loss / seen,
            train_accuracy=100 * right / seen,
            validation_loss=worth.loss,
            validation_accuracy=worth.accuracy,
            compression=count(weights, NEAR_ZERO).compression_ratio,
        )

    def _step(self, batch: Batch) -> float:
        recipe, bound, local = self.recipe, self.bound, self.step - self.segment.start
        lr = self.segment.plan.learning_rates[local]
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self._seed_noise()
        bound.before_forward(local)
        self.optimizer.zero_grad()
        parts = list(zip(*(self.numeric.place(tensor).chunk(recipe.accumulate) for tensor in batch), strict=True))
        for number, (inputs, targets) in enumerate(parts, 1):
            last = number == len(parts)
            with gradients_shared(self.model, self.world, recipe.parallel, last):
                with self.numeric.autocast():
                    logits = self.model(inputs)
                loss, right = losses(logits, targets, recipe.label_smoothing)
                total = loss / len(parts)
                if last and (penalty := bound.penalty()) is not None:
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

    def check_loss(self) -> None:
        """Raise :class:`NotFinite` if the loss of the epoch so far is not finite on some process."""
        self._check_finite(float(self.world.sum(self.totals.clone())[0]))

    def _check_finite(self, loss: float, what: str = "loss") -> None:
        if not math.isfinite(loss):
            epoch, step = divmod(self.step - 1, self.epoch_steps)
            raise NotFinite(f"the {what} is {loss} in epoch {epoch + 1}, step {step + 1}")

    def _seed_noise(self) -> None:
        """Make what a method or a layer draws in this step a function of the seed, the step and the process."""
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
        """Take the first process's statistics, which DDP does before each forward pass, and FSDP never."""
        if self.recipe.parallel == "fsdp" and not self.recipe.sync_batchnorm:
            self.world.copy(self.plain.buffers())

    def _norms_of_now(self) -> contextlib.AbstractContextManager[None]:
        """For a validation early in a run: running averages of batch norms still hold the network of the start."""
        if self.step >= STALE:
            return contextlib.nullcontext()
        return fresh_norms(self.plain, (images for images, _ in self.batches("train", self.world)), self.numeric)

    # ---------------------------------------------------------------------------------------------- what was trained

    def trained(self) -> nn.Module:
        """A plain model with the weights as they are now, whole, on every process."""
        state = full_state(self.plain.state_dict())
        model = build_model(self.recipe, self.data)
        bound = self.segment.method.bind(model, self.segment.plan)
        model.load_state_dict(state)
        bound.finish()
        return self.numeric.place_model(model)

    def batches(self, split: str, world: World | None = None) -> Iterable[Batch]:
        """The batches that norms are estimated from (``"train"``), or those of ``"validation"`` or ``"test"`` data.

        Args:
            split: The split.
            world: The processes that share them; by default none does, for the first process that measures alone.
        """
        recipe, world = self.recipe, world or World(device=self.world.device)
        # As many examples at a time as fit in training, on one process too.
        size = recipe.batch_size // (recipe.accumulate * self.world.size) * world.size
        if split == "train":
            return calibration(self.data, recipe, self.job.seed, size, world.shard)
        return self.data.evaluation(split, batch_size=size, shard=world.shard)
