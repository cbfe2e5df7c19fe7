"""Steps over batches of rows, which come once as a stream or again in every pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewa.estimators.iteration.loss import Design, evaluate
from rewa.estimators.iteration.rates import plain_rates, stable_rate
from rewa.estimators.iteration.state import Iteration, receive
from rewa.reparam import power

SLOWING = 100.0  # steps after which the rate of a stream begins to fall


def step(state: Iteration, X: Any, y: Any, weights: NDArray[np.float64] | None = None) -> None:
    r"""One pass over a chunk of rows, which need not come again.

    The means of the columns are those of all rows seen so far; a pair starts by the first rows in which its column varies. The
    learning rate falls as :math:`1/\sqrt{1 + t/100}` with the number t of steps taken.

    Args:
        state: The model, from :func:`begin`; changed.
        X: Rows, an array or a sparse matrix.
        y: Their targets.
        weights: Their sample weights, comparable between chunks.

    Raises:
        ValueError: If the iteration diverges, or if the rows do not fit those before.
    """
    with torch.no_grad():
        design, target, w = receive(state, X, y, weights)
        run_pass(state, design, target, w, schedule=None)


def run_pass(state: Iteration, design: Design, target: Tensor, weights: Tensor, schedule: tuple[int, int] | None) -> None:
    """Steps over batches in random order.

    Args:
        state: The model; changed.
        design: Rows.
        target: Their targets.
        weights: Their weights, with a mean of 1.
        schedule: Number of the pass and of all passes, over which the learning rate falls as a cosine; ``None`` for a stream.
    """
    parts = state.current()
    n, m, order = len(design), len(state.penalized), state.order
    size = n if state.batch_size is None else min(state.batch_size, n)
    rows = state.generator.permutation(n)
    batches = [rows[first : first + size] for first in range(0, n, size)]
    plain_rate, intercept_rate = plain_rates(state, parts, state.curvature[:, order])
    stable, speed = stable_rate(state, design, weights, plain_rate, size) if state.lr == "auto" else (float(state.lr), 0.0)
    total = torch.zeros_like(state.gradient)
    for index, batch in enumerate(batches):
        some = design.take_rows(batch)
        chosen = torch.as_tensor(batch, device=state.device)
        z = some.forward(state.in_columns(parts.x())) + parts.intercept
        now = evaluate(state.loss, z, target[chosen], weights[chosen] / len(batch))
        state.check_finite(now.value)
        gradient = some.backward(now.slopes)
        total += gradient * (len(batch) / n)
        gradient = gradient[:, order]
        h = parts.relative(gradient)
        if schedule is None:
            lr = stable / math.sqrt(1 + state.steps / SLOWING)
        else:
            lr = stable * (1 + math.cos(math.pi * (schedule[0] + index / len(batches)) / schedule[1])) / 2
        if state.lr == "auto":
            faster = float(parts.speed().max()) / speed if speed > 0 else 1.0
            lr = min(lr / max(faster, 1.0), parts.largest_lr(h))
        parts = parts.moved(lr, h, plain_rate * gradient[:, m:], intercept_rate * state.pull(now))
        state.steps += 1
    state.gradient, state.parts = total, parts
    # Far below the start nothing comes back; this also keeps powers out of the subnormal range.
    gone = state.starts * 1e-6
    for part, relative in zip((parts.u, parts.v), parts.relative(total[:, order]), strict=True):
        part[(power(part, state.K) < gone) & (relative > 0)] = 0.0
