"""The end of a run: exact zeros, how far from balance the rest is, and the fitted model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewa.estimators.iteration.loss import Design, quotient
from rewa.estimators.iteration.state import Iteration
from rewa.reparam import power

Array = NDArray[np.float64]

BATCH_TOL = 1e-2  # residual at which a run over batches counts as converged: their noise leaves no smaller one


class Result(NamedTuple):
    r"""A fitted linear model.

    Attributes:
        coef: Coefficients, of the shape ``(d,)``, or ``(outputs, d)`` for several outputs or classes.
        intercept: A number, or one for each output or class.
        n_iter: Steps of the full batch or of a stream, or passes over batches.
        converged: Whether the residual came below the tolerance and, in a full batch, no coefficient wants to enter or leave.
        residual: Largest slope :math:`|g_j + \alpha_j \mathrm{sign}(b_j) |b_j|^{p-1}| / \sqrt{L_j}` among coefficients that are
            not zero or not penalized, in units of the largest :math:`|g_j| / \sqrt{L_j}` of the empty model. A full batch that
            has converged counts the intercept's slope, too.
    """

    coef: Array
    intercept: Any
    n_iter: int
    converged: bool
    residual: float


def finalize(state: Iteration, *, tol: float = 1e-8) -> Result:
    """The model of a stream with exact zeros; the state itself does not change.

    Zero is what shrinks under the mean gradient of the last pass and lies below its start, or is better off at zero.

    Args:
        state: The model, after at least one :func:`step`.
        tol: Largest residual of a model that counts as converged, at least that of a run over batches.

    Raises:
        ValueError: If the model has seen no rows.
    """
    parts = state.current()
    with torch.no_grad():
        final = replace(state, parts=replace(parts, u=parts.u.clone(), v=parts.v.clone()))
        _zero_shrinking(final)
        residual = _residual(final)
        return fitted(final, state.steps, residual <= max(tol, BATCH_TOL), residual)


def settle(state: Iteration, design: Design, target: Tensor, weights: Tensor) -> float:
    """Exact zeros by the gradient over all rows; the residual of what is left."""
    state.refresh(design, target, weights)
    _zero_shrinking(state)
    state.refresh(design, target, weights)
    return _residual(state)


def fitted(state: Iteration, n_iter: int, converged: bool, residual: float) -> Result:
    """The model as it is, with an intercept for columns that are not centred."""
    parts = state.current()
    x = state.in_columns(parts.x())
    intercept = parts.intercept if state.mean is None else parts.intercept - x @ state.mean
    coef, b0 = cast(Array, x.double().cpu().numpy()), cast(Array, intercept.double().cpu().numpy())
    return Result(coef[0] if state.flat else coef, float(b0[0]) if state.flat else b0, n_iter, converged, residual)


def _zero_shrinking(state: Iteration) -> None:
    """Zero for every part that shrinks below its start or is better off at zero, and for a small rest beside a larger part."""
    parts = state.current()
    gradient, L = state.gradient[:, state.order], state.curvature[:, state.penalized]
    threshold = parts.thresholds(L)
    outward = -state.gradient[:, state.penalized]
    h = parts.relative(gradient)
    gone = []
    for part, shrinks, other, push in ((parts.u, h[0] > 0, parts.v, outward), (parts.v, h[1] > 0, parts.u, -outward)):
        s = power(part, state.K)
        below = s <= state.starts * (1 + 1e-9)
        gone.append(shrinks & (below | (push + L * s < threshold)) | below & (part < other))
    parts.u[gone[0]] = 0.0
    parts.v[gone[1]] = 0.0


def _residual(state: Iteration) -> float:
    if state.scale == 0:
        return 0.0
    parts, m = state.current(), len(state.penalized)
    gradient, L = state.gradient[:, state.order], state.curvature[:, state.order]
    x = parts.x()[:, :m]
    size = torch.where(x != 0, x.abs(), 1.0)
    slopes = torch.where(x != 0, gradient[:, :m] + parts.decay * x.sign() * size ** (parts.p - 1), 0.0)
    both = quotient(torch.cat([slopes, parts.plain_slopes(gradient)], dim=1), L.sqrt())
    return float(both.abs().max()) / state.scale if both.numel() else 0.0
