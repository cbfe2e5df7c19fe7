"""The fused step: kernel.cpp, compiled for a setting at its first use; one call steps all tensors that share a kernel."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewa import native
from rewa.reparam import LARGEST_PRODUCT, adam_step_size

SOURCE = Path(__file__).with_name("kernel.cpp")
CHUNK = 8192  # elements a thread takes at a time
GRAIN = 32768  # elements that are worth a thread, as in torch
PLAIN = (Tensor, torch.nn.Parameter)
POINTERS = ("x", "grad", "y", "buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
# struct Tensor of kernel.cpp: numel and first chunk, a pointer for each of POINTERS, and the numbers of its setting.
ROW = struct.Struct(f"@2q{len(POINTERS)}P11d")
STORAGE = {
    torch.float32: ("float", 0),
    torch.float64: ("double", 0),
    torch.bfloat16: ("float", 1),
    torch.float16: ("float", 2),
}

Setting = tuple[Any, ...]  # what a kernel is compiled for
# For each setting the tensors its kernel will step, weight first, and their rows without numel and first chunk.
Pending = dict[Setting, list[tuple[tuple[Tensor, ...], tuple[float, ...]]]]


def take(group: dict[str, Any], columns: dict[str, list[Any]], grad_factor: float, pending: Pending) -> dict[str, list[Any]]:
    """Put what a kernel can step into ``pending``; return the columns of what is left to another implementation.

    Left are all tensors where no kernel can be compiled, and those whose memory is not one dense block with the same
    layout for the weight, its gradient and its state, or whose state is not in the dtype of the update.
    """
    left: list[int] = []
    names = [name for name in POINTERS if name in columns]
    slots = [POINTERS.index(name) for name in names]
    settings: dict[torch.dtype, Setting] = {}
    numbers: dict[float, tuple[float, ...]] = {}
    for index, tensors in enumerate(zip(*(columns[name] for name in names), strict=True)):
        dtype = tensors[0].dtype
        if dtype not in settings:
            settings[dtype] = _setting(group, dtype)
        if not fits(names, tensors) or _kernel(*settings[dtype]) is None:
            left.append(index)
            continue
        step = columns["step"][index].item() if "step" in columns else 0.0
        if step not in numbers:
            numbers[step] = _numbers(group, grad_factor, step)
        pointers = [0] * len(POINTERS)
        for slot, tensor in zip(slots, tensors, strict=True):
            if tensor is not None:
                pointers[slot] = tensor.data_ptr()
        pending.setdefault(settings[dtype], []).append((tensors, (*pointers, *numbers[step])))
    return {name: [column[index] for index in left] if left else [] for name, column in columns.items()}


def launch(pending: Pending) -> None:
    """Step what was taken, in place, with one call for each kernel."""
    for setting, rows in pending.items():
        memory = bytearray(ROW.size * len(rows))
        chunks = total = 0
        for position, ((x, *_), numbers) in enumerate(rows):
            numel = x.numel()
            ROW.pack_into(memory, ROW.size * position, numel, chunks, *numbers)
            chunks += -(-numel // CHUNK)
            total += numel
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        kernel = _kernel(*setting)
        assert kernel is not None  # or it would not have been taken
        kernel(address, len(rows), chunks, max(1, min(torch.get_num_threads(), total // GRAIN)))
        # As any write in place does: a second backward through the old weights must be an error, not a wrong gradient.
        torch.autograd.graph.increment_version([tensors[0] for tensors, _ in rows])


def one_block(tensors: Sequence[Tensor | None]) -> bool:
    """Whether a kernel may read the tensors through their addresses, element by element alike; None counts as such.

    A subclass may hold its numbers elsewhere, and a negative view holds them with the other sign.
    """
    x = tensors[0]
    if x is None or x.layout is not torch.strided:
        return False
    if not (x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))):
        return False
    stride, shape = x.stride(), x.shape
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_neg():
            return False
        if tensor.stride() != stride or tensor.shape != shape:
            return False
    return True


def fits(names: Sequence[str], tensors: Sequence[Tensor | None]) -> bool:
    """Whether the kernel may work on a weight, its gradient and its state: it trusts addresses, dtypes and layouts."""
    dtype = None if tensors[0] is None else tensors[0].dtype
    if dtype is None or dtype not in STORAGE:
        return False
    low = STORAGE[dtype][1] != 0
    wide = torch.float32 if low else dtype
    kept = False
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        kept = kept or name == "y"
        if tensor.dtype is not (dtype if name in ("x", "grad") else wide):
            return False
    return kept == low and one_block(tensors)


def _setting(group: dict[str, Any], dtype: torch.dtype) -> Setting:
    """What a kernel is compiled for; everything else comes with each tensor."""
    adam = "betas" in group
    K, M = (int(n) if n == int(n) and n <= LARGEST_PRODUCT else -1 for n in (group["K"], group["M"]))
    if adam:
        return dtype, K, M, group["eps"] > 0, True, bool(group["amsgrad"]), True, False, False
    momentum, nesterov = group["momentum"] != 0, bool(group["nesterov"])
    return dtype, K, M, group["eps"] > 0, False, False, bool(group["decoupled"]), momentum, nesterov


def adam_rate(group: dict[str, Any], lr: Any) -> Any:
    """The rate of Adam's direction: with ``match``, the one that moves a weight of that magnitude by ``lr``."""
    return lr / adam_step_size(group["match"], group["K"]) if group.get("match") else lr


def _numbers(group: dict[str, Any], grad_factor: float, step: float) -> tuple[float, ...]:
    """The numbers of ``struct Tensor``, in its order, for a tensor at this step."""
    lr, weight_decay = float(group["lr"]), group["weight_decay"]
    shared = group["K"], group["M"], group["eps"], grad_factor
    if "betas" in group:
        beta1, beta2 = group["betas"]
        rate, correction = adam_rate(group, lr) / (1 - beta1**step), (1 - beta2**step) ** 0.5
        return *shared, lr * weight_decay, rate, 0.0, beta1, beta2, group["adam_eps"], correction
    return *shared, lr * weight_decay if group["decoupled"] else weight_decay, lr, group["momentum"], 0.0, 0.0, 0.0, 1.0


@functools.cache
def _kernel(
    dtype: torch.dtype,
    K: int,
    M: int,
    eps: bool,
    adam: bool,
    amsgrad: bool,
    decoupled: bool,
    momentum: bool,
    nesterov: bool,
) -> Callable[..., None] | None:
    """The compiled step for one setting, or None, with one warning for the process, where it is not available."""
    real, store = STORAGE[dtype]
    values = {"REAL": real, "STORE": store, "CHUNK": CHUNK, "K_INT": K, "M_INT": M, "EPS": int(eps)}
    values |= {"ADAM": int(adam), "AMSGRAD": int(amsgrad), "DECOUPLED": int(decoupled)}
    values |= {"MOMENTUM": int(momentum), "NESTEROV": int(nesterov)}
    library: Any = native.kernel(
        SOURCE,
        {"rewa_step": (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int)},
        values,
        otherwise="the slower loop steps instead; pass fused=False to silence this",
    )
    return None if library is None else library.rewa_step
