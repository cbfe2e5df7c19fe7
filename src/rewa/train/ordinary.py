"""Whether a layer's call may be made by other means: only where nobody can tell but by the clock."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

__all__ = ["in_memory", "ordinary"]


def ordinary(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the layer is its class's arithmetic and nothing else.

    It is not under hooks, with a ``forward`` of the instance's own, while something traces or compiles, nor under transforms of
    ``torch.func``, forward-mode derivatives and dispatch modes.

    Args:
        module: The layer.
        kind: The class that it must be, no subclass of it.
    """
    if type(module) is not kind or "forward" in vars(module):
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    if _has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return False
    # Tensors inside a transform look plain: only these know.
    return not (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack()
    )


def in_memory(*tensors: Tensor | None) -> bool:
    """Whether all are there, and plain tensors whose numbers a CPU finds at their addresses.

    Args:
        tensors: Such as the weights of a layer.
    """
    return all(
        one is not None and type(one) in (Tensor, nn.Parameter) and one.is_cpu and one.layout is torch.strided
        for one in tensors
    )
