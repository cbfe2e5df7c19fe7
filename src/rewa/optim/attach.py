r"""ReWA on top of any torch optimizer."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from rewa.names import nearest
from rewa.optim.misuse import PREFIX, core, trusted, watch_optimizers
from rewa.optim.optimizer import (
    LOW_PRECISION,
    ReWAOptimizer,
    check_match,
    check_parameter,
    is_identity,
    labels,
    read_y,
    refuse_overridden,
    warn_of_decay,
    write_x,
)
from rewa.reparam import adam_step_size, adaptive_scale, check_exponents, step_size
from rewa.weights import local

__all__ = ["attach", "detach"]

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
REMEDY = "Give its group rewa_K=1, rewa_M=0, as rewa.param_groups(model) does for biases and norms."
DEFAULTS = {"K": 9, "M": 2, "eps": 0.0}
MATCH = PREFIX + "match"
_KEYS = (*(PREFIX + key for key in DEFAULTS), MATCH)
# They divide a gradient by its size, and torch adds their weight decay to the gradient first.
DIVIDING = (
    *(torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax),
    *(torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop),
)


def attach(
    optimizer: AnyOptimizer, *, K: float | None = None, M: float | None = None, eps: float | None = None
) -> AnyOptimizer:
    r"""Make any torch optimizer train :math:`y` instead of :math:`x = \mathrm{sign}(y)|y|^K`.

    At each step the optimizer finds y where the weights were and :math:`s\,g` where the gradients were, with the adaptive
    scale :math:`s = |y|^M\,|y|^{K-1}/(|y|^{K-1}+\varepsilon)`; afterwards the weights and the gradients are back in their
    place. The optimizer's own weight decay acts on y: without it nothing becomes sparse. Hooks, schedulers, clipping, closures
    and checkpoints see the weights x and their gradients, as before.

    Adam, NAdam, RAdam, Adamax, Adagrad, Adadelta and RMSprop divide a gradient by its own size. Decay that is part of the
    gradient would then move every y towards zero by about the learning rate per step, whatever the loss says. For these the
    decay of y bypasses the optimizer, :math:`y \leftarrow y - \eta\lambda y` beside its step, as in AdamW. Optimizers that
    torch does not have are taken as they are: give them a decay that bypasses their averages.

    Groups of ``rewa.param_groups(model, match=True)`` let a weight of its layer's usual magnitude move as the optimizer
    would move it without ReWA, at the same learning rate: inside the step the rate is divided by the step of x for one of y.

    Args:
        optimizer: Any instance of :class:`torch.optim.Optimizer`, closures included; it is changed in place, and stays an
            instance of its class. Attach before creating learning-rate schedulers.
        K: Order, for the groups that have no ``rewa_K`` of their own; 9 unless given.
        M: Adaptivity exponent, for the groups that have no ``rewa_M``; 2 unless given.
        eps: Stabilizer, for the groups that have no ``rewa_eps``; 0 unless given.

    Returns:
        The same optimizer. :func:`detach` undoes it.

    Raises:
        ValueError: For values out of range, a tensor that ReWA cannot train, and optimizers that cannot be attached to: those
            of rewa, ASGD, ``differentiable=True``. The optimizer is not changed then.

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
    given = {"K": K, "M": M, "eps": eps}
    defaults = {PREFIX + key: DEFAULTS[key] if value is None else value for key, value in given.items()}
    check_exponents(**_settings(defaults))
    _check_optimizer(optimizer)
    refuse_overridden(given, optimizer.param_groups)
    for index, group in enumerate(optimizer.param_groups):
        _check_group({**defaults, **group, **_annealed_to(group)}, index)
    watch_optimizers()
    for index, group in enumerate(optimizer.param_groups):
        for key, value in defaults.items():
            group.setdefault(key, value)
        _end_annealing(group)  # groups of an optimizer in the middle of its annealing start anew
        if divides(optimizer) and not is_identity(_settings(group)):
            warn_of_decay(group, index, group[PREFIX + "K"], _step_to_match(optimizer, group))
    optimizer.defaults.update(defaults)
    mixed: Any = _attached_class(cast(Any, type(optimizer)))
    optimizer.__class__ = mixed
    return optimizer


def _check_optimizer(optimizer: Optimizer) -> None:
    kind = type(optimizer).__name__
    if isinstance(optimizer, ReWAOptimizer):
        raise ValueError(f"{kind} is a ReWA optimizer already; pass K, M and eps to it instead")
    if isinstance(optimizer, _Attached):
        raise ValueError(f"ReWA is already attached to this {kind}; call rewa.detach first")
    if isinstance(optimizer, torch.optim.ASGD):
        raise ValueError(
            "ASGD averages the tensors that it trains, which would be y: attach to torch.optim.SGD, and average the weights by "
            "torch.optim.swa_utils.AveragedModel"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError(
            f"{kind} has differentiable=True, which attach does not support: use rewa.ReWASGD(differentiable=True)"
        )
    if "step" in vars(optimizer):
        raise ValueError("this optimizer's step is already wrapped, by a scheduler perhaps: attach first, then wrap")


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
    for group in optimizer.param_groups:
        _end_annealing(group)
    for settings in (optimizer.defaults, *optimizer.param_groups):
        for key in (*DEFAULTS, "match"):
            settings.pop(PREFIX + key, None)
    optimizer.__class__ = _base(optimizer)
    return optimizer


def _annealed_to(group: dict[str, Any]) -> dict[str, Any]:
    """What a group in the middle of its annealing will end at, under the names that attach reads."""
    final = group.get("annealed_to", {})
    return {key if key == "weight_decay" else PREFIX + key: value for key, value in final.items()}


def _end_annealing(group: dict[str, Any]) -> None:
    group.update(_annealed_to(group))
    group.pop("annealed_to", None)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: group[PREFIX + key] for key in DEFAULTS}


def _check_group(group: dict[str, Any], index: int) -> None:
    for key in group:
        if key.upper() in ("K", "M") or key == "match":
            name = PREFIX + (key if key == "match" else key.upper())
            raise ValueError(f"parameter group {index} sets {key}, which attach does not read: its name here is {name}")
        if key.startswith(PREFIX) and key not in _KEYS:
            raise ValueError(f"parameter group {index}: {nearest('setting', key, _KEYS)}")
    settings = _settings(group)
    check_exponents(**settings)
    check_match(group.get(MATCH, 0.0))
    for label, param in labels(group, index):
        check_parameter(param, label, settings, REMEDY)
        if param.dtype in LOW_PRECISION and not is_identity(settings):
            raise ValueError(
                f"{label} is {param.dtype}, too coarse for steps of y: use rewa.ReWASGD or rewa.ReWAAdamW, which keep y in "
                "float32, or keep the weights in float32 and use autocast"
            )


def divides(optimizer: Optimizer) -> bool:
    """Whether an optimizer divides gradients by their size: its steps have a size of their own.

    Of those that torch does not have, whoever has ``betas`` does.
    """
    others = [getattr(torch.optim, name, None) for name in ("Adafactor", "Muon", "Rprop")]
    inner = core(optimizer)
    return isinstance(inner, (*DIVIDING, torch.optim.AdamW, *filter(None, others))) or "betas" in inner.defaults


def _decay_beside(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """The decay that must bypass the optimizer, or 0: it divides by the size of a gradient that the decay would be part of."""
    inner = core(optimizer)
    known = isinstance(inner, DIVIDING) and not isinstance(inner, torch.optim.AdamW)
    coupled = known and not group.get("decoupled_weight_decay", False) and not is_identity(_settings(group))
    return float(group["weight_decay"]) if coupled else 0.0


def _step_to_match(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """How far a weight of the magnitude to match would move, for each unit that the base would move it."""
    if not group.get(MATCH) or is_identity(_settings(group)):
        return 1.0
    K, M, eps = _settings(group).values()
    return adam_step_size(group[MATCH], K) if divides(optimizer) else step_size(group[MATCH], K, M, eps)


class _Attached(Optimizer):
    """Mixed in before the base optimizer's class; ``step`` runs the base step on y."""

    reads_rewa_keys = True

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
            if missing := [PREFIX + key for key in DEFAULTS if PREFIX + key not in group]:
                raise ValueError(
                    f"the state has no {', '.join(missing)} in parameter group {index}: it was saved without rewa.attach. "
                    "Load it into the plain optimizer, then attach."
                )
            check_exponents(**_settings(group))
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Perform a single optimization step of y.

        Args:
            closure: Reevaluates the model and returns the loss; the base optimizer may call it any number of times.
            args: Whatever else the base optimizer's step takes.
            kwargs: The same, by name.
        """
        settings = [[group.get(key) for key in (*_KEYS, "K", "M")] for group in self.param_groups]
        if settings != self.__dict__.get("_checked"):  # edited since the last step, or the first step
            for index, group in enumerate(self.param_groups):
                _check_group({**group, "params": [], "param_names": []}, index)
            self.__dict__["_checked"] = settings
        swap = _Swap(self)

        def on_x() -> Any:
            swap.leave()
            try:
                with torch.enable_grad():
                    return closure() if closure is not None else None
            finally:
                swap.enter()

        # The base's step as its author wrote it: torch's wrapper around it would run the step hooks while y is in place.
        base: Any = _base(self).step
        base = base.__wrapped__ if getattr(base, "hooked", False) else base
        with trusted(), self._without_hooks(), self._for_y() as decays:
            swap.enter()
            try:
                first = [] if closure is None and not args else [None if closure is None else on_x]
                result = base(self, *first, *args, **kwargs)
                swap.decay(decays)
                return result
            finally:
                swap.leave()

    @contextmanager
    def _without_hooks(self) -> Iterator[None]:
        """A base that calls its parent's step must not run the hooks again, where y is in place."""
        kept = self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        try:
            yield
        finally:
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = kept

    @contextmanager
    def _for_y(self) -> Iterator[list[float]]:
        """The groups with the rates that suit y, meanwhile; what each step must decay beside the base, or 0.

        A rate divided by the step to match takes the decay with it, which is therefore multiplied by as much.
        """
        beside: list[float] = []
        kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for group in self.param_groups:
            step, decay = _step_to_match(self, group), _decay_beside(self, group)
            beside.append(float(group["lr"]) * decay if decay else 0.0)
            if step != 1 or decay:
                kept.append((group, {key: group[key] for key in ("lr", "weight_decay") if key in group}))
                group["lr"] = group["lr"] / step
            if "weight_decay" in group:
                group["weight_decay"] = 0.0 if decay else group["weight_decay"] * step
        try:
            yield beside
        finally:
            for group, old in kept:
                group.update(old)


@dataclass
class _Swapped:
    """A parameter while y is in its place."""

    param: Tensor
    group: int
    K: float
    x: Tensor
    y: Tensor
    grad: Tensor | None
    known: list[tuple[Tensor, Tensor]]  # x and y of the first time and of the last: there no root need be taken again


class _Swap:
    """Exchanges x for y and g for the scaled gradient, and back."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.swapped: dict[Tensor, _Swapped] = {}
        self.inside = False

    @torch.no_grad()
    def enter(self) -> None:
        groups = [(index, group, _settings(group)) for index, group in enumerate(self.optimizer.param_groups)]
        places = [(index, param, s) for index, group, s in groups if not is_identity(s) for param in group["params"]]
        if any(param.grad is not None and param.grad.is_sparse for _, param, _ in places):
            raise RuntimeError("rewa.attach does not support sparse gradients; use sparse=False")
        for index, param, settings in places:
            x = local(param).clone()
            y = read_y(x, None, settings["K"])
            known = self.swapped[param].known if param in self.swapped else []
            for x_known, y_known in known:
                y = torch.where(x == x_known, y_known, y)  # the root of the power is rounded twice
            self.swapped[param] = _Swapped(param, index, settings["K"], x, y, param.grad, known[:1] or [(x, y)])
            if param.grad is not None:
                scaled = param.grad.clone()
                local(scaled).mul_(adaptive_scale(y, **settings))
                param.grad = scaled
            local(param).copy_(y)
        self.inside = True

    @torch.no_grad()
    def decay(self, shares: list[float]) -> None:
        """Decay beside the step of the base: in each group a share of the y that the step began with."""
        for one in self.swapped.values() if any(shares) else ():
            if shares[one.group] and one.param.grad is not None:
                local(one.param).sub_(one.y, alpha=shares[one.group])

    @torch.no_grad()
    def leave(self) -> None:
        for one in self.swapped.values() if self.inside else ():
            param, y_new, (x_first, y_first) = local(one.param), local(one.param).clone(), one.known[0]
            param.copy_(one.x)
            write_x(param, None, one.y, y_new, one.K)
            param.copy_(torch.where(y_new == y_first, x_first, param))
            one.known.append((param.clone(), y_new))
            one.param.grad = one.grad
        self.inside = False


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
