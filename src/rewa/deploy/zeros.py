"""From small weights to exact zeros: the threshold is chosen on validation data, the zeros are written."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rewa._moved import names_moved
from rewa.cutting import largest_of_all
from rewa.modes import keeping_modes
from rewa.sparsity import Count, Cut, Summary, count, prunable, summary, whole
from rewa.weights import Decided, full, local, reshard, sharded_like

__all__ = ["Finalized", "finalize", "recalibrate_norms"]

Evaluate = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Finalized:
    """What :func:`finalize` did."""

    threshold: float  # the largest magnitude that became zero, or the threshold that was given
    summary: Summary
    value_before: float | None  # before any zero was written
    value: float | None  # of the model as it is now
    evaluations: tuple[Cut, ...]  # what was tried, in that order
    ties: int = 0  # weights of the threshold's own magnitude that stay, since enough others of it became zero
    spared: tuple[str, ...] = ()  # layers that kept one weight, their largest, although it is not above the threshold
    emptied: tuple[str, ...] = ()  # layers that lost their last weight

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as :func:`rewa.save_packed` keeps them."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [str(self.summary), f"threshold {self.threshold:.4g}"]
        if self.value is not None and self.value_before is not None:
            change = self.value - self.value_before
            lines[-1] += f", value {self.value_before:.4g} before and {self.value:.4g} after ({change:+.2g})"
        if self.ties:
            lines.append(f"{self.ties:,} more weights have exactly that magnitude and stay: the first ones became zero")
        if self.spared:
            lines.append(f"kept their largest weight, although it is not above the threshold: {', '.join(self.spared)}")
        if self.emptied:
            lines.append(f"lost all their weights: {', '.join(self.emptied)}")
        return "\n".join(lines)


def finalize(
    model: nn.Module,
    *,
    evaluate: Evaluate | None = None,
    max_drop: float | None = None,
    sparsity: float | None = None,
    threshold: float | None = None,
    recalibrate: Iterable[Any] | None = None,
    recalibrate_batches: int = 100,
    precision: float = 0.01,
    groups: Decided | None = None,
) -> Finalized:
    """Write exact zeros: the smallest weights of all layers together, as many as exactly one target asks for.

    Weights count whether they require a gradient or not; what the rules of :func:`rewa.param_groups` made dense is left alone.
    With ``sparsity`` and ``max_drop`` the number of zeros is exact: of weights with equal magnitude the first in the order of
    the model become zero first. A layer that would lose all its weights keeps its largest one, and another layer pays for it;
    the report names such layers. Only if fewer weights are left than there are layers, some become empty, with a warning. A
    ``threshold`` is obeyed: it may empty a layer, and a warning names it.

    A sharded model (FSDP2) is cut as the whole model would be. Every process must call this, and ``evaluate`` must return the
    same value on all of them.

    Args:
        model: The model, changed in place; untouched if the target cannot be met.
        evaluate: Takes the model and returns what it is worth, larger is better, **on validation data**.
        max_drop: Most that the value may fall, in its own units; as many zeros as it allows. Needs ``evaluate``.
        sparsity: Least share of the prunable weights that must be zero, between 0 and 1.
        threshold: The largest magnitude that becomes zero.
        recalibrate: A loader; batch-norm statistics are estimated again from its inputs, each time before the model is
            evaluated. Batches are tensors or tuples that begin with one.
        recalibrate_batches: Most batches to take from it.
        precision: For ``max_drop``: the search ends once the number of weights kept is known to this share.
        groups: The groups or the optimizer that decide which weights are cut, if not what the model remembers.

    Returns:
        A report; ``print`` it, or hand ``to_dict()`` to :func:`rewa.save_packed`.

    Raises:
        ValueError: If not exactly one target is given, or it cannot be met (it says how close it came); or if torch computes a
            weight from other parameters, as under a pruning mask (it says how to remove that).

    Example:
        >>> model = nn.Linear(4, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[1e-4, 0.02, 0.5, 2.0]]))
        >>> report = finalize(model, evaluate=lambda model: model.weight.sum().item(), max_drop=0.05)
        >>> round(report.threshold, 4)
        0.02
        >>> model.weight.tolist()
        [[0.0, 0.0, 0.5, 2.0]]
    """
    _check_targets(evaluate, max_drop, sparsity, threshold)
    batches = None if recalibrate is None else list(itertools.islice(recalibrate, recalibrate_batches))
    ranking = _Ranking(prunable(model, groups=groups), spare=threshold is None)

    def write(zeros: int) -> float:
        at = ranking.write(zeros)
        if batches is not None:
            recalibrate_norms(model, batches)
        return at

    def attempt(zeros: int) -> Cut:
        at = write(zeros)
        value = None if evaluate is None else _value(model, evaluate)
        return Cut(at, count(ranking.weights.values()), whole(model, groups=groups), value)

    with _restored_on_error(model):
        before = None if evaluate is None else _value(model, evaluate)
        if max_drop is not None:
            assert before is not None
            tried = _search(attempt, ranking, before, max_drop, precision)
            met = [one for one in tried if one.value is not None and one.value >= before - max_drop]
            chosen = min(met, key=lambda one: one.prunable.nonzero)
            if chosen is not tried[-1]:
                write(ranking.total - chosen.prunable.nonzero)
        else:
            wanted = math.ceil((sparsity or 0.0) * ranking.total) if threshold is None else ranking.zeros_at(threshold)
            chosen = attempt(wanted)
            chosen = chosen if threshold is None else replace(chosen, threshold=threshold)
            tried = [chosen]
        ties, spared, emptied = ranking.check(chosen)
        if emptied:
            warnings.warn(f"finalize left no weight in {', '.join(emptied)}: such a layer returns a constant", stacklevel=2)
        if spared and sparsity is not None:  # under max_drop the evaluation has judged them
            text = f"finalize left a single weight in {', '.join(spared)}: a lower sparsity keeps more of such a layer"
            warnings.warn(text, stacklevel=2)
    left = summary(model, groups=groups)
    return Finalized(chosen.threshold, left, before, chosen.value, tuple(tried), ties, spared, emptied)


def _check_targets(evaluate: Evaluate | None, max_drop: float | None, sparsity: float | None, threshold: float | None) -> None:
    targets = {"max_drop": max_drop, "sparsity": sparsity, "threshold": threshold}
    given = {name: target for name, target in targets.items() if target is not None}
    if len(given) != 1:
        raise ValueError(f"finalize needs exactly one of max_drop, sparsity and threshold; got {', '.join(given) or 'none'}")
    for name, target in given.items():
        if not 0 <= target < math.inf or (name == "sparsity" and target > 1):
            allowed = "a number between 0 and 1" if name == "sparsity" else "a finite number >= 0"
            raise ValueError(f"Invalid {name}: {target} (allowed: {allowed})")
    if max_drop is not None and evaluate is None:
        raise ValueError("max_drop needs evaluate: a function that takes the model and returns its value on validation data")


class _Ranking:
    """The weights of a model in the order in which they become zero: by magnitude, of equal ones the first.

    Args:
        weights: The weights by name.
        spare: Let the last weight of each layer become zero only after all others.
    """

    def __init__(self, weights: dict[str, Tensor], *, spare: bool) -> None:
        self.weights = weights
        if not self.weights:
            raise ValueError("the model has no weight that can become sparse: see rewa.weights.decisions(model)")
        self.originals = {name: local(weight.detach()).clone() for name, weight in self.weights.items()}
        self.sizes = {name: full(weight.detach()).abs().double() for name, weight in self.weights.items()}
        self.total = sum(size.numel() for size in self.sizes.values())
        if not all(size.isfinite().all() for size in self.sizes.values()):
            raise ValueError("the model holds NaN or infinite weights; no threshold is right for these")
        self.alive = [name for name, size in self.sizes.items() if size.any()]  # others have no weight to lose
        self.spare = self.alive if spare else []
        self.zeros = 0

    def zeros_at(self, threshold: float) -> int:
        """How many weights are at or below a threshold."""
        return self.total - count(self.weights.values(), threshold).nonzero

    def write(self, zeros: int) -> float:
        """Set that many weights to zero, the others to what they were; returns the largest magnitude that became zero."""
        self.zeros = zeros
        kept = largest_of_all(self.sizes, self.total - zeros, spare=self.spare, last=True)
        for name, weight in self.weights.items():
            original = self.originals[name]
            here = local(sharded_like(~kept[name], weight)) | (original == 0)  # a -0.0 becomes 0.0
            local(weight.detach()).copy_(original).masked_fill_(here, 0)
        return max((float(self.sizes[name][~mask].max()) for name, mask in kept.items() if not mask.all()), default=0.0)

    def check(self, chosen: Cut) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """Ties, spared and emptied layers, after what was promised was looked up in the weights themselves."""
        left = {name: count([weight]) for name, weight in self.weights.items()}
        total = sum(left.values(), Count(0, 0))
        if total != chosen.prunable or total.total - total.nonzero < self.zeros:
            raise AssertionError(f"{total} weights are left, not {chosen.prunable} (zeros wanted: {self.zeros})")
        below = total.nonzero - count(self.weights.values(), chosen.threshold).nonzero
        unspared = largest_of_all(self.sizes, self.total - self.zeros, spare=(), last=True)
        spared = tuple(name for name in self.alive if left[name].nonzero and not unspared[name].any())
        emptied = tuple(name for name in self.alive if not left[name].nonzero)
        return below - len(spared), spared, emptied


def _search(attempt: Callable[[int], Cut], ranking: _Ranking, before: float, max_drop: float, precision: float) -> list[Cut]:
    """Bisection for the fewest weights kept, in the logarithm of their number; every cut tried, the first with all kept."""
    tried = [attempt(0)]
    floor = before - max_drop

    def met(one: Cut) -> bool:
        return one.value is not None and one.value >= floor

    if not met(tried[0]):
        raise ValueError(
            f"max_drop={max_drop:g} cannot be met: with no weight cut the value falls from {before:.6g} to "
            f"{tried[0].value:.6g} already, by new batch-norm statistics or by a noisy evaluate"
        )
    # Fewer weights than layers are not tried.
    enough, few = float(max(tried[0].prunable.nonzero, 1)), max(len(ranking.alive), 1) - 0.5
    while enough / few > 1 + precision:
        keep = round(math.sqrt(enough * few))
        if not few < keep < enough:
            break
        tried.append(attempt(ranking.total - keep))
        if met(tried[-1]):
            enough = max(1.0, float(min(keep, tried[-1].prunable.nonzero)))
        else:
            few = keep
    return tried


def _value(model: nn.Module, evaluate: Evaluate) -> float:
    try:
        with keeping_modes(model):
            value = float(evaluate(model))
    finally:
        reshard(model)
    if any(hasattr(param, "full_tensor") for param in model.parameters()):
        values = [0.0] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(values, value)
        if any(other != value and not math.isnan(other) for other in values):
            raise ValueError(f"evaluate returned {values} on the processes of a sharded model: return one value on all of them")
    if math.isnan(value):
        raise ValueError("evaluate returned NaN: no threshold can be chosen by it")
    return value


@contextmanager
def _restored_on_error(model: nn.Module) -> Iterator[None]:
    tensors = [local(tensor.detach()) for tensor in itertools.chain(model.parameters(), model.buffers())]
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        for tensor, value in zip(tensors, saved, strict=True):
            tensor.copy_(value)
        reshard(model)
        raise


def recalibrate_norms(model: nn.Module, batches: Iterable[Any]) -> None:
    """Estimate the statistics of all batch norms again, as plain averages over the batches.

    Args:
        model: The model; only the running statistics change.
        batches: Inputs, or tuples that begin with one.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    batches = list(batches)
    if norms and not batches:
        raise ValueError("no batch to estimate the batch norms from: the loader is empty, or used up")
    device = next((param.device for param in model.parameters()), torch.device("cpu"))
    momenta = [norm.momentum for norm in norms]
    try:
        with keeping_modes(model), torch.no_grad():
            model.eval()
            for norm in norms:
                norm.reset_running_stats()
                norm.train()
                norm.momentum = None  # a plain average
            for batch in batches if norms else ():
                model((batch[0] if isinstance(batch, (tuple, list)) else batch).to(device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        reshard(model)


if not TYPE_CHECKING:  # a type checker that saw it would accept any name
    __getattr__ = names_moved(
        __name__,
        {
            "Frozen": "rewa.deploy.freezing.Frozen",
            "freeze_zeros": "rewa.deploy.freezing.freeze_zeros",
            "keep_zeros": "rewa.deploy.freezing.keep_zeros",
            "thaw": "rewa.deploy.freezing.thaw",
        },
    )
