r"""What Algorithms 1 and 2 share as PyTorch optimizers: settings, the way from x to y and back, low precision, checkpoints.

The model's parameter holds :math:`x` at all times and :math:`y = \mathrm{sign}(x)|x|^{1/K}` is taken from it at every step.
Nothing can go stale, then: ``load_state_dict`` on the model, EMA swaps, masks and writes through ``.data`` are seen by the
next step, and the state is the one torch keeps for its own optimizer. Only float16 and bfloat16 parameters get a copy of y,
in float32.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, _default_to_fused_or_foreach

from rewa.names import nearest_setting
from rewa.optim.fused import Pending, one_block, take
from rewa.optim.misuse import PREFIX, form_of
from rewa.reparam import check_exponents, flush_subnormal, moved, step_size, to_x, to_y
from rewa.theory import adamw_bound
from rewa.weights import full, is_plain, local

BLOCK = 1 << 16  # large enough for torch to use its threads, small enough for their caches
LOW_PRECISION = (torch.float16, torch.bfloat16)
EDITABLE = ("K", "M", "eps", "weight_decay", "momentum", "match", "betas", "adam_eps")  # settings looked at before each step

# What a step works on, as one list per quantity, all of one length: "x", "grad", "y" (None where x is precise enough), and
# the algorithm's own state under the names that kernel.cpp gives it.
Columns = dict[str, list[Any]]
Implementation = Callable[[dict[str, Any], Columns, float], None]


def check_nonnegative(what: str, value: float | Tensor) -> None:
    """Raise ``ValueError`` in torch's wording unless ``value`` is a finite number from 0."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"Tensor {what} must be 1-element")
    if isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"Invalid {what}: {value} (allowed: a finite number >= 0)")


def check_match(match: float) -> None:
    """Raise ``ValueError`` unless ``match`` is a magnitude."""
    if isinstance(match, bool):
        raise ValueError(
            f"Invalid match value: {match} (allowed: a finite number >= 0, the magnitude to match; "
            "rewa.param_groups(model, match=True) takes it from each tensor)"
        )
    check_nonnegative("match value", match)


def check_settings(group: dict[str, Any]) -> None:
    """Raise ``ValueError`` for a value that no ReWA optimizer can use; ``group`` is a parameter group or the defaults."""
    lr = group["lr"]
    check_nonnegative("lr" if isinstance(lr, Tensor) and lr.numel() != 1 else "learning rate", lr)
    for key in ("weight_decay", "momentum", "adam_eps"):
        check_nonnegative(f"{key} value", group.get(key, 0.0))
    check_match(group.get("match", 0.0))
    if group.get("nesterov") and group["momentum"] == 0:
        raise ValueError("Nesterov momentum requires a momentum")
    if len(group.get("betas", (0, 0))) != 2:
        raise ValueError(f"Invalid betas: {group['betas']} (allowed: two numbers)")
    for index, beta in enumerate(group.get("betas", ())):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta} (allowed: 0 <= beta < 1)")
    check_exponents(group["K"], group["M"], group["eps"])


def is_identity(group: Mapping[str, Any]) -> bool:
    """Whether the group's setting is torch's own optimizer: x = y, a scale of one, and no decay that torch does not have.

    A group whose setting moves is none: what low precision keeps for a later K must be there from the first step on.
    """
    return is_plain(group) and not group.get("decoupled", False)


def keeps_y(param: Tensor, group: dict[str, Any]) -> bool:
    """Whether the parameter is too coarse to hold what y needs, so that y is kept beside it in float32."""
    return param.dtype in LOW_PRECISION and not is_identity(group)


def check_parameter(param: Tensor, label: str, group: dict[str, Any], remedy: str) -> None:
    """Raise unless ReWA can train ``param``: real, dense and, where zero is absorbing, not all zero."""
    if is_identity(group):
        return
    if (form := form_of(param)) is not None:
        raise ValueError(
            f"{label} is a part of a weight's {form} form, which is ReWA already: give rewa.param_groups(model) to "
            "torch.optim.SGD or any other optimizer of torch.optim"
        )
    if param.is_complex() or not param.is_floating_point():
        raise ValueError(f"{label} has dtype {param.dtype}; ReWA reparameterizes real floating-point tensors only. {remedy}")
    # With M = 0 and eps = 0 the scale at zero is one, so zero is no trap there; K = 1 with M > 0 is one as well.
    absorbing = group["M"] > 0 or (group["eps"] > 0 and group["K"] > 1)
    if absorbing and param.device.type != "meta" and param.numel() and not bool(full(param.detach().any())):
        raise ValueError(
            f"{label} is all zero, and with K={group['K']}, M={group['M']}, eps={group['eps']} no gradient moves a weight "
            f"from exactly 0. {remedy}"
        )


def refuse_overridden(given: Mapping[str, float | None], params: Any) -> None:
    """Raise ``ValueError`` for an argument that groups of :func:`rewa.param_groups` leave without effect: each has its own."""
    groups = params if isinstance(params, list) else []
    if not groups or not all(isinstance(group, dict) and PREFIX + "K" in group for group in groups):
        return
    for key, value in given.items():
        own = [group.get(PREFIX + key, group.get(key) if key == "weight_decay" else None) for group in groups]
        if value is not None and None not in own:
            values = ", ".join(map(str, dict.fromkeys(own)))
            raise ValueError(
                f"{key}={value} has no effect: every group sets its own {key} ({values}). Give it to rewa.param_groups."
            )


def root_mean_square(tensor: Tensor) -> float:
    """The size of a usual value of a tensor that may be sharded."""
    if tensor.device.type == "meta":
        raise ValueError(
            "a tensor on the meta device has no values and no usual size: fill the model first, by to_empty and its own "
            "initialization"
        )
    return float(full(tensor.detach().square().mean().sqrt()))


def read_y(x: Tensor, kept: Tensor | None, K: float) -> Tensor:
    """The y behind the parameter ``x``; the float32 copy counts only while it still stands for ``x``."""
    if torch.is_grad_enabled():  # in a differentiable step, autograd needs the x that the step writes over
        x = x.clone()
    if kept is None:
        return to_y(x, K)
    stands = flush_subnormal(to_x(kept, K)).to(x.dtype) == x
    return torch.where(stands, kept, to_y(x.to(kept.dtype), K))


def move_x(x: Tensor, kept: Tensor | None, y: Tensor, move: Tensor, K: float) -> None:
    """Add ``move`` to y and put the result into the parameter; a move of zero leaves every bit of x."""
    differentiable = torch.is_grad_enabled()
    if kept is None:
        x_new = flush_subnormal(moved(x.clone() if differentiable else x, y, move, K))
    else:
        y_new = y + move
        kept.copy_(y_new)
        x_new = flush_subnormal(to_x(y_new, K)).to(x.dtype)
    x.copy_(x_new if differentiable else torch.where(move == 0, x, x_new))


def write_x(x: Tensor, kept: Tensor | None, y: Tensor, y_new: Tensor, K: float) -> None:
    """Put ``y_new``, which another optimizer made of ``y``, into the parameter."""
    move_x(x, kept, y, y_new - y, K)


class ReWAOptimizer(Optimizer):
    """Common part of :class:`rewa.ReWASGD` and :class:`rewa.ReWAAdamW`; not meant to be constructed."""

    reads_rewa_keys = True
    # The step outside a compiled graph, where K and M move at every step and would compile it again; set by Annealing.
    uncompiled_step: Callable[..., Any] | None = None

    def __init__(self, params: Any, given: Mapping[str, float | None], defaults: dict[str, Any]) -> None:
        # ``given``: the settings that are told from the algorithm's own; None stands for that.
        if isinstance(params, Iterable) and not isinstance(params, (Tensor, dict)):  # torch says what is wrong with others
            params = list(params)
        defaults = {**defaults, **{key: value for key, value in given.items() if value is not None}}
        check_settings(defaults)
        refuse_overridden(given, params)
        if defaults["fused"] and defaults["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if defaults["foreach"] and defaults["differentiable"]:
            raise RuntimeError("`foreach` does not support `differentiable`")
        if defaults["fused"] and defaults["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("maximize", False)
            group.setdefault("match", 0.0)
            group.setdefault("foreach", None)
            group.setdefault("fused", None)
            group.setdefault("differentiable", False)
            group.setdefault("capturable", False)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler's protocol for fused optimizers: it hands over grad_scale and found_inf instead of touching the grads.
        return all(group["fused"] for group in self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with its own ``lr``, ``weight_decay``, ``K``, ``M`` or ``eps`` if given; it is copied."""
        index = len(self.param_groups)
        if isinstance(param_group, dict):  # torch says what is wrong with anything else
            param_group = self._translated(param_group, index)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_settings(group)
            for label, param in labels(group, index):
                check_parameter(param, label, group, REMEDY)
        except ValueError:
            del self.param_groups[-1]
            raise

    def _translated(self, given: dict[str, Any], index: int) -> dict[str, Any]:
        """A copy of a group under the names that the optimizer reads; what looks like a setting and is none is refused."""
        group = {key: value for key, value in given.items() if key != "annealed_to"}
        group.update(given.get("annealed_to", {}))  # groups of an optimizer in the middle of its annealing start anew
        for key in [key for key in group if key.startswith(PREFIX)]:
            name = key.removeprefix(PREFIX)
            if name in ("K", "M", "eps", "match"):
                if name in group:
                    raise ValueError(
                        f"parameter group {index} sets {name} and {key}, two values for one thing: give one of them"
                    )
                group[name] = group.pop(key)
        for key in group:
            hint = nearest_setting(key.removeprefix(PREFIX), self.defaults)
            if hint or key.startswith(PREFIX):
                meant = (
                    f"; did you mean {hint!r}?" if hint else f"; ReWA's are {PREFIX}K, {PREFIX}M, {PREFIX}eps and {PREFIX}match"
                )
                raise ValueError(f"parameter group {index} sets {key!r}, which is no setting{meant}")
        return group

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state; the float32 state of low-precision parameters comes back unrounded."""
        # torch casts every state tensor to the parameter's dtype. Two hooks around its work keep the original: the first
        # runs after the user's hooks that rewrite the dictionary, the second before those that look at the result.
        loaded: list[dict[str, Any]] = []

        def check(optimizer: Optimizer, incoming: dict[str, Any]) -> None:
            own = [key for key in ("K", "M", "eps", "momentum", "decoupled", "betas", "adam_eps") if key in self.defaults]
            for index, group in enumerate(incoming["param_groups"]):
                if missing := [key for key in own if key not in group]:
                    raise ValueError(
                        f"the state has no {', '.join(missing)} in parameter group {index}: it was not saved by "
                        f"{type(self).__name__}. Start with a fresh optimizer; the model's weights are all it needs."
                    )
                check_settings(group)
            loaded.append(incoming)

        def restore(optimizer: Optimizer) -> None:
            for saved, group in zip(loaded[0]["param_groups"], self.param_groups, strict=True):
                for param_id, param in zip(saved["params"], group["params"], strict=True):
                    for key, value in loaded[0]["state"].get(param_id, {}).items():
                        if keeps_y(param, group) and isinstance(value, Tensor) and key != "step":
                            self.state[param][key] = value.to(param.device, torch.float32)

        handles = (
            self.register_load_state_dict_pre_hook(check),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _new_state(self, param: Tensor, group: dict[str, Any], *names: str) -> dict[str, Any]:
        """The parameter's state, with zeros under each name that is not there yet and y for low precision."""
        low = keeps_y(param, group)
        state: dict[str, Any] = self.state[param]
        dtype = torch.float32 if low else param.dtype
        if not low:
            state.pop("y", None)  # the model has been cast since
        for name in names:
            if state.get(name) is None:
                state[name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        if low and "y" not in state:
            state["y"] = to_y(param.detach().to(dtype), group["K"])
        return state

    def _check_edits(self) -> None:
        """Refuse settings that were edited out of range since the last step; unchanged ones cost a comparison."""
        checked: list[tuple[Any, ...]] = self.__dict__.setdefault("_checked", [])
        # Tensors, as differentiable settings may be, are left to whoever made them.
        settings = [
            (len(group), *(None if isinstance(group.get(key), Tensor) else group.get(key) for key in EDITABLE))
            for group in self.param_groups
        ]
        if settings != checked:
            for index, group in enumerate(self.param_groups):
                check_settings(group)
                if edited := [key for key in group if key.startswith(PREFIX)]:
                    name = edited[0].removeprefix(PREFIX)
                    raise ValueError(f"parameter group {index} got {edited[0]!r}, which {type(self).__name__} calls {name!r}")
            checked[:] = settings

    def _check_gradients(self) -> None:
        """Refuse what no group can step, before any group has moved."""
        for group, param in [(g, p) for g in self.param_groups for p in g["params"]]:
            if param.grad is None:
                continue
            if param.grad.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients; use sparse=False")
            if group["fused"] and not (param.device.type == "cpu" and param.is_floating_point()):
                raise RuntimeError(
                    "`fused=True` requires all the params to be floating point Tensors of supported devices: ['cpu'], "
                    f"got {param.dtype} on {param.device.type}. Elsewhere use foreach=True or torch.compile(opt.step)."
                )

    def _begin(self, closure: Callable[[], Any] | None) -> tuple[Any, float, bool]:
        """What every step starts with: the loss, the factor that undoes GradScaler's scaling, and whether it found an overflow.

        After an overflow the step must do nothing.
        """
        # torch renamed this check; it refuses to run uncaptured settings inside a CUDA graph.
        check = getattr(self, "_accelerator_graph_capture_health_check", None) or self._cuda_graph_capture_health_check
        check()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            self._check_edits()
            self._check_gradients()
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        return loss, 1.0 if scale is None else 1.0 / scale.item(), found_inf is not None and bool(found_inf.item())


def update(
    group: dict[str, Any],
    columns: Columns,
    grad_factor: float,
    *,
    base: Callable[[dict[str, Any], Columns], None] | None,
    single_tensor: Implementation,
    multi_tensor: Implementation,
    pending: Pending,
) -> None:
    """Step one group with the implementation it asks for, by default the fastest that works here.

    What the fused kernel will step is only put into ``pending``: one launch serves all groups. ``base`` is torch's own
    implementation, where the setting reduces to it.
    """
    if not columns["x"]:
        return
    columns = {name: [None if t is None else local(t) for t in column] for name, column in columns.items() if column}
    foreach, fused = group["foreach"], group["fused"]
    eager = not (group["differentiable"] or torch.compiler.is_compiling())
    if foreach is None and fused is None:
        if not all(x.is_cpu for x in columns["x"]):
            _, foreach = _default_to_fused_or_foreach(columns["x"], group["differentiable"], use_fused=False)
        fused = eager and not foreach
    if base is not None:
        if grad_factor != 1:
            columns["grad"] = [grad * grad_factor for grad in columns["grad"]]
        # By default as torch's by default: its fused kernels round otherwise.
        base({**group, "foreach": bool(foreach), "fused": bool(group["fused"]) and _suits_torch(columns)}, columns)
        return
    if "step" in columns:
        torch._foreach_add_(columns["step"], 1)
    if group.get("match") and "betas" not in group:  # Adam would divide the factor out again: there it is the rate's
        grad_factor /= step_size(group["match"], group["K"], group["M"], group["eps"])
    if group["maximize"]:
        grad_factor = -grad_factor
    if fused and eager:
        columns = take(group, columns, grad_factor, pending)
    if not columns["x"]:
        return
    if foreach:
        multi_tensor(group, columns, grad_factor)
    else:
        single_tensor(group, in_blocks(columns) if eager else columns, grad_factor)


def _suits_torch(columns: Columns) -> bool:
    """Whether torch's own fused CPU kernels are right here: they take the memory in order, whatever the strides say."""
    rows = zip(*(column for name, column in columns.items() if name not in ("y", "step")), strict=True)
    return all(row[0].is_floating_point() and one_block(row) and len({t.dtype for t in row}) == 1 for row in rows)


def in_blocks(columns: Columns) -> Columns:
    """The columns with large CPU tensors cut into pieces that stay in the cache through the step's many operations."""
    pieces: Columns = {name: [] for name in columns}
    for index, x in enumerate(columns["x"]):
        row = {name: column[index] for name, column in columns.items()}
        tensors = [tensor for name, tensor in row.items() if tensor is not None and name != "step"]
        cut = x.device.type == "cpu" and x.numel() > BLOCK and all(tensor.is_contiguous() for tensor in tensors)
        count = -(-x.numel() // BLOCK) if cut else 1
        for name, tensor in row.items():
            whole = not cut or tensor is None or name == "step"
            pieces[name] += [tensor] * count if whole else tensor.view(-1).split(BLOCK)
    return pieces


def learning_rate(group: dict[str, Any]) -> float | Tensor:
    """The group's ``lr``, of no dimension if it is a tensor."""
    lr: float | Tensor = group["lr"]
    return lr.squeeze() if isinstance(lr, Tensor) else lr


REMEDY = (
    "Put it in a group with K=1, M=0, as rewa.param_groups(model) does for biases and norms (and for any other tensor with "
    "rules={'its name': None}), or leave it out."
)


def warn_of_decay(group: Mapping[str, Any], index: int, K: float, step: float) -> None:
    """Warn where decay bounds the weights of an optimizer of Adam's kind below what they are now.

    Args:
        group: The parameter group.
        index: Its number.
        K: Order of the reparameterization.
        step: What the learning rate is divided by, to match a step.
    """
    decay = group.get("weight_decay", 0.0)
    if isinstance(decay, Tensor) or not math.isfinite(bound := adamw_bound(K, decay * step)):
        return
    for label, param in labels(dict(group), index):
        part = local(param.detach())  # of a sharded tensor, what this process holds
        largest = 0.0 if part.device.type == "meta" or not part.numel() else float(part.abs().max())
        if largest > bound:
            warnings.warn(
                f"{label}: weight_decay={decay:g} with K={K:g} lets no weight exceed {bound:.3g}, for AdamW moves y by about "
                f"lr per step whatever its gradient, and the largest is {largest:.3g} now. Give a weight_decay of at most "
                f"{0.9 * largest ** (-1 / K) / step:.2g}, and see rewa explain --optimizer adamw.",
                stacklevel=6,  # who made the optimizer
            )
            return


def labels(group: dict[str, Any], index: int) -> Iterable[tuple[str, Tensor]]:
    """Each parameter of a group with the name an error message should give it."""
    names = group.get("param_names") or [None] * len(group["params"])
    for position, (name, param) in enumerate(zip(names, group["params"], strict=True)):
        shape = "x".join(map(str, param.shape)) or "scalar"
        yield (f"parameter {name!r}" if name else f"parameter {position} of group {index}") + f" ({shape})", param
