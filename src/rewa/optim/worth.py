r"""What a weight is worth keeping: its magnitude, times the usual size of its gradient.

To first order a loss changes by :math:`x\,g` when the weight x with the gradient g becomes zero. The mean of g is near zero
where training has come to rest, so its mean square counts: :math:`|x| \sqrt{\overline{g^2}}`. Optimizers of Adam's kind hold
that mean already. For others it is taken at every fourth step, and held in the optimizer's state beside the weight.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from rewa.weights import local

__all__ = ["KINDS", "SQUARE", "mean_square", "note", "share_of_step", "worth"]

KINDS = ("gradient", "magnitude")
SQUARE = "grad_square"  # in the optimizer's state of a weight
EVERY = 4  # steps
MEMORY = 12.5  # as many notes count: fifty steps


def share_of_step(done: int) -> float:
    """What the gradient of a step counts in the mean, 0 for most steps: at first all count alike, later the last ones.

    Args:
        done: Steps that were made before.

    Example:
        >>> [share_of_step(done) for done in (0, 1, 4, 400)]
        [1.0, 0.0, 0.5, 0.08]
    """
    return 0.0 if done % EVERY else max(1 / (done // EVERY + 1), 1 / MEMORY)


def begin(state: MutableMapping[str, Any], param: Tensor) -> bool:
    """Whether the mean square of a weight's gradient has to be made, as zeros, and was.

    Args:
        state: The optimizer's state of the weight.
        param: The weight.
    """
    if "exp_avg_sq" in state or SQUARE in state:
        return False
    state[SQUARE] = torch.zeros_like(param, memory_format=torch.preserve_format)
    return True


@torch.no_grad()
def note(state: MutableMapping[str, Any], param: Tensor, grad: Tensor, share: float) -> None:
    """Let a gradient count in the mean square, unless the optimizer holds one.

    Args:
        state: The optimizer's state of the weight, after its step.
        param: The weight.
        grad: Its gradient.
        share: What it counts.
    """
    if "exp_avg_sq" in state:
        return
    share = 1.0 if begin(state, param) else share
    here = local(grad.to_dense() if grad.layout is not torch.strided else grad).to(state[SQUARE].dtype)
    local(state[SQUARE]).mul_(1 - share).addcmul_(here, here, value=share)


def mean_square(state: Mapping[str, Any]) -> Tensor | None:
    """The mean square of a weight's gradient; None before any step.

    Args:
        state: The optimizer's state of the weight.
    """
    found = state.get("exp_avg_sq", state.get(SQUARE))
    return found if isinstance(found, Tensor) else None


def worth(x: Tensor, square: Tensor) -> Tensor:
    """What weights are worth; above zero for all that are not zero, whatever their gradient.

    Args:
        x: The weights.
        square: The mean squares of their gradients.

    Example:
        >>> worth(torch.tensor([0.0, -1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, 4.0, 0.0])).tolist()
        [0.0, 1.0, 4.0, 1.1754943508222875e-38]
    """
    size = x.abs() if x.dtype in (torch.float32, torch.float64) else x.abs().float()
    product = size * square.to(size.dtype).sqrt()
    return product.clamp_min(torch.finfo(size.dtype).tiny) * (size > 0)
