r"""ReWA on top of any torch optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from rewa.optim.optimizer import (
    LOW_PRECISION,
    ReWAOptimizer,
    check_parameter,
    is_identity,
    labels,
    local,
    read_y,
    write_x,
)
from rewa.reparam import adaptive_scale, check_exponents

__all__ = ["attach", "detach"]

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
REMEDY = "Give its group rewa_K=1, rewa_M=0, as rewa.param_groups(model, prefix='rewa_') does for biases and norms."


def attach(optimizer: AnyOptimizer, *, K: float = 9, M: float = 2, eps: float = 0.0) -> AnyOptimizer:
    r"""Make any torch optimizer train :math:`y` instead of :math:`x = \mathrm{sign}(y)|y|^K`.

    At each step the optimizer finds y where the weights were and :math:`s\,g` where the gradients were, with the adaptive
    scale :math:`s = |y|^M\,|y|^{K-1}/(|y|^{K-1}+\varepsilon)`; afterwards the weights and the gradients are back in their
    place. The optimizer's own weight decay acts on y: without it nothing becomes sparse. Hooks, schedulers, clipping and
    checkpoints see the weights x and their gradients, as before.

    Args:
        optimizer: Any instance of :class:`torch.optim.Optimizer`, closures included; it is changed in place, and stays an
            instance of its class. Attach before creating learning-rate schedulers.
        K: Order, for the groups that have no ``rewa_K`` of their own.
        M: Adaptivity exponent, for the groups that have no ``rewa_M``.
        eps: Stabilizer, for the groups that have no ``rewa_eps``.

    Returns:
        The same optimizer. :func:`detach` undoes it.

    Note:
        Optimizers that also change weights outside ``step`` (Lookahead, schedule-free ones) are not for this.

        Optimizers that rescale each coordinate (Adam, RMSprop) cancel a constant scale: there M acts only through its
        change over time. :class:`rewa.ReWASGD` and :class:`rewa.ReWAAdamW` are faster than attaching to SGD and AdamW.

    Example:
        >>> model = torch.nn.Linear(20, 1)
        >>> optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-2)
        >>> _ = attach(optimizer, K=3)
        >>> isinstance(optimizer, torch.optim.RMSprop)
        True
    """
    check_exponents(K, M, eps)
    if isinstance(optimizer, ReWAOptimizer):
        raise ValueError(f"{type(optimizer).__name__} is a ReWA optimizer already; pass K, M and eps to it instead")
    if isinstance(optimizer, _Attached):
        raise ValueError(f"ReWA is already attached to this {type(optimizer).__name__}; call rewa.detach first")
    if "step" in vars(optimizer):
        raise ValueError("this optimizer's step is already wrapped, by a scheduler perhaps: attach first, then wrap")
    for index, group in enumerate(optimizer.param_groups):
        if "K" in group or "M" in group:
            raise ValueError(
                f"parameter group {index} sets K or M, which attach does not read: make the groups with "
                "rewa.param_groups(model, prefix='rewa_')"
            )
        _check_group({"rewa_K": K, "rewa_M": M, "rewa_eps": eps, **group}, index)
    for group in optimizer.param_groups:
        for key, value in (("rewa_K", K), ("rewa_M", M), ("rewa_eps", eps)):
            group.setdefault(key, value)
    optimizer.defaults.update(rewa_K=K, rewa_M=M, rewa_eps=eps)
    mixed: Any = _attached_class(cast(Any, type(optimizer)))
    optimizer.__class__ = mixed
    return optimizer


def detach(optimizer: AnyOptimizer) -> AnyOptimizer:
    """Undo :func:`attach`: the optimizer trains the weights themselves again, its state is kept.

    Example:
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters())
        >>> type(detach(attach(optimizer))) is torch.optim.SGD
        True
    """
    if not isinstance(optimizer, _Attached):
        raise ValueError(f"ReWA is not attached to this {type(optimizer).__name__}")
    if "step" in vars(optimizer):
        raise ValueError(
            "this optimizer's step is wrapped, by a scheduler perhaps: detach before that, or make a new optimizer"
        )
    for settings in (optimizer.defaults, *optimizer.param_groups):
        for key in ("rewa_K", "rewa_M", "rewa_eps"):
            settings.pop(key, None)
    optimizer.__class__ = _base(optimizer)
    return optimizer


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {"K": group["rewa_K"], "M": group["rewa_M"], "eps": group["rewa_eps"]}


def _check_group(group: dict[str, Any], index: int) -> None:
    settings = _settings(group)
    check_exponents(**settings)
    for label, param in labels(group, index):
        check_parameter(param, label, settings, REMEDY)
        if param.dtype in LOW_PRECISION and not is_identity(settings):
            raise ValueError(
                f"{label} is {param.dtype}, too coarse for steps of y: use rewa.ReWASGD or rewa.ReWAAdamW, which keep y in "
                "float32, or keep the weights in float32 and use autocast"
            )


class _Attached(Optimizer):
    """Mixed in before the base optimizer's class; ``step`` runs the base step on y."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The mixed class has no importable name: copies and pickles name its base and mix again.
        return _rebuild, (_base(self),), self.__getstate__()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1], len(self.param_groups) - 1)
        except ValueError:
            del self.param_groups[-1]
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for index, group in enumerate(state_dict["param_groups"]):
            if missing := [key for key in ("rewa_K", "rewa_M", "rewa_eps") if key not in group]:
                raise ValueError(
                    f"the state has no {', '.join(missing)} in parameter group {index}: it was saved without rewa.attach. "
                    "Load it into the plain optimizer, then attach."
                )
            check_exponents(**_settings(group))
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Perform a single optimization step of y.

        Args:
            closure: Reevaluates the model and returns the loss; the base optimizer may call it any number of times.
            kwargs: Whatever else the base optimizer's step takes.
        """
        swap = _Swap(self)

        def on_x() -> Any:
            swap.leave()
            with torch.enable_grad():
                loss = closure() if closure is not None else None
            swap.enter()
            return loss

        # The base's step as its author wrote it: torch's wrapper around it would run the step hooks while y is in place.
        base: Any = _base(self).step
        base = base.__wrapped__ if getattr(base, "hooked", False) else base
        try:
            if closure is not None:
                return base(self, on_x, **kwargs)
            swap.enter()
            return base(self, **kwargs)
        finally:
            swap.leave()


class _Swap:
    """Exchanges x for y and g for the scaled gradient, and back, for the parameters that have a gradient."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.swapped: list[tuple[Tensor, Tensor | None, Tensor, Tensor, float]] = []

    @torch.no_grad()
    def enter(self) -> None:
        for group in self.optimizer.param_groups:
            settings = _settings(group)
            for param in group["params"] if not is_identity(settings) else ():
                if param.grad is None:
                    continue
                if param.grad.is_sparse:
                    raise RuntimeError("rewa.attach does not support sparse gradients; use sparse=False")
                x = local(param).clone()
                y = read_y(x, None, settings["K"])
                self.swapped.append((param, param.grad, x, y, settings["K"]))
                scaled = param.grad.clone()
                local(scaled).mul_(adaptive_scale(y, **settings))
                param.grad = scaled
                local(param).copy_(y)

    @torch.no_grad()
    def leave(self) -> None:
        for param, grad, x, y, K in self.swapped:
            y_new = local(param).clone()
            local(param).copy_(x)
            write_x(local(param), None, y, y_new, K)
            param.grad = grad
        self.swapped = []


def _base(optimizer: Optimizer) -> Any:
    """The class that :func:`attach` found."""
    return type(optimizer).__mro__[2]


@functools.cache
def _attached_class(base: Any) -> type[Optimizer]:
    step: Any = Optimizer.profile_hook_step(_Attached.step)
    step.hooked = True  # torch's mark for a step that runs the hooks
    return type(f"Attached{base.__name__}", (_Attached, base), {"__module__": __name__, "step": step})


def _rebuild(base: Any) -> Optimizer:
    attached = _attached_class(base)
    return attached.__new__(attached)
