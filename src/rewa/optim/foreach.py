"""The formulas of :mod:`rewa.reparam` on lists of tensors, a handful of kernels for a whole model.

torch has no foreach ``where`` or ``copysign``: a choice between two lists is a ``lerp`` with weight 0 or 1, both exact but for
the sign of a zero and beside an infinite number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rewa.reparam import LARGEST_PRODUCT, small_move

TensorList = list[Tensor]
Columns = dict[str, list[Any]]  # as in optimizer.py


def power(a: TensorList, n: float) -> TensorList:
    """:func:`rewa.reparam.power` on a list; the result never shares memory with ``a``."""
    if n == 0:
        return [torch.ones_like(t) for t in a]
    if n == 0.5:
        return list(torch._foreach_sqrt(a))
    if n != int(n) or n > LARGEST_PRODUCT:
        return list(torch._foreach_pow(a, n))
    result: TensorList | None = None
    remaining = int(n)
    while remaining:
        if remaining & 1:
            result = a if result is None else list(torch._foreach_mul(result, a))
        remaining >>= 1
        if remaining:
            a = list(torch._foreach_mul(a, a))
    assert result is not None
    return [t.clone() for t in result] if n == 1 else result


def to_x(y: TensorList, K: float) -> TensorList:
    """:func:`rewa.reparam.to_x` followed by :func:`rewa.reparam.flush_subnormal`, on a list."""
    x = power(list(torch._foreach_abs(y)), K - 1)
    torch._foreach_mul_(x, y)
    return flush(x)


def flush(x: TensorList) -> TensorList:
    """:func:`rewa.reparam.flush_subnormal` on a list, in place."""
    torch._foreach_mul_(x, above(list(torch._foreach_abs(x)), torch.finfo(x[0].dtype).tiny))
    return x


def above(a: TensorList, threshold: float | TensorList) -> TensorList:
    """One where ``a > threshold``, else zero; writes over ``a``."""
    torch._foreach_sub_(a, threshold)
    torch._foreach_sign_(a)
    torch._foreach_clamp_min_(a, 0.0)
    return a


def moved(x: TensorList, y: TensorList, move: TensorList, K: float) -> TensorList:
    """:func:`rewa.reparam.moved` followed by :func:`rewa.reparam.flush_subnormal`, on a list."""
    if K == 1:
        return flush(list(torch._foreach_add(y, move)))
    bound = list(torch._foreach_abs(y))
    torch._foreach_mul_(bound, small_move(x[0].dtype) / K)
    small = above(bound, list(torch._foreach_abs(move)))
    base = list(torch._foreach_addcmul(y, move, torch._foreach_add(torch._foreach_mul(small, -0.5), 1.0)))
    x_new = list(torch._foreach_lerp(base, torch._foreach_mul(move, K), small))
    torch._foreach_mul_(x_new, power(list(torch._foreach_abs(base)), K - 1))
    torch._foreach_addcmul_(x_new, x, small)
    return flush(x_new)


def to_y(x: TensorList, K: float) -> TensorList:
    """:func:`rewa.reparam.to_y` on a list."""
    root = list(torch._foreach_abs(x))
    if K == 2:
        torch._foreach_sqrt_(root)
    elif K == 4:
        torch._foreach_sqrt_(root)
        torch._foreach_sqrt_(root)
    elif K != 1:
        torch._foreach_pow_(root, 1 / K)
    torch._foreach_mul_(root, list(torch._foreach_sign(x)))
    return root


def adaptive_scale(y: TensorList, K: float, M: float, eps: float) -> TensorList:
    """:func:`rewa.reparam.adaptive_scale` on a list."""
    a = list(torch._foreach_abs(y))
    scale = power(a, M)
    if eps == 0:
        return scale
    derivative = power(a, K - 1)
    total = list(torch._foreach_add(derivative, eps))
    torch._foreach_clamp_min_(total, torch.finfo(total[0].dtype).tiny)
    share = list(torch._foreach_div(derivative, total))
    torch._foreach_mul_(scale, share)
    return scale


def split(columns: Columns) -> list[Columns]:
    """The columns in parts of one device and dtype each; the column "y" is empty where there is no float32 copy."""
    parts: dict[tuple[torch.device, torch.dtype], Columns] = {}
    for index, x in enumerate(columns["x"]):
        part = parts.setdefault((x.device, x.dtype), {name: [] for name in columns})
        for name, column in columns.items():
            if column[index] is not None:
                part[name].append(column[index])
    return list(parts.values())


def widen(grads: TensorList, kept: TensorList) -> TensorList:
    """The gradients in the dtype of the update."""
    return [grad.to(y.dtype) for grad, y in zip(grads, kept, strict=True)] if kept else grads


def scalar(value: float | Tensor, like: TensorList) -> float | Tensor:
    """A number for the lists: unlike the operators, foreach lets the dtype of a tensor without dimensions win."""
    return value.to(like[0]) if isinstance(value, Tensor) else value


def differs(a: TensorList, b: TensorList) -> TensorList:
    """One where ``a != b``, zero where equal."""
    mask = list(torch._foreach_sub(a, b))
    torch._foreach_sign_(mask)
    torch._foreach_abs_(mask)
    return mask


def read_y(x: TensorList, kept: TensorList, K: float) -> TensorList:
    """:func:`rewa.optim.optimizer.read_y` on a list; ``kept`` is empty, or holds a float32 copy for each tensor."""
    if not kept:
        return to_y(x, K)
    stored = [torch.empty_like(t) for t in x]
    torch._foreach_copy_(stored, to_x(kept, K))
    x_wide, stored_wide = [torch.empty_like(t) for t in kept], [torch.empty_like(t) for t in kept]
    torch._foreach_copy_(x_wide, x)
    torch._foreach_copy_(stored_wide, stored)
    return list(torch._foreach_lerp(kept, to_y(x_wide, K), differs(x_wide, stored_wide)))


def move_x(x: TensorList, kept: TensorList, y: TensorList, move: TensorList, K: float) -> None:
    """:func:`rewa.optim.optimizer.move_x` on a list."""
    changed = list(torch._foreach_sign(move))
    torch._foreach_abs_(changed)
    if not kept:
        torch._foreach_lerp_(x, moved(x, y, move, K), changed)
        return
    y_new = list(torch._foreach_add(y, move))
    x_wide = [torch.empty_like(t) for t in kept]
    torch._foreach_copy_(x_wide, x)
    torch._foreach_lerp_(x_wide, to_x(y_new, K), changed)
    torch._foreach_copy_(x, x_wide)
    torch._foreach_copy_(kept, y_new)
