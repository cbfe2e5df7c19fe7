"""Optimizers that would train something else than their user thinks: said at their next step, before anything moves.

The first use of ReWA in a process asks torch to look at every optimizer before its step. That is the only place that sees an
optimizer which forgot :func:`rewa.attach`, or one that trains tensors which the model no longer uses.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["PREFIX", "form_of", "mark_form", "retire", "watch_optimizers"]

PREFIX = "rewa_"  # of the keys in parameter groups that belong to ReWA: no other optimizer reads them

_forms = WeakIdKeyDictionary()  # by tensor, the form that it is a part of
_retired = WeakIdKeyDictionary()  # by tensor, the form and the name of the weight that it was a part of


@functools.cache
def watch_optimizers() -> None:
    """Look at every optimizer of this process before its steps, from now on."""
    register_optimizer_step_pre_hook(_check)


def _check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        # The optimizers of rewa translate the keys, or say that they read them.
        sparse = (group.get(PREFIX + "K", 1), group.get(PREFIX + "M", 0)) != (1, 0)
        if sparse and not getattr(optimizer, "reads_rewa_keys", False):
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
