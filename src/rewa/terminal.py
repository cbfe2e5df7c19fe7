"""What a run shows in a terminal: bars for people, lines for pipes, JSON for programs, nothing when quiet."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from torch import Tensor

from rewa.record import Epoch, Run
from rewa.train.attempts import Failure
from rewa.train.job import Job
from rewa.train.sweep import Progress
from rewa.train.watch import Watch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn

__all__ = ["Bars", "JsonLines", "Lines", "Stages", "sentence", "studying", "sweeping", "watching"]

T = TypeVar("T")
REST = 10.0  # seconds between two lines on how far a stage is


def watching(*, quiet: bool = False, as_json: bool = False, stream: TextIO | None = None) -> AbstractContextManager[Watch]:
    """The progress callback of a run, for where the output goes.

    Args:
        quiet: Show nothing.
        as_json: One JSON object in each line.
        stream: Where to; by default the standard output.
    """
    return _shown(Watch, JsonLines, Bars, Lines, quiet=quiet, as_json=as_json, stream=stream)


@contextmanager
def _shown(
    nothing: Callable[[], T],
    objects: Callable[[TextIO], T],
    bars: Callable[[TextIO], AbstractContextManager[T]],
    lines: Callable[[TextIO], T],
    *,
    quiet: bool,
    as_json: bool,
    stream: TextIO | None,
) -> Iterator[T]:
    stream = stream or sys.stdout
    if quiet:
        yield nothing()
    elif as_json:
        yield objects(stream)
    elif stream.isatty():
        with bars(stream) as drawn:
            yield drawn
    else:
        yield lines(stream)


def _bar(*columns: ProgressColumn, console: Console, **options: Any) -> RichProgress:
    """A progress bar with room for the ^C that a terminal echoes behind it: in a full line that would break the bar."""
    from rich.constrain import Constrain
    from rich.progress import Progress as RichProgress

    class Bar(RichProgress):
        def get_renderables(self) -> Iterator[Constrain]:
            yield Constrain(self.make_tasks_table(self.tasks), console.width - len("^C"))

    return Bar(*columns, console=console, **options)


@contextmanager
def sweeping(
    progress: Progress, *, quiet: bool = False, as_json: bool = False, stream: TextIO | None = None
) -> Iterator[Callable[[], None]]:
    """What to call now and then to show how far a sweep is, and at once which runs failed: the others may take hours.

    Args:
        progress: The sweep.
        quiet: Show nothing.
        as_json: One JSON object in each line.
        stream: Where to; by default the standard output.
    """
    stream = stream or sys.stdout
    failed = 0

    def newly_failed() -> list[Failure]:
        nonlocal failed
        before, failed = failed, len(progress.failures)
        return progress.failures[before:failed]

    if not quiet and not as_json and stream.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = TextColumn("{task.fields[runs]} runs"), BarColumn(), TextColumn("{task.completed}/{task.total} epochs")
        times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
        with _bar(*columns, *times, console=Console(file=stream)) as bar:
            task = bar.add_task("", total=progress.epochs()[1], runs=f"0/{len(progress.jobs)}")

            def draw() -> None:
                for failure in newly_failed():
                    bar.console.print(escape(f"failed: {failure}"), highlight=False)
                done, total = progress.epochs()
                runs = f"{len(progress.finished)}/{len(progress.jobs)}"
                bar.update(task, completed=done, total=total, runs=runs)

            yield draw
            draw()
        return
    told: set[str] = set()

    def tell() -> None:
        for failure in newly_failed():
            line = {"event": "failed", "run": failure.name, "reason": failure.reason}
            stream.write((json.dumps(line) if as_json else f"failed: {failure}") + "\n")
        done, total = progress.epochs()
        for name in sorted(progress.finished - told):
            told.add(name)
            count = f"{len(told)}/{len(progress.jobs)}"
            end = {"event": "finished", "run": name, "epochs": done, "of": total}
            stream.write((json.dumps(end) if as_json else f"{count} {_told(progress.record(name))}") + "\n")
        stream.flush()

    yield (lambda: None) if quiet else tell
    if not quiet:
        tell()


def studying(*, quiet: bool = False, as_json: bool = False, stream: TextIO | None = None) -> AbstractContextManager[Stages]:
    """The progress callback of a computation that goes in stages, for where the output goes.

    Args:
        quiet: Show nothing.
        as_json: One JSON object in each line.
        stream: Where to; by default the standard output.
    """
    return _shown(Stages, _JsonStages, _BarStages, _LineStages, quiet=quiet, as_json=as_json, stream=stream)


def sentence(record: Run) -> str:
    """The end of a run in one sentence.

    Args:
        record: The record of a finished run.
    """
    final = record.final
    assert final is not None
    loss = f"{final.test_loss:.4f}" if math.isfinite(final.test_loss) else "not finite"
    worth = f"{final.test_accuracy:.2f} % of test data right" if record.metric == "accuracy" else f"test loss {loss}"
    return (
        f"{record.name}: {worth} with {final.prunable.nonzero:,} of {final.prunable.total:,} weights, "
        f"{final.file_bytes:,} bytes instead of {final.dense_bytes:,}"
    )


def _told(record: Run) -> str:
    """The same for one run of many, with what one should know about it."""
    return sentence(record) + (f" ({'; '.join(record.remarks())})" if record.remarks() else "")


def _ending(record: Run, folder: Path) -> str:
    """The lines that end a run: what came out, what one should know about it, and where it is."""
    return "\n".join([sentence(record), *record.remarks(), f"in {folder}"])


def _headline(job: Job, steps: int, done: int) -> str:
    method = job.method
    where = f", resuming at step {done} of {steps}" if done else ""
    return f"{job.folder_name}: {method.label}, {method.strength_is} {method.strength:.4g}, {job.recipe.epochs} epochs{where}"


def _line(row: Epoch, epochs: int) -> str:
    return (
        f"epoch {row.epoch}/{epochs}{' (fine-tune)' if row.phase == 'finetune' else ''}  loss {row.train_loss:.4f}  "
        f"validation {row.validation_accuracy:.2f} %  compression {row.compression:.3g}x"
    )


class Lines(Watch):
    """A line for each epoch, as a file or a pipe wants it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.epochs, self.started, self.first, self.last = stream, 0, 0.0, 0, ""

    def begin(self, job: Job, steps: int, done: int) -> None:
        """Say what is trained."""
        self.epochs, self.started, self.first = job.recipe.epochs, time.monotonic(), -1
        self._say(_headline(job, steps, done))

    def epoch(self, row: Epoch) -> None:
        """Its line."""
        if self.first < 0:
            self.first = row.epoch - 1
        spent = time.monotonic() - self.started
        left = spent / (row.epoch - self.first) * (self.epochs - row.epoch)
        self._say(f"{_line(row, self.epochs)}  {left:.0f} s left")

    def doing(self, what: str) -> None:
        """Say so, once for all that begins with the same word."""
        word = what.partition(":")[0]
        if word != self.last:
            self._say(word)
        self.last = word

    def end(self, record: Run, folder: Path) -> None:
        """Say what came out."""
        self._say(_ending(record, folder))

    def _say(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


class JsonLines(Watch):
    """One object a line, for programs: every epoch, then the record."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def epoch(self, row: Epoch) -> None:
        """As it is."""
        self._say({"event": "epoch", **row.to_json()})

    def end(self, record: Run, folder: Path) -> None:
        """The whole record."""
        self._say({"event": "end", "folder": str(folder), "record": record.to_json()})

    def _say(self, content: dict[str, Any]) -> None:
        self.stream.write(json.dumps(content) + "\n")
        self.stream.flush()


class Bars(Watch):
    """A progress bar with loss, accuracy, compression and the time left.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn

        self.console = Console(file=stream)
        # What is beside the bar leaves room for it in 80 columns.
        columns = BarColumn(bar_width=None), TextColumn("{task.fields[state]}", markup=False)
        self.progress = _bar(*columns, TextColumn("left"), TimeRemainingColumn(), console=self.console, expand=True)
        self.task: TaskID | None = None  # a run that was finished before has none
        self.state, self.shown, self.epochs, self.done, self.steps_per_epoch = "", 0.0, 0, 0, 1.0

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, job: Job, steps: int, done: int) -> None:
        """A bar for the run."""
        self.epochs, self.done = job.recipe.epochs, done
        self.steps_per_epoch = steps / self.epochs
        self.console.out(_headline(job, steps, done), highlight=False)
        self.task = self.progress.add_task("", total=steps, completed=done, state="")

    def step(self, done: int, loss: Tensor) -> None:
        """Ten times a second: reading the loss makes a GPU wait."""
        self.done, now = done, time.monotonic()
        if now - self.shown > 0.1:
            self.shown = now
            epoch = int((done - 1) // self.steps_per_epoch) + 1
            self._show(f"epoch {epoch}/{self.epochs}  loss {loss.item():.3f}{self.state}")

    def epoch(self, row: Epoch) -> None:
        """Keep its numbers beside the bar."""
        self.state = f"  validation {row.validation_accuracy:.1f} %  {row.compression:.3g}x"
        self._show(f"epoch {row.epoch}/{self.epochs}  loss {row.train_loss:.3f}{self.state}")

    def doing(self, what: str) -> None:
        """In the place of the numbers."""
        self._show(what)

    def end(self, record: Run, folder: Path) -> None:
        """What came out."""
        self.progress.stop()
        self.console.out(_ending(record, folder), highlight=False)

    def _show(self, state: str) -> None:
        if self.task is not None:
            self.progress.update(self.task, completed=self.done, state=state)


class Stages:
    """Progress callback of a computation that goes from stage to stage; it shows nothing. Any thread may call it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.words, self.total, self.done, self.started, self.shown = "", 0.0, 0.0, 0.0, 0.0

    def stage(self, words: str, total: float) -> None:
        """A stage begins, and the one before is over.

        Args:
            words: What is done in it.
            total: How much.
        """
        with self.lock:
            self.words, self.total, self.done = words, total, 0.0
            self.started = self.shown = time.monotonic()
            self._begin()

    def advance(self, amount: float = 1.0) -> None:
        """A part of the stage is done.

        Args:
            amount: How much of its total.
        """
        with self.lock:
            self.done = min(self.done + amount, self.total)  # parts in floating point may add up to more than the whole
            self._progress()

    def sweep(self, progress: Progress) -> AbstractContextManager[Callable[[], None]]:
        """For a stage that is a sweep: what to call now and then, as :func:`sweeping`.

        Args:
            progress: The sweep.
        """
        return sweeping(progress, quiet=True)

    def _begin(self) -> None:
        """A stage has begun: a display shows its name, silence shows nothing."""

    def _progress(self) -> None:
        """Part of a stage is done: a display moves on, silence shows nothing."""

    def _rested(self) -> bool:
        """Whether it is time to show something again."""
        now = time.monotonic()
        if now - self.shown < REST:
            return False
        self.shown = now
        return True


class _LineStages(Stages):
    """A line when a stage begins, and one now and then while it lasts."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def sweep(self, progress: Progress) -> AbstractContextManager[Callable[[], None]]:
        return sweeping(progress, stream=self.stream)

    def _begin(self) -> None:
        self._say(self.words)

    def _progress(self) -> None:
        if 0 < self.done < self.total and self._rested():
            left = (time.monotonic() - self.started) / self.done * (self.total - self.done)
            self._say(f"{self.words}: {self.done / self.total:.0%}, {left:.0f} s left")

    def _say(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


class _JsonStages(_LineStages):
    """The same as objects, and one when a stage is complete."""

    def sweep(self, progress: Progress) -> AbstractContextManager[Callable[[], None]]:
        return sweeping(progress, as_json=True, stream=self.stream)

    def _begin(self) -> None:
        self._tell()

    def _progress(self) -> None:
        if self._rounded() >= self.total or self._rested():
            self._tell()

    def _tell(self) -> None:
        self._say(json.dumps({"event": "stage", "stage": self.words, "done": self._rounded(), "of": self.total}))

    def _rounded(self) -> float:
        """Parts in floating point may not quite add up to the whole."""
        return round(self.done, 9)


class _BarStages(Stages):
    """A progress bar for each stage, with the time it took and the time left."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.progress: Any = None  # rich's, made by a stage: a sweep draws a bar of its own
        self.task: Any = None

    def __enter__(self) -> _BarStages:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()
        self.progress = None

    def sweep(self, progress: Progress) -> AbstractContextManager[Callable[[], None]]:
        self.__exit__()
        return sweeping(progress, stream=self.stream)

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        if self.progress is None:
            columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
            self.progress = _bar(*columns, TextColumn("left"), TimeRemainingColumn(), console=Console(file=self.stream))
            self.progress.start()
        else:
            self.progress.stop_task(self.task)  # its clock
        self.task = self.progress.add_task(self.words, total=self.total)

    def _progress(self) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=self.done)
