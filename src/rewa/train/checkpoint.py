"""Checkpoints that are whole or not there: written aside, checked by their sums, put in place by one rename.

A checkpoint is a folder ``step-00000340`` with ``model.safetensors``, ``state.pt`` (read with ``weights_only``) and
``sums.json``, the SHA-256 sums of both. The two newest are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Checkpoint", "load", "load_latest", "remove_all", "save"]

KEPT = 2
FILES = ("model.safetensors", "state.pt")


class Checkpoint(NamedTuple):
    """What was saved."""

    step: int
    model: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, step: int, model: dict[str, Tensor], state: dict[str, Any]) -> Path:
    """Write a checkpoint; afterwards the two newest are left.

    Args:
        folder: Where the checkpoints of the run are; it is made if need be.
        step: Steps done.
        model: The tensors of the model, on the CPU.
        state: Everything else: tensors and plain values only.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"step-{step:08d}").exists():  # the same step is the same state
        return folder / f"step-{step:08d}"
    target, scratch = folder / f"step-{step:08d}", folder / f".step-{step:08d}.{os.getpid()}"
    scratch.mkdir()
    try:
        # Plain safetensors cannot share memory between names, nor keep strides.
        save_file({name: tensor.contiguous().clone() for name, tensor in model.items()}, scratch / FILES[0])
        with (scratch / FILES[1]).open("wb") as file:  # a full disk is then an OSError, not torch's riddle
            torch.save(state, file)
        (scratch / "sums.json").write_text(json.dumps({name: _sum(scratch / name) for name in FILES}))
        for path in (*scratch.iterdir(), scratch):
            _flush(path)
        scratch.rename(target)
        _flush(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    for old in _checkpoints(folder)[:-KEPT]:
        _remove(old)
    return target


def load_latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there was none. For one process: it clears up.

    A damaged one is put aside with a warning, and the one before it is taken.

    Args:
        folder: Where the checkpoints of the run are.

    Raises:
        ValueError: If there were checkpoints, and all are damaged.
    """
    for scratch in folder.glob(".*"):
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed process left
    for path in reversed(_checkpoints(folder)):
        try:
            return _load(path)
        except (FileNotFoundError, KeyError, ValueError, pickle.UnpicklingError) as error:
            warnings.warn(f"checkpoint {path} is damaged ({error}); going back to the one before", RuntimeWarning, stacklevel=2)
            path.rename(path.with_name(f"damaged-{path.name}"))
    if any(folder.glob("damaged-*")):
        raise ValueError(f"no checkpoint in {folder} is whole: remove the folder of the run to begin again")
    return None


def load(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of a step.

    Args:
        folder: Where the checkpoints of the run are.
        step: Steps done.
    """
    return _load(folder / f"step-{step:08d}")


def remove_all(folder: Path) -> None:
    """Delete the checkpoints of a run that is over.

    Args:
        folder: Where they are.
    """
    shutil.rmtree(folder, ignore_errors=True)


def _load(path: Path) -> Checkpoint:
    from safetensors.torch import load_file

    sums = json.loads((path / "sums.json").read_text())
    for name in FILES:
        if _sum(path / name) != sums[name]:
            raise ValueError(f"{name} does not have the SHA-256 sum that was recorded")
    state = torch.load(path / FILES[1], map_location="cpu", weights_only=True)
    return Checkpoint(int(path.name.removeprefix("step-")), load_file(path / FILES[0]), state)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _remove(path: Path) -> None:
    """Delete a checkpoint so that no half of it is ever taken for one."""
    aside = path.with_name(f".{path.name}")
    if aside.exists():
        shutil.rmtree(aside)
    path.rename(aside)
    shutil.rmtree(aside)


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    """Through to the disk: after a power cut a rename must not outlive the files it names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
