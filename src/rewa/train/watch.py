"""The progress callback of a run."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from rewa.record import Epoch, Run
from rewa.train.job import Job

__all__ = ["Watch"]


class Watch:
    """Progress callback: the loop calls these methods, which do nothing here. Subclasses show or record what they get."""

    def begin(self, job: Job, steps: int, done: int) -> None:
        """A run begins or resumes.

        Args:
            job: The run.
            steps: The number of its steps.
            done: The number of steps that are done already.
        """

    def step(self, done: int, loss: Tensor) -> None:
        """A step was done.

        Args:
            done: The number of steps done.
            loss: Its loss, still on its device.
        """

    def epoch(self, row: Epoch) -> None:
        """An epoch was done.

        Args:
            row: Its metrics.
        """

    def doing(self, what: str) -> None:
        """Something other than training takes time.

        Args:
            what: What is done, in words.
        """

    def end(self, record: Run, folder: Path) -> None:
        """The run is finished.

        Args:
            record: Its record.
            folder: Its folder.
        """
