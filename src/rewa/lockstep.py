r"""Many linear models on the same data, trained as one.

A study of ReWA trains hundreds of linear models that differ in a setting and share every batch. Here each is a column: a batch
is read once for all of them, one kernel takes the step of every column, and weights that can no longer matter leave the
computation.

**When a weight is dropped.** A step multiplies y by :math:`1 - \eta\lambda - \eta\,\mathrm{sign}(y)\,|y|^{M-1} g`, so a weight
grows only if its gradient exceeds :math:`\lambda|y|^{1-M}`, the threshold of :func:`rewa.theory.growth_threshold`. Let G bound
its gradient from now on and :math:`q = G\,|y|^{M-1} / \lambda` be the share of the threshold. For ``M >= 1`` and ``q < 1`` the
weight only shrinks, q with it, and a weight left to decay alone is never more than :math:`q\,|x|` away from the trained one:
with u the decay still to come, they differ by at most :math:`|x|\,e^{-u}(e^{qu} - 1) \le q\,|x|`. A weight is dropped when
``q <= 1/2`` and :math:`q\,|x|` is at most the tolerance, in every column of its block.

G is an estimate: the gradient over all rows now, plus four standard errors of the gradient of a feature that is independent of
the residual. The noise of single batches is left out, for it averages out within an epoch. The bound holds for as long as the
gradient stays below G; it can rise when another, correlated weight grows. So the gradients of all weights are looked at again
from time to time, and a weight that could grow comes back, but what it missed before that it has missed: on a design where one
feature's gradient appears only after another has grown, set ``drop=None``.

Dropped weights keep decaying, and so do their predictions, which are kept as one number for each row. A block whose columns
need no weight any more trains only their biases.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rewa import native
from rewa.forms import Pair
from rewa.reparam import adaptive_scale, check_exponents, flush_subnormal, power, to_x, to_y
from rewa.schedules import learning_rates

__all__ = ["Column", "Fit", "Survivors", "epoch_order", "fit"]

FORMS = ("tied", "pair", "l1")
LOSSES = ("squared", "logistic")
SOURCE = Path(__file__).with_name("lockstep.cpp")
LARGEST_POWER = 15  # the kernel's table of whole powers ends there
BLOCK = 16  # columns that share a pass over the data; more gain nothing, for their state must stay in the cache
CHECKS = 40  # looks for weights to drop in a run
WORTH_THREADS = 4096  # weights in all columns from which several threads share a step
SAFETY = 0.5  # largest share of the growth threshold that a dropped weight's gradient may have


@dataclass(frozen=True, kw_only=True)
class Column:
    r"""The setting of one linear model.

    Args:
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        weight_decay: Decay :math:`\lambda` of y; the strength of the penalty for ``form="l1"``.
        lr: Learning rate at its peak.
        form: ``"tied"``, :math:`x = \mathrm{sign}(y)|y|^K`; ``"pair"``, :math:`x = |u|^K - |v|^K`; or ``"l1"``, plain SGD on x
            with the subgradient :math:`\lambda\,\mathrm{sign}(x)`, where K is 1 and M is 0.
        loss: ``"squared"``, the mean of squared errors, or ``"logistic"``, the mean log loss of labels 0 and 1.
        seed: Seeds the initial weights, those of :class:`torch.nn.Linear`.
        scale: Factor of the initial weights.
        start: What both parts of a pair have more than the weight needs, in units of x.
    """

    K: float = 9
    M: float = 4
    eps: float = 0.0
    weight_decay: float = 0.25
    lr: float = 2e-4
    form: Literal["tied", "pair", "l1"] = "tied"
    loss: Literal["squared", "logistic"] = "squared"
    seed: int = 0
    scale: float = 1.0
    start: float = 0.005

    def __post_init__(self) -> None:
        check_exponents(self.K, self.M, self.eps)
        for name, value, allowed in (("form", self.form, FORMS), ("loss", self.loss, LOSSES)):
            if value not in allowed:
                raise ValueError(f"Invalid {name}: {value!r} (allowed: {', '.join(map(repr, allowed))})")
        if self.form == "l1" and (self.K, self.M, self.eps) != (1, 0, 0):
            raise ValueError(f"form='l1' is plain SGD with K=1, M=0, eps=0; got K={self.K}, M={self.M}, eps={self.eps}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"Invalid lr: {self.lr} (allowed: a finite number > 0)")
        if not 0 <= self.weight_decay * self.lr < 1:
            raise ValueError(f"Invalid weight_decay: {self.weight_decay} (allowed: 0 <= lr * weight_decay < 1, lr={self.lr})")
        if not (0 < self.scale < math.inf and 0 < self.start < math.inf):
            raise ValueError(f"Invalid scale or start: {self.scale}, {self.start} (allowed: finite numbers > 0)")

    def initial(self, num_features: int) -> tuple[Tensor, Tensor]:
        """The weights and the bias before training, as ``nn.Linear(num_features, 1)`` draws them after its seed is set.

        Args:
            num_features: Number of weights.
        """
        bound, generator = 1 / math.sqrt(num_features), torch.Generator().manual_seed(self.seed)
        weight, bias = (
            torch.empty(size, dtype=torch.float32).uniform_(-bound, bound, generator=generator) for size in (num_features, 1)
        )
        return self.scale * weight, bias[0]


class Survivors(NamedTuple):
    """How many weights some columns still train, from an epoch on."""

    epoch: int
    columns: int
    weights: int


@dataclass(frozen=True)
class Fit:
    """Trained linear models.

    Attributes:
        columns: Their settings.
        coef: Weights, a row for each column.
        bias: A number for each column.
        survivors: When weights were dropped, and how many were left.
    """

    columns: tuple[Column, ...]
    coef: Tensor
    bias: Tensor
    survivors: tuple[Survivors, ...]

    def predict(self, X: Tensor) -> Tensor:
        """Predictions (log odds for the logistic loss), a column for each model.

        Args:
            X: Rows.
        """
        return X @ self.coef.T + self.bias


def epoch_order(num_rows: int, seed: int, epochs: int) -> Tensor:
    """The order of the rows in each epoch: a permutation in each row of the result.

    Args:
        num_rows: Number of rows of the data.
        seed: Seeds the order.
        epochs: Number of epochs.

    Example:
        >>> epoch_order(4, 0, 2).sort().values.tolist()
        [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    generator = torch.Generator().manual_seed(seed)
    return _orders(num_rows, epochs, generator)


def _orders(num_rows: int, epochs: int, generator: torch.Generator) -> Tensor:
    return torch.stack([torch.randperm(num_rows, generator=generator) for _ in range(epochs)])


def fit(
    X: Tensor,
    y: Tensor,
    columns: Sequence[Column],
    *,
    epochs: int,
    batch_size: int = 25,
    schedule: str = "cosine",
    seed: int = 0,
    drop: float | None = 1e-8,
    bias: bool = True,
    threads: int | None = None,
    kernel: bool | None = None,
    progress: Callable[[float], None] | None = None,
) -> Fit:
    r"""Train one linear model for each column by ReWA with SGD, all on the same batches. Autograd is not involved.

    Each column ends where :class:`rewa.ReWASGD` takes ``nn.Linear(d, 1)`` alone, with the setting of the column for the weight
    and plain SGD without decay for the bias.

    Args:
        X: Data, n rows of d features, float32 or float64; training takes place in its precision.
        y: Targets: n numbers, or n rows with one for each column.
        columns: The settings.
        epochs: Passes over the data.
        batch_size: Rows in a batch; the last batch of an epoch has the rest.
        schedule: Schedule of the learning rate, per step: ``"cosine"``, ``"linear"`` or ``"constant"``.
        seed: Seeds the order of the rows, the same for all columns.
        drop: Tolerance at which weights are dropped (see the module); ``None`` to train every weight to the end.
        bias: Whether the models have one.
        threads: CPU threads; torch's number by default.
        kernel: ``True`` for the compiled kernel (CPU, whole K and M up to 15), ``False`` for the same steps in torch, on the
            device of ``X``. By default the kernel where it can be had; a missing compiler is warned of.
        progress: Called with the share of the work that was done since the last call, 1 in all; from several threads.

    Returns:
        The models, in the order of the columns.

    Example:
        >>> X = torch.randn(200, 50)
        >>> y = X[:, 0] + 0.1 * torch.randn(200)
        >>> settings = [Column(K=3, M=2, lr=0.05, weight_decay=0.2, form="pair", start=0.1, seed=seed) for seed in range(3)]
        >>> result = fit(X, y, settings, epochs=100)
        >>> (result.coef.abs() > 0.01).sum(dim=1)
        tensor([1, 1, 1])
    """
    columns = tuple(columns)
    targets = _check(X, y, columns, epochs, batch_size, drop)
    X = X.detach()  # torch.no_grad() would not reach the threads
    threads = torch.get_num_threads() if threads is None else threads
    if threads < 1:
        raise ValueError(f"Invalid threads: {threads} (allowed: a whole number >= 1)")
    if kernel is None:
        kernel = X.device.type == "cpu" and all(map(_has_whole_powers, columns)) and _library(X.dtype) is not None
    elif kernel:
        _check_kernel(X, columns)
    steps_per_epoch = -(-len(X) // batch_size)
    shared = _Shared(
        X=X,
        seed=seed,
        batch_size=batch_size,
        rates=torch.tensor(learning_rates(1.0, epochs * steps_per_epoch, schedule=schedule), dtype=torch.float64),
        drop=drop,
        bias=bias,
        kernel=kernel,
        packed=_packed(X, None) if kernel else X,
        size=X.square().mean(dim=0).sqrt(),
    )
    needed_decay = [_needed_decay(shared, *each) for each in zip(columns, targets, strict=True)]
    groups = _blocks(needed_decay, columns, threads)
    alone = len(groups) < threads  # then the threads share each block
    blocks = [
        _Block(shared, [columns[index] for index in group], targets[group], threads if alone else 1, needed_decay[group[0]])
        for group in groups
    ]
    _train(blocks, epochs, 1 if alone else threads, progress)
    coef, biases = X.new_empty(len(columns), X.shape[1]), X.new_empty(len(columns))
    for block, group in zip(blocks, groups, strict=True):
        coef[group], biases[group] = block.weights(block.u, block.v), block.bias.to(X.dtype)
    survivors = [Survivors(epoch, len(block.columns), weights) for block in blocks for epoch, weights in block.survivors]
    return Fit(columns, coef, biases, tuple(survivors))


def _train(blocks: list[_Block], epochs: int, at_once: int, progress: Callable[[float], None] | None) -> None:
    """Train blocks to the end, some at a time; an error or a key ends all of them at their next stage."""
    stop, total = threading.Event(), sum(len(block.columns) for block in blocks)

    def train(block: _Block) -> None:
        share = len(block.columns) / total / epochs
        for first, last in itertools.pairwise(_stages(epochs)):
            if stop.is_set():
                return
            if block.worth_a_look(first):
                block.select(first)
            block.train(first, last)
            if progress:
                progress(share * (last - first))
        block.finish()

    if at_once == 1:
        for block in blocks:
            train(block)
        return
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(train, block) for block in blocks]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        for future in done:
            future.result()


def _check(X: Tensor, y: Tensor, columns: tuple[Column, ...], epochs: int, batch_size: int, drop: float | None) -> Tensor:
    """Targets, a row for each column."""
    if not (isinstance(X, Tensor) and isinstance(y, Tensor)):
        raise TypeError(f"X and y must be torch tensors, got {type(X).__name__} and {type(y).__name__}: use torch.from_numpy")
    if X.ndim != 2 or X.dtype not in (torch.float32, torch.float64) or 0 in X.shape:
        raise ValueError(f"X must be a matrix of float32 or float64 with rows and columns; got {tuple(X.shape)}, {X.dtype}")
    if not columns:
        raise ValueError("there is nothing to train: columns is empty")
    if y.shape not in ((len(X),), (len(X), len(columns))):
        raise ValueError(
            f"y must have the shape ({len(X)},) or ({len(X)}, {len(columns)}): rows, columns; got {tuple(y.shape)}"
        )
    targets = (y.T if y.ndim == 2 else y).detach().to(X).expand(len(columns), len(X)).contiguous()
    if not (X.isfinite().all() and targets.isfinite().all()):
        raise ValueError("X and y must be finite; remove the rows with NaN or infinite values")
    for column, target in zip(columns, targets, strict=True):
        if column.loss == "logistic" and not ((target >= 0) & (target <= 1)).all():
            raise ValueError(f"the logistic loss needs targets from 0 to 1; got {target.min():g} to {target.max():g}")
    if epochs < 1 or not 1 <= batch_size <= len(X):
        raise ValueError(f"epochs must be >= 1 and batch_size from 1 to {len(X)} (the rows); got {epochs} and {batch_size}")
    if drop is not None and not 0 <= drop < math.inf:
        raise ValueError(f"Invalid drop: {drop} (allowed: None, or a finite number >= 0)")
    return targets


def _has_whole_powers(column: Column) -> bool:
    return all(value == int(value) and value <= LARGEST_POWER for value in (column.K, column.M))


def _check_kernel(X: Tensor, columns: tuple[Column, ...]) -> None:
    if X.device.type != "cpu":
        raise ValueError(f"the kernel runs on CPUs and X is on {X.device}: leave kernel=True out")
    for column in columns:
        if not _has_whole_powers(column):
            raise ValueError(f"the kernel needs whole K and M up to {LARGEST_POWER}; got K={column.K}, M={column.M}")
    if _library(X.dtype) is None:
        raise RuntimeError("the kernel could not be compiled: install a C++ compiler, or leave kernel=True out")


def _blocks(needed_decay: Sequence[float], columns: Sequence[Column], threads: int) -> list[list[int]]:
    """Columns that are trained together: like ones, so that a weight is dropped in all of them at about the same time."""

    def likeness(index: int) -> tuple[float | str, ...]:
        column = columns[index]
        return needed_decay[index], column.form, column.K, column.M, column.eps, index

    never = [index for index in range(len(columns)) if needed_decay[index] >= 1]
    sometime = sorted(set(range(len(columns))) - set(never), key=likeness)
    groups = []
    for chosen, size in ((sorted(never, key=likeness), BLOCK), (sometime[::-1], BLOCK // 2)):  # the longest first
        count = max(-(-len(chosen) // size), min(threads, len(chosen) // 4))
        groups += [chosen[len(chosen) * part // count : len(chosen) * (part + 1) // count] for part in range(count)]
    return groups


def _needed_decay(shared: _Shared, column: Column, target: Tensor) -> float:
    """The share of a run's decay after which most weights of a column will be dropped, about; 1 and more: never.

    While a weight x decays by exp(-u), the bound q|x| falls by exp(-u (1 + (M-1)/K)).
    """
    if shared.drop is None or not _can_drop(column):
        return math.inf
    size = column.scale / (2 * math.sqrt(shared.X.shape[1])) + column.start * (column.form == "pair")
    spread = float(target.std(correction=0)) * (2 if column.loss == "squared" else 1)
    bound = 5 * float(shared.size.mean()) * spread / math.sqrt(len(shared.X))
    share = bound * size ** ((column.M - 1) / column.K) / column.weight_decay
    if share * size <= shared.drop:
        return 0.0
    decay = math.log(share * size / shared.drop) if shared.drop > 0 else math.inf
    return decay / (1 + (column.M - 1) / column.K) / (column.K * column.weight_decay * column.lr * float(shared.rates.sum()))


def _can_drop(column: Column) -> bool:
    """Below ``M = 1`` small weights grow most easily, and without decay or with l1 by steps nothing tends to zero."""
    return column.form != "l1" and column.M >= 1 and column.weight_decay > 0


def _stages(epochs: int) -> list[int]:
    return sorted({round(epochs * stage / CHECKS) for stage in range(CHECKS + 1)})


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What all blocks share."""

    X: Tensor
    seed: int  # of the order of the rows
    batch_size: int
    rates: Tensor  # the share of its lr that each step takes
    drop: float | None
    bias: bool
    kernel: bool
    packed: Tensor  # X as the steps read it
    size: Tensor  # root mean square of each feature


class _Block:
    """Columns trained together, and the weights they still train."""

    def __init__(self, shared: _Shared, columns: list[Column], targets: Tensor, threads: int, first_drop: float) -> None:
        self.shared, self.columns, self.targets, self.threads = shared, columns, targets.contiguous(), threads
        self.first_drop = first_drop  # the share of the run's decay at which it is expected
        X = shared.X
        start = [column.initial(X.shape[1]) for column in columns]
        state = [_state(column, x.to(X)) for column, (x, _) in zip(columns, start, strict=True)]
        self.u, self.v = torch.stack([u for u, _ in state]), torch.stack([v for _, v in state])
        self.bias = torch.stack([bias for _, bias in start]).double() * shared.bias
        self.offset = torch.zeros_like(self.targets)
        self.faded = torch.ones(len(columns), dtype=torch.float64)
        self.generator = torch.Generator().manual_seed(shared.seed)
        self.droppable = shared.drop is not None and all(map(_can_drop, columns))
        self.live = torch.arange(X.shape[1], device=X.device)
        self.x, self.live_u, self.live_v = shared.packed, _padded(self.u, shared.packed), _padded(self.v, shared.packed)
        self.survivors = [(0, X.shape[1])]
        self.shrink_power = torch.tensor([float(column.K) for column in columns], dtype=torch.float64)
        # Slices of equal setting, for the steps in torch.
        keys = [(column.form, column.K, column.M, column.eps) for column in columns]
        cuts = [index for index in range(len(keys)) if index == 0 or keys[index] != keys[index - 1]]
        self.slices = [slice(low, high) for low, high in itertools.pairwise([*cuts, len(keys)])]

    def worth_a_look(self, epoch: int) -> bool:
        """Whether there may be weights to drop, or some that must come back: not long before the first are expected to drop."""
        if not self.droppable:
            return False
        decayed = self.shared.rates[: epoch * -(-len(self.shared.X) // self.shared.batch_size)].sum() / self.shared.rates.sum()
        return bool(decayed >= 0.75 * self.first_drop)

    def train(self, first: int, last: int) -> None:
        """The epochs from ``first`` until before ``last``."""
        shared, advance = self.shared, _steps_kernel if self.shared.kernel else _steps_torch
        rows, batch = len(shared.X), shared.batch_size
        whole = rows - rows % batch
        steps = -(-rows // batch)
        order = _orders(rows, last - first, self.generator).to(shared.X.device)
        if whole == rows:  # one call for all these epochs
            advance(self, order.flatten(), batch, shared.rates[first * steps : last * steps])
            return
        for epoch, each in zip(range(first, last), order, strict=True):
            rates = shared.rates[epoch * steps : (epoch + 1) * steps]
            advance(self, each[:whole], batch, rates[:-1])
            advance(self, each[whole:], rows - whole, rates[-1:])

    def gather(self) -> None:
        """Bring the state of all weights up to date: what was trained, and what decayed alone."""
        away = torch.ones(self.u.shape[1], dtype=torch.bool, device=self.u.device)
        away[self.live] = False
        left = (self.faded ** (1 / self.shrink_power)).to(self.u)[:, None]
        for state, live in ((self.u, self.live_u), (self.v, self.live_v)):
            state[:, away] *= left
            state[:, self.live] = live[:, : len(self.live)]
        self.offset *= self.faded.to(self.offset)[:, None]
        self.faded.fill_(1.0)

    def finish(self) -> None:
        """The last state of all weights; the copy of the data is let go."""
        self.gather()
        self.x = self.x[:0]

    def select(self, epoch: int) -> None:
        """Drop the weights that no column needs any more, and take back the ones that could grow."""
        self.gather()
        needed = self.needed()
        total = int(needed.sum())
        back = total - int(needed[self.live].sum())
        if not back and total >= 0.75 * len(self.live):
            return  # too little to gain for a copy of the data
        X = self.shared.X
        self.live = needed.nonzero()[:, 0]
        self.offset = (X @ (self.weights(self.u, self.v) * ~needed).T).T.contiguous()
        self.x = _packed(X, self.live) if self.shared.kernel else X[:, self.live]
        self.live_u, self.live_v = _padded(self.u[:, self.live], self.x), _padded(self.v[:, self.live], self.x)
        self.survivors.append((epoch, len(self.live)))

    def needed(self) -> Tensor:
        """Whether any column still needs a weight, by the bound in the module's docstring; the state must be up to date."""
        X = self.shared.X
        predictions = self.x @ self.weights(self.live_u, self.live_v).T + self.offset.T + self.bias.to(X)
        slopes = self.slopes(predictions, slice(None))
        gradient = slopes.T @ X / len(X)
        standard_error = self.shared.size * (slopes.square().mean(dim=0) / len(X)).sqrt()[:, None]
        bound = gradient.abs() + 4 * standard_error
        needed = torch.zeros(X.shape[1], dtype=torch.bool, device=X.device)
        for index, column in enumerate(self.columns):
            for part in (self.u, self.v)[: 1 + (column.form == "pair")]:
                size = part[index].abs()
                share = bound[index] * power(size, column.M - 1) / column.weight_decay
                needed |= (share > SAFETY) | (share * power(size, column.K) > (self.shared.drop or 0.0))
        return needed

    def weights(self, u: Tensor, v: Tensor) -> Tensor:
        """The weights of a state."""
        x = torch.empty_like(u)
        for part in self.slices:
            column = self.columns[part.start]
            x[part] = u[part] if column.form == "l1" else flush_subnormal(to_x(u[part], column.K))
            if column.form == "pair":
                x[part] = x[part].abs() - flush_subnormal(power(v[part].abs(), column.K))
        return x

    def slopes(self, predictions: Tensor, rows: Any) -> Tensor:
        """Derivatives of the loss of each row in its prediction."""
        targets = self.targets[:, rows].T
        logistic = torch.tensor([column.loss == "logistic" for column in self.columns], device=targets.device)
        return torch.where(logistic, torch.sigmoid(predictions), 2 * predictions) - torch.where(logistic, 1, 2) * targets


def _state(column: Column, x: Tensor) -> tuple[Tensor, Tensor]:
    """The state for weights x; a form with one part leaves v at zero."""
    if column.form == "pair":
        return Pair(K=column.K, start=column.start).right_inverse(x)
    return (x if column.form == "l1" else to_y(x, column.K)), torch.zeros_like(x)


def _packed(X: Tensor, live: Tensor | None) -> Tensor:
    """The features of X that are live, with zeros up to the width that the kernel works in."""
    chosen = X if live is None else X.index_select(1, live)
    stride = 256 // X.element_size()
    missing = -chosen.shape[1] % stride
    return nn.functional.pad(chosen, (0, missing)) if missing else chosen.contiguous()


def _padded(state: Tensor, x: Tensor) -> Tensor:
    return nn.functional.pad(state, (0, x.shape[1] - state.shape[1])).clone()


# ------------------------------------------------------------------------------------------------- the steps


def _steps_torch(block: _Block, order: Tensor, batch: int, rates: Tensor) -> None:
    """The steps as the paper has them, in torch; the reference for the kernel, and what runs where there is none."""
    columns, u, v = block.columns, block.live_u, block.live_v
    lr = torch.tensor([column.lr for column in columns], dtype=torch.float64)
    decay = torch.tensor([column.weight_decay for column in columns], dtype=torch.float64)
    for rows, rate in zip(order.view(-1, batch), rates, strict=True):
        X = block.x[rows]
        predictions = X @ block.weights(u, v).T
        predictions += (block.faded.to(X)[:, None] * block.offset[:, rows]).T + block.bias.to(X)
        slopes = block.slopes(predictions, rows)
        gradient = slopes.T @ X / len(rows)
        step = (lr * rate).to(X)[:, None]
        pull = (lr * rate * decay).to(X)[:, None]
        shrink = (1 - lr * rate * decay).to(X)[:, None]
        for part in block.slices:
            column = columns[part.start]
            if column.form == "l1":
                u[part] -= step[part] * gradient[part] + pull[part] * u[part].sign()
                continue
            scale = [adaptive_scale(y[part], column.K, column.M, column.eps) for y in (u, v)]
            u[part] = shrink[part] * u[part] - step[part] * scale[0] * gradient[part]
            if column.form == "pair":
                v[part] = shrink[part] * v[part] + step[part] * scale[1] * gradient[part]
        if block.shared.bias:
            block.bias -= lr * rate * slopes.mean(dim=0).double().cpu()
        block.faded *= (1 - lr * rate * decay) ** block.shrink_power


class _CColumn(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("form", "loss", "K", "M")),
        *((name, ctypes.c_double) for name in ("lr", "weight_decay", "eps")),
        *((name, ctypes.c_void_p) for name in ("u", "v", "target", "offset")),
        *((name, ctypes.c_double) for name in ("faded", "bias")),
        ("has_bias", ctypes.c_int32),
    ]


class _CRows(ctypes.Structure):
    _fields_ = [("x", ctypes.c_void_p), ("stride", ctypes.c_int64), ("order", ctypes.c_void_p), ("batch", ctypes.c_int64)]


def _steps_kernel(block: _Block, order: Tensor, batch: int, rates: Tensor) -> None:
    columns = (_CColumn * len(block.columns))()
    for index, (each, column) in enumerate(zip(columns, block.columns, strict=True)):
        each.form, each.loss = FORMS.index(column.form), LOSSES.index(column.loss)
        each.K, each.M, each.eps = int(column.K), int(column.M), column.eps
        each.lr, each.weight_decay = column.lr, column.weight_decay
        each.u, each.v = block.live_u[index].data_ptr(), block.live_v[index].data_ptr()
        each.target, each.offset = block.targets[index].data_ptr(), block.offset[index].data_ptr()
        each.faded, each.bias, each.has_bias = float(block.faded[index]), float(block.bias[index]), block.shared.bias
    order, rates = order.contiguous(), rates.contiguous()
    data = _CRows(block.x.data_ptr(), block.x.stride(0), order.data_ptr(), batch)
    library = _library(block.x.dtype)
    assert library is not None  # fit() has looked
    # Threads wait for each other twice a step, which a small step does not pay for.
    threads = block.threads if block.x.shape[1] * len(columns) >= WORTH_THREADS else 1
    library.steps(
        columns, len(columns), ctypes.byref(data), block.x.shape[1], len(rates), rates.data_ptr(), threads
    )  # ctypes lets other threads run meanwhile
    for index, each in enumerate(columns):
        block.faded[index], block.bias[index] = each.faded, each.bias


@functools.cache
def _library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled kernel, or None, with a warning, where it is not available."""
    number, address = ctypes.c_int64, ctypes.c_void_p
    rows, columns = ctypes.POINTER(_CRows), ctypes.POINTER(_CColumn)
    return native.kernel(
        SOURCE,
        {"steps": (columns, ctypes.c_int32, rows, number, number, address, ctypes.c_int32)},
        {"REAL": "float" if dtype == torch.float32 else "double"},
        otherwise="slower steps in torch are used instead; pass kernel=False to silence this",
    )
