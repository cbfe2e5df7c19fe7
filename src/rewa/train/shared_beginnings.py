"""Runs that begin alike train their beginning once: under GMP, say, the share of zeros plays no part before the first cut.

The first of them leaves a checkpoint after the last whole epoch that all have in common, and those that start later continue
from it. What a run does is a function of its settings, its seed and the step, so they end as if each had trained alone: on a
CPU with the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rewa.train import checkpoint
from rewa.train.checkpoint import Checkpoint

__all__ = ["Beginning", "beginnings_in"]


@contextmanager
def beginnings_in(out: Path) -> Iterator[Path]:
    """Give a folder where the runs of one sweep leave their beginnings; it is removed in the end.

    Args:
        out: Folder of runs.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".beginnings-") as folder:
        yield Path(folder).resolve()


@dataclass(frozen=True)
class Beginning:
    """What a run shares with those that differ in strength only.

    Args:
        folder: Where runs leave their beginnings, while one sweep lasts: what an earlier one left, other code may have trained.
        terms: All that decides the outcome, the strength aside, as JSON has it.
        step: The number of steps that they have in common.
    """

    folder: Path
    terms: dict[str, Any]
    step: int

    @property
    def _place(self) -> Path:
        return self.folder / hashlib.sha256(json.dumps(self.terms, sort_keys=True).encode()).hexdigest()[:32]

    def take(self) -> Checkpoint | None:
        """What another run left; None if none did, or if it is damaged."""
        with contextlib.suppress(OSError, KeyError, ValueError, pickle.UnpicklingError):
            return checkpoint.load(self._place, self.step)
        return None

    def leave(self, model: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Leave it for the others, unless one of them was faster. If that fails, they train it themselves.

        Args:
            model: What :func:`rewa.train.checkpoint.save` takes.
            state: What :func:`rewa.train.checkpoint.save` takes.
        """
        try:
            checkpoint.save(self._place, self.step, model, state)
        except OSError as error:
            if self.take() is None:
                warnings.warn(f"other runs cannot continue from this one: {error}", RuntimeWarning, stacklevel=2)
