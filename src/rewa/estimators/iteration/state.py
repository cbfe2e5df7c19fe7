"""A model in training: its settings, its parameters, and what it has seen of the rows."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewa.estimators.iteration.loss import (
    CURVATURE,
    Design,
    Evaluation,
    Loss,
    dtype_on,
    encode,
    evaluate,
    null_intercept,
    quotient,
)
from rewa.estimators.iteration.pair import Parts
from rewa.estimators.iteration.start import starts
from rewa.reparam import check_exponents
from rewa.theory import effective_p

Array = NDArray[np.float64]


@dataclass(kw_only=True)
class Iteration:
    """A model in training, kept between the chunks of a stream.

    Attributes:
        loss: Name of the loss; as for all settings, see :func:`begin`.
        alpha: Weight of the penalty.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        factors: Factors of alpha.
        fit_intercept: Whether there is an intercept.
        positive: Whether coefficients must not be negative.
        lr: Learning rate or ``"auto"``.
        batch_size: Rows in a batch, or ``None`` for whole chunks.
        start: Start of both parts, in units of x, or ``"auto"``.
        device: Where torch computes.
        outputs: Number of outputs, or ``None`` before the first rows if it was not given.
        generator: Draws the order of the rows.
        coef_init: Coefficients to start from.
        intercept_init: Intercept to start from.
        penalized: Columns with a pair.
        free: Columns without a penalty.
        flat: Whether the targets have one dimension, and with them the coefficients.
        parts: The parameters, or ``None`` before the first rows.
        mean: Mean of the columns as far as they were seen, or ``None`` without an intercept.
        starts: Start of every pair.
        curvature: Second derivatives of the loss in each coefficient.
        gradient: Mean gradient of the last pass.
        direction: Estimate of the direction of largest curvature.
        scale: What residuals are measured by.
        steps: Steps over batches taken.
        seen: Sum of the sample weights seen.
        rows_seen: Number of rows seen.
    """

    loss: Loss
    alpha: float
    K: float
    M: float
    factors: Array
    fit_intercept: bool
    positive: bool
    lr: float | Literal["auto"]
    batch_size: int | None
    start: float | Literal["auto"]
    device: torch.device
    outputs: int | None
    generator: np.random.RandomState
    coef_init: Array | None
    intercept_init: Any
    penalized: Tensor
    free: Tensor
    flat: bool = True
    parts: Parts | None = None
    mean: Tensor | None = None
    starts: Tensor = field(default_factory=lambda: torch.empty(0))
    curvature: Tensor = field(default_factory=lambda: torch.empty(0))
    gradient: Tensor = field(default_factory=lambda: torch.empty(0))
    direction: Tensor | None = None
    scale: float = 0.0
    steps: int = 0
    seen: float = 0.0
    rows_seen: int = 0

    @property
    def order(self) -> Tensor:
        """Columns in the order of the parts."""
        return torch.cat([self.penalized, self.free])

    def current(self) -> Parts:
        """The parameters, which there are from the first rows on."""
        if self.parts is None:
            raise ValueError("the model has seen no rows: call step() first")
        return self.parts

    def in_columns(self, values: Tensor) -> Tensor:
        """Values in the order of the parts, put in the order of the columns."""
        result = torch.empty_like(values)
        result[:, self.order] = values
        return result

    def evaluate(self, design: Design, target: Tensor, weights: Tensor) -> Evaluation:
        """The loss of the model as it is."""
        parts = self.current()
        z = design.forward(self.in_columns(parts.x())) + parts.intercept
        return evaluate(self.loss, z, target, weights)

    def refresh(self, design: Design, target: Tensor, weights: Tensor) -> None:
        """Gradient and curvatures over all rows."""
        now = self.evaluate(design, target, weights)
        self.gradient = design.backward(now.slopes)
        if self.loss != "squared":  # whose curvatures are the same everywhere
            self.curvature = self.curvatures(design, now.curvature)

    def curvatures(self, design: Design, weights: Tensor) -> Tensor:
        """Second derivatives of the loss in each coefficient; 0 where only rounding is left of a constant column."""
        L = design.squares(weights)
        if self.mean is None:
            return L
        rounding = 1e-14 * self.mean**2 * weights.sum(dim=0)[:, None]
        return torch.where(L.gt(rounding), L, 0.0)

    def pull(self, now: Evaluation) -> Tensor:
        """Slopes of the loss in the intercepts, zero for those that stay."""
        slopes = now.slopes.sum(dim=0)
        return slopes if self.fit_intercept else torch.zeros_like(slopes)

    def check_finite(self, value: float) -> None:
        """Raise ``ValueError`` for a loss that is not a finite number."""
        if math.isfinite(value):
            return
        if self.lr == "auto":
            raise ValueError(f"the loss became {value} with lr='auto': check X, y and the weights for huge or missing values")
        raise ValueError(f"the iteration diverges with lr={self.lr}: make it smaller, or use lr='auto'")


def begin(
    num_features: int,
    loss: Loss,
    *,
    alpha: float,
    K: float,
    M: float,
    factors: Array | None = None,
    fit_intercept: bool = True,
    positive: bool = False,
    lr: float | Literal["auto"] = "auto",
    batch_size: int | None = None,
    start: float | Literal["auto"] = "auto",
    device: str | torch.device | None = None,
    random_state: int | np.random.RandomState | None = None,
    outputs: int | None = None,
    coef_init: Array | None = None,
    intercept_init: Any = None,
) -> Iteration:
    r"""A model before its first rows, for :func:`step`.

    Args:
        num_features: Number d of columns.
        loss: ``"squared"`` (half the mean of squares, summed over outputs), ``"logistic"`` (targets 0 and 1) or
            ``"multinomial"`` (labels from 0, one row of coefficients for each class).
        alpha: Weight of the penalty, the decay of Algorithm 1.
        K: Order of the reparameterization.
        M: Adaptivity exponent, from 1 and below K + 1: so that p is in (0, 1].
        factors: Factors :math:`f_j \ge 0` of alpha; 0 for plain gradient steps on the coefficient itself.
        fit_intercept: Whether there is an intercept. It belongs to centred columns and takes plain gradient steps.
        positive: Whether coefficients must not be negative: then there is no v.
        lr: Learning rate; a number holds for every part and falls over batches.
        batch_size: Rows in a batch.
        start: Start of both parts, in units of x.
        device: Where torch computes, by default on the CPU.
        random_state: Seeds the order of the rows.
        outputs: Number of classes of the multinomial loss, where the first rows may not show it.
        coef_init: Coefficients to start from, to which both parts add their start.
        intercept_init: Intercept to start from.

    Raises:
        ValueError: If a setting is out of its range or of another shape than the columns.
    """
    check_exponents(K, M, 0.0)
    if not 1 <= M < K + 1:
        raise ValueError(f"Invalid M value: {M} (allowed: 1 <= M < K + 1 = {K + 1:g}, so that p = 1 + (1 - M)/K is in (0, 1])")
    if not 0 <= alpha < math.inf:
        raise ValueError(f"Invalid alpha value: {alpha} (allowed: a finite number >= 0)")
    for name, value in (("lr", lr), ("start", start)):
        if value != "auto" and not (isinstance(value, numbers.Real) and 0 < value < math.inf):
            raise ValueError(f"Invalid {name} value: {value!r} (allowed: 'auto', or a finite number > 0)")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"Invalid batch_size value: {batch_size} (allowed: a number of rows >= 1, or None for all)")
    if loss not in CURVATURE:
        raise ValueError(f"Invalid loss: {loss!r} (allowed: {', '.join(map(repr, CURVATURE))})")
    f = np.ones(num_features) if factors is None else np.asarray(factors, dtype=np.float64)
    if f.shape != (num_features,) or not np.all(f >= 0):
        raise ValueError(f"Invalid factors: {f} (allowed: numbers >= 0, one for each of the {num_features} columns)")
    if coef_init is not None and np.shape(coef_init)[-1:] != (num_features,):
        raise ValueError(
            f"coef_init of the shape {np.shape(coef_init)} does not fit {num_features} columns: pass a number for each column, "
            "in a row for each output"
        )
    where = torch.device("cpu" if device is None else device)
    pays = torch.as_tensor(alpha * f > 0, device=where)
    return Iteration(
        loss=loss,
        alpha=alpha,
        K=K,
        M=M,
        factors=f,
        fit_intercept=fit_intercept,
        positive=positive,
        lr=lr,
        batch_size=batch_size,
        start=start,
        device=where,
        outputs=outputs,
        generator=random_state if isinstance(random_state, np.random.RandomState) else np.random.RandomState(random_state),
        coef_init=coef_init,
        intercept_init=intercept_init,
        penalized=pays.nonzero()[:, 0],
        free=(~pays).nonzero()[:, 0],
    )


def receive(state: Iteration, X: Any, y: Any, weights: Array | None) -> tuple[Design, Tensor, Tensor]:
    """Rows as the model sees them, their targets, and weights with a mean of 1 over all rows seen; moves the mean along."""
    device, dtype = state.device, dtype_on(state.device)
    n = X.shape[0]
    raw = np.full(n, 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
    total = float(raw.sum())
    if not total > 0:
        raise ValueError(f"the weights of the {n} rows sum to {total:g}: leave such rows out, or give one a weight above 0")
    target = encode(state.loss, y, state.outputs, device)
    if state.parts is not None and target.shape[1] != state.outputs:
        raise ValueError(f"y has {target.shape[1]} columns, the rows before had {state.outputs}: pass as many for each output")
    state.seen, state.rows_seen = state.seen + total, state.rows_seen + n
    if state.fit_intercept:
        here = torch.as_tensor(np.asarray(raw @ X).ravel() / total, dtype=dtype, device=device)
        if state.mean is None:
            state.mean = here
        else:
            shift = (here - state.mean) * (total / state.seen)
            state.mean = state.mean + shift
            parts = state.current()  # the predictions stay what they are
            parts.intercept = parts.intercept + parts.x() @ shift[state.order]
    design = Design(X, state.mean, device)
    w = torch.as_tensor(raw * (state.rows_seen / state.seen), dtype=dtype, device=device)
    if state.parts is None:
        state.outputs = target.shape[1]
        state.flat = state.loss != "multinomial" and np.ndim(y) == 1
        _initialize(state, design, target, w / w.sum())
    else:
        _continue(state, design, target, w / w.sum(), total / state.seen)
    return design, target, w


def _initialize(state: Iteration, design: Design, target: Tensor, weights: Tensor) -> None:
    """Parts at their start, and the scale that residuals are measured by."""
    outputs = target.shape[1]
    null = null_intercept(state.loss, target, weights) if state.fit_intercept else weights.new_zeros(outputs)
    empty = evaluate(state.loss, null.expand_as(target), target, weights)
    state.gradient, state.curvature = design.backward(empty.slopes), state.curvatures(design, empty.curvature)
    state.scale = _scale(state.gradient, state.curvature)
    if state.scale <= 1e-13 * float((weights @ target.square()).max().sqrt()):
        state.scale = 0.0  # rounding alone: no column says anything about the target
    decay = weights.new_tensor(state.alpha * state.factors)[state.penalized]
    L, p = state.curvature[:, state.penalized], effective_p(state.K, state.M)
    state.starts = starts(decay, L, p, start=state.start, positive=state.positive)
    first = torch.zeros_like(state.gradient)
    if state.coef_init is not None:
        first += weights.new_tensor(np.atleast_2d(state.coef_init))
    x, plain = first[:, state.penalized], first[:, state.free]
    intercept = null
    if state.intercept_init is not None and state.mean is not None:
        intercept = weights.new_tensor(np.atleast_1d(state.intercept_init)) + first @ state.mean
    state.parts = Parts(
        u=(x.clamp(min=0) + state.starts) ** (1 / state.K),
        v=torch.zeros_like(x) if state.positive else ((-x).clamp(min=0) + state.starts) ** (1 / state.K),
        plain=plain.clamp(min=0) if state.positive else plain,
        intercept=intercept,
        decay=decay,
        K=state.K,
        M=state.M,
        positive=state.positive,
    )


def _continue(state: Iteration, design: Design, target: Tensor, weights: Tensor, share: float) -> None:
    """Curvatures with those of more rows, and a start for columns that were constant so far."""
    parts = state.current()
    now = state.evaluate(design, target, weights)
    L = state.curvatures(design, now.curvature)
    fresh = (state.curvature == 0) & (L > 0)
    state.curvature = torch.where(fresh, L, (1 - share) * state.curvature + share * L)
    if state.scale == 0:
        state.scale = _scale(design.backward(now.slopes), L)
    fresh = fresh[:, state.penalized]
    if fresh.any():
        begun = starts(parts.decay, L[:, state.penalized], parts.p, start=state.start, positive=state.positive)
        state.starts = torch.where(fresh, begun, state.starts)
        root = state.starts ** (1 / state.K)
        parts.u = torch.where(fresh, root, parts.u)
        parts.v = parts.v if state.positive else torch.where(fresh, root, parts.v)


def _scale(gradient: Tensor, L: Tensor) -> float:
    return float(quotient(gradient.abs(), L.sqrt()).max()) if gradient.numel() else 0.0
