"""From small weights to exact zeros: choosing the threshold on validation data, writing zeros, keeping them."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from rewa.sparsity import Count, Point, Summary, count, keeping_modes, prunable, summary, whole
from rewa.weights import classify, computed, full, local, reshard

__all__ = ["Finalized", "Frozen", "finalize", "freeze_zeros", "keep_zeros", "recalibrate_norms", "thaw"]

Evaluate = Callable[[nn.Module], float]


# ------------------------------------------------------------------------------------------------ finalize


@dataclass(frozen=True)
class Finalized:
    """What :func:`finalize` did."""

    threshold: float  # the largest magnitude that became zero, or the threshold that was given
    summary: Summary
    value_before: float | None  # before any zero was written
    value: float | None  # of the model as it is now
    evaluations: tuple[Point, ...]  # what was tried, in that order
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
) -> Finalized:
    """Write exact zeros: the smallest weights of all layers together, as many as exactly one target asks for.

    Weights count whether they require a gradient or not. With ``sparsity`` and ``max_drop`` the number of zeros is exact: of
    weights with equal magnitude the first in the order of the model become zero first. A layer that would lose all its weights
    keeps its largest one, and another layer pays for it; the report names such layers. Only if fewer weights are left
    than there are layers, some become empty, with a warning. A ``threshold`` is obeyed: it may empty a layer, and a warning
    names it.

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
    cut = _Cut(model, spare=threshold is None)

    def write(zeros: int) -> float:
        at = cut.write(zeros)
        if batches is not None:
            recalibrate_norms(model, batches)
        return at

    def attempt(zeros: int) -> Point:
        at = write(zeros)
        return Point(at, count(cut.weights.values()), whole(model), None if evaluate is None else _value(model, evaluate))

    with _restored_on_error(model):
        before = None if evaluate is None else _value(model, evaluate)
        if max_drop is not None:
            assert before is not None
            tried = _search(attempt, cut, before, max_drop, precision)
            met = [point for point in tried if point.value is not None and point.value >= before - max_drop]
            chosen = min(met, key=lambda point: point.prunable.nonzero)
            if chosen is not tried[-1]:
                write(cut.total - chosen.prunable.nonzero)
        else:
            wanted = math.ceil((sparsity or 0.0) * cut.total) if threshold is None else cut.zeros_at(threshold)
            chosen = attempt(wanted)
            chosen = chosen if threshold is None else replace(chosen, threshold=threshold)
            tried = [chosen]
        ties, spared, emptied = cut.check(chosen)
        if emptied:
            warnings.warn(f"finalize left no weight in {', '.join(emptied)}: such a layer returns a constant", stacklevel=2)
        if spared and sparsity is not None:  # under max_drop the evaluation has judged them
            text = f"finalize left a single weight in {', '.join(spared)}: a lower sparsity keeps more of such a layer"
            warnings.warn(text, stacklevel=2)
    return Finalized(chosen.threshold, summary(model), before, chosen.value, tuple(tried), ties, spared, emptied)


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


class _Cut:
    """The weights of a model in the order in which they become zero: by magnitude, then by position.

    Args:
        model: The model.
        spare: Let the last weight of each layer become zero only after all others.
    """

    def __init__(self, model: nn.Module, *, spare: bool) -> None:
        self.weights = prunable(model)
        if not self.weights:
            raise ValueError("the model has no weight that can become sparse: see rewa.weights.classify(model)")
        self.originals = {name: local(weight.detach()).clone() for name, weight in self.weights.items()}
        self.sizes = torch.cat([full(weight.detach()).abs().flatten().double() for weight in self.weights.values()])
        self.total = len(self.sizes)
        if not self.sizes.isfinite().all():
            raise ValueError("the model holds NaN or infinite weights; no threshold is right for these")
        self.order = self.sizes.argsort(stable=True)
        rank = torch.empty_like(self.order)
        rank[self.order] = torch.arange(self.total, device=rank.device)
        # The rank of each layer's last weight; a layer that is all zero already has none to lose.
        self.last = {name: int(ranks.max()) for name, ranks in self._by_layer(rank) if full(self.weights[name].detach().any())}
        if spare:
            at_the_end = torch.zeros(self.total, dtype=torch.bool, device=rank.device)
            at_the_end[sorted(self.last.values())] = True
            self.order = torch.cat([self.order[~at_the_end], self.order[at_the_end]])
        self.zeros = 0

    def _by_layer(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        lengths = [weight.numel() for weight in self.weights.values()]
        return zip(self.weights, flat.split(lengths), strict=True)  # type: ignore[no-untyped-call]  # torch's

    def zeros_at(self, threshold: float) -> int:
        """How many weights are at or below a threshold."""
        return self.total - count(self.weights.values(), threshold).nonzero

    def write(self, zeros: int) -> float:
        """Set that many weights to zero, the others to what they were; returns the largest magnitude that became zero."""
        self.zeros = zeros
        gone = torch.zeros(self.total, dtype=torch.bool, device=self.sizes.device)
        gone[self.order[:zeros]] = True
        for name, mask in self._by_layer(gone):
            weight, original = self.weights[name], self.originals[name]
            here = local(_sharded_like(mask.view(weight.shape), weight)) | (original == 0)  # a -0.0 becomes 0.0
            local(weight.detach()).copy_(original).masked_fill_(here, 0)
        return float(self.sizes[gone].max()) if zeros else 0.0

    def check(self, chosen: Point) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """Ties, spared and emptied layers, after what was promised was looked up in the weights themselves."""
        left = {name: count([weight]) for name, weight in self.weights.items()}
        total = sum(left.values(), Count(0, 0))
        if total != chosen.prunable or total.total - total.nonzero < self.zeros:
            raise AssertionError(f"{total} weights are left, not {chosen.prunable} (zeros wanted: {self.zeros})")
        below = total.nonzero - count(self.weights.values(), chosen.threshold).nonzero
        spared = tuple(name for name, rank in self.last.items() if rank < self.zeros and left[name].nonzero)
        emptied = tuple(name for name in self.last if not left[name].nonzero)
        return below - len(spared), spared, emptied


def _sharded_like(mask: Tensor, weight: Any) -> Tensor:
    """A mask of the whole weight, sharded as the weight is; each process has the whole mask, so that none sends any."""
    if not hasattr(weight, "device_mesh"):
        return mask
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * weight.device_mesh.ndim
    whole_mask = DTensor.from_local(mask.to(weight.device), weight.device_mesh, everywhere, run_check=False)
    return whole_mask.redistribute(placements=weight.placements)


def _search(attempt: Callable[[int], Point], cut: _Cut, before: float, max_drop: float, precision: float) -> list[Point]:
    """Bisection for the fewest weights kept, in the logarithm of their number; every point tried, the first with all kept."""
    tried = [attempt(0)]
    floor = before - max_drop

    def met(point: Point) -> bool:
        return point.value is not None and point.value >= floor

    if not met(tried[0]):
        raise ValueError(
            f"max_drop={max_drop:g} cannot be met: with no weight cut the value falls from {before:.6g} to "
            f"{tried[0].value:.6g} already, by new batch-norm statistics or by a noisy evaluate"
        )
    # Fewer weights than layers are not tried.
    enough, few = float(max(tried[0].prunable.nonzero, 1)), max(len(cut.last), 1) - 0.5
    while enough / few > 1 + precision:
        keep = round(math.sqrt(enough * few))
        if not few < keep < enough:
            break
        tried.append(attempt(cut.total - keep))
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


# -------------------------------------------------------------------------------------------- freeze_zeros

# By parameter, which of its elements must stay zero. Every optimizer asks here before and after its step.
_zeros = WeakIdKeyDictionary()
_grad_hooks = WeakIdKeyDictionary()
_frozen_modules: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()  # and the parameters watched for each
_ATTRIBUTE = "_rewa_zeros"  # of a module: by the name of its parameter, the name in the model and the mask


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for module in list(_frozen_modules):
        for name in module.__dict__.get(_ATTRIBUTE, ()):
            _adopt(module, name)  # FSDP2 and load_state_dict(assign=True) put new parameters in the place of those we know
    frozen = _frozen_params(optimizer)
    for param in frozen:
        _clear_grad(param)
    if frozen and isinstance(optimizer, torch.optim.LBFGS):
        _forget_other_directions(optimizer)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for param in _frozen_params(optimizer):
            local(param).masked_fill_(_mask(param), 0)


def _frozen_params(optimizer: Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"] if param in _zeros] if len(_zeros) else []


def _clear_grad(param: Tensor) -> None:
    """Also after each backward pass: a closure that runs inside a step (LBFGS) must never see these gradients."""
    if param in _zeros and param.grad is not None and param.grad.layout == torch.strided:
        local(param.grad).masked_fill_(_mask(param), 0)


def _forget_other_directions(optimizer: torch.optim.LBFGS) -> None:
    """Begin anew if LBFGS has curvature from before the freeze: its next direction would leave the zeros."""
    params = optimizer.param_groups[0]["params"]
    state = optimizer.state.get(params[0], {})
    mask = torch.cat([(_mask(p) if p in _zeros else torch.zeros_like(p, dtype=torch.bool)).flatten() for p in params])
    vectors = [state[key] for key in ("d", "prev_flat_grad") if isinstance(state.get(key), Tensor)]
    if any(vector.numel() == mask.numel() and vector[mask].any() for vector in vectors):
        state.clear()


def _mask(param: Tensor) -> Tensor:
    """The frozen elements of this process's part of a parameter."""
    mask: Tensor = _zeros[param]
    if mask.device != param.device:
        mask = _zeros[param] = mask.to(param.device)
    return local(mask)


def _watch(param: Tensor, mask: Tensor) -> None:
    _zeros[param] = mask
    if param.requires_grad and param not in _grad_hooks:
        _grad_hooks[param] = param.register_post_accumulate_grad_hook(_clear_grad)  # type: ignore[no-untyped-call]


def _unwatch(param: Tensor) -> None:
    _zeros.pop(param, None)  # type: ignore[no-untyped-call]
    if (handle := _grad_hooks.pop(param, None)) is not None:  # type: ignore[no-untyped-call]
        handle.remove()


def _held(module: nn.Module, name: str) -> Tensor | None:
    """The parameter that a module holds under a name now; None if another kind of thing has taken its place."""
    param = module._parameters.get(name)
    if param is None and parametrize.is_parametrized(module, name):
        chain: Any = module.parametrizations[name]  # type: ignore[index]  # a ModuleDict
        if type(chain[0]).__module__.startswith("peft."):  # an adapter that lies over the parameter while the layer runs
            param = chain.original
    return param if param is not None and param.shape == module.__dict__[_ATTRIBUTE][name][1].shape else None


def _adopt(module: nn.Module, name: str) -> Tensor | None:
    """Watch the parameter that a module holds under a name now; None if there is none to watch."""
    path, mask = module.__dict__[_ATTRIBUTE][name]
    param = _held(module, name)
    is_sharded, was_sharded = hasattr(param, "device_mesh"), hasattr(mask, "device_mesh")
    if param is None or (was_sharded and not is_sharded):  # gathered by FSDP2 while the layer runs; its shards are watched
        return None
    if is_sharded and not was_sharded:
        mask = _sharded_like(mask, param)
        module.__dict__[_ATTRIBUTE][name] = path, mask
    if param not in _zeros or (param.requires_grad and param not in _grad_hooks):
        _watch(param, mask)
    _frozen_modules.setdefault(module, WeakIdKeyDictionary())[param] = True
    return param


def keep_zeros(module: nn.Module, *arguments: Any) -> None:
    """Before a module runs or is saved: undo what came from elsewhere, such as a merged adapter, and say so."""
    if torch.compiler.is_compiling():
        return
    _watch_optimizers()  # a model from a pickle may be the first frozen one of its process
    is_saved = len(arguments) > 1
    for name, (path, _) in list(module.__dict__[_ATTRIBUTE].items()):
        if _held(module, name) is None:
            raise RuntimeError(
                f"the zeros of {path!r} are frozen, but the parameter was replaced or parametrized since: call "
                "rewa.deploy.zeros.thaw(model), and rewa.freeze_zeros(model) again once it is a plain parameter"
            )
        if (param := _adopt(module, name)) is None:
            continue
        here, data = _mask(param), local(param.data)  # through data: a graph that already holds the weight stays valid
        if is_saved or not (module.training and param.requires_grad and torch.is_grad_enabled()):
            _report_dropped(path, data, here)  # not where the optimizer writes: it would cost time at each step
        data.masked_fill_(here, 0)


def _report_dropped(path: str, data: Tensor, here: Tensor) -> None:
    if bool((data != 0).logical_and_(here).any()):
        written = data[here]
        number, norm = int(written.count_nonzero()), float(written.float().norm())
        warnings.warn(
            f"{number:,} entries of {path!r}, of norm {norm:.4g}, were written where zeros are frozen, as by a merged adapter, "
            "and are dropped. To keep such writes, call rewa.deploy.zeros.thaw(model) before them",
            stacklevel=4,
        )


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
        total = sum(mask.numel() for mask in self.zeros.values())
        return Count(total, total - sum(int(full(mask.sum())) for mask in self.zeros.values()))

    def remove(self) -> None:
        """Let the zeros train again."""
        for param in self._params:
            _unwatch(param)
        for module in self._modules:
            thaw(module)


def freeze_zeros(model: nn.Module | Optimizer, *, all_zero: bool = False) -> Frozen:
    """Keep the exact zeros of the prunable weights at zero through any later training.

    Every torch optimizer is covered, whatever its momentum, weight decay or precision, made before or after: gradients of
    frozen elements are cleared after each backward pass and before a step, the elements after it. It does not matter whether
    a weight requires a gradient now, nor whether the model is sharded (FSDP2) before or after. Copies of the model, for an
    average of the weights, keep the zeros too. Nothing is added to ``state_dict``: the zeros are in the weights, so after
    loading a checkpoint call this again.

    A model also clears its zeros before each of its layers runs and before its ``state_dict`` is taken, so that a write from
    outside does not last. If that drops something, as from a merged adapter, a warning says how many entries and their norm;
    only a weight that is being trained is cleared without one. Adapters (PEFT) themselves are not frozen.

    Args:
        model: A model; or an optimizer, to freeze the zeros of its tensors with two dimensions and more.
        all_zero: Freeze also tensors in which nothing but zeros is left. By default they train freely, with a warning: a layer
            that starts at zero could never learn.

    Returns:
        A handle with ``remove()``.

    Raises:
        ValueError: If torch computes a weight with zeros from other parameters, as under a pruning mask.

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
    weights = _matrices(model) if isinstance(model, Optimizer) else _freezable(model)
    zeros = {name: weight.detach() == 0 for name, weight in weights.items()}
    empty = [name for name, mask in zeros.items() if mask.numel() and bool(full(mask.all()))]
    if empty and not all_zero:
        warnings.warn(
            f"{', '.join(empty)}: all zero, so that there is nothing to keep; left to train freely. "
            "Give all_zero=True to keep them at zero",
            stacklevel=2,
        )
        zeros = {name: mask for name, mask in zeros.items() if name not in empty}
    _watch_optimizers()
    if isinstance(model, nn.Module):
        thaw(model)
    for name, mask in zeros.items():
        _watch(weights[name], mask)
    modules: list[nn.Module] = []
    paths = {id(weights[name]): name for name in zeros}
    for module in model.modules() if isinstance(model, nn.Module) else ():
        own = {name: paths[id(param)] for name, param in module._parameters.items() if id(param) in paths}
        if not own:
            continue
        module.__dict__[_ATTRIBUTE] = {name: (path, zeros[path]) for name, path in own.items()}
        module.register_forward_pre_hook(keep_zeros)
        module.register_state_dict_pre_hook(keep_zeros)  # type: ignore[no-untyped-call]
        _frozen_modules[module] = WeakIdKeyDictionary({module._parameters[name]: True for name in own})
        modules.append(module)
    return Frozen(zeros, [weights[name] for name in zeros], modules)


def _freezable(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model that are parameters; refuses a model whose zeros are in computed weights."""
    reshard(model)
    found = [one for one in computed(model) if one.reason is None]
    for one in found:
        if bool(full((one.value == 0).any())):
            raise one.error()
    behind = {original for one in found for original in one.originals}
    return {name: each.param for name, each in classify(model).items() if each.reason is None and name not in behind}


def _matrices(optimizer: Optimizer) -> dict[str, Tensor]:
    """The tensors of an optimizer with two dimensions and more, by name if it knows their names."""
    named: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        for param, name in zip(group["params"], group.get("param_names", itertools.repeat(None)), strict=False):
            if param.dim() >= 2:
                named[name or str(len(named))] = param
    return named


def thaw(model: nn.Module) -> None:
    """Remove every trace of :func:`freeze_zeros` from a model; the weights stay as they are.

    Args:
        model: The model.
    """
    for module in model.modules():
        for param in list(_frozen_modules.pop(module, ())):
            _unwatch(param)
        if module.__dict__.pop(_ATTRIBUTE, None) is None:
            continue
        for hooks in (module._forward_pre_hooks, module._state_dict_pre_hooks):
            for key in [key for key, hook in hooks.items() if hook is keep_zeros]:
                del hooks[key]
