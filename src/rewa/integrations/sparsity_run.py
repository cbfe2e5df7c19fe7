"""What the callbacks for trainers share: a sparsifier that the trainer starts, resumes and ends."""

from __future__ import annotations

import inspect
import logging
import warnings
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rewa.names import nearest
from rewa.optim.misuse import core
from rewa.sparsifier import KEY, Sparsified, Sparsifier

__all__ = ["SparsityRun"]

FROM_TRAINER = ("model", "optimizer", "steps")


class SparsityRun:
    """A sparsifier in a run that a trainer drives.

    Args:
        **options: What :class:`rewa.Sparsifier` takes, except model, optimizer and steps.

    Attributes:
        sparsifier: The sparsifier while the run lasts, otherwise None.
        report: What the last run reached, once it has ended.
    """

    def __init__(self, **options: Any) -> None:
        known = [name for name in inspect.signature(Sparsifier).parameters if name not in FROM_TRAINER]
        for name in options:
            if name in FROM_TRAINER:
                raise TypeError(f"{type(self).__name__} takes {name} from the trainer: leave it out")
            if name not in known:
                raise TypeError(nearest("argument", name, known))
        self.options = options
        self.sparsifier: Sparsifier | None = None
        self.report: Sparsified | None = None

    def start(self, model: nn.Module, optimizer: Optimizer, *, steps: int, done: int) -> None:
        """Make the sparsifier, after the trainer has loaded its checkpoint.

        Args:
            model: The model.
            optimizer: The optimizer, which holds the sparsifier's state if a checkpoint was loaded.
            steps: The optimizer steps of the whole run.
            done: Those that were made before a checkpoint was saved.
        """
        self.report = None
        if self.sparsifier is not None:  # a run that broke off in this process
            if done and self.sparsifier.optimizer is core(optimizer):
                self.sparsifier.course = replace(self.sparsifier.course, steps=steps)
                return
            self.sparsifier.remove()
        resumed = KEY in core(optimizer).param_groups[0]
        self.sparsifier = Sparsifier(model, optimizer, steps=steps, **self.options)
        if done and not resumed:
            warnings.warn(
                f"the run resumes at step {done:,} from a checkpoint without a sparsifier: the cuts that were planned up to "
                "there are made at once, with the next one",
                stacklevel=3,
            )
            self.sparsifier.load_state_dict({**self.sparsifier.state_dict(), "done": done})

    def finish(self) -> Sparsified | None:
        """End the sparsifier, if there is one, and keep its report."""
        if self.sparsifier is not None:
            self.report = self.sparsifier.finish()
            self.sparsifier = None
            logging.getLogger(__name__).info("%s", self.report)
        return self.report
