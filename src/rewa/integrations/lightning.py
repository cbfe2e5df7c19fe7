"""A target of sparsity for the Trainer of Lightning: ``lightning.pytorch``, or ``pytorch_lightning`` if only that is there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rewa.integrations.sparsity_run import SparsityRun

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import Callback
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("this needs lightning: pip install 'rewa[integrations]'") from error

__all__ = ["SparsityCallback"]


class SparsityCallback(SparsityRun, Callback):
    """Makes a share of the weights zero in the course of ``Trainer.fit``.

    The number of steps is the Trainer's estimate. Its checkpoints hold all that ``fit(ckpt_path=...)`` needs to resume. The
    share of zeros is logged as ``sparsity``, and after ``fit()`` the model has exactly the zeros that were asked for.

    A checkpoint that was saved on the way has fewer zeros. Load the best one by a metric only if it was saved after the last
    cut; ``rewa.sparsity.summary`` counts them.

    Args:
        **options: What :class:`rewa.Sparsifier` takes, except model, optimizer and steps.

    While the run lasts, ``sparsifier`` is the sparsifier; afterwards ``report`` is what it reached (:class:`SparsityRun`).

    Example:
        >>> callback = SparsityCallback(sparsity=0.95)  # for Trainer(..., callbacks=[callback])
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the sparsifier: the Trainer has loaded its checkpoint by now.

        Raises:
            ValueError: If the module has not exactly one optimizer, or the run no end.
        """
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"{type(pl_module).__name__} has {len(trainer.optimizers)} optimizers, and SparsityCallback is for one: make a "
                "rewa.Sparsifier in on_train_start of the module, with the steps of the optimizer that it is for"
            )
        steps = trainer.estimated_stepping_batches  # -1 for data without a length
        if not 1 <= steps < math.inf:
            raise ValueError(
                f"the Trainer expects {steps} steps, so that the cuts cannot be planned: give Trainer(max_steps=...), and "
                "max_epochs or data that have a length"
            )
        self.start(pl_module, trainer.optimizers[0], steps=int(steps), done=trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the share of zeros where the Trainer logs; counting them takes time."""
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # its constructor sets it elsewhere
        if self.sparsifier is not None and (trainer.is_last_batch or (every and trainer.global_step % every == 0)):
            pl_module.log("sparsity", self.sparsifier.sparsity, on_step=True, on_epoch=False, prog_bar=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the last cut, if one is missing."""
        self.finish()
