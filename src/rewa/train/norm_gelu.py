r"""A pool, a batch norm, GELU and a sum as one operation: GELU(norm(pool(x))) + residual, in few passes over memory.

On a CPU these operations take half of the time of a small convolutional network's step in bfloat16, one pass over memory each,
and a pool's gradient several. Here a step reads what comes in once, keeps its pooled form and a byte for each pooled value, and
makes the gradient in two passes. Everywhere else torch's own operations do the same, and they are what the tests compare with.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewa import native
from rewa.train.ordinary import in_memory, ordinary

__all__ = ["norm_gelu"]

SOURCE = Path(__file__).with_name("norm_gelu.cpp")
STORED = {torch.bfloat16: 1, torch.float32: 0}
CPU = torch.device("cpu")  # whatever the default device is


def norm_gelu(x: Tensor, norm: nn.BatchNorm2d, *, pool: bool = False, residual: Tensor | None = None) -> Tensor:
    """GELU of what a batch norm makes of x.

    By the kernel it has first derivatives only, and a second one is an error.

    Args:
        x: Images, (batch, channels, height, width).
        norm: The batch norm; its running statistics change as in its own forward pass.
        pool: Whether the largest of each 2x2 square is taken first.
        residual: What is added in the end, of the output's shape.
    """
    if not _fits(x, norm, pool, residual) or _kernel(x.dtype) is None:
        out = F.gelu(norm(F.max_pool2d(x, 2) if pool else x))
        return out if residual is None else residual + out
    if not norm.training:
        return _evaluated(x, norm, pool, residual)
    made: tuple[Tensor, Tensor, Tensor] = _NormGelu.apply(x, norm.weight, norm.bias, residual, norm.eps, pool)  # type: ignore[no-untyped-call]
    count = made[0].numel() // x.shape[1]
    _follow(norm, made[1], made[2] * (count / (count - 1)))
    return made[0]


def _follow(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics towards those of a batch."""
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked += 1
    share = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum  # None: a plain average
    for average, new in zip((norm.running_mean, norm.running_var), (mean, variance), strict=True):
        assert average is not None
        average.lerp_(new, share)


def _evaluated(x: Tensor, norm: nn.BatchNorm2d, pool: bool, residual: Tensor | None) -> Tensor:
    """With the running statistics, and without gradients."""
    shape, out = _prepared(x, pool)
    pooled, library = torch.empty_like(out) if pool else x, _kernel(x.dtype)
    assert library is not None
    if pool:
        index = torch.empty_like(out, dtype=torch.uint8)
        library.norm_gelu_moments(shape, *map(_at, (x, pooled, index, None, None, None)), torch.get_num_threads())
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    _apply(shape, pooled, (scale.float(), (-norm.running_mean * scale).float(), norm.weight, norm.bias), residual, out)
    return out


def _fits(x: Tensor, norm: nn.BatchNorm2d, pool: bool, residual: Tensor | None) -> bool:
    """Whether the kernel may do it: it trusts addresses, types, sizes and layouts."""
    if not ordinary(norm, nn.BatchNorm2d) or (torch.is_grad_enabled() and not norm.training):
        return False
    vectors = norm.weight, norm.bias, norm.running_mean, norm.running_var
    if not in_memory(x, *vectors, norm.num_batches_tracked, *([] if residual is None else [residual])):
        return False
    if x.dtype not in STORED or x.dim() != 4 or len(x) < (2 if norm.training else 1) or min(x.shape[2:]) < 2:
        return False
    if not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if residual is not None and (residual.dtype, residual.shape) != (x.dtype, _out_shape(x, pool)):
        return False
    wanted = torch.float32, x.shape[1:2]
    return all(one is not None and (one.dtype, one.shape) == wanted and one.is_contiguous() for one in vectors)


def _out_shape(x: Tensor, pool: bool) -> torch.Size:
    images, channels, height, width = x.shape
    return torch.Size((images, channels, height // 2, width // 2)) if pool else x.shape


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("images", "height", "width", "channels", "pooled")]


class _Norm(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("scale", "shift", "weight", "bias")]


class _NormGelu(torch.autograd.Function):
    """The operation; returns its output, and mean and variance of each channel."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, pool: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        images, channels = x.shape[:2]
        shape, out = _prepared(x, pool)
        pooled = torch.empty_like(out) if pool else x
        index = torch.empty_like(out, dtype=torch.uint8) if pool else None
        scratch, moments = _scratch(images, channels), torch.empty(2, channels, dtype=torch.float64, device=CPU)
        threads, library = torch.get_num_threads(), _kernel(x.dtype)
        assert library is not None
        library.norm_gelu_moments(shape, *map(_at, (x, pooled, index, scratch, moments[0], moments[1])), threads)
        mean, variance = moments
        scale = (variance + eps).rsqrt()
        scale, shift = scale.float(), (-mean * scale).float()
        _apply(shape, pooled, (scale, shift, weight, bias), residual, out)
        ctx.save_for_backward(pooled, index, scale, shift, weight, bias)
        ctx.shape, ctx.residual = x.shape, residual is not None
        mean, variance = mean.float(), variance.float()
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # once_differentiable would be silent where the incoming gradient needs none itself
            raise RuntimeError(
                "create_graph=True asks for second derivatives, which the kernel for pool, norm and GELU has not: take "
                "model and images to torch.contiguous_format or to float64, where torch's own operations do it"
            )
        pooled, index, *vectors = ctx.saved_tensors
        # Hooks on saved tensors may bring them back in another layout.
        pooled = pooled.contiguous(memory_format=torch.channels_last)
        index = None if index is None else index.contiguous(memory_format=torch.channels_last)
        scale, shift, weight, bias = (vector.contiguous() for vector in vectors)
        images, channels, height, width = ctx.shape
        shape = _Shape(images, height, width, channels, index is not None)
        norm = _Norm(*map(_at, (scale, shift, weight, bias)))
        grad = grad.contiguous(memory_format=torch.channels_last)
        threads, library = torch.get_num_threads(), _kernel(grad.dtype)
        assert library is not None
        out = torch.empty(ctx.shape, dtype=grad.dtype, memory_format=torch.channels_last, device=CPU)
        inner = out if index is None else torch.empty_like(pooled)
        scratch, sums = _scratch(images, channels), torch.empty(2, channels, dtype=torch.float64, device=CPU)
        library.norm_gelu_sums(shape, _at(pooled), norm, *map(_at, (grad, inner, scratch, sums[0], sums[1])), threads)
        means = (sums / (pooled.numel() // channels)).float()
        places = map(_at, (means[0], means[1], inner, out))
        library.norm_gelu_gradient(shape, _at(pooled), _at(index), norm, *places, threads)
        of_bias, of_weight = sums.float()
        return out, of_weight, of_bias, grad if ctx.residual else None, None, None


def _prepared(x: Tensor, pool: bool) -> tuple[_Shape, Tensor]:
    """What comes in, for the kernel, and memory for what comes out."""
    images, channels, height, width = x.shape
    out = torch.empty(_out_shape(x, pool), dtype=x.dtype, memory_format=torch.channels_last, device=CPU)
    return _Shape(images, height, width, channels, pool), out


def _apply(shape: _Shape, pooled: Tensor, norm: tuple[Tensor, ...], residual: Tensor | None, out: Tensor) -> None:
    """GELU of what is normalised, plus the residual."""
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    library = _kernel(out.dtype)
    assert library is not None
    places = _at(residual), _at(out)
    library.norm_gelu_apply(shape, _at(pooled), _Norm(*map(_at, norm)), *places, torch.get_num_threads())


def _scratch(images: int, channels: int) -> Tensor:
    """Two numbers for each image and channel."""
    return torch.empty(2, images, channels, dtype=torch.float32, device=CPU)


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@functools.lru_cache(maxsize=2)
def _kernel(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The functions for images of this type; None where they cannot be compiled."""
    place, shape, norm = ctypes.c_void_p, ctypes.POINTER(_Shape), ctypes.POINTER(_Norm)
    return native.kernel(
        SOURCE,
        {
            "norm_gelu_moments": [shape, *[place] * 6, ctypes.c_int],
            "norm_gelu_apply": [shape, place, norm, *[place] * 2, ctypes.c_int],
            "norm_gelu_sums": [shape, place, norm, *[place] * 5, ctypes.c_int],
            "norm_gelu_gradient": [shape, *[place] * 2, norm, *[place] * 4, ctypes.c_int],
        },
        {"BF16": STORED[dtype]},
        otherwise="torch's own operations are used, which take longer",
    )
