"""Zeros that stay zero: whatever trains or writes into a model, the zeros that were frozen come back."""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from rewa.sparsity import Count
from rewa.weights import Decided, computed, decisions, full, local, reshard, sharded_like

__all__ = ["Frozen", "freeze_zeros", "keep_zeros", "thaw"]

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
        mask = sharded_like(mask, param)
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
                "rewa.deploy.freezing.thaw(model), and rewa.freeze_zeros(model) again once it is a plain parameter"
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
            "and are dropped. To keep such writes, call rewa.deploy.freezing.thaw(model) before them",
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


def freeze_zeros(model: nn.Module | Optimizer, *, all_zero: bool = False, groups: Decided | None = None) -> Frozen:
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
        model: A model, without what the rules of :func:`rewa.param_groups` made dense; or an optimizer, to freeze the zeros of
            its tensors with two dimensions and more, without the plain groups if others have settings of ReWA.
        all_zero: Freeze also tensors in which nothing but zeros is left. By default they train freely, with a warning: a layer
            that starts at zero could never learn.
        groups: With a model: the groups or the optimizer that decide which weights count, if not what the model remembers.

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
    weights = _matrices(model) if isinstance(model, Optimizer) else _freezable(model, groups)
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


def _freezable(model: nn.Module, groups: Decided | None) -> dict[str, Tensor]:
    """The weights of a model that are parameters; refuses a model whose zeros are in computed weights."""
    reshard(model)
    found = [one for one in computed(model) if one.is_sparse]
    for one in found:
        if bool(full((one.value == 0).any())):
            raise one.error()
    behind = {original for one in found for original in one.originals}
    return {name: one.param for name, one in decisions(model, groups).items() if one.is_sparse and name not in behind}


def _matrices(optimizer: Optimizer) -> dict[str, Tensor]:
    """The tensors of an optimizer with two dimensions and more; of one with sparse weights these alone."""
    try:
        sparse = {id(one.param) for one in decisions(optimizer).values() if one.is_sparse}
    except ValueError:  # an optimizer of torch
        sparse = set()
    named: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        for param, name in zip(group["params"], group.get("param_names", itertools.repeat(None)), strict=False):
            if param.dim() >= 2 and (not sparse or id(param) in sparse):
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
