r"""The paper's iteration for linear models: Algorithm 1 on the pair :math:`x = u^K - v^K` with :math:`u, v \ge 0`.

With g the gradient of the loss in x and :math:`\alpha_j = \alpha f_j` the decay, one step is

.. math:: u \leftarrow u\,(1 - \eta h_u), \quad h_u = \alpha_j + u^{M-1} g, \qquad
          v \leftarrow v\,(1 - \eta h_v), \quad h_v = \alpha_j - v^{M-1} g,

and a plain gradient step for what is not penalized, the intercept among it. In :math:`s = u^K, t = v^K` this is descent on

.. math:: F(s, t) = \mathrm{loss}(s - t) + \sum_j \frac{\alpha_j}{p} (s_j^p + t_j^p), \qquad p = 1 + \frac{1 - M}{K},

because :math:`\partial F / \partial \log u = K s^p h_u`: to first order a step lowers F by
:math:`\eta \sum K (s^p h_u^2 + t^p h_v^2)`, and F is the objective once one part of each pair is gone.

**Learning rate.** x moves by :math:`-\eta K s^{2-p}` times its slope, so what is stable changes as s grows, by orders of
magnitude. With ``lr="auto"`` the full batch takes Barzilai and Borwein's rate in the logarithms of the parts (metric
:math:`K s^p`), never more than a quarter of any part at once, and shortens it until F falls below its largest value of the last
steps. Batches take half the inverse of :math:`\lambda_{\max}(D^{1/2} H D^{1/2}) + \mathrm{tr}(DH)/B` with
:math:`D = K (s^{2-p} + t^{2-p})` and H the curvature of the loss.

**Start.** With the others at rest a coefficient solves :math:`\frac L2 (b - z)^2 + \frac{\alpha_j}{p} |b|^p`, whose minimizer
is not 0 above the entry threshold :math:`\tau` of :mod:`rewa.estimators.penalty`. In units of
:math:`(\alpha_j / L)^{1/(2-p)}` its pair follows an equation that holds nothing but p and the slope, so one number c(p) makes a
pair grow above that threshold and die below it. It lies just above the start whose growth threshold
(:func:`rewa.theory.growth_start`) is :math:`\tau`: the growing part lowers its own gradient before the other one has left.

**Zeros.** Decay alone takes a coefficient towards 0 exponentially and never there. A part with :math:`h > 0` shrinks, and for
``M > 1`` the gradient that it would need grows meanwhile. Once it is well below its start it is set to 0, and its column leaves
the computation. When the rest has converged, all columns are looked at: one whose gradient exceeds the entry threshold starts
again, and one that its own problem would rather have at zero is dropped. The end is a point that no single coefficient can
improve.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rewa.estimators import penalty
from rewa.reparam import check_exponents, power
from rewa.theory import effective_p

__all__ = ["Iteration", "Result", "begin", "finalize", "fit", "step"]

Array = NDArray[np.float64]
Loss = Literal["squared", "logistic", "multinomial"]

CURVATURE = {"squared": 1.0, "logistic": 0.25, "multinomial": 0.5}  # bounds of the second derivative in the prediction
CHECK = 10  # steps between looks at what may be set to zero
MEMORY = 10  # steps whose largest objective the next one must stay below
LARGEST_CHANGE = 0.25  # of a part in one step
LASSO_START = 0.1  # for p = 1, in units of alpha / L: every start has the same threshold there
BATCH_TOL = 1e-2  # residual at which a run over batches counts as converged: their noise leaves no smaller one
SLOWING = 100.0  # steps after which the rate of a stream begins to fall
POWER_STEPS = 10  # of the first estimate; later ones start from the vector before


class Result(NamedTuple):
    r"""A fitted linear model.

    Attributes:
        coef: Of the shape ``(d,)``, or ``(outputs, d)`` for several outputs or classes.
        intercept: A number, or one for each output or class.
        n_iter: Steps of the full batch, or passes over batches.
        converged: Whether the residual came below the tolerance and no coefficient wants to enter or leave.
        residual: Largest slope :math:`|g_j + \alpha_j \mathrm{sign}(b_j) |b_j|^{p-1}| / \sqrt{L_j}` among nonzero coefficients,
            in units of the largest :math:`|g_j| / \sqrt{L_j}` of the empty model.
    """

    coef: Array
    intercept: Any
    n_iter: int
    converged: bool
    residual: float


# ------------------------------------------------------------------------------------------------- the model


@dataclass
class Parts:
    """What is trained: pairs for penalized columns, plain coefficients for the others, an intercept of centred columns."""

    u: Tensor
    v: Tensor
    plain: Tensor
    intercept: Tensor
    decay: Tensor
    K: float
    M: float
    positive: bool

    @property
    def p(self) -> float:
        """Exponent of the penalty."""
        return effective_p(self.K, self.M)

    def x(self) -> Tensor:
        """The coefficients, penalized columns first; a row for each output."""
        return torch.cat([power(self.u, self.K) - power(self.v, self.K), self.plain], dim=1)

    def penalty(self) -> float:
        """What both parts add to the objective."""
        both = power(self.u, self.K + 1 - self.M) + power(self.v, self.K + 1 - self.M)
        return float((self.decay * both).sum()) / self.p

    def relative(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """By which share of itself each part shrinks, for a learning rate of 1."""
        g = gradient[:, : self.u.shape[1]]
        return self.decay + power(self.u, self.M - 1) * g, self.decay - power(self.v, self.M - 1) * g

    def speed(self) -> Tensor:
        r"""The learning rate that the coefficients themselves see, :math:`K (s^{2-p} + t^{2-p})`, for a learning rate of 1."""
        return self.K * (power(self.u, self.K - 1 + self.M) + power(self.v, self.K - 1 + self.M))

    def moved(self, lr: float, h: tuple[Tensor, Tensor], plain_step: Tensor, intercept_step: Tensor) -> Parts:
        """The parts after a step; a part that would cross zero stays there."""
        plain = self.plain - lr * plain_step
        return replace(
            self,
            u=(self.u * (1 - lr * h[0])).clamp_(min=0),
            v=(self.v * (1 - lr * h[1])).clamp_(min=0),
            plain=plain.clamp_(min=0) if self.positive else plain,
            intercept=self.intercept - lr * intercept_step,
        )

    def take(self, index: Tensor) -> Parts:
        """Some of the pairs, and everything else."""
        return replace(self, u=self.u[:, index], v=self.v[:, index], decay=self.decay[index])


class Design:
    """Rows on a device, with their columns centred; for sparse rows the mean is kept apart."""

    def __init__(self, X: Any, mean: Tensor | None, device: torch.device) -> None:
        self.host, self.mean, self.device = X, mean, device
        self.dtype = _dtype(device)
        self.sparse = scipy.sparse.issparse(X)
        if self.sparse:
            self.rows, self.columns = _csr(X, device), _csr(X.T, device)
        else:
            self.rows = torch.as_tensor(X, dtype=self.dtype, device=device)
            if mean is not None:
                self.rows = self.rows - mean

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Predictions without the intercept, a column for each row of x."""
        z: Tensor = self.rows @ x.T
        return z - self.mean @ x.T if self.sparse and self.mean is not None else z

    def backward(self, r: Tensor) -> Tensor:
        """The gradient in x for the slopes r of the loss in the predictions."""
        if not self.sparse:
            return r.T @ self.rows
        g: Tensor = (self.columns @ r).T
        return g if self.mean is None else g - r.sum(dim=0)[:, None] * self.mean

    def squares(self, c: Tensor) -> Tensor:
        """Sums of squared columns with the weights c, a row for each column of c."""
        if not self.sparse:
            block = max(1, 2**22 // max(len(self), 1))
            parts = [c.T @ self.rows[:, first : first + block].square() for first in range(0, self.rows.shape[1], block)]
            return torch.cat(parts, dim=1) if parts else c.new_zeros(c.shape[1], 0)
        squared = self.host.copy()
        squared.data = squared.data**2
        result: Tensor = (_csr(squared.T, self.device) @ c).T
        if self.mean is not None:
            sums = (self.columns @ c).T
            result = result - 2 * self.mean * sums + self.mean**2 * c.sum(dim=0)[:, None]
        return result.clamp_(min=0)

    def take_columns(self, index: Tensor) -> Design:
        """Some of the columns."""
        if self.sparse:
            mean = None if self.mean is None else self.mean[index]
            return Design(self.host[:, index.cpu().numpy()], mean, self.device)
        return self._dense(self.rows.index_select(1, index))

    def take_rows(self, index: NDArray[np.intp]) -> Design:
        """Some of the rows."""
        if self.sparse:
            return Design(self.host[index], self.mean, self.device)
        return self._dense(self.rows[torch.as_tensor(index, device=self.device)])

    def _dense(self, rows: Tensor) -> Design:
        other = object.__new__(Design)
        other.host, other.mean, other.device, other.dtype, other.sparse, other.rows = (
            None,
            None,
            self.device,
            self.dtype,
            False,
            rows,
        )
        return other


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _csr(X: Any, device: torch.device) -> Tensor:
    X = X.tocsr()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(X.indptr.astype(np.int64)),
            torch.from_numpy(X.indices.astype(np.int64)),
            torch.from_numpy(X.data.astype(np.float64)),
            X.shape,
            dtype=_dtype(device),
            device=device,
            check_invariants=False,
        )


class _Evaluation(NamedTuple):
    value: float
    slopes: Tensor  # of the weighted loss in the predictions
    curvature: Tensor  # the second derivatives


def _evaluate(loss: Loss, z: Tensor, y: Tensor, weights: Tensor) -> _Evaluation:
    w = weights[:, None]
    if loss == "squared":
        error = z - y
        return _Evaluation(0.5 * float((w * error * error).sum()), w * error, w.expand_as(z))
    if loss == "logistic":
        chance = torch.sigmoid(z)
        return _Evaluation(float((w * (F.softplus(z) - y * z)).sum()), w * (chance - y), w * chance * (1 - chance))
    log_chance = torch.log_softmax(z, dim=1)
    chance = log_chance.exp()
    value = -float((w * y * log_chance).sum())
    return _Evaluation(value, w * (chance - y), w * chance * (1 - chance))


def _target(loss: Loss, y: Any, outputs: int | None, device: torch.device) -> Tensor:
    """Targets with a column for each output: numbers, 0 or 1, or one-hot rows."""
    if loss == "multinomial":
        labels = torch.as_tensor(np.asarray(y, dtype=np.int64), device=device)
        return F.one_hot(labels, outputs if outputs is not None else -1).to(_dtype(device))
    target = torch.as_tensor(np.asarray(y, dtype=np.float64), dtype=_dtype(device), device=device)
    return target[:, None] if target.ndim == 1 else target


def _null_intercept(loss: Loss, y: Tensor, weights: Tensor) -> Tensor:
    """The intercept of a model without coefficients."""
    mean = weights @ y / weights.sum()
    if loss == "squared":
        return mean
    safe = mean.clamp(1e-6, 1 - 1e-6)  # a batch may lack a class
    return torch.logit(safe) if loss == "logistic" else safe.log() - safe.log().mean()


# ------------------------------------------------------------------------------------------------- the start


def unit_start(p: float, *, positive: bool = False) -> float:
    r"""The start c(p), in units of :math:`(\alpha_j/L)^{1/(2-p)}`, that grows above the entry threshold and dies below it.

    With ``positive`` there is one part, and its own size counts against it from the first step: c is the lower of the two sizes
    at which a slope at the threshold is balanced, :math:`c + c^{p-1} = \tau`. For a pair it lies below, found by bisection.

    Args:
        p: Exponent in (0, 1].
        positive: Whether there is no second part.

    Example:
        >>> print(round(unit_start(0.5, positive=True), 3), 0.17 < unit_start(0.5) < 0.22)
        0.213 True
    """
    return _unit_start(float(p), positive)


@functools.cache
def _unit_start(p: float, positive: bool) -> float:
    if p == 1:
        return LASSO_START
    threshold = float(penalty.entry_threshold(1.0, 1.0, p))
    low: float = threshold ** (1 / (p - 1))
    high: float = (1 - p) ** (1 / (2 - p))
    barrier_low, barrier_high = low, high
    for _ in range(60):
        middle = (barrier_low + barrier_high) / 2
        balanced = middle + middle ** (p - 1) > threshold
        barrier_low, barrier_high = (middle, barrier_high) if balanced else (barrier_low, middle)
    if positive:
        return barrier_high
    high = barrier_high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if _grows(middle, threshold, p) else (middle, high)
    return high


def _grows(start: float, slope: float, p: float) -> bool:
    """Whether a pair of equal parts grows, by its equation in logarithms of the parts."""
    s = t = start
    steepest: float = (1 - p) ** (1 / (2 - p))
    for _ in range(20_000):
        left = slope - s + t
        rate = s ** (1 - p) * left - 1
        if s > steepest or rate <= 0:
            return s > steepest
        s *= math.exp(0.01 * rate)
        t *= math.exp(-0.01 * (t ** (1 - p) * left + 1))
    return True


# ------------------------------------------------------------------------------------------------- the state


@dataclass
class Iteration:
    """A model in training, kept between the chunks of a stream.

    Attributes:
        loss: Name of the loss.
        lr: Learning rate or ``"auto"``.
        batch_size: Rows in a batch, or ``None`` for whole chunks.
        start: Start of both parts, in units of x, or ``"auto"``.
        penalized: Columns with a pair.
        free: Columns without a penalty.
        generator: Of the order of the rows.
        parts: The parameters, or ``None`` before the first rows.
        mean: Mean of the columns as far as they were seen, or ``None`` without an intercept.
        starts: Start of every pair.
        curvature: Second derivatives of the loss in each coefficient.
        gradient: Mean gradient of the last pass.
        direction: Estimate of the direction of largest curvature.
        scale: What residuals are measured by.
        steps: Steps taken.
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
    flat: bool
    penalized: Tensor
    free: Tensor
    generator: np.random.RandomState
    coef_init: Array | None = None
    intercept_init: Any = None
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
    def p(self) -> float:
        """Exponent of the penalty."""
        return effective_p(self.K, self.M)

    @property
    def order(self) -> Tensor:
        """Columns in the order of the parts."""
        return torch.cat([self.penalized, self.free])


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
        device: Where torch computes.
        random_state: Of the order of the rows.
        outputs: Number of classes or outputs, where the first rows may not show it.
        coef_init: Coefficients to start from, to which both parts add their start.
        intercept_init: Intercept to start from.
    """
    check_exponents(K, M, 0.0)
    if not 1 <= M < K + 1:
        raise ValueError(f"Invalid M value: {M} (allowed: 1 <= M < K + 1 = {K + 1:g}, so that p = 1 + (1 - M)/K is in (0, 1])")
    for name, value in (("lr", lr), ("start", start)):
        if value != "auto" and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise ValueError(f"Invalid {name} value: {value!r} (allowed: 'auto', or a finite number > 0)")
    if loss not in CURVATURE:
        raise ValueError(f"Invalid loss: {loss!r} (allowed: {', '.join(map(repr, CURVATURE))})")
    where = torch.device("cpu" if device is None else device)
    f = np.ones(num_features) if factors is None else np.asarray(factors, dtype=np.float64)
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
        flat=True,
        penalized=pays.nonzero()[:, 0],
        free=(~pays).nonzero()[:, 0],
        generator=random_state if isinstance(random_state, np.random.RandomState) else np.random.RandomState(random_state),
        coef_init=coef_init,
        intercept_init=intercept_init,
    )


def _open(state: Iteration, X: Any, y: Any, weights: Array | None) -> tuple[Design, Tensor, Tensor]:
    """Rows as the model sees them, their targets, and weights with a mean of 1 over all rows seen; moves the mean along."""
    device, dtype = state.device, _dtype(state.device)
    n = X.shape[0]
    raw = np.full(n, 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
    target = _target(state.loss, y, state.outputs, device)
    before = state.seen
    state.seen, state.rows_seen = before + float(raw.sum()), state.rows_seen + n
    if state.fit_intercept:
        here = torch.as_tensor(np.asarray(raw @ X).ravel() / raw.sum(), dtype=dtype, device=device)
        if state.mean is None:
            state.mean = here
        else:  # the predictions stay what they are
            shift = (here - state.mean) * (float(raw.sum()) / state.seen)
            state.mean = state.mean + shift
            if state.parts is not None:
                state.parts.intercept = state.parts.intercept + state.parts.x() @ shift[state.order]
    design = Design(X, state.mean, device)
    w = torch.as_tensor(raw * (state.rows_seen / state.seen), dtype=dtype, device=device)
    if state.parts is None:
        state.outputs = target.shape[1]
        state.flat = state.loss != "multinomial" and np.ndim(y) == 1
        _initialize(state, design, target, w)
    else:
        _continue(state, design, target, w, float(raw.sum()) / state.seen)
    return design, target, w


def _initialize(state: Iteration, design: Design, target: Tensor, w: Tensor) -> None:
    """Parts at their start, and the scale that residuals are measured by."""
    outputs, order = target.shape[1], state.order
    share = w / w.sum()
    null = _null_intercept(state.loss, target, share) if state.fit_intercept else share.new_zeros(outputs)
    empty = _evaluate(state.loss, null.expand_as(target), target, share)
    gradient, state.curvature = design.backward(empty.slopes), _curvatures(state, design, empty.curvature)
    unit = torch.where(state.curvature > 0, state.curvature, 1.0).sqrt()
    state.scale = float((gradient.abs() * (state.curvature > 0) / unit).max()) if gradient.numel() else 0.0
    if state.scale <= 1e-13 * float((share @ target.square()).max().sqrt()):
        state.scale = 0.0  # rounding alone: no column says anything about the target
    decay = torch.as_tensor(state.alpha * state.factors, dtype=design.dtype, device=state.device)[state.penalized]
    L = state.curvature[:, state.penalized]
    state.starts = _starts(state, decay, L)
    first = share.new_zeros(outputs, len(order))
    if state.coef_init is not None:
        first += torch.as_tensor(np.atleast_2d(state.coef_init), dtype=design.dtype).to(state.device)
    x, plain = first[:, state.penalized], first[:, state.free]
    intercept = null
    if state.intercept_init is not None and state.fit_intercept:
        given = torch.as_tensor(np.atleast_1d(state.intercept_init), dtype=design.dtype).to(state.device)
        intercept = given + (0 if state.mean is None else first @ state.mean)
    state.parts = Parts(
        u=(x.clamp(min=0) + state.starts) ** (1 / state.K),
        v=torch.zeros_like(x) if state.positive else ((-x).clamp(min=0) + state.starts) ** (1 / state.K),
        plain=plain.clamp(min=0) if state.positive else plain.clone(),
        intercept=intercept.clone(),
        decay=decay,
        K=state.K,
        M=state.M,
        positive=state.positive,
    )
    state.gradient = gradient


def _starts(state: Iteration, decay: Tensor, L: Tensor) -> Tensor:
    """Where pairs start; a constant column stays at zero."""
    if state.start != "auto":
        return (L > 0) * float(state.start)
    unit = (decay / torch.where(L > 0, L, 1.0)) ** (1 / (2 - state.p))
    return (L > 0) * unit_start(state.p, positive=state.positive) * unit


def _continue(state: Iteration, design: Design, target: Tensor, w: Tensor, part: float) -> None:
    """Curvatures with those of more rows, and a start for columns that were constant so far."""
    parts = state.parts
    assert parts is not None
    now = _evaluate(state.loss, _predict(state, design), target, w / w.sum())
    L = _curvatures(state, design, now.curvature)
    fresh = (state.curvature == 0) & (L > 0)
    state.curvature = torch.where(fresh, L, (1 - part) * state.curvature + part * L)
    if state.scale == 0:
        unit = torch.where(L > 0, L, 1.0).sqrt()
        state.scale = float((design.backward(now.slopes).abs() * (L > 0) / unit).max())
    fresh = fresh[:, state.penalized]
    if fresh.any():
        state.starts = torch.where(fresh, _starts(state, parts.decay, L[:, state.penalized]), state.starts)
        root = state.starts ** (1 / state.K)
        parts.u = torch.where(fresh, root, parts.u)
        parts.v = parts.v if state.positive else torch.where(fresh, root, parts.v)


def _curvatures(state: Iteration, design: Design, weights: Tensor) -> Tensor:
    """Second derivatives of the loss in each coefficient; 0 where only rounding is left of a constant column."""
    L = design.squares(weights)
    if state.mean is None:
        return L
    rounding = 1e-14 * state.mean**2 * weights.sum(dim=0)[:, None]
    return torch.where(L.gt(rounding), L, 0.0)


# ------------------------------------------------------------------------------------------------- the full batch


class _Memory(NamedTuple):
    """The last step, from which the next learning rate is estimated."""

    lr: float
    direction: Tensor


def fit(
    X: Any,
    y: Any,
    loss: Loss,
    *,
    alpha: float,
    K: float = 4,
    M: float = 3,
    factors: Array | None = None,
    weights: Array | None = None,
    fit_intercept: bool = True,
    positive: bool = False,
    lr: float | Literal["auto"] = "auto",
    batch_size: int | None = None,
    start: float | Literal["auto"] = "auto",
    max_iter: int = 5000,
    tol: float = 1e-8,
    device: str | torch.device | None = None,
    random_state: int | np.random.RandomState | None = None,
    coef_init: Array | None = None,
    intercept_init: Any = None,
    outputs: int | None = None,
) -> Result:
    r"""Train a linear model by the paper's iteration.

    .. math:: \min_{b_0, b} \sum_i w_i\,\ell(y_i, b_0 + x_i^\top b) + \alpha \sum_j \frac{f_j}{p} |b_j|^p, \quad \sum_i w_i = 1

    Args:
        X: Rows, an array or a sparse matrix.
        y: Targets: numbers ``(n,)`` or ``(n, outputs)``, 0 and 1, or labels from 0.
        loss: See :func:`begin`, as for every argument that is not here.
        alpha: Weight of the penalty.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        factors: Factors of alpha.
        weights: Sample weights; only their ratios count.
        fit_intercept: Whether there is an intercept.
        positive: Whether coefficients must not be negative.
        lr: Learning rate.
        batch_size: Rows in a batch, ``None`` for all. Over batches the rate falls as a cosine to zero at ``max_iter``.
        start: Start of both parts.
        max_iter: Most steps of the full batch; passes over batches.
        tol: Largest residual, see :class:`Result`.
        device: Where torch computes.
        random_state: Of the order of the rows.
        coef_init: Coefficients to start from.
        intercept_init: Intercept to start from.
        outputs: Number of classes, where y may lack some.

    Raises:
        ValueError: If a learning rate that was given diverges.

    Example:
        >>> X = np.random.RandomState(0).randn(100, 20)
        >>> result = fit(X, X[:, 0] - 2 * X[:, 1], "squared", alpha=0.05)
        >>> np.flatnonzero(result.coef), result.converged
        (array([0, 1]), True)
    """
    state = begin(
        X.shape[1], loss, alpha=alpha, K=K, M=M, factors=factors, fit_intercept=fit_intercept, positive=positive, lr=lr,
        batch_size=batch_size, start=start, device=device, random_state=random_state, outputs=outputs, coef_init=coef_init,
        intercept_init=intercept_init,
    )  # fmt: skip
    with torch.no_grad():
        design, target, w = _open(state, X, y, weights)
        if state.scale == 0 and state.parts is not None:
            state.parts.u.zero_(), state.parts.v.zero_(), state.parts.plain.zero_()
            return _result(state, 0, True, 0.0)
        if batch_size is None:
            n_iter, converged, residual = _FullBatch(state, design, target, w / w.sum()).run(max_iter, tol)
            return _result(state, n_iter, converged, residual)
        for epoch in range(max_iter):
            _pass(state, design, target, w, schedule=(epoch, max_iter))
        residual = _settle(state, design, target, w / w.sum())
        return _result(state, max_iter, residual <= max(tol, BATCH_TOL), residual)


class _FullBatch:
    """Full-batch descent over the columns that are alive."""

    def __init__(self, state: Iteration, design: Design, target: Tensor, weights: Tensor) -> None:
        assert state.parts is not None
        self.state, self.all, self.target, self.weights = state, design, target, weights
        self.entries = torch.zeros_like(state.starts)  # how often a coefficient came back
        self.memory: _Memory | None = None
        self.history: deque[float] = deque(maxlen=MEMORY)
        self.lr = 0.0
        self.plain_rate = self.intercept_rate = torch.zeros(())
        self.choose()

    def choose(self) -> None:
        """Work on the columns with a part that is not zero."""
        parts = self.state.parts
        assert parts is not None
        self.live = ((parts.u > 0) | (parts.v > 0)).any(dim=0).nonzero()[:, 0]
        self.parts = parts.take(self.live)
        columns = torch.cat([self.state.penalized[self.live], self.state.free])
        whole = len(columns) == self.all.rows.shape[1] and not len(self.state.free)
        self.design = self.all if whole else self.all.take_columns(columns)
        self.L = self.state.curvature[:, columns]
        self.threshold = _thresholds(self.parts.decay, self.L[:, : len(self.live)], self.state.p)
        self.limits = self.state.starts[:, self.live] * 0.1 ** self.entries[:, self.live]
        self.balance()
        self.restart()

    def restart(self) -> None:
        """Evaluate anew, and compare with nothing from before."""
        self.now = self.evaluate(self.parts)
        self.objective = self.now.value + self.parts.penalty()
        self.history.clear()
        self.history.append(self.objective)
        self.memory = None

    def evaluate(self, parts: Parts) -> _Evaluation:
        """The loss of some parts."""
        return _evaluate(self.state.loss, self.design.forward(parts.x()) + parts.intercept, self.target, self.weights)

    def balance(self) -> None:
        """Rates of the plain steps: as fast as the fastest coefficient of a pair."""
        plain_rate, intercept_rate = _plain_rates(self.state, self.parts, self.L)
        if self.intercept_rate.ndim == 0 or not 0.5 < float(intercept_rate[0] / self.intercept_rate[0]) < 2:
            self.plain_rate, self.intercept_rate, self.memory = plain_rate, intercept_rate, None

    def store(self) -> None:
        """Write the living parts back."""
        parts = self.state.parts
        assert parts is not None
        parts.u.zero_()
        parts.v.zero_()
        parts.u[:, self.live], parts.v[:, self.live] = self.parts.u, self.parts.v
        parts.plain, parts.intercept = self.parts.plain, self.parts.intercept

    def run(self, max_iter: int, tol: float) -> tuple[int, bool, float]:
        """Steps until nothing moves any more: how many, whether they were enough, the residual."""
        moves = 50 + 20 * min(len(self.state.penalized), len(self.target))
        residual = math.inf
        for taken in range(max_iter + 1):
            gradient, h, pull = self.slopes()
            if taken % 2 == 0 or residual <= 10 * tol:
                residual = self.residual(gradient, h, pull)
            if residual <= tol:
                self.store()
                moved = self.look() if moves > 0 else 0
                if not moved:
                    return taken, moves > 0, residual
                moves, residual = moves - moved, math.inf
                self.choose()
                gradient, h, pull = self.slopes()
            elif taken % CHECK == 0:
                if self.drop(gradient, h):
                    gradient, h, pull = self.slopes()
                self.balance()
            if taken < max_iter:
                self.step(gradient, h, pull)
        self.store()
        return max_iter, False, _settle(self.state, self.all, self.target, self.weights)

    def slopes(self) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """The gradient of the loss, what it does to the parts, and the slope in the intercept."""
        gradient = self.design.backward(self.now.slopes)
        pull = self.now.slopes.sum(dim=0)
        return gradient, self.parts.relative(gradient), pull if self.state.fit_intercept else torch.zeros_like(pull)

    def step(self, gradient: Tensor, h: tuple[Tensor, Tensor], pull: Tensor) -> None:
        """One step of Algorithm 1, its learning rate chosen if it is not given."""
        m = self.parts.u.shape[1]
        plain_step = self.plain_rate * _plain_slopes(self.parts, gradient[:, m:])
        intercept_step = self.intercept_rate * pull
        if self.state.lr != "auto":
            self.parts = self.parts.moved(float(self.state.lr), h, plain_step, intercept_step)
            self.now = self.evaluate(self.parts)
            if not math.isfinite(self.now.value):
                raise ValueError(f"the iteration diverges with lr={self.state.lr}: make it smaller, or use lr='auto'")
            return
        direction = torch.cat([h[0].ravel(), h[1].ravel(), plain_step.ravel(), intercept_step.ravel()])
        order = self.state.K + 1 - self.state.M
        metric = torch.cat(
            [
                (self.state.K * power(self.parts.u, order)).ravel(),
                (self.state.K * power(self.parts.v, order)).ravel(),
                self._inverse(self.plain_rate).expand_as(plain_step).ravel(),
                self._inverse(self.intercept_rate).expand_as(intercept_step).ravel(),
            ]
        )
        slope = float((metric * direction * direction).sum())
        alive = torch.cat([(h[0] * (self.parts.u > 0)).ravel(), (h[1] * (self.parts.v > 0)).ravel()]).abs()
        fastest = float(alive.max()) if alive.numel() else 0.0
        cap = LARGEST_CHANGE / fastest if fastest > 0 else math.inf
        lr = min(self.estimate(direction, metric), cap)
        if not (0 < lr < math.inf):
            lr = 1.0
        bound, slack = max(self.history), 500 * torch.finfo(direction.dtype).eps
        for _ in range(60):
            parts = self.parts.moved(lr, h, plain_step, intercept_step)
            now = self.evaluate(parts)
            objective = now.value + parts.penalty()
            if objective <= bound - 1e-4 * lr * slope + slack * abs(bound):
                break
            lr /= 4
        self.parts, self.now, self.objective, self.lr = parts, now, objective, lr
        self.history.append(objective)
        self.memory = _Memory(lr, direction)

    @staticmethod
    def _inverse(rate: Tensor) -> Tensor:
        return torch.where(rate > 0, 1 / torch.where(rate > 0, rate, 1.0), 0.0)

    def estimate(self, direction: Tensor, metric: Tensor) -> float:
        """Barzilai and Borwein's learning rate, the short one where both differ much."""
        if self.memory is None:
            return self.lr or math.inf
        before = self.memory.direction
        change = before - direction
        curved = float((metric * before * change).sum())
        if curved <= 0:
            return 4 * self.memory.lr
        long = self.memory.lr * float((metric * before * before).sum()) / curved
        short = self.memory.lr * curved / float((metric * change * change).sum())
        return short if short < 0.5 * long else long

    def residual(self, gradient: Tensor, h: tuple[Tensor, Tensor], pull: Tensor) -> float:
        """Largest slope over the parts that are not zero, see :class:`Result`."""
        if self.state.scale == 0:
            return 0.0
        m = self.parts.u.shape[1]
        unit = torch.where(self.L > 0, self.L, 1.0).sqrt()
        slopes = [pull]
        for part, relative in zip((self.parts.u, self.parts.v), h, strict=True):
            safe = torch.where(part > 0, part, 1.0)
            slopes.append(relative.abs() * safe ** (1 - self.state.M) * (part > 0) / unit[:, :m])
        slopes.append(_plain_slopes(self.parts, gradient[:, m:]) * (self.L[:, m:] > 0) / unit[:, m:])
        return max(float(each.abs().max()) for each in slopes if each.numel()) / self.state.scale

    def drop(self, gradient: Tensor, h: tuple[Tensor, Tensor]) -> bool:
        """Set parts to zero that only shrink; whether any was."""
        m, p = self.parts.u.shape[1], self.state.p
        outward = -gradient[:, :m]
        dead = []
        for part, relative, push in ((self.parts.u, h[0], outward), (self.parts.v, h[1], -outward)):
            s = power(part, self.state.K)
            own = push + self.L[:, :m] * s < self.threshold
            if p < 1:
                small = (s <= self.limits / 4) & (relative >= self.parts.decay / 2) & own | (s <= self.limits / 100)
            else:
                small = (s <= self.limits) & own
            dead.append((part > 0) & small & (relative > 0))
        if not (dead[0].any() or dead[1].any()):
            return False
        self.parts.u, self.parts.v = self.parts.u * ~dead[0], self.parts.v * ~dead[1]
        alive = ((self.parts.u > 0) | (self.parts.v > 0)).any(dim=0)
        if int(alive.sum()) < 0.8 * m:
            self.store()
            self.choose()
        else:
            self.restart()
        return True

    def look(self) -> int:
        """Let coefficients in and out by their own problems, all columns considered; how many moved."""
        state, parts = self.state, self.state.parts
        assert parts is not None
        everything = _evaluate(state.loss, _predict(state, self.all), self.target, self.weights)
        state.gradient = self.all.backward(everything.slopes)
        if state.loss != "squared":
            state.curvature = _curvatures(state, self.all, everything.curvature)
        g, L = state.gradient[:, state.penalized], state.curvature[:, state.penalized]
        threshold = _thresholds(parts.decay, L, state.p)
        x = power(parts.u, state.K) - power(parts.v, state.K)
        on = (parts.u > 0) | (parts.v > 0)
        moved = 0
        if state.p < 1 and on.any():
            held = torch.where(on, (L * x - g).abs() / threshold, math.inf)
            worst = int(held.argmin())
            if float(held.view(-1)[worst]) < 1:
                parts.u.view(-1)[worst] = parts.v.view(-1)[worst] = 0.0
                return 1
        push = -g if state.positive else g.abs()
        # A slope that rounding alone could have made lets nothing in, nor does a coefficient that has come back too often.
        room = ~on & (L > 0) & (self.entries < 5) & (push > 1e-9 * state.scale * L.sqrt())
        ratio = torch.where(room, push / threshold, 0.0)
        entering = (ratio > 1 + 1e-7).view(-1).nonzero()[:, 0]
        if not len(entering):
            return moved
        if state.p < 1:  # the strongest alone, or a few where many are in: together they may compete for the same signal
            few = 1 + int(on.sum()) // 16
            entering = entering[ratio.view(-1)[entering].argsort(descending=True)[:few]]
            # Where the coefficient's own slope is steepest: beyond the barrier, before the minimum.
            sizes = ((1 - state.p) * parts.decay / torch.where(L > 0, L, 1.0)) ** (1 / (2 - state.p))
        else:
            sizes = LASSO_START * parts.decay / torch.where(L > 0, L, 1.0) * 0.1**self.entries
        root = sizes.view(-1)[entering] ** (1 / state.K)
        up = g.reshape(-1)[entering] < 0
        parts.u.view(-1)[entering] = torch.where(up, root, 0.0)
        parts.v.view(-1)[entering] = torch.where(up, 0.0, root)
        self.entries.view(-1)[entering] += 1
        return len(entering)


def _thresholds(decay: Tensor, L: Tensor, p: float) -> Tensor:
    """The entry thresholds, infinite for a constant column."""
    values = penalty.entry_threshold(decay.cpu().numpy(), L.cpu().numpy(), p)
    return torch.where(L > 0, torch.as_tensor(np.array(values), dtype=L.dtype).to(L.device), math.inf)


def _plain_rates(state: Iteration, parts: Parts, L: Tensor) -> tuple[Tensor, Tensor]:
    """Rates of the plain steps over that of the pairs, by columns, and of the intercept."""
    m = parts.u.shape[1]
    plain = L[:, m:]
    if state.lr != "auto":
        return (plain > 0).to(L), torch.ones_like(parts.intercept)
    speed = float((parts.speed() * L[:, :m]).max()) if m else 0.0
    speed = speed if speed > 0 else 1.0
    return torch.where(plain > 0, speed / torch.where(plain > 0, plain, 1.0), 0.0), torch.full_like(
        parts.intercept, speed / CURVATURE[state.loss]
    )


def _plain_slopes(parts: Parts, gradient: Tensor) -> Tensor:
    """Slopes of the coefficients without a penalty; none where only the bound at zero holds one."""
    return torch.where((parts.plain > 0) | (gradient < 0), gradient, 0.0) if parts.positive else gradient


def _predict(state: Iteration, design: Design) -> Tensor:
    assert state.parts is not None
    x = torch.empty_like(state.gradient)
    x[:, state.order] = state.parts.x()
    return design.forward(x) + state.parts.intercept


# ------------------------------------------------------------------------------------------------- batches


def step(state: Iteration, X: Any, y: Any, weights: Array | None = None) -> None:
    r"""One pass over a chunk of rows, which need not come again.

    The means of the columns are those of all rows seen so far; a pair starts by the first rows in which its column varies. The
    learning rate falls as :math:`1/\sqrt{1 + t/100}` with the number t of steps taken.

    Args:
        state: The model, from :func:`begin`; changed.
        X: Rows, an array or a sparse matrix.
        y: Their targets.
        weights: Their sample weights, comparable between chunks.
    """
    with torch.no_grad():
        design, target, w = _open(state, X, y, weights)
        _pass(state, design, target, w, schedule=None)


def _pass(state: Iteration, design: Design, target: Tensor, w: Tensor, schedule: tuple[int, int] | None) -> None:
    """Steps over batches in random order; the learning rate by a cosine over (pass, passes), or that of a stream."""
    parts = state.parts
    assert parts is not None
    n, order = len(design), state.order
    m = len(state.penalized)
    size = n if state.batch_size is None else min(state.batch_size, n)
    rows = state.generator.permutation(n)
    batches = [rows[first : first + size] for first in range(0, n, size)]
    L = state.curvature[:, order]
    rates = _plain_rates(state, parts, L)
    stable, speed = _stable_rate(state, design, w, rates[0], size) if state.lr == "auto" else (float(state.lr), 0.0)
    total = torch.zeros_like(state.gradient)
    for index, batch in enumerate(batches):
        some = design.take_rows(batch)
        chosen = torch.as_tensor(batch, device=state.device)
        x = torch.empty_like(total)
        x[:, order] = parts.x()
        now = _evaluate(state.loss, some.forward(x) + parts.intercept, target[chosen], w[chosen] / len(batch))
        gradient = some.backward(now.slopes)
        total += gradient * (len(batch) / n)
        ordered = gradient[:, order]
        h = parts.relative(ordered)
        if schedule is None:
            lr = stable / math.sqrt(1 + state.steps / SLOWING)
        else:
            lr = stable * (1 + math.cos(math.pi * (schedule[0] + index / len(batches)) / schedule[1])) / 2
        if state.lr == "auto":
            fastest = max(
                float((each * (part > 0)).abs().max()) if m else 0.0 for each, part in zip(h, (parts.u, parts.v), strict=True)
            )
            faster = float(parts.speed().max()) / speed if m and speed > 0 else 1.0
            lr = min(lr / max(faster, 1.0), LARGEST_CHANGE / fastest if fastest > 0 else math.inf)
        pull = now.slopes.sum(dim=0) if state.fit_intercept else torch.zeros_like(parts.intercept)
        parts = parts.moved(lr, h, rates[0] * ordered[:, m:], rates[1] * pull)
        state.steps += 1
        if not math.isfinite(now.value):
            raise ValueError(f"the iteration diverges with lr={state.lr}: make it smaller, or use lr='auto'")
    state.gradient, state.parts = total, parts
    # Far below the start nothing comes back; this also keeps powers out of the subnormal range.
    gone = state.starts * 1e-6
    for part, relative in zip((parts.u, parts.v), parts.relative(total[:, order]), strict=True):
        part[(power(part, state.K) < gone) & (relative > 0)] = 0.0


def _stable_rate(state: Iteration, design: Design, w: Tensor, plain_rate: Tensor, size: int) -> tuple[float, float]:
    r"""The inverse of :math:`\lambda_{\max} + \mathrm{tr}/B`, by power iteration, and the largest speed that it holds for."""
    parts = state.parts
    assert parts is not None
    speeds = parts.speed()
    D = torch.empty_like(state.gradient)
    D[:, state.order] = torch.cat([speeds, plain_rate.expand(len(D), -1)], dim=1)
    root, share = D.sqrt(), w / w.sum()
    if state.direction is None or state.direction.shape != D.shape:
        state.direction = torch.as_tensor(state.generator.randn(*D.shape), dtype=D.dtype).to(D.device)
    vector = state.direction + 1e-3 * torch.as_tensor(state.generator.randn(*D.shape), dtype=D.dtype).to(D.device)
    largest = torch.zeros(len(D), dtype=D.dtype, device=D.device)
    for _ in range(POWER_STEPS if state.steps == 0 else 2):
        vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=torch.finfo(D.dtype).tiny)
        vector = root * design.backward(share[:, None] * design.forward(root * vector))
        largest = vector.norm(dim=1)
    state.direction = vector / largest[:, None].clamp(min=torch.finfo(D.dtype).tiny)
    trace = (D * design.squares(share[:, None])).sum(dim=1)
    bound = CURVATURE[state.loss] * float((largest + trace / size).max())
    decays = LARGEST_CHANGE / float(parts.decay.max()) if len(parts.decay) else math.inf
    rate = min(0.5 / bound if bound > 0 else math.inf, decays)
    return rate if rate < math.inf else 1.0, float(speeds.max()) if speeds.numel() else 0.0


def finalize(state: Iteration, *, tol: float = 1e-8) -> Result:
    """The model of a stream with exact zeros; the state itself goes on as it is.

    Zero is what shrinks under the mean gradient of the last pass and lies below its start, or is better off at zero.

    Args:
        state: The model, after at least one :func:`step`.
        tol: Largest residual of a model that counts as converged, at least that of a run over batches.
    """
    if state.parts is None:
        raise ValueError("the model has seen no rows: call step() first")
    with torch.no_grad():
        final = replace(state, parts=replace(state.parts, u=state.parts.u.clone(), v=state.parts.v.clone()))
        _zero_shrinking(final)
        residual = _residual(final)
        return _result(final, state.steps, residual <= max(tol, BATCH_TOL), residual)


def _settle(state: Iteration, design: Design, target: Tensor, weights: Tensor) -> float:
    """Exact zeros by the gradient over all rows; the residual of what is left."""
    for last in (False, True):
        now = _evaluate(state.loss, _predict(state, design), target, weights)
        state.gradient, state.curvature = design.backward(now.slopes), _curvatures(state, design, now.curvature)
        if not last:
            _zero_shrinking(state)
    return _residual(state)


def _zero_shrinking(state: Iteration) -> None:
    """Zero for every part that shrinks below its start or is better off at zero, and for a small rest beside a larger part."""
    parts = state.parts
    assert parts is not None
    m, ordered, L = len(state.penalized), state.gradient[:, state.order], state.curvature[:, state.penalized]
    threshold = _thresholds(parts.decay, L, state.p)
    outward = -ordered[:, :m]
    relative = parts.relative(ordered)
    gone = []
    for part, shrinks, other, push in (
        (parts.u, relative[0] > 0, parts.v, outward),
        (parts.v, relative[1] > 0, parts.u, -outward),
    ):
        s = power(part, state.K)
        below = s <= state.starts * (1 + 1e-9)
        gone.append(shrinks & (below | (push + L * s < threshold)) | below & (part < other))
    parts.u[gone[0]] = 0.0
    parts.v[gone[1]] = 0.0


def _residual(state: Iteration) -> float:
    parts = state.parts
    assert parts is not None
    if state.scale == 0:
        return 0.0
    m, ordered, L = len(state.penalized), state.gradient[:, state.order], state.curvature[:, state.order]
    x = parts.x()[:, :m]
    size = torch.where(x != 0, x.abs(), 1.0)
    slopes = torch.where(x != 0, ordered[:, :m] + parts.decay * x.sign() * size ** (state.p - 1), 0.0)
    both = torch.cat([slopes, _plain_slopes(parts, ordered[:, m:])], dim=1) * (L > 0) / torch.where(L > 0, L, 1.0).sqrt()
    return float(both.abs().max()) / state.scale if both.numel() else 0.0


def _result(state: Iteration, n_iter: int, converged: bool, residual: float) -> Result:
    parts = state.parts
    assert parts is not None
    x = torch.empty_like(state.gradient)
    x[:, state.order] = parts.x()
    intercept = parts.intercept if state.mean is None else parts.intercept - x @ state.mean
    coef, b0 = cast(Array, x.double().cpu().numpy()), cast(Array, intercept.double().cpu().numpy())
    return Result(coef[0] if state.flat else coef, float(b0[0]) if state.flat else b0, n_iter, converged, residual)
