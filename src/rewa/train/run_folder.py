"""The folder of a run: its lock, record, times, checkpoints, TensorBoard events and models."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rewa.deploy.packed import save_packed
from rewa.files import replacing, write_atomically
from rewa.record import Epoch, NewerFormat, Run, Timing, read_run
from rewa.train import checkpoint
from rewa.train.checkpoint import Checkpoint
from rewa.train.data import Data
from rewa.train.job import Job
from rewa.train.processes import World

__all__ = ["RunFolder", "TrainingError", "described"]

# What may differ between two halves of a run: it may resume elsewhere, and its recipe may be described in other words.
FREE = ("recipe.workers", "recipe.threads", "recipe.parallel", "recipe.line")
FILES = ("record.json", "timing.json", "trained.safetensors", "model.rewa")


class TrainingError(RuntimeError):
    """A run cannot begin or continue; the message says why, and what to do."""


class RunFolder:
    """All that one run keeps on disk. Every process may read; only the first one writes.

    Args:
        path: The folder.
        world: The processes that train together.
    """

    def __init__(self, path: Path, world: World | None = None) -> None:
        self.path, self.world = path, world or World()
        self.checkpoints = path / "checkpoints"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the folder. The lock goes with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.world.first:
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrainingError(f"another process is training in {self.path}") from None
            for name in FILES:
                for scratch in self.path.glob(f".{name}.*"):
                    scratch.unlink()  # what a killed process left
            yield

    # -------------------------------------------------------------------------------------------------- the record

    def read(self) -> Run | None:
        """The record of the run; None if there is none yet.

        Raises:
            TrainingError: If the file is damaged, not a record, or of a newer version.
        """
        file = self.path / "record.json"
        try:
            return read_run(self.path)
        except NewerFormat as error:
            raise TrainingError(f"{file}: {error}, or choose another --name") from None
        except ValueError as error:
            raise TrainingError(f"{file} is not a record ({error}); move the folder away, or choose another --name") from None

    def read_of(self, job: Job) -> Run | None:
        """The record of the run, if it is that of a job.

        Args:
            job: The run to do.

        Raises:
            TrainingError: If the folder holds a run with other settings.
        """
        found = self.read()
        if found is None:
            return None
        # Through JSON, so that tuples are lists on both sides.
        here, there = json.loads(json.dumps(job.settings())), found.to_json()
        differences = [
            f"{key}: {theirs!r} there, {ours!r} here"
            for key, theirs, ours in _differences({key: there.get(key) for key in here}, here)
            if key not in FREE
        ]
        if differences:
            raise TrainingError(
                f"{self.path} holds another run ({'; '.join(differences[:5])}): choose another --name or --out, "
                "or remove the folder"
            )
        return found

    def check_data(self, found: Run | None, data: Data) -> None:
        """Refuse to resume with other data: examples of the old training data could be in the new validation data.

        Args:
            found: The record.
            data: The data now.
        """
        if found is not None and found.data != described(data):
            raise TrainingError(
                f"the data is not what the run in {self.path} began with ({dict(found.data)} there, {described(data)} here): "
                "bring it back, or choose another --name"
            )

    def write(self, record: Run) -> None:
        """Replace the record.

        Args:
            record: The new one.
        """
        if self.world.first:
            text = json.dumps(record.to_json(), indent=1, allow_nan=False)
            write_atomically(self.path / "record.json", text)

    def read_timing(self) -> Timing:
        """The times so far; none if there are none, or the file is damaged."""
        try:
            return Timing.from_json(json.loads((self.path / "timing.json").read_text()))
        except (OSError, ValueError, AttributeError):
            return Timing()

    def write_timing(self, timing: Timing) -> None:
        """Replace the times.

        Args:
            timing: The new ones.
        """
        if self.world.first:
            write_atomically(self.path / "timing.json", json.dumps(timing.to_json()))

    # ------------------------------------------------------------------------------------------------- checkpoints

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; the first process decides which, so that all resume from the same."""
        saved = checkpoint.load_latest(self.checkpoints) if self.world.first else None
        step = self.world.told(saved and saved.step)
        return saved if self.world.first or step is None else checkpoint.load(self.checkpoints, step)

    def save(self, step: int, model: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write a checkpoint.

        Args:
            step: The number of steps done.
            model: The tensors of the model, whole and on the CPU.
            state: Everything else.
        """
        if self.world.first:
            checkpoint.save(self.checkpoints, step, model, state)

    def remove_checkpoints(self) -> None:
        """Delete the checkpoints of a run that is finished."""
        checkpoint.remove_all(self.checkpoints)

    # ------------------------------------------------------------------------------------------ events and models

    @contextmanager
    def events(self, epochs: int) -> Iterator[Events]:
        """Open TensorBoard's event file, without what a killed run wrote beyond its last checkpoint.

        Args:
            epochs: The number of epochs done.
        """
        if not self.world.first:
            yield Events(None)
            return
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.path / "tensorboard"), purge_step=epochs + 1) as writer:
            yield Events(writer)

    def write_models(self, trained: nn.Module, small: nn.Module, report: Mapping[str, Any]) -> tuple[int, int]:
        """Write the trained weights and, packed, those of the final model.

        Args:
            trained: The model as it was trained.
            small: The model with the final cut.
            report: What is known about the final model, for the metadata of the packed file.

        Returns:
            The sizes of the packed and of the dense file, in bytes.
        """
        from safetensors.torch import save_file

        plain = {name: tensor.contiguous().cpu() for name, tensor in trained.state_dict().items()}
        with replacing(self.path / "trained.safetensors") as scratch:
            save_file(plain, scratch)
        packed = save_packed(small.cpu(), self.path / "model.rewa", report=dict(report))
        return packed.size, sum(tensor.nbytes for tensor in plain.values())


class Events:
    """What TensorBoard shows of a run.

    Args:
        writer: TensorBoard's writer; None to write nothing.
    """

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def add(self, number: int, row: Epoch) -> None:
        """Add the metrics of an epoch.

        Args:
            number: Its number.
            row: Its metrics.
        """
        if self.writer is not None:
            for key, value in row.to_json().items():
                if isinstance(value, float):
                    self.writer.add_scalar(key, value, number)


def described(data: Data) -> dict[str, Any]:
    """The data as records describe it.

    Args:
        data: The data.
    """
    return {"name": data.name, **data.sizes, "fingerprint": data.fingerprint}


def _differences(there: Any, here: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in {**there, **here}:
            yield from _differences(there.get(name), here.get(name), f"{key}.{name}" if key else name)
    elif there != here:
        yield key, there, here
