"""A 3x3 convolution of images of a few pixels, whose weight gradient is one matrix product.

oneDNN's kernels for matrix units take an image row by row, and a row of three pixels fills a tenth of a tile. With AMX the
weight gradient of such a convolution takes five times as long as a product of the same size.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewa.train.ordinary import in_memory, ordinary

__all__ = ["narrow_conv"]

NARROW = 4  # pixels: images 3 wide gain, images 7 wide hardly


def narrow_conv(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """What a convolution makes of images, by a faster backward pass where they are narrow.

    Args:
        conv: 3x3, with one pixel of zeros around and without bias.
        x: Images, (batch, inputs, height, width).
    """
    if not _fits(conv, x):
        out: Tensor = conv(x)
        return out
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    out = _NarrowConv.apply(x.to(kind), conv.weight.to(kind))  # type: ignore[no-untyped-call]
    return out


def _fits(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether it is worth it, and is what the module would make."""
    if not (ordinary(conv, nn.Conv2d) and in_memory(x, conv.weight)):
        return False
    wanted = {torch.bfloat16}
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16:
        wanted.add(torch.float32)
    return (
        conv.training
        and {x.dtype, conv.weight.dtype} <= wanted
        and x.dim() == 4
        and x.shape[-1] <= NARROW
        and conv.weight.requires_grad
        and torch.is_grad_enabled()
        and (conv.kernel_size, conv.padding, conv.stride, conv.dilation) == ((3, 3), (1, 1), (1, 1), (1, 1))
        and (conv.bias is None and conv.groups == 1 and conv.padding_mode == "zeros")
        and _matrix_units()
    )


class _NarrowConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, padding=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        ones, wanted = [1, 1], [ctx.needs_input_grad[0], torch.is_grad_enabled(), False]
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(
            grad, x, weight, None, ones, ones, ones, False, [0, 0], 1, wanted
        )
        if of_weight is not None:  # there is a graph to make for second derivatives, which torch's own operation has
            return of_x, of_weight
        outputs = weight.shape[0]
        rows = grad.permute(0, 2, 3, 1).reshape(-1, outputs)
        of_weight = rows.t() @ _patches(x)
        return of_x, of_weight.view(outputs, 3, 3, -1).permute(0, 3, 1, 2)


def _patches(x: Tensor) -> Tensor:
    """For each pixel the 3x3 square around it, (pixels, 9 * channels), the channels of a place side by side."""
    batch, channels, height, width = x.shape
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).contiguous()
    image, line, pixel, one = padded.stride()
    # Three pixels of a line lie side by side in memory.
    squares = padded.as_strided((batch, height, width, 3, 3 * channels), (image, line, pixel, line, one))
    return squares.reshape(batch * height * width, 9 * channels)


@functools.cache
def _matrix_units() -> bool:
    """Whether this processor multiplies whole tiles (AMX); elsewhere rows of a few pixels cost what they should."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16"))
