"""The folder of a run: its record, and whose it is."""

from __future__ import annotations

import fcntl
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rewa.train.data import Data
from rewa.train.job import Job

__all__ = ["TrainingError", "alone", "check_data", "check_same", "continued", "data_of", "read_record"]

# What may differ between two halves of a run: it may go on elsewhere, and its recipe may be described in other words.
FREE = ("recipe.workers", "recipe.threads", "recipe.parallel", "recipe.line")


class TrainingError(RuntimeError):
    """A run cannot go on; the message says why, and what to do."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No two processes train in one folder; the lock goes with the process, however it ends.

    Args:
        folder: Of the run.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(f"another process is training in {folder}") from None
        for name in ("record.json", "timing.json", "trained.safetensors", "model.rewa"):
            for scratch in folder.glob(f".{name}.*"):
                scratch.unlink()  # what a killed process left
        yield


def read_record(folder: Path) -> dict[str, Any] | None:
    """What is known of the run in a folder; None if there is none.

    Args:
        folder: Of the run.
    """
    path = folder / "record.json"
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text())
        if not isinstance(record, dict) or "status" not in record:
            raise ValueError("it has no status")
    except ValueError as error:
        raise TrainingError(f"{path} is not a record ({error}); move the folder away, or choose another --name") from None
    return record


def check_same(found: dict[str, Any] | None, job: Job, folder: Path) -> None:
    """Refuse a folder that holds a run with other settings.

    Args:
        found: Its record.
        job: The run to do.
        folder: The folder.
    """
    if found is None:
        return
    # Through JSON, so that tuples are lists on both sides.
    here = json.loads(json.dumps(job.settings()))
    differences = [
        f"{key}: {there!r} there, {now!r} here"
        for key, there, now in _differences({key: found.get(key) for key in here}, here)
        if key not in FREE
    ]
    if differences:
        raise TrainingError(
            f"{folder} holds another run ({'; '.join(differences[:5])}): choose another --name or --out, or remove the folder"
        )


def _differences(there: Any, here: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in {**there, **here}:
            yield from _differences(there.get(name), here.get(name), f"{key}.{name}" if key else name)
    elif there != here:
        yield key, there, here


def data_of(data: Data) -> dict[str, Any]:
    """The data as records hold it.

    Args:
        data: The data.
    """
    return {"name": data.name, **data.sizes, "fingerprint": data.fingerprint}


def check_data(found: dict[str, Any] | None, data: Data, folder: Path) -> None:
    """Refuse to go on with other data: the split would be another one, and what was trained on could be validated on.

    Args:
        found: The record.
        data: The data now.
        folder: Of the run.
    """
    if found is not None and found.get("data") != data_of(data):
        raise TrainingError(
            f"the data is not what the run in {folder} began with ({found.get('data')} there, {data_of(data)} here): "
            "bring it back, or choose another --name"
        )


def continued(found: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Where a run comes from: the commands, commit and versions that began it, and others that went on with it.

    Args:
        found: The record so far.
        now: The provenance of this process.
    """
    if found is None:
        return now
    keys = ("command", "commit", "versions", "hardware", "continued_by", "began_with")
    kept: dict[str, Any] = {key: found[key] for key in keys if key in found}
    known = [kept, *kept.get("continued_by", [])]
    this = {key: now[key] for key in ("commit", "versions")}
    if all({key: one[key] for key in this} != this for one in known):
        began = f"{kept['commit']} {kept['versions']}"
        warnings.warn(f"this run began with {began} and goes on with {this}", RuntimeWarning, stacklevel=2)
        kept["continued_by"] = [*kept.get("continued_by", []), this]
    return kept
