r"""Steps that large weights make longer: what :class:`rewa.Sparsifier` does to each step of an optimizer.

For SGD the gradient is lengthened before the step (:func:`rewa.reparam.grown_gradient`), so that decay stays beside it. An
optimizer that divides by the size of gradients would undo that. It is not asked what it is: its step :math:`\Delta` is the
difference between the weights before and after it, and :func:`rewa.reparam.grown` lengthens that, all but AdamW's decay. Both
need a copy, of gradients or weights, for as long as the step takes. On a CPU one kernel makes the steps of torch's SGD, Adam
and AdamW in one pass over memory, without a copy.

A weight that is exactly zero once cutting has begun was cut, and stays zero; one that comes to zero by chance gets the smallest
normal number instead. So the zeros are the mask, and no other is stored.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from rewa import native
from rewa.optim import worth
from rewa.optim.fused import CHUNK, GRAIN, one_block
from rewa.optim.optimizer import BLOCK, LOW_PRECISION
from rewa.reparam import grown, grown_gradient
from rewa.weights import full, local

__all__ = ["MASTER", "NORMED", "Grown", "Growth", "bounds", "smallest", "start_size", "usual_growth"]

MASTER = "master"  # in the optimizer's state of a weight in low precision: its value in float32
SOURCE = Path(__file__).with_name("growth.cpp")
KNOWN = (SGD, Adam, AdamW)
NORMED = (Adam, AdamW)  # their steps have the size of the rate; those of NAdam may be several times as long
ADDED = 0.1  # of a weight, what its step may add under those
REALS = {torch.float32: "float", torch.float64: "double"}
POINTERS = ("x", "grad", "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", worth.SQUARE)
# struct Tensor of growth.cpp: numel and first chunk, a pointer for each of POINTERS, and its numbers.
ROW = struct.Struct(f"@2q{len(POINTERS)}P12d")

Setting = tuple[Any, ...]  # what a kernel is compiled for


def usual_growth(optimizer: Optimizer) -> float:
    """What a weight of the usual size adds to its step, as a multiple, where nobody says otherwise.

    Args:
        optimizer: The optimizer. LBFGS learns the curvature from its own steps, which must stay as they are.
    """
    return 0.0 if isinstance(optimizer, LBFGS) else 3.0 if isinstance(optimizer, NORMED) else 1.0


def bounds(
    optimizer: Optimizer, *, growth: float, size: float, lr: float, highest: float, times: float = 1.0
) -> tuple[float, float]:
    r"""What a weight of the usual size s adds to its step, and the most that any weight does, as multiples of the step.

    A step of Adam is about as long as its learning rate, whatever the gradient. What is added to it is at most a tenth of the
    weight, at the highest rate :math:`\hat\eta` up to now: for a weight of size s that is :math:`\min(a, 0.1\,s/\hat\eta)`. The
    steps of others grow with the gradient: lengthened, they are at most those of the highest rate.

    Args:
        optimizer: The optimizer.
        growth: The growth a that is asked for.
        size: The usual magnitude s.
        lr: The learning rate of this step.
        highest: The highest one up to now.
        times: By what the bound is multiplied.
    """
    if isinstance(optimizer, NORMED):
        return min(growth, times * ADDED * size / highest) if highest > 0 else growth, math.inf
    return growth, max(0.0, times * highest / lr - 1) if lr > 0 else 0.0


def smallest(dtype: torch.dtype) -> float:
    """The magnitude that stands for a weight which came to zero without being cut.

    Args:
        dtype: The type of the weight. Subnormal numbers slow a CPU down; float16 has too few others to do without.
    """
    return 2.0**-24 if dtype is torch.float16 else torch.finfo(dtype).tiny


def start_size(weight: Tensor) -> float:
    r"""The usual magnitude of a weight that trains: the root mean square of the values that are not zero.

    A tensor of zeros has none; it gets that of torch's own first weights for its shape, :math:`1/\sqrt{3n}` for n inputs.

    Args:
        weight: The weight, sharded or not.
    """
    values = weight.detach().double()
    total, nonzero = float(full(values.square().sum())), int(full((values != 0).sum()))
    inputs = max(1, weight.numel() // max(1, weight.shape[0]))
    return (total / nonzero) ** 0.5 if total else float((3 * inputs) ** -0.5)


@dataclass(frozen=True)
class Grown:
    """A weight whose steps are lengthened."""

    param: Tensor
    size: float  # of a usual weight at the start
    growth: float  # 0: the optimizer's step as it is
    most: float  # of what is added to a step, as a multiple of it


@dataclass
class _Before:
    """What a weight was before the step."""

    one: Grown
    x: Tensor | None  # None where only the zeros matter
    zero: Tensor | None  # which were cut; None before the first cut
    low: tuple[Tensor, Tensor | None] | None  # of a weight in low precision: its storage and gradient
    decay: float = 0.0  # what the step takes off the weight itself, as a share of it
    grad: Tensor | None = None  # its gradient, where the optimizer sees a longer one
    longer: Tensor | None = None
    version: int = 0  # of the longer one, when it was made


class Growth:
    """The steps of an optimizer, lengthened.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.kept: list[_Before] = []
        self.hidden: list[tuple[Grown, dict[str, Any], Tensor]] = []  # weights for the kernel: their groups and gradients
        self.cutting = False
        self.noted: float | None = None
        self.squares: dict[Tensor, Tensor] = {}  # means from a checkpoint, for an optimizer that has no state yet

    @property
    def is_known(self) -> bool:
        """Whether the optimizer's formula is known: torch's own, not a class derived from it."""
        return type(self.optimizer) in KNOWN

    @torch.no_grad()
    def before(
        self, weights: Sequence[Grown], *, cutting: bool, closure: bool, alone: bool = True, noted: float | None = None
    ) -> None:
        """Note the weights before the optimizer's step, or hide their gradients from it, for the kernel to make the step.

        Args:
            weights: The weights.
            cutting: Whether zeros were cut, and stay.
            closure: Whether the step evaluates the model.
            alone: Whether no other hook comes before the step, which would miss the gradients.
            noted: What the gradients of this step count in the means of their squares; None where there are no means.
        """
        self._give_up()
        self.cutting, self.noted = cutting, noted
        groups = {id(param): group for group in self.optimizer.param_groups for param in group["params"]}
        for one in weights:
            param, group = one.param, groups.get(id(one.param))
            if group is None or (param.grad is None and not closure):
                continue
            known = alone and not closure and one.growth and _is_known(self.optimizer, param, group)
            if known and self._kernel_for(group, param):
                assert param.grad is not None
                self.hidden.append((one, group, param.grad))
                param.grad = None
                continue
            low = self._lift(param, closure) if param.dtype in LOW_PRECISION and one.growth else None
            x = local(param.detach())
            zero = x == 0 if cutting else None
            copied = one.growth and not self._takes_gradients
            self.kept.append(_Before(one, x.clone() if copied else None, zero, low, self._decay(group)))
        self.mask()
        for before in self.kept if self._takes_gradients else ():
            if before.one.growth and before.one.param.grad is not None:
                before.grad = before.one.param.grad
                before.longer = self._lengthened_gradient(before.one, before.grad, groups[id(before.one.param)])
                before.one.param.grad, before.version = before.longer, before.longer._version

    @property
    def _takes_gradients(self) -> bool:
        """Whether a longer gradient makes a longer step."""
        return type(self.optimizer) is SGD

    def _lengthened_gradient(self, one: Grown, grad: Tensor, group: dict[str, Any]) -> Tensor:
        longer = grad.to_dense() if grad.layout is not torch.strided else grad.clone()
        decay = -group["weight_decay"] if group["maximize"] else group["weight_decay"]
        factor = self._unscaling()
        for here, x, _ in _blocks(local(longer), local(one.param.detach()), None):
            assert x is not None
            here.copy_(self._longer(one, x, here, decay / factor))
        return longer

    def _longer(self, one: Grown, x: Tensor, grad: Tensor, decay: float) -> Tensor:
        return grown_gradient(x, grad, weight_decay=decay, size=one.size, growth=one.growth, most=one.most)

    def _unscaling(self) -> float:
        """By what gradients are multiplied in the step, for a GradScaler that leaves it to a fused optimizer."""
        scale = getattr(self.optimizer, "grad_scale", None)
        return 1.0 if scale is None else 1.0 / float(scale.item())

    @torch.no_grad()
    def mask(self) -> None:
        """Clear the gradients of zeros that were cut.

        An optimizer that mixes the coordinates of a tensor must not see these, nor build up momentum for them.
        """
        for before in self.kept:
            grad = before.one.param.grad
            if before.zero is not None and grad is not None and grad.layout is torch.strided:
                local(grad).masked_fill_(before.zero, 0)

    @torch.no_grad()
    def after(self) -> None:
        """Lengthen the step that the optimizer made, and keep zeros at zero."""
        if self._takes_gradients:
            self._take_squares()
        self._launch()
        self._take_squares()
        for before in self.kept:
            one, x = before.one, local(before.one.param.detach())
            for now, old, zero in _blocks(x, before.x, before.zero):
                if old is not None:
                    now.copy_(self._stepped(before, old, now - old))
                if zero is not None:
                    now.masked_fill_(now == 0, smallest(x.dtype)).masked_fill_(zero, 0)
            grad = one.param.grad if before.grad is None else before.grad
            if self.noted is not None and grad is not None:
                worth.note(self.optimizer.state[one.param], one.param, grad, self.noted, self._unscaling)
        self.cancel()

    def _take_squares(self) -> None:
        """Put the means from a checkpoint where the optimizer's state is now."""
        for param, square in self.squares.items():
            if worth.mean_square(self.optimizer.state[param], param) is None:
                self.optimizer.state[param][worth.SQUARE] = square
        self.squares = {}

    def _stepped(self, before: _Before, old: Tensor, move: Tensor) -> Tensor:
        """A weight after its lengthened step; decay that the step has beside the gradient's part is not lengthened."""
        if not before.decay:
            return self._lengthened(before.one, old, move)
        decay = before.decay * old
        return self._lengthened(before.one, old, move + decay).sub_(decay)

    def _lengthened(self, one: Grown, old: Tensor, move: Tensor) -> Tensor:
        return grown(old, move, size=one.size, growth=one.growth, most=one.most)

    @torch.no_grad()
    def cancel(self) -> None:
        """Forget what was noted: also after a step that was skipped, or that failed."""
        for one, _, grad in self.hidden:
            one.param.grad = grad
        for before in self.kept:
            if before.low is not None:
                self._lower(before.one.param, *before.low)
            elif before.longer is not None:
                before.one.param.grad = before.grad
        self.kept, self.hidden = [], []

    def _give_up(self) -> None:
        """Forget a step that failed. Gradients that came since then stay."""
        for before in self.kept:
            longer = before.longer
            if longer is not None and (before.one.param.grad is not longer or longer._version != before.version):
                before.longer = None
        self.hidden = []
        self.cancel()

    # ------------------------------------------------------------------------------------------------ the kernel

    def _setting(self, group: dict[str, Any], param: Tensor) -> Setting:
        """What a kernel is compiled for."""
        if "betas" in group:
            return param.dtype, self.cutting, False, True, bool(group["amsgrad"]), self._decoupled(group), False, False
        momentum = bool(group["momentum"])
        return param.dtype, self.cutting, self._share(param) > 0, False, False, False, momentum, bool(group["nesterov"])

    def _share(self, param: Tensor) -> float:
        """What the gradient of a weight counts in the mean of its square; the first counts whatever it is."""
        if self.noted is None:
            return 0.0
        known = param in self.squares or worth.mean_square(self.optimizer.state.get(param, {}), param) is not None
        return self.noted if known else 1.0

    def _decoupled(self, group: dict[str, Any]) -> bool:
        return bool(group.get("decoupled_weight_decay", type(self.optimizer) is AdamW))

    def _decay(self, group: dict[str, Any]) -> float:
        """What a step takes off each weight beside the gradient's part, as a share of the weight; 0 where that is not known."""
        decoupled = self.is_known and "betas" in group and self._decoupled(group)
        return float(group["lr"]) * float(group["weight_decay"]) if decoupled else 0.0

    def _kernel_for(self, group: dict[str, Any], param: Tensor) -> bool:
        return _kernel(*self._setting(group, param)) is not None

    def _launch(self) -> None:
        """Make the steps of the weights whose gradients are hidden, with one call for each kernel."""
        factor = self._unscaling()
        pending: dict[Setting, list[tuple[Tensor, tuple[Any, ...]]]] = {}
        for one, group, grad in self.hidden:
            param, setting = one.param, self._setting(group, one.param)
            share = 0.0 if "betas" in group else self._share(param)
            stateful = "betas" in group or bool(group["momentum"]) or share > 0
            state: dict[str, Any] = self.optimizer.state[param] if stateful else {}  # asking makes an entry
            first = _begin_state(state, param, group)
            if share:
                worth.begin(state, param)
            tensors = {"x": param, "grad": grad, **{key: state[key] for key in POINTERS if isinstance(state.get(key), Tensor)}}
            pointers = [tensors[key].data_ptr() if key in tensors else 0 for key in POINTERS]
            numbers = _numbers(group, state, factor, one.growth, first=first, decoupled=self._decoupled(group))
            row = (*pointers, one.growth / one.size, one.most, share, *numbers)
            pending.setdefault(setting, []).append((param, row))
        for setting, rows in pending.items():
            memory = bytearray(ROW.size * len(rows))
            chunks = total = 0
            for position, (param, row) in enumerate(rows):
                ROW.pack_into(memory, ROW.size * position, param.numel(), chunks, *row)
                chunks += -(-param.numel() // CHUNK)
                total += param.numel()
            kernel = _kernel(*setting)
            assert kernel is not None  # or the gradients would not have been hidden
            threads = max(1, min(torch.get_num_threads(), total // GRAIN))
            kernel(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(rows), chunks, threads)
            # As any write in place does: a second backward through the old weights must be an error, not a wrong gradient.
            torch.autograd.graph.increment_version([param for param, _ in rows])

    # --------------------------------------------------------------------------------------------- low precision

    def forget(self, param: Tensor) -> None:
        """Leave the state of a weight as the optimizer alone would have it.

        Args:
            param: The weight.
        """
        state: dict[str, Any] = self.optimizer.state.get(param, {})
        state.pop(worth.SQUARE, None)
        if state.pop(MASTER, None) is not None:
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dim() and value.dtype is torch.float32:
                    state[key] = value.to(param.dtype)
        if not state:
            self.optimizer.state.pop(param, None)

    def _lift(self, param: Tensor, closure: bool) -> tuple[Tensor, Tensor | None]:
        """Let the optimizer step the float32 value of a weight in low precision, in which small steps would be lost."""
        if hasattr(param, "to_local"):
            raise ValueError(
                f"a sharded weight is {param.dtype}, too coarse for small steps: keep the shards in float32, as "
                "MixedPrecisionPolicy(param_dtype=torch.bfloat16) of FSDP2 does"
            )
        if closure:
            raise ValueError(
                f"a step with a closure evaluates the model, whose weights are {param.dtype} and take their step in float32: "
                "keep the weights in float32 and use autocast"
            )
        state: dict[str, Any] = self.optimizer.state[param]
        x, grad = param.detach(), param.grad
        kept = state.pop(MASTER, None)
        master = x.float() if kept is None else torch.where(kept.to(x.dtype) == x, kept, x.float())  # an edit of x wins
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dtype in LOW_PRECISION:
                state[key] = value.float()
        param.grad = None
        param.data = master
        param.grad = None if grad is None else grad.float()
        return x, grad

    def _lower(self, param: Tensor, x: Tensor, grad: Tensor | None) -> None:
        """Round the float32 value to the weight again, and keep it."""
        master = param.data
        rounded = master.to(x.dtype)
        x.copy_(rounded.masked_fill((rounded == 0) & (master != 0), smallest(x.dtype)))  # rounding must not cut
        param.grad = None
        param.data = x
        param.grad = grad
        self.optimizer.state[param][MASTER] = master


def _blocks(x: Tensor, old: Tensor | None, zero: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    """The tensors, on a CPU in pieces that stay in the cache through several operations."""
    if x.device.type != "cpu" or x.numel() <= BLOCK or not all(t is None or t.is_contiguous() for t in (x, old, zero)):
        yield x, old, zero
        return
    for start in range(0, x.numel(), BLOCK):
        now, then, gone = (None if t is None else t.view(-1)[start : start + BLOCK] for t in (x, old, zero))
        assert now is not None
        yield now, then, gone


def _is_known(optimizer: Optimizer, param: Tensor, group: dict[str, Any]) -> bool:
    """Whether the kernel can make the optimizer's step for a weight: it trusts addresses, types and layouts."""
    if type(optimizer) not in KNOWN or group.get("differentiable") or group.get("capturable"):
        return False
    state = optimizer.state.get(param, {})
    needed = {"step", "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group.get("amsgrad") else [])}
    if state and "betas" in group and not needed <= state.keys():
        return False
    tensors = [param, param.grad, *(state[key] for key in POINTERS if isinstance(state.get(key), Tensor))]
    same = all(tensor is not None and tensor.dtype is param.dtype for tensor in tensors)
    return param.dtype in REALS and same and one_block(tensors)


def _begin_state(state: dict[str, Any], param: Tensor, group: dict[str, Any]) -> bool:
    """Make the state that torch would make at a weight's first step; whether this is the first."""
    if "betas" not in group:
        if not group["momentum"] or state.get("momentum_buffer") is not None:
            return False
        state["momentum_buffer"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return True
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        for key in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])):
            state[key] = torch.zeros_like(param, memory_format=torch.preserve_format)
    state["step"] += 1
    return False


def _numbers(
    group: dict[str, Any], state: dict[str, Any], factor: float, growth: float, *, first: bool, decoupled: bool
) -> tuple[float, ...]:
    """The numbers of ``struct Tensor`` from ``grad_factor`` on."""
    lr, decay, factor = float(group["lr"]), float(group["weight_decay"]), -factor if group["maximize"] else factor
    if "betas" not in group:
        decay *= 1 + growth
        return factor, decay, lr, group["momentum"], 1.0 if first else 1.0 - group["dampening"], 0.0, 0.0, 0.0, 1.0
    (beta1, beta2), step = map(float, group["betas"]), float(state["step"])
    rate, correction = lr / (1 - beta1**step), (1 - beta2**step) ** 0.5
    return factor, lr * decay if decoupled else decay, rate, 0.0, 0.0, beta1, beta2, float(group["eps"]), correction


@functools.cache
def _kernel(
    dtype: torch.dtype, cutting: bool, noting: bool, adam: bool, amsgrad: bool, decoupled: bool, momentum: bool, nesterov: bool
) -> Callable[..., None] | None:
    """The compiled step for one setting, or None, with one warning for the process, where it is not available."""
    values = {
        "REAL": REALS[dtype],
        "CHUNK": CHUNK,
        "CUTTING": int(cutting),
        "NOTING": int(noting),
        "ADAM": int(adam),
        "AMSGRAD": int(amsgrad),
    }
    values |= {"DECOUPLED": int(decoupled), "MOMENTUM": int(momentum), "NESTEROV": int(nesterov)}
    library: Any = native.kernel(
        SOURCE,
        {"rewa_growth": (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int)},
        values,
        otherwise="a slower step with a copy of weights or gradients is made instead",
    )
    return None if library is None else library.rewa_growth
