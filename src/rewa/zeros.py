"""From small weights to exact zeros: choosing the threshold on validation data, writing zeros, keeping them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from rewa.sparsity import Count, Point, Summary, count, keeping_modes, prunable, summary, whole

__all__ = ["Finalized", "Frozen", "finalize", "freeze_zeros", "keep_zeros", "recalibrate_norms", "thaw"]

Evaluate = Callable[[nn.Module], float]


# ------------------------------------------------------------------------------------------------ finalize


@dataclass(frozen=True)
class Finalized:
    """What :func:`finalize` did."""

    threshold: float
    summary: Summary
    value_before: float | None  # before any zero was written
    value: float | None  # of the model as it is now
    evaluations: tuple[Point, ...]  # what was tried, in that order

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as :func:`rewa.save_packed` keeps them."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [str(self.summary), f"threshold {self.threshold:.4g}"]
        if self.value is not None and self.value_before is not None:
            change = self.value - self.value_before
            lines[-1] += f", value {self.value_before:.4g} before and {self.value:.4g} after ({change:+.2g})"
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
) -> Finalized:
    """Write exact zeros: everything at or below one threshold, chosen to meet exactly one target.

    Args:
        model: The model, changed in place; untouched if the target cannot be met.
        evaluate: Takes the model and returns what it is worth, larger is better, **on validation data**.
        max_drop: Most that the value may fall, in its own units; the threshold is as large as it allows. Needs ``evaluate``.
        sparsity: Least share of the prunable weights that must be zero, between 0 and 1.
        threshold: The largest modulus that becomes zero.
        recalibrate: A loader; batch-norm statistics are estimated again from its inputs, each time before the model is
            evaluated. Batches are tensors or tuples that begin with one.
        recalibrate_batches: Most batches to take from it.
        precision: For ``max_drop``: the search ends once the number of weights kept is known to this share.

    Returns:
        A report; ``print`` it, or hand ``to_dict()`` to :func:`rewa.save_packed`.

    Raises:
        ValueError: If not exactly one target is given, or it cannot be met; it says how close it came.

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
    weights = list(prunable(model).values())
    sizes = _sorted_sizes(weights)
    batches = None if recalibrate is None else list(itertools.islice(recalibrate, recalibrate_batches))
    originals = [weight.detach().clone() for weight in weights]

    def write(cut: float) -> None:
        with torch.no_grad():
            for weight, original in zip(weights, originals, strict=True):
                weight.copy_(original).masked_fill_(original.abs() <= cut, 0)
        if batches is not None:
            recalibrate_norms(model, batches)

    def attempt(cut: float) -> Point:
        write(cut)
        return Point(cut, count(weights), whole(model), None if evaluate is None else _value(model, evaluate))

    with _restored_on_error(model):
        before = None if evaluate is None else _value(model, evaluate)
        if max_drop is not None:
            assert before is not None
            tried = _search(attempt, sizes, before, max_drop, precision)
            met = [point for point in tried if point.value is not None and point.value >= before - max_drop]
            chosen = min(met, key=lambda point: point.prunable.nonzero)
            if chosen is not tried[-1]:
                write(chosen.threshold)
        else:
            zeros = math.ceil((sparsity or 0.0) * len(sizes))
            chosen = attempt(threshold if threshold is not None else float(sizes[zeros - 1]) if zeros else 0.0)
            tried = [chosen]
        _check(weights, chosen, 0 if sparsity is None else math.ceil(sparsity * len(sizes)))
    return Finalized(chosen.threshold, summary(model), before, chosen.value, tuple(tried))


def _sorted_sizes(weights: list[Tensor]) -> Tensor:
    """The moduli of all weights, rising."""
    if not weights:
        raise ValueError("the model has no weight that can become sparse: see rewa.param_groups(model)")
    sizes = torch.cat([weight.detach().abs().flatten().double() for weight in weights])
    if not sizes.isfinite().all():
        raise ValueError("the model holds NaN or infinite weights; no threshold is right for these")
    return sizes.sort().values


def _search(attempt: Callable[[float], Point], sizes: Tensor, before: float, max_drop: float, precision: float) -> list[Point]:
    """Bisection for the fewest weights kept, in the logarithm of their number; every point tried, the first with all kept."""
    tried = [attempt(0.0)]
    floor = before - max_drop

    def met(point: Point) -> bool:
        return point.value is not None and point.value >= floor

    if not met(tried[0]):
        raise ValueError(
            f"max_drop={max_drop:g} cannot be met: with no weight cut the value falls from {before:.6g} to "
            f"{tried[0].value:.6g} already, by new batch-norm statistics or by a noisy evaluate"
        )
    enough, few = float(max(tried[0].prunable.nonzero, 1)), 0.5
    while enough / few > 1 + precision:
        keep = round(math.sqrt(enough * few))
        if not few < keep < enough:
            break
        tried.append(attempt(float(sizes[len(sizes) - keep - 1])))
        if met(tried[-1]):
            enough = max(1.0, float(min(keep, tried[-1].prunable.nonzero)))
        else:
            few = keep
    return tried


def _check(weights: list[Tensor], chosen: Point, zeros: int) -> None:
    """What was promised, looked up in the weights themselves."""
    left = count(weights)
    if left != chosen.prunable or left.total - left.nonzero < zeros:
        raise AssertionError(f"{left} weights are left, not {chosen.prunable} (zeros wanted: {zeros})")
    if any(((weight != 0) & (weight.abs() <= chosen.threshold)).any() for weight in weights):
        raise AssertionError(f"a weight at or below {chosen.threshold} is not zero")


def _value(model: nn.Module, evaluate: Evaluate) -> float:
    with keeping_modes(model):
        value = float(evaluate(model))
    if math.isnan(value):
        raise ValueError("evaluate returned NaN: no threshold can be chosen by it")
    return value


@contextmanager
def _restored_on_error(model: nn.Module) -> Iterator[None]:
    saved = [(tensor, tensor.detach().clone()) for tensor in itertools.chain(model.parameters(), model.buffers())]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in saved:
                tensor.copy_(value)
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


# -------------------------------------------------------------------------------------------- freeze_zeros

# By parameter, which of its elements must stay zero. Every optimizer asks here before and after its step.
_zeros = WeakIdKeyDictionary()
_ATTRIBUTE = "_rewa_zeros"


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for param in _frozen_params(optimizer):
        if param.grad is not None and param.grad.layout == torch.strided:
            param.grad.masked_fill_(_mask(param), 0)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for param in _frozen_params(optimizer):
            param.masked_fill_(_mask(param), 0)


def _frozen_params(optimizer: Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"] if param in _zeros] if len(_zeros) else []


def _mask(param: Tensor) -> Tensor:
    mask: Tensor = _zeros[param]
    if mask.device != param.device:
        mask = _zeros[param] = mask.to(param.device)
    return mask


def keep_zeros(module: nn.Module, *_: Any) -> None:
    """Before a module runs or is saved: undo what came from elsewhere, such as a merged adapter."""
    if torch.compiler.is_compiling():
        return
    _watch_optimizers()  # a model from a pickle may be the first frozen one of its process
    for name, mask in module.__dict__[_ATTRIBUTE].items():
        param = getattr(module, name)
        if param not in _zeros:  # a copy of the model, or a parameter put in the place of another
            _zeros[param] = mask
        param.data.masked_fill_(_mask(param), 0)  # through data: a graph that already holds the weight stays valid


@functools.cache
def _watch_optimizers() -> None:
    """At the first freeze, not at import: tell torch to ask us at every optimizer's step."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


class Frozen:
    """What :func:`freeze_zeros` did; ``remove()`` undoes it, and the zeros may train again."""

    def __init__(self, zeros: dict[str, Tensor], params: list[Tensor], modules: list[nn.Module]) -> None:
        self.zeros = zeros
        self._params, self._modules = params, modules

    @property
    def count(self) -> Count:
        """Of the tensors with frozen zeros: all elements, and those that may still train."""
        masks = self.zeros.values()
        total = sum(mask.numel() for mask in masks)
        return Count(total, total - sum(int(mask.sum()) for mask in masks))

    def remove(self) -> None:
        """Let the zeros train again."""
        for param in self._params:
            _zeros.pop(param, None)  # type: ignore[no-untyped-call]
        for module in self._modules:
            thaw(module)


def freeze_zeros(model: nn.Module | Optimizer) -> Frozen:
    """Keep the exact zeros of the prunable weights at zero through any later training.

    Every torch optimizer is covered, whatever its momentum, weight decay or precision, made before or after: gradients of
    frozen elements are cleared before its step, the elements after it. A model also clears them before each of its layers
    runs and before its ``state_dict`` is taken, so that a merged adapter or another write from outside does not last. Copies
    of the model, for an average of the weights, keep the zeros too. Nothing is added to ``state_dict``: the zeros are in the
    weights, so after loading a checkpoint call this again.

    Args:
        model: A model; or an optimizer, to freeze the zeros of its tensors with two dimensions and more.

    Returns:
        A handle with ``remove()``.

    Example:
        >>> model = nn.Linear(3, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[0.0, 1.0, 2.0]]))
        >>> frozen = freeze_zeros(model)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> model(torch.ones(1, 3)).sum().backward()
        >>> optimizer.step()
        >>> model.weight
        Parameter containing:
        tensor([[0.0000, 0.9000, 1.9000]], requires_grad=True)
    """
    if isinstance(model, Optimizer):
        tensors = [param for group in model.param_groups for param in group["params"] if param.dim() >= 2]
        weights = {str(index): param for index, param in enumerate(tensors)}
    else:
        weights = prunable(model)
    _watch_optimizers()
    zeros = {name: weight.detach() == 0 for name, weight in weights.items()}
    modules: list[nn.Module] = []
    for name, mask in zeros.items():
        _zeros[weights[name]] = mask
    for module in model.modules() if isinstance(model, nn.Module) else ():
        own = {name: _zeros[param] for name, param in module.named_parameters(recurse=False) if param in _zeros}
        if not own:
            continue
        thaw(module)
        module.__dict__[_ATTRIBUTE] = own
        module.register_forward_pre_hook(keep_zeros)
        module.register_state_dict_pre_hook(keep_zeros)  # type: ignore[no-untyped-call]
        modules.append(module)
    return Frozen(zeros, list(weights.values()), modules)


def thaw(model: nn.Module) -> None:
    """Remove every trace of :func:`freeze_zeros` from a model; the weights stay as they are.

    Args:
        model: The model.
    """
    for module in model.modules():
        if module.__dict__.pop(_ATTRIBUTE, None) is None:
            continue
        for param in module.parameters(recurse=False):
            _zeros.pop(param, None)  # type: ignore[no-untyped-call]
        for hooks in (module._forward_pre_hooks, module._state_dict_pre_hooks):
            for key in [key for key, hook in hooks.items() if hook is keep_zeros]:
                del hooks[key]
