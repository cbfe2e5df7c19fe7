"""A target of sparsity for the Trainer of transformers; :mod:`rewa.integrations.huggingface` has its public name."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from rewa.integrations.sparsity_run import SparsityRun

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
else:
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this needs {error.name}: pip install 'rewa[integrations]'") from error

__all__ = ["SparsityCallback"]


class SparsityCallback(SparsityRun, TrainerCallback):
    """Makes a share of the weights zero in the course of ``Trainer.train``.

    The number of steps is the Trainer's. Its checkpoints hold all that ``resume_from_checkpoint`` needs. After ``train()`` the
    model has exactly the zeros that were asked for; save it with ``trainer.save_model()``.

    Each log has the share of zeros as ``sparsity``. The reporters of ``report_to`` are called before the callbacks of a user:
    ``trainer.add_callback(trainer.pop_callback(TensorBoardCallback))`` lets one of them see it.

    With ``load_best_model_at_end`` the best model may be one from before the last cut. It is then cut without training after
    it, and a warning says so. ``TrainingArguments(eval_delay=...)`` lets only models after the last cut compete; it also keeps
    an ``EarlyStoppingCallback`` from ending the run before.

    Args:
        **options: What :class:`rewa.Sparsifier` takes, except model, optimizer and steps.

    While the run lasts, ``sparsifier`` is the sparsifier; afterwards ``report`` is what it reached (:class:`SparsityRun`).

    Example:
        >>> callback = SparsityCallback(sparsity=0.95)  # for Trainer(..., callbacks=[callback])
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Make the sparsifier: the Trainer has loaded its checkpoint by now."""
        self.start(others["model"], others["optimizer"], steps=state.max_steps, done=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        """Add the share of zeros to the log, and to the history, which has a copy of it already."""
        if self.sparsifier is not None and logs is not None:
            logs["sparsity"] = self.sparsifier.sparsity
            if state.log_history:
                state.log_history[-1]["sparsity"] = logs["sparsity"]

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Make the last cut, if one is missing. The Trainer has loaded its best model by now."""
        if self.sparsifier is None:
            return
        last = self.sparsifier.course.last
        report = self.finish()
        if report is not None and args.load_best_model_at_end and state.best_model_checkpoint and report.before < report.target:
            warnings.warn(
                f"the best model, {state.best_model_checkpoint}, is from before the last cut: {report.before:.2%} of its "
                f"weights were zero, {report.sparsity:.2%} are now, without training in between. Begin to evaluate after step "
                f"{last:,}, by eval_delay of TrainingArguments",
                stacklevel=2,
            )
