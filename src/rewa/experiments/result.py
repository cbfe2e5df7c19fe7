"""What a published result is: something that ``rewa reproduce`` can run into a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from rewa.terminal import Stages

__all__ = ["How", "Result"]


@dataclass(frozen=True, kw_only=True)
class How:
    """How a result is made: nothing of this changes its numbers, except ``quick``.

    Args:
        quick: A small version in seconds, whose numbers mean nothing.
        workers: How much at a time; None for as much as the cores can take.
        root: Where data is; None for where ``REWA_DATA`` says.
        download: Whether missing data may be fetched.
        device: Such as ``"cpu"``; None for a GPU where there is one.
        trained: Train and measure nothing: write what is recorded already; for results that keep their runs.
        progress: Progress callback.
    """

    quick: bool = False
    workers: int | None = None
    root: Path | None = None
    download: bool = False
    device: str | None = None
    trained: bool = False
    progress: Stages = field(default_factory=Stages)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"Invalid workers: {self.workers} (allowed: a whole number >= 1)")


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """A table or figure that one command makes again. A subclass has its settings as fields.

    Args:
        line: What it shows, for ``rewa list``.
        quick: Whether it has a quick version.

    Attributes:
        trains_networks: Whether a device and a folder of data mean anything for it; a study of linear models draws its data.
        redraws: Whether it can be drawn again from its own record, without training.
    """

    trains_networks: ClassVar[bool] = False
    redraws: ClassVar[bool] = False

    line: str
    quick: bool = False

    @abstractmethod
    def run(self, out: Path, how: How) -> list[Path]:
        """Make it.

        Args:
            out: The folder of the result, which exists.
            how: On what it is made, and the progress callback.

        Returns:
            The files written.
        """
