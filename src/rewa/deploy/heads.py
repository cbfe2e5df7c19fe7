"""Attention with some of its heads: torch's, which cannot have fewer at the same width, and those made of linear layers."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "FewerHeads",
    "Projections",
    "SomeBiases",
    "add_to_bias",
    "has_some_biases",
    "is_linear",
    "like",
    "live_heads",
    "matrix",
    "numbers",
    "resize",
]


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
        rows, others = stays.nonzero().flatten(), (~stays).nonzero().flatten()
        for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            old = getattr(attention, name)
            index = torch.cat([rows + part * len(stays) for part in range(3)]) if name.startswith("in_") else rows
            self.register_parameter(name, None if old is None else like(old, old.detach()[index]))
        self.out_proj = copy.deepcopy(attention.out_proj)
        weight, bias = attention.out_proj.weight, attention.in_proj_bias
        if bias is not None and not bias.is_meta:  # a model without data has no constants either
            add_to_bias(self.out_proj, numbers(weight)[:, others] @ numbers(bias).chunk(3)[2][others])
        self.out_proj.weight = like(weight, weight.detach()[:, rows])
        self.out_proj.in_features = len(rows)
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


# ------------------------------------------------------------------------ attention made of linear layers

# The names in transformers; q_attn and c_attn hold two or three projections on top of each other.
INPUTS = (
    *(("query", "key", "value"), ("q_proj", "k_proj", "v_proj"), ("q", "k", "v"), ("q_lin", "k_lin", "v_lin")),
    *(("q_attn", "c_attn"), ("c_attn",)),
)
OUTPUTS = ("dense", "o_proj", "out_proj", "o", "out_lin", "c_proj")
SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_key_value_heads")
WIDTHS = ("all_head_size", "inner_dim", "split_size")


class Projections:
    """The linear layers of an attention as transformers writes it, whose code takes the number of heads from their widths.

    Several heads of queries may share one head of keys and values: they come and go together.

    Args:
        attention: Holds the projections of queries, keys and values.
        inputs: These projections; the last rows of the last one make the values.
        output: The projection of the heads' outputs.
        size: The width of a head.
    """

    def __init__(self, attention: nn.Module, inputs: list[Any], output: Any, size: int) -> None:
        self.attention, self.inputs, self.output, self.size = attention, inputs, output, size
        queries, rows = _sizes(output)[1], sum(_sizes(layer)[0] for layer in inputs)
        self.query_heads, self.heads = queries // size, (rows - queries) // (2 * size)

    @classmethod
    def of(cls, module: nn.Module) -> Projections | None:
        """Find them in a module, or in one of its parts if that leaves the output to the module, as BERT's does.

        Args:
            module: Any module.
        """
        parts = module._modules
        attention, holder = parts.get("self") or module, parts.get("output") if "self" in parts else module
        outputs = [None if holder is None else holder._modules.get(name) for name in OUTPUTS]
        output: Any = next((layer for layer in outputs if layer is not None and is_linear(type(layer))), None)
        size = next((getattr(attention, name) for name in SIZES if isinstance(getattr(attention, name, None), int)), 0)
        for names in INPUTS:
            layers: list[Any] = [attention._modules.get(name) for name in names]
            if output is not None and size and all(layer is not None and is_linear(type(layer)) for layer in layers):
                found = cls(attention, layers, output, size)
                return found if found._fits() else None
        return None

    def _fits(self) -> bool:
        if not self.heads or self.query_heads % self.heads:
            return False
        queries, keys = self.query_heads * self.size, self.heads * self.size
        expected = {3: [queries, keys, keys], 2: [queries, 2 * keys], 1: [queries + 2 * keys]}[len(self.inputs)]
        return [_sizes(layer)[0] for layer in self.inputs] == expected and _sizes(self.output)[1] == queries

    def live(self) -> list[int]:
        """The heads of keys and values that are read and whose values vary."""
        read = (matrix(self.output) != 0).any(0).view(self.heads, -1).any(1)
        values = matrix(self.inputs[-1])[-self.heads * self.size :]
        return (read & (values != 0).any(1).view(self.heads, -1).any(1)).nonzero().flatten().tolist()

    def cut(self, heads: Sequence[int]) -> None:
        """Leave these heads; what the others emit goes into the bias of the output.

        Args:
            heads: From :meth:`live`, at least one.
        """
        attention, size, sharing = self.attention, self.size, self.query_heads // self.heads
        stays = torch.tensor([head in heads for head in range(self.heads)])
        keys, queries = stays.repeat_interleave(size), stays.repeat_interleave(size * sharing)
        out, values = matrix(self.output), self.inputs[-1]
        if values.bias is not None:
            emitted = numbers(values.bias)[-len(keys) :].view(self.heads, 1, size).expand(-1, sharing, -1).reshape(-1)
            add_to_bias(self.output, out[:, ~queries] @ emitted[~queries])
        resize(self.output, matrix(self.output)[:, queries])
        masks = torch.split(torch.cat([queries, keys, keys]), [_sizes(layer)[0] for layer in self.inputs])
        for layer, mask in zip(self.inputs, masks, strict=True):
            resize(layer, matrix(layer)[mask], mask)
        for name in (*COUNTS, *WIDTHS):
            old = getattr(attention, name, None)
            if isinstance(old, int) and not isinstance(old, bool):
                full = self.heads if name == "num_key_value_heads" else self.query_heads
                unit = size if name in WIDTHS else 1
                if old == full * unit:
                    setattr(attention, name, old * len(heads) // self.heads)
        if has_some_biases(attention):
            SomeBiases.take(attention, heads, self.heads)


class SomeBiases:
    """Makes an attention with position biases, T5's, take those of its own heads from what all layers share.

    The first layer computes the biases of all heads and hands them on, so each layer picks its own and returns all.
    """

    base: type[nn.Module]
    heads: list[int]
    original_heads: int

    @staticmethod
    def take(attention: Any, heads: Sequence[int], count: int) -> None:
        """Change the class of an attention in place.

        Args:
            attention: The attention, cut already.
            heads: The heads that stay, as numbers of those before the cut.
            count: How many there were.
        """
        if isinstance(attention, SomeBiases):
            attention.heads = [attention.heads[head] for head in heads]
            return
        base = type(attention)
        attention.base, attention.heads, attention.original_heads = base, list(heads), count
        attention.__class__ = _with_some_biases(base)

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (self.base,), dict(vars(self))

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """The biases of the heads that are here."""
        bias: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]  # the class beside this one has it
        return bias[:, self.heads]

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """As T5's attention; the biases go in and come out for all heads."""
        this: Any = self
        past = 0 if past_key_values is None else past_key_values.get_seq_length(this.layer_idx)
        past = past.clone() if isinstance(past, Tensor) else past  # the call below moves it on
        some = None if position_bias is None else position_bias[:, self.heads]
        inherited: Any = super()
        output, some, *rest = inherited.forward(hidden_states, mask, key_value_states, some, past_key_values, **kwargs)
        if position_bias is None and this.has_relative_attention_bias:
            position_bias = inherited.compute_bias(*some.shape[-2:], device=some.device, past_seen_tokens=past)
        elif position_bias is None:
            position_bias = some.new_zeros(1, self.original_heads, *some.shape[-2:])
        return output, position_bias, *rest


def has_some_biases(attention: nn.Module) -> bool:
    """Whether an attention adds position biases, which its layers share for all heads.

    Args:
        attention: Any module.
    """
    return hasattr(attention, "has_relative_attention_bias")


def _with_some_biases(base: type[nn.Module]) -> type[nn.Module]:
    return type(f"{base.__name__}WithFewerHeads", (SomeBiases, base), {})


def _blank(base: type[nn.Module]) -> nn.Module:
    kind = _with_some_biases(base)
    return kind.__new__(kind)


# ---------------------------------------------------------------------------------------------- small surgery


def is_linear(kind: Any) -> bool:
    """Whether it is ``nn.Linear``, or ``Conv1D`` of transformers, which holds the transposed weight.

    Args:
        kind: A class, or whatever else a node of a graph calls.
    """
    return kind is nn.Linear or (kind is not None and kind is _conv1d())


def _conv1d() -> Any:
    return getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)


def _sizes(layer: Any) -> tuple[int, int]:
    rows, columns = layer.weight.shape
    return (rows, columns) if isinstance(layer, nn.Linear) else (columns, rows)


def matrix(layer: Any) -> Tensor:
    """The weight of a linear layer with a row for each output, in float64.

    Args:
        layer: See :func:`is_linear`.
    """
    weight = numbers(layer.weight)
    return weight if isinstance(layer, nn.Linear) else weight.T


def resize(layer: Any, rows: Tensor, stays: Tensor | None = None) -> None:
    """Give a linear layer another weight.

    Args:
        layer: See :func:`is_linear`.
        rows: The weight, a row for each output.
        stays: Which outputs keep their bias; all if None.
    """
    normal = isinstance(layer, nn.Linear)
    layer.weight = like(layer.weight, rows if normal else rows.T)
    if layer.bias is not None and stays is not None:
        layer.bias = like(layer.bias, layer.bias.detach()[stays])
    for name, size in zip(("out_features", "in_features") if normal else ("nf", "nx"), rows.shape, strict=True):
        setattr(layer, name, size)


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
