"""Algorithm 1 as a reader of the paper would type it, in eager torch: the speed to beat. It does not use rewa."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def eager_step(
    params: Sequence[Tensor],
    ys: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    lr: float,
    K: float,
    M: float,
    eps: float,
    weight_decay: float,
    momentum: float,
) -> None:
    """One step with momentum, in place.

    Args:
        params: The weights x, which are computed from y.
        ys: Their y.
        grads: The gradients with respect to x.
        buffers: The momentum buffers.
        lr: Learning rate of y.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        weight_decay: Decay of y.
        momentum: Momentum.
    """
    for x, y, grad, buffer in zip(params, ys, grads, buffers, strict=True):
        adaptive = y.abs() ** M * y.abs() ** (K - 1) / (y.abs() ** (K - 1) + eps) if eps > 0 else y.abs() ** M
        buffer.mul_(momentum).add_(adaptive * grad + weight_decay * y)
        y.sub_(lr * buffer)
        x.copy_(y.sign() * y.abs() ** K)
