"""Algorithms 1 and 2 written down slowly, in NumPy.

Nothing here uses rewa. The state is y, as in the paper; x is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def to_x(y: np.ndarray, K: float) -> np.ndarray:
    return np.sign(y) * np.abs(y) ** K


def to_y(x: np.ndarray, K: float) -> np.ndarray:
    return np.sign(x) * np.abs(x) ** (1 / K)


def scale(y: np.ndarray, K: float, M: float, eps: float) -> np.ndarray:
    a = np.abs(y)
    if eps == 0:
        return a**M
    return a**M * a ** (K - 1) / (a ** (K - 1) + eps)


def algorithm_1(
    x: np.ndarray,
    grads: Sequence[np.ndarray],
    *,
    lr: float,
    K: float,
    M: float,
    eps: float,
    weight_decay: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    decoupled: bool = False,
) -> np.ndarray:
    """The weights after one step of SGD on y for each gradient."""
    y = to_y(x, K)
    buffer = np.zeros_like(y)
    for grad in grads:
        d = scale(y, K, M, eps) * grad
        if not decoupled:
            d = d + weight_decay * y
        buffer = momentum * buffer + d
        direction = d + momentum * buffer if nesterov else buffer
        decay = weight_decay if decoupled else 0.0
        y = (1 - lr * decay) * y - lr * direction
    return to_x(y, K)


def algorithm_2(
    x: np.ndarray,
    grads: Sequence[np.ndarray],
    *,
    lr: float,
    K: float,
    M: float,
    eps: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    adam_eps: float = 1e-8,
    amsgrad: bool = False,
) -> np.ndarray:
    """The weights after one step of AdamW on y for each gradient."""
    y = to_y(x, K)
    m, v, v_max = np.zeros_like(y), np.zeros_like(y), np.zeros_like(y)
    for t, grad in enumerate(grads, 1):
        d = scale(y, K, M, eps) * grad
        m = betas[0] * m + (1 - betas[0]) * d
        v = betas[1] * v + (1 - betas[1]) * d**2
        v_max = np.maximum(v_max, v)
        m_hat = m / (1 - betas[0] ** t)
        v_hat = (v_max if amsgrad else v) / (1 - betas[1] ** t)
        y = (1 - lr * weight_decay) * y - lr * m_hat / (np.sqrt(v_hat) + adam_eps)
    return to_x(y, K)
