"""One run of many: tried with what all runs of a sweep share, and a sentence instead of an exception where it fails."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from rewa.names import plain
from rewa.train.job import Job
from rewa.train.run import train
from rewa.train.run_folder import TrainingError
from rewa.train.signals import Stopped
from rewa.train.watch import Watch

__all__ = ["ATTEMPTS", "Failure", "Terms"]

ATTEMPTS = 3  # of a run whose process died


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and why."""

    name: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason))

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Terms:
    """What all runs of a sweep share.

    Args:
        out: Folder of runs.
        root: Where the data is.
        device: Such as ``"cpu"``.
        command: What a person typed, which records name; not how a worker process was started.
        beginnings: Where runs leave what others may begin with.
    """

    out: Path
    root: Path | None
    device: str | None
    command: list[str]
    beginnings: Path

    def attempt(self, job: Job, watch: Watch | None = None) -> str | None:
        """Train a run.

        Args:
            job: The run.
            watch: The progress callback.

        Returns:
            What went wrong; None if nothing did.
        """
        sys.orig_argv = self.command
        try:
            train(job, self.out, root=self.root, device=self.device, watch=watch, beginnings=self.beginnings)
        except Stopped as stopped:
            return str(stopped)
        except (TrainingError, ValueError, OSError) as error:
            return str(error)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        return None
