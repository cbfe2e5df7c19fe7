r"""What a weight is worth keeping: its magnitude, times the usual size of its gradient.

To first order a loss changes by :math:`x\,g` when the weight x with the gradient g becomes zero. The mean of g is near zero
where training has come to rest, so its mean square counts: :math:`|x| \sqrt{\overline{g^2}}`. Optimizers of Adam's kind hold
that mean already. For others it is taken at every fourth step, and held in the optimizer's state beside the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from rewa.optim.optimizer import LOW_PRECISION
from rewa.weights import local

__all__ = ["KINDS", "SQUARE", "begin", "mean_square", "note", "share_of_step", "worth"]

KINDS = ("gradient", "magnitude")
SQUARE = "grad_square"  # in the optimizer's state of a weight
EVERY = 4  # steps
MEMORY = 12.5  # as many notes count: fifty steps
LEAST = 1e-20  # what a gradient is taken for that was always zero: such weights are cut by magnitude


def share_of_step(done: int) -> float:
    """What the gradient of a step counts in the mean, 0 for most steps: at first all count alike, later the last ones.

    Args:
        done: Steps that were made before.

    Example:
        >>> [share_of_step(done) for done in (0, 1, 4, 400)]
        [1.0, 0.0, 0.5, 0.08]
    """
    return 0.0 if done % EVERY else max(1 / (done // EVERY + 1), 1 / MEMORY)


def mean_square(state: Mapping[str, Any], param: Tensor) -> Tensor | None:
    """The mean square of a weight's gradient, the optimizer's own or ours; None before any step.

    Args:
        state: The optimizer's state of the weight.
        param: The weight. An optimizer that keeps one number for a whole row holds no such mean.
    """
    held = state.get("exp_avg_sq")
    found = held if isinstance(held, Tensor) and held.shape == param.shape else state.get(SQUARE)
    return found if isinstance(found, Tensor) else None


def begin(state: MutableMapping[str, Any], param: Tensor) -> bool:
    """Whether the mean square of a weight's gradient was missing; it is zero now.

    Args:
        state: The optimizer's state of the weight.
        param: The weight. Squares of gradients need more than half precision.
    """
    if mean_square(state, param) is not None:
        return False
    dtype = torch.float32 if param.dtype in LOW_PRECISION else param.dtype
    state[SQUARE] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
    return True


@torch.no_grad()
def note(
    state: MutableMapping[str, Any], param: Tensor, grad: Tensor, share: float, unscaling: Callable[[], float] = lambda: 1.0
) -> None:
    """Let a gradient count in the mean square, unless the optimizer holds one.

    Args:
        state: The optimizer's state of the weight, after its step.
        param: The weight.
        grad: Its gradient. What is not finite, or has no finite square, does not count.
        share: What it counts; the first gradient of a weight counts whatever it is.
        unscaling: Returns what the gradient is multiplied by; asked only if it counts, since the answer may be on a GPU.
    """
    first = begin(state, param)
    if SQUARE not in state or not (share or first):
        return
    mean = local(state[SQUARE])
    square = local(grad.to_dense() if grad.layout is not torch.strided else grad).to(mean.dtype).mul(unscaling()).square()
    mean.lerp_(torch.where(square.isfinite(), square, mean), 1.0 if first else share)


def worth(x: Tensor, square: Tensor) -> Tensor:
    """What weights are worth; finite, and above zero for all that are not zero, whatever their gradient.

    Args:
        x: The weights.
        square: The mean squares of their gradients.

    Example:
        >>> worth(torch.tensor([0.0, -1.0, 2.0, 1.0]).double(), torch.tensor([1.0, 1.0, 4.0, 0.0]).double()).tolist()
        [0.0, 1.0, 4.0, 1e-20]
    """
    size = x.abs().float() if x.dtype in LOW_PRECISION else x.abs()
    limits = torch.finfo(size.dtype)
    product = size * (square.to(size.dtype).sqrt() + LEAST)
    return torch.where(size > 0, product.nan_to_num(nan=limits.tiny, posinf=limits.max).clamp_min(limits.tiny), 0)
