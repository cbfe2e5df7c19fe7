"""SIGTERM and SIGINT: a run that is asked to stop saves itself first."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Stopped", "stop_signals"]


class Stopped(Exception):
    """A run was asked to stop, saved itself and did.

    Args:
        number: The number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Give a list that gets the number of each signal that asks to stop; outside the main thread it stays empty."""
    asked: list[int] = []
    previous = {}
    with contextlib.suppress(ValueError):  # signals reach main threads only
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, lambda number, frame: asked.append(number))
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
