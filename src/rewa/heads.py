"""Attention with some of its heads, which ``nn.MultiheadAttention`` cannot have at the same width."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FewerHeads", "add_to_bias", "like", "live_heads", "numbers"]


class FewerHeads(nn.Module):
    """``nn.MultiheadAttention`` with some of its heads: what the others emit is in the bias of the output projection.

    It is called like ``nn.MultiheadAttention`` and computes the same, also inside torch's transformer layers. It returns no
    attention weights, whatever ``need_weights`` says: the average over all heads cannot be had without the removed ones.

    Args:
        attention: The attention to copy; its other heads must have no output weights or no value weights.
        heads: The heads that stay. With none, the output is the bias.

    Example:
        >>> attention = nn.MultiheadAttention(8, num_heads=4)
        >>> FewerHeads(attention, [0, 3]).in_proj_weight.shape
        torch.Size([12, 8])
    """

    in_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None

    def __init__(self, attention: nn.MultiheadAttention, heads: Sequence[int]) -> None:
        super().__init__()
        self.embed_dim, self.head_dim = attention.embed_dim, attention.head_dim
        self.num_heads, self.heads, self.original_heads = len(heads), tuple(heads), attention.num_heads
        self.dropout, self.batch_first = attention.dropout, attention.batch_first
        # torch's layers read this to decide on their fused kernel, which expects all heads.
        self._qkv_same_embed_dim = False
        stays = torch.tensor([head in heads for head in range(attention.num_heads)]).repeat_interleave(self.head_dim)
        for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            old = getattr(attention, name)
            mask = stays.repeat(3) if name.startswith("in_") else stays
            self.register_parameter(name, None if old is None else like(old, old.detach()[mask]))
        self.out_proj = copy.deepcopy(attention.out_proj)
        weight = numbers(attention.out_proj.weight)
        if attention.in_proj_bias is not None:
            value_bias = numbers(attention.in_proj_bias).chunk(3)[2]
            add_to_bias(self.out_proj, weight[:, ~stays] @ value_bias[~stays])
        self.out_proj.weight = like(attention.out_proj.weight, weight[:, stays])
        self.out_proj.in_features = int(stays.sum())
        self.train(attention.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """The attention output and None; for the arguments see ``nn.MultiheadAttention``."""
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask, which is missing")
        if query.is_nested:
            # nn.TransformerEncoder packs padded batches in this way in eval mode.
            lengths = torch.tensor([len(sequence) for sequence in query.unbind()], device=query.device)
            padded = torch.nested.to_padded_tensor(query, 0.0)
            padding = torch.arange(padded.size(1), device=query.device) >= lengths[:, None]
            output, _ = self(padded, padded, padded, key_padding_mask=padding)
            return torch._nested_tensor_from_mask(output, ~padding, mask_check=False), None
        if self.num_heads == 0:
            return self.out_proj(query[..., :0]), None
        batched = query.dim() == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if self.in_proj_weight is not None:
            weights: Sequence[Any] = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, weight, bias).reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        # As in torch: the hint replaces the mask where nothing else needs it.
        is_causal = is_causal and key_padding_mask is None and not need_weights
        mask = None
        if attn_mask is not None and not is_causal:
            mask = _additive(attn_mask, q.dtype)
            if mask.dim() == 3:
                mask = mask.reshape(-1, self.original_heads, *mask.shape[1:])[:, list(self.heads)]
        if key_padding_mask is not None:
            padding = _additive(key_padding_mask, q.dtype)[:, None, None]
            mask = padding if mask is None else mask + padding
        output = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0, is_causal)
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        if not batched:
            return output[0], None
        return output if self.batch_first else output.transpose(0, 1), None


def live_heads(attention: nn.MultiheadAttention) -> list[int]:
    """The heads that are read and whose values vary."""
    size, packed = attention.head_dim, attention.in_proj_weight
    value: Tensor = attention.v_proj_weight if packed is None else packed.chunk(3)[2]
    read = (attention.out_proj.weight != 0).any(0).view(-1, size).any(1)
    varies = (value != 0).any(1).view(-1, size).any(1)
    return (read & varies).nonzero().flatten().tolist()


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask


def numbers(tensor: Tensor) -> Tensor:
    """The values in float64 on the CPU, where sums of them are exact enough."""
    return tensor.detach().cpu().double()


def like(old: Tensor, data: Tensor) -> nn.Parameter:
    """A parameter with the dtype, device and ``requires_grad`` of another."""
    return nn.Parameter(data.to(old).contiguous(), requires_grad=old.requires_grad)


def add_to_bias(module: Any, change: Tensor) -> None:
    """Add to a layer's bias, or give it one."""
    if not change.any():
        return
    old = module.weight if module.bias is None else module.bias
    module.bias = like(old, change if module.bias is None else numbers(old) + change)
