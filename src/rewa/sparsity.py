"""The one definition of sparsity: a weight counts as zero when its magnitude is at most the threshold.

Counts are of the whole model, also where it is sharded (FSDP2): every process makes the same call and gets the same counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rewa._moved import names_moved
from rewa.cutting import cut
from rewa.example import Example
from rewa.modes import keeping_modes
from rewa.text_table import aligned
from rewa.weights import Decided, computed, decisions, full, local, reshard

__all__ = [
    "Count",
    "Cut",
    "Layer",
    "Summary",
    "count",
    "curve",
    "histogram",
    "prunable",
    "summary",
    "thresholded",
    "whole",
]


@dataclass(frozen=True)
class Count:
    """How many weights there are and how many are not zero."""

    total: int
    nonzero: int

    @property
    def compression_ratio(self) -> float:
        """Parameters over nonzero parameters, infinite when none is left."""
        return self.total / self.nonzero if self.nonzero else math.inf

    @property
    def sparsity(self) -> float:
        """Share of the parameters that is zero."""
        return 1 - self.nonzero / self.total if self.total else 0.0

    def __add__(self, other: Count) -> Count:
        return Count(self.total + other.total, self.nonzero + other.nonzero)


def prunable(model: nn.Module | Decided, *, groups: Decided | None = None) -> dict[str, Tensor]:
    """The weights that can become sparse, by name; a write into them changes the model.

    Args:
        model: A model, for the weights that :func:`rewa.weights.decisions` finds, trained or not; or what
            :func:`rewa.param_groups` returned for the model, or an optimizer of rewa, for what these decided.
        groups: With a model: the groups or the optimizer that decide, if not what the model remembers.

    Raises:
        ValueError: If torch computes a weight from other parameters, under a parametrization or a pruning mask: there is no
            tensor to cut until that is removed. :func:`summary`, :func:`whole` and :func:`histogram` count such models too.

    Example:
        >>> list(prunable(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))))
        ['0.weight']
    """
    if isinstance(model, nn.Module):
        reshard(model)
        for found in computed(model):
            if found.is_sparse:
                raise found.error()
    decided = decisions(model, groups)
    for name, decision in () if isinstance(model, nn.Module) else decided.items():
        if ".parametrizations." in f".{name}":
            raise ValueError(f"{name!r} is behind a parametrization: call rewa.remove_reparametrization on a copy first")
        if decision.is_sparse and name.endswith("_orig"):
            raise ValueError(f"{name!r} is behind a pruning mask: call torch.nn.utils.prune.remove on its layer first")
    return {name: decision.param for name, decision in decided.items() if decision.is_sparse}


def _in_use(model: nn.Module, groups: Decided | None) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The weights that can become sparse as the layers use them, by name, and all other parameters; to read, not to write."""
    reshard(model)
    found = computed(model)
    behind = {original for one in found for original in one.originals}
    at = {one.originals[0]: one for one in found if one.originals}
    weights: dict[str, Tensor] = {}
    rest: list[Tensor] = []
    for name, decision in decisions(model, groups).items():
        tensor, label, is_sparse = decision.param, name, decision.is_sparse
        if name in behind:
            if name not in at:
                continue
            tensor, label, is_sparse = at[name].value, at[name].name, at[name].is_sparse
        if is_sparse:
            weights[label] = tensor
        else:
            rest.append(tensor)
    return weights, rest


def count(tensors: Iterable[Tensor], threshold: float = 0.0) -> Count:
    r"""Count weights and those with :math:`|x| > t`.

    Args:
        tensors: The weights.
        threshold: The largest magnitude t that counts as zero.

    Example:
        >>> count([torch.tensor([0.0, -0.1, 2.0])], threshold=0.1)
        Count(total=3, nonzero=1)
    """
    if isinstance(tensors, nn.Module):
        raise TypeError("count needs tensors: pass rewa.sparsity.prunable(model).values(), or model.parameters()")
    if not threshold >= 0:
        raise ValueError(f"Invalid threshold: {threshold} (allowed: a number >= 0)")
    tensors = [tensor.detach() for tensor in tensors]
    return Count(sum(t.numel() for t in tensors), sum(int(full((t.abs() > threshold).sum())) for t in tensors))


@contextmanager
def thresholded(tensors: Iterable[Tensor], threshold: float) -> Iterator[Count]:
    """Set the weights at or below the threshold to zero inside the block; afterwards every bit is back.

    Args:
        tensors: The weights, changed in place.
        threshold: The largest magnitude that counts as zero.

    Example:
        >>> weight = torch.tensor([0.05, -0.1, 2.0])
        >>> with thresholded([weight], 0.1) as left:
        ...     print(weight, left.compression_ratio)
        tensor([0., 0., 2.]) 3.0
        >>> weight
        tensor([ 0.0500, -0.1000,  2.0000])
    """
    tensors = list(tensors)
    left = count(tensors, threshold)
    parts = [local(tensor.detach()) for tensor in tensors]
    saved = [part.clone() for part in parts]
    try:
        cut(parts, threshold)
        yield left
    finally:
        for part, original in zip(parts, saved, strict=True):
            part.copy_(original)


@dataclass(frozen=True)
class Layer:
    """One weight of a model."""

    name: str
    shape: tuple[int, ...]
    count: Count
    multiply_adds: int | None  # of one example, with every weight
    multiply_adds_left: int | None  # with the nonzero ones


@dataclass(frozen=True)
class Summary:
    """How sparse a model is: the weights that can become sparse layer by layer, and the whole."""

    threshold: float
    layers: tuple[Layer, ...]
    prunable: Count
    model: Count

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        counted = any(layer.multiply_adds is not None for layer in self.layers)
        rows: list[tuple[str, ...]] = [
            ("", "shape", "weights", "nonzero", "zero", "ratio", *(("mult-adds", "left") if counted else ()))
        ]
        work: list[tuple[int | None, ...]] = []
        for layer in self.layers:
            work.append((layer.multiply_adds, layer.multiply_adds_left) if counted else ())
            rows.append((layer.name, "x".join(map(str, layer.shape)), *_cells(layer.count), *map(_number, work[-1])))
        total = [f"{sum(one or 0 for one in column):,}" for column in zip(*work, strict=True)]
        rows.append(("prunable weights", "", *_cells(self.prunable), *total))
        rows.append(("whole model", "", *_cells(self.model), *("" for _ in total)))
        return aligned(rows, "<<" + ">" * (len(rows[0]) - 2))


def _cells(count: Count) -> tuple[str, ...]:
    return f"{count.total:,}", f"{count.nonzero:,}", f"{count.sparsity:.2%}", f"{count.compression_ratio:.4g}x"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def summary(model: nn.Module, threshold: float = 0.0, *, example_input: Any = None, groups: Decided | None = None) -> Summary:
    """Count a model's weights, layer by layer, and what is left of its multiply-adds.

    Args:
        model: The model.
        threshold: The largest magnitude that counts as zero.
        example_input: What to call the model with, for the multiply-adds of its linear and convolution layers, given for one
            example; a tuple for several arguments, a dictionary for keywords.
        groups: The groups or the optimizer that decide which weights count, if not what the model remembers.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> _ = nn.init.zeros_(model[0].weight)
        >>> print(summary(model, example_input=torch.ones(5, 3)))
                          shape  weights  nonzero     zero  ratio  mult-adds  left
        0.weight          2x3          6        0  100.00%   infx          6     0
        2.weight          1x2          2        2    0.00%     1x          2     2
        prunable weights               8        2   75.00%     4x          8     2
        whole model                   11        5   54.55%   2.2x
    """
    weights, rest = _in_use(model, groups)
    positions = {} if example_input is None else _positions(model, weights, example_input)
    layers = []
    for name, weight in weights.items():
        left, uses = count([weight], threshold), positions.get(name)
        layers.append(
            Layer(
                name=name,
                shape=tuple(weight.shape),
                count=left,
                multiply_adds=None if uses is None else uses * left.total,
                multiply_adds_left=None if uses is None else uses * left.nonzero,
            )
        )
    total = sum((layer.count for layer in layers), Count(0, 0))
    return Summary(threshold, tuple(layers), total, total + count(rest))


def whole(model: nn.Module, threshold: float = 0.0, *, groups: Decided | None = None) -> Count:
    """Count all parameters; the threshold is for the weights that can become sparse, the others are counted as they are.

    Args:
        model: The model.
        threshold: The largest magnitude of a prunable weight that counts as zero.
        groups: As for :func:`summary`.

    Example:
        >>> whole(nn.Linear(3, 2), threshold=math.inf)
        Count(total=8, nonzero=2)
    """
    weights, rest = _in_use(model, groups)
    return count(weights.values(), threshold) + count(rest)


def _positions(model: nn.Module, weights: dict[str, Tensor], example_input: Any) -> dict[str, int]:
    """How often each weight of a linear or convolution layer is used for one example, by the weight's name."""
    names = {id(weight): name for name, weight in weights.items()}
    uses: dict[str, int] = {}

    def watch(module: nn.Module, name: str) -> Any:
        def hook(_: Any, __: Any, output: Tensor) -> None:
            uses[name] = uses.get(name, 0) + output.numel() // weights[name].shape[0]

        return module.register_forward_hook(hook)

    # By name, found before the pass: a sharded layer holds another tensor while it runs.
    hooks = []
    for prefix, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            name = names.get(id(module._parameters.get("weight")), f"{prefix}.weight".lstrip("."))
            hooks += [watch(module, name)] if name in weights else []
    example = Example.of(example_input)
    try:
        with keeping_modes(model), torch.no_grad():
            example.call(model.eval())
    finally:
        for handle in hooks:
            handle.remove()
        reshard(model)
    batch = next(len(value) for value in (*example.args, *example.kwargs.values()) if isinstance(value, Tensor))
    return {key: value // batch for key, value in uses.items()}


def histogram(
    model: nn.Module, bins: NDArray[np.float64] | None = None, *, groups: Decided | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """How the sizes of the weights are spread: counts of log10|x| by bin.

    Args:
        model: The model.
        bins: Edges in log10|x|; by default 60 between the smallest and the largest.
        groups: As for :func:`summary`.

    Returns:
        The counts, the edges, and how many weights are exactly zero.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[0.0, 1.0], [-0.01, 100.0]]))
        >>> counts, edges, zeros = histogram(model, bins=np.array([-3.0, -1.0, 1.0, 3.0]))
        >>> counts.tolist(), zeros
        ([1, 1, 1], 1)
    """
    weights, _ = _in_use(model, groups)
    flat = [full(weight.detach()).abs().flatten().double().cpu() for weight in weights.values()]
    sizes = torch.cat([torch.zeros(0, dtype=torch.float64), *flat]).numpy()
    logs = np.log10(sizes[sizes > 0])
    if bins is None:
        low, high = (logs.min(), logs.max()) if len(logs) else (-1.0, 0.0)
        bins = np.linspace(low, max(high, low + 1e-9), 61)
    counts, edges = np.histogram(logs, bins)
    return counts.astype(np.int64), edges, int((sizes == 0).sum())


@dataclass(frozen=True)
class Cut:
    """A threshold, what it leaves, and what the model is worth with it."""

    threshold: float
    prunable: Count
    model: Count
    value: float | None  # None if nothing was evaluated


def curve(
    model: nn.Module,
    evaluate: Callable[[nn.Module], float],
    thresholds: Iterable[float],
    *,
    groups: Decided | None = None,
) -> list[Cut]:
    """Accuracy against compression: one evaluation for each threshold.

    Args:
        model: The model; its weights are restored bit for bit afterwards, also when ``evaluate`` raises.
        evaluate: Takes the model and returns what it is worth, on validation data.
        thresholds: The largest magnitudes that count as zero.
        groups: As for :func:`summary`.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[0.1, 3.0]]))
        >>> for cut in curve(model, lambda model: model.weight.sum().item(), [0.0, 0.5]):
        ...     print(cut.threshold, cut.prunable.compression_ratio, round(cut.value, 2))
        0.0 1.0 3.1
        0.5 2.0 3.0
    """
    weights = list(prunable(model, groups=groups).values())
    cuts = []
    for threshold in thresholds:
        with keeping_modes(model), thresholded(weights, threshold) as left:
            try:
                cuts.append(Cut(threshold, left, whole(model, groups=groups), float(evaluate(model))))
            finally:
                reshard(model)
    return cuts


if not TYPE_CHECKING:  # a type checker that saw it would accept any name
    __getattr__ = names_moved(
        __name__,
        {
            "Point": "rewa.sparsity.Cut",
        },
    )
