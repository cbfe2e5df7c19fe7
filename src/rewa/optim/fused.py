"""The fused step: kernel.cpp, compiled for a setting at its first use; one call steps every tensor of a group."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewa.native import build
from rewa.reparam import LARGEST_PRODUCT

SOURCE = Path(__file__).with_name("kernel.cpp")
CHUNK = 8192  # elements a thread takes at a time
POINTERS = ("x", "grad", "y", "buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
STORAGE = {
    torch.float32: ("float", 0),
    torch.float64: ("double", 0),
    torch.bfloat16: ("float", 1),
    torch.float16: ("float", 2),
}


class _Hyper(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_double) for name in ("grad_factor", "l2", "K", "M", "eps", "momentum", "beta1", "beta2", "adam_eps")
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("numel", ctypes.c_int64),
        ("first_chunk", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_double) for name in ("shrink", "lr", "sqrt_correction")),
    ]


def fused_step(group: dict[str, Any], columns: dict[str, list[Any]], grad_factor: float) -> dict[str, list[Any]]:
    """Step what the kernel can, in place; return the columns of what is left to another implementation.

    Left are all tensors where no kernel can be compiled, and those whose memory is not one dense block with the same
    layout for the weight, its gradient and its state, or whose state is not in the dtype of the update.
    """
    left: list[int] = []
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, x in enumerate(columns["x"]):
        row = {name: columns[name][index] for name in POINTERS if name in columns and columns[name][index] is not None}
        (by_dtype.setdefault(x.dtype, []) if _fits(row) else left).append(index)
    for dtype, indices in by_dtype.items():
        kernel = _kernel(*_macros(group, dtype))
        if kernel is None:
            left.extend(indices)
        else:
            _call(kernel, group, columns, indices, grad_factor)
    return {name: [column[index] for index in left] for name, column in columns.items()}


def one_layout(tensors: list[Tensor]) -> bool:
    """Whether the tensors are dense blocks of memory with their elements in the same order."""
    x = tensors[0]
    dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    return dense and all(tensor.stride() == x.stride() and tensor.shape == x.shape for tensor in tensors)


def _fits(row: dict[str, Tensor]) -> bool:
    """Whether the kernel may work on a weight, its gradient and its state: it trusts addresses, dtypes and layouts."""
    dtype = row["x"].dtype
    if dtype not in STORAGE:
        return False
    low = STORAGE[dtype][1] != 0
    for name, tensor in row.items():
        expected = dtype if name in ("x", "grad") or not low else torch.float32
        # A subclass may hold its numbers elsewhere, and a negative view holds them with the other sign.
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and not tensor.is_neg()
        if not plain or tensor.device.type != "cpu" or tensor.dtype != expected:
            return False
    return ("y" in row) == low and one_layout(list(row.values()))


def _macros(group: dict[str, Any], dtype: torch.dtype) -> tuple[str, ...]:
    real, store = STORAGE[dtype]
    adam = "betas" in group
    values = {
        "REAL": real,
        "STORE": store,
        "CHUNK": CHUNK,
        "EPS": int(group["eps"] > 0),
        "ADAM": int(adam),
        "AMSGRAD": int(adam and group["amsgrad"]),
        "MOMENTUM": int(not adam and group["momentum"] != 0),
        "NESTEROV": int(not adam and group["nesterov"]),
    }
    for name in ("K", "M"):
        exponent = float(group[name])
        values[name + "_INT"] = int(exponent) if exponent == int(exponent) and exponent <= LARGEST_PRODUCT else -1
    return tuple(f"-D{name}={value}" for name, value in sorted(values.items()))


def _call(
    kernel: Callable[..., None],
    group: dict[str, Any],
    columns: dict[str, list[Any]],
    indices: list[int],
    grad_factor: float,
) -> None:
    lr, weight_decay = float(group["lr"]), float(group["weight_decay"])
    adam = "betas" in group
    decoupled = adam or group["decoupled"]
    beta1, beta2 = group["betas"] if adam else (0.0, 0.0)
    hyper = _Hyper(
        grad_factor=grad_factor,
        l2=0.0 if decoupled else weight_decay,
        K=group["K"],
        M=group["M"],
        eps=group["eps"],
        momentum=0.0 if adam else group["momentum"],
        beta1=beta1,
        beta2=beta2,
        adam_eps=group["adam_eps"] if adam else 0.0,
    )
    tensors = (_Tensor * len(indices))()
    chunks = 0
    for entry, index in zip(tensors, indices, strict=True):
        entry.numel = columns["x"][index].numel()
        entry.first_chunk = chunks
        chunks += -(-entry.numel // CHUNK)
        entry.shrink = 1 - lr * weight_decay if decoupled else 1.0
        entry.lr, entry.sqrt_correction = lr, 1.0
        for name in POINTERS:
            if name in columns and columns[name][index] is not None:
                setattr(entry, name, columns[name][index].data_ptr())
        if adam:
            t = columns["step"][index].item()
            entry.lr, entry.sqrt_correction = lr / (1 - beta1**t), (1 - beta2**t) ** 0.5
    kernel(tensors, len(indices), ctypes.byref(hyper), chunks, torch.get_num_threads())
    # As any write in place does: a second backward through the old weights must be an error, not a wrong gradient.
    torch.autograd.graph.increment_version([columns["x"][index] for index in indices])


@functools.cache
def _kernel(*macros: str) -> Callable[..., None] | None:
    """The compiled step for one setting, or None, with one warning for the process, where it cannot be had."""
    try:
        library = ctypes.CDLL(str(build(SOURCE, macros)))
    except (OSError, subprocess.SubprocessError) as error:
        _warn_once((getattr(error, "stderr", None) or str(error)).strip()[:500])
        return None
    kernel: Callable[..., None] = library.rewa_step
    kernel.argtypes = [  # type: ignore[attr-defined]
        ctypes.POINTER(_Tensor), ctypes.c_int64, ctypes.POINTER(_Hyper), ctypes.c_int64, ctypes.c_int,
    ]  # fmt: skip
    kernel.restype = None  # type: ignore[attr-defined]
    return kernel


def _warn_once(reason: str) -> None:
    if _warned:
        return
    _warned.append(reason)
    warnings.warn(
        f"rewa's fused step could not be compiled, the slower loop is used instead: {reason}\n"
        "Install a C++ compiler (g++ or clang++, or name one in CXX), or pass fused=False to silence this.",
        RuntimeWarning,
        stacklevel=2,
    )


_warned: list[str] = []
