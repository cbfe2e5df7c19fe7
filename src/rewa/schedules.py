"""Learning rates over a run, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["SCHEDULES", "learning_rates", "rate_sum"]

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
    _check(steps, schedule, warmup)
    shape = SCHEDULES[schedule]
    rises = [lr * (step + 1) / warmup for step in range(warmup)]
    return rises + [lr * shape(step / (steps - warmup)) for step in range(steps - warmup)]


def rate_sum(lr: float, steps: int, *, schedule: str = "cosine", warmup: int = 0, done: int | None = None) -> float:
    r"""Sum of the learning rates of the first ``done`` steps, in closed form: a run of any length takes no time.

    .. math:: \sum_{s<n} \cos(s a) = \frac{\sin(n a/2)\,\cos((n-1) a/2)}{\sin(a/2)}

    Args:
        lr: The peak.
        steps: Number of steps, the warm-up's included.
        schedule: As for :func:`learning_rates`.
        warmup: Steps until the peak.
        done: Steps to sum over; all by default.

    Example:
        >>> rate_sum(1.0, 6, schedule="linear", warmup=2)
        4.0
    """
    _check(steps, schedule, warmup)
    done = steps if done is None else done
    if not 0 <= done <= steps:
        raise ValueError(f"Invalid done: {done} (allowed: 0 to the {steps} steps of the run)")
    rising, n, length = min(done, warmup), max(done - warmup, 0), steps - warmup
    angle = math.pi / length
    falls = {
        "constant": lambda: float(n),
        "cosine": lambda: (n + math.sin(n * angle / 2) * math.cos((n - 1) * angle / 2) / math.sin(angle / 2)) / 2,
        "linear": lambda: n - n * (n - 1) / (2 * length),
    }
    rise = rising * (rising + 1) / (2 * warmup) if warmup else 0.0
    return lr * (rise + falls[schedule]())


def _check(steps: int, schedule: str, warmup: int) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"Invalid schedule: {schedule!r} (allowed: {', '.join(SCHEDULES)})")
    if steps < 1 or not 0 <= warmup < steps:
        raise ValueError(f"a run needs at least one step and a shorter warm-up; got {steps} steps, {warmup} of them warm-up")
