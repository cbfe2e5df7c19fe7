"""Weights under the masks of ``torch.nn.utils.prune``, as they will be once pruning is final."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["apply_masks", "masked"]


def masked(model: nn.Module | None, state: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights that are stored as an original and a mask by ``torch.nn.utils.prune``.

    Args:
        model: The model, whose hooks say what is pruned; None if there are names and tensors only.
        state: Its ``state_dict``.
    """
    if model is not None:
        from torch.nn.utils.prune import BasePruningMethod

        hooks = (
            (f"{prefix}." if prefix else "", hook)
            for prefix, module in model.named_modules(remove_duplicate=False)
            for hook in module._forward_pre_hooks.values()
        )
        return [prefix + hook._tensor_name for prefix, hook in hooks if isinstance(hook, BasePruningMethod)]
    bases = [name.removesuffix("_orig") for name in state if name.endswith("_orig")]
    return [
        base
        for base in bases
        if (mask := state.get(f"{base}_mask")) is not None
        and base not in state
        and mask.shape == state[f"{base}_orig"].shape
        and bool(((mask == 0) | (mask == 1)).all())
    ]


def apply_masks(state: Mapping[str, Tensor], model: nn.Module | None = None) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors as ``torch.nn.utils.prune.remove`` would leave them, and the names of those that it would make.

    Args:
        state: A ``state_dict``; it stays as it is.
        model: Its model, whose hooks say what is pruned; without it, names and masks of zeros and ones do.
    """
    pruned = tuple(name for name in masked(model, state) if f"{name}_orig" in state and f"{name}_mask" in state)
    masks = {f"{name}_mask": state[f"{name}_mask"] for name in pruned}
    final: dict[str, Tensor] = {}
    made: dict[Any, list[tuple[Tensor, Tensor]]] = {}  # for each original the masks and what they left
    for name, tensor in state.items():
        if name in masks:
            continue
        base = name.removesuffix("_orig")
        mask = masks.get(f"{base}_mask") if base != name else None
        if mask is None:
            final[name] = tensor
            continue
        # One weight under several names is one weight afterwards.
        alike = made.setdefault((tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()), [])
        left = next((product for other, product in alike if torch.equal(other, mask)), None)
        if left is None:
            left = mask.to(tensor.dtype) * tensor.detach()
            alike.append((mask, left))
        final[base] = left
    return final, pruned
