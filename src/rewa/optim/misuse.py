"""Optimizers that would train something else than their user thinks: said at their next step, before anything moves.

The first use of ReWA in a process asks torch to look at every optimizer before its step. That is the only place that sees an
optimizer which forgot :func:`rewa.attach`, or one that trains tensors which the model no longer uses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from rewa.weights import PREFIX

__all__ = ["PREFIX", "core", "form_of", "mark_copies", "mark_form", "retire", "trusted", "watch_optimizers"]

_trusted: ContextVar[bool] = ContextVar("rewa_trusted", default=False)
_forms = WeakIdKeyDictionary()  # by tensor, the form that it is a part of
_retired = WeakIdKeyDictionary()  # by tensor, the form and the name of the weight that it was a part of


@functools.cache
def watch_optimizers() -> None:
    """Look at every optimizer of this process before its steps, from now on."""
    register_optimizer_step_pre_hook(_check)


@contextmanager
def trusted() -> Iterator[None]:
    """Inside the block optimizers may step groups whose keys another one has read: they are parts of it."""
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


def core(optimizer: Optimizer) -> Optimizer:
    """The optimizer that another one wraps and holds, as sharpness-aware ones do; or itself."""
    return next((value for value in vars(optimizer).values() if isinstance(value, Optimizer)), optimizer)


def _check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    reads = _trusted.get() or any(getattr(one, "reads_rewa_keys", False) for one in (optimizer, core(optimizer)))
    for group in optimizer.param_groups:
        sparse = (group.get(PREFIX + "K", 1), group.get(PREFIX + "M", 0)) != (1, 0) or "annealed_to" in group
        if PREFIX + "K" in group and sparse and not reads:
            raise RuntimeError(
                f"{type(optimizer).__name__} does not read {PREFIX}K and {PREFIX}M, which its parameter groups set: no weight "
                "would become sparse. Call rewa.attach(optimizer) first, or use rewa.ReWASGD or rewa.ReWAAdamW."
            )
        for param in group["params"] if len(_retired) else ():
            if param in _retired:
                form, name = _retired[param]
                raise RuntimeError(
                    f"{type(optimizer).__name__} trains the {form} form of {name!r}, which was removed: make a new optimizer "
                    "from model.parameters(); the momentum of the form means nothing to the weight"
                )


def mark_form(param: Tensor, form: str) -> None:
    """Remember that a tensor is a part of a form.

    Args:
        param: The tensor, an original of the parametrization.
        form: Name of the form.
    """
    _forms[param] = form


def mark_copies(memo: dict[int, Any]) -> None:
    """Remember that copies of a form's parts are parts of a form, too.

    Args:
        memo: That of :func:`copy.deepcopy`, which knows the copies by the identity of what was copied.
    """
    for param, form in list(_forms.items()):  # type: ignore[no-untyped-call]
        if isinstance(twin := memo.get(id(param)), Tensor):
            _forms[twin] = form


def form_of(param: Tensor) -> str | None:
    """The form that a tensor is a part of, or None.

    Args:
        param: The tensor.
    """
    form: str | None = _forms.get(param)  # type: ignore[no-untyped-call]
    return form


def retire(param: Tensor, form: str, name: str) -> None:
    """Remember that the model no longer uses a tensor.

    Args:
        param: The tensor.
        form: Name of the form that it was a part of.
        name: Name of the weight.
    """
    watch_optimizers()
    _retired[param] = (form, name)
