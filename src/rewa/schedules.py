"""Learning rates over a run, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["SCHEDULES", "learning_rates"]

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
}


def learning_rates(lr: float, steps: int, *, schedule: str = "cosine", warmup: int = 0) -> list[float]:
    """The learning rate of every step: a straight line up to ``lr``, then the schedule.

    Args:
        lr: The peak.
        steps: Number of steps, the warm-up's included.
        schedule: ``"constant"``, ``"cosine"`` or ``"linear"``; the last two fall to zero at the end.
        warmup: Steps until the peak.

    Example:
        >>> learning_rates(1.0, 6, schedule="linear", warmup=2)
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"Invalid schedule: {schedule!r} (allowed: {', '.join(SCHEDULES)})")
    if steps < 1 or not 0 <= warmup < steps:
        raise ValueError(f"a run needs at least one step and a shorter warm-up; got {steps} steps, {warmup} of them warm-up")
    shape = SCHEDULES[schedule]
    rises = [lr * (step + 1) / warmup for step in range(warmup)]
    return rises + [lr * shape(step / (steps - warmup)) for step in range(steps - warmup)]
