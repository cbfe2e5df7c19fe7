"""Runs that begin alike train their beginning once: under GMP, say, the share of zeros plays no part before the first cut.

The first of them leaves a checkpoint after the last whole epoch that all have in common, and the others go on from it. What a
run does is a function of its settings, its seed and the step, so they end with the same bytes as if each had trained alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rewa.train import checkpoint
from rewa.train.checkpoint import Checkpoint

__all__ = ["Beginning", "beginnings_in", "forget"]


def beginnings_in(out: Path) -> Path:
    """Where the runs of a folder leave their beginnings.

    Args:
        out: Folder of runs.
    """
    return out / ".beginnings"


def forget(out: Path) -> None:
    """Delete the beginnings of runs that are all done.

    Args:
        out: Folder of runs.
    """
    shutil.rmtree(beginnings_in(out), ignore_errors=True)


@dataclass(frozen=True)
class Beginning:
    """What a run shares with those that differ in strength only.

    Args:
        folder: Where beginnings are left.
        terms: All that decides the outcome, the strength aside, as JSON has it.
        step: Steps that they have in common.
    """

    folder: Path
    terms: dict[str, Any]
    step: int

    @property
    def _place(self) -> Path:
        return self.folder / hashlib.sha256(json.dumps(self.terms, sort_keys=True).encode()).hexdigest()[:32]

    def take(self) -> Checkpoint | None:
        """What another run left; None if none did, or if it is damaged."""
        with contextlib.suppress(FileNotFoundError, KeyError, ValueError, pickle.UnpicklingError):
            return checkpoint.load(self._place, self.step)
        return None

    def leave(self, run: str, model: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Leave it for the others, unless one of them was faster.

        Args:
            run: Whose it is.
            model: As of :func:`rewa.train.checkpoint.save`.
            state: As of :func:`rewa.train.checkpoint.save`.
        """
        try:
            checkpoint.save(self._place, self.step, model, {**state, "run": run})
        except OSError:
            if self.take() is None:
                raise
