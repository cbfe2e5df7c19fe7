"""Heads of ``nn.MultiheadAttention`` that go, alone and inside torch's transformer layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rewa.deploy.heads import FewerHeads
from rewa.deploy.surgery import removed, shrink
from shrinking import Attends, checked, dead_heads, kill, outputs


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("constant", [(), (2,), (1, 2, 3)])
def test_dead_heads(batch_first, need_weights, bias, constant):
    attention = nn.MultiheadAttention(8, 4, batch_first=batch_first, bias=bias)
    model = Attends(dead_heads(attention, unread=[0], constant=constant), need_weights=need_weights)
    q, k, v = torch.randn(3, 4, 5, 8).unbind()
    smaller = checked(model, q, k, v)
    assert isinstance(smaller.attention, FewerHeads)
    assert smaller.attention.num_heads == 3 - len(constant)
    batch = q.size(0 if batch_first else 1)
    length = q.size(1 if batch_first else 0)
    bools, floats = torch.rand(length, length) < 0.3, torch.randn(batch * 4, length, length)
    bools[:, 0] = False
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, -1] = True
    for masks in ((None, bools), (padding, None), (padding, bools), (None, floats), (floats[:batch, 0], floats)):
        torch.testing.assert_close(outputs(smaller, q, k, v, *masks), outputs(model, q, k, v, *masks))
    single = q[0], k[0], v[0], torch.randn(5), torch.randn(4, 5, 5)
    torch.testing.assert_close(outputs(smaller, *single), outputs(model, *single))
    smaller.train()(q, k, v).sum().backward()


def test_heads_with_other_key_and_value_widths_and_the_causal_hint():
    attention = dead_heads(nn.MultiheadAttention(8, 4, kdim=5, vdim=6), [1], [3])
    model = Attends(attention, need_weights=False)
    args = torch.randn(4, 2, 8), torch.randn(7, 2, 5), torch.randn(7, 2, 6)
    smaller = checked(model, *args)
    assert removed(model, smaller)["attention.v_proj_weight"] == ((8, 6), (4, 6))
    model.options["is_causal"] = smaller.options["is_causal"] = True
    args = torch.randn(4, 2, 8), torch.randn(4, 2, 5), torch.randn(4, 2, 6)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    torch.testing.assert_close(outputs(smaller, *args, None, mask), outputs(model, *args, None, mask))
    with pytest.raises(RuntimeError, match="attn_mask"):
        smaller(*args)


def test_attention_weights_that_are_used_keep_all_heads():
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = dead_heads(nn.MultiheadAttention(8, 4), [0])

        def forward(self, x):
            out, weights = self.attention(x, x, x)
            return out + weights.sum()

    model = Weights()
    assert not removed(model, checked(model, torch.randn(3, 2, 8)))
    attention = dead_heads(nn.MultiheadAttention(8, 4), [0])
    x = torch.randn(3, 2, 8)
    assert type(shrink(attention, (x, x, x))) is nn.MultiheadAttention
    assert type(shrink(attention, (x, x, x, None, False))) is FewerHeads
    twice = nn.ModuleList([Attends(attention, need_weights=False), Attends(attention, need_weights=False)])

    class Untraceable(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = twice

        def forward(self, x):
            for layer in self.layers:
                x = layer(x, x, x) if x.sum() != 0 else x
            return x

    smaller = checked(Untraceable(), x)
    assert smaller.layers[0].attention is smaller.layers[1].attention
    assert smaller.layers[0].attention.num_heads == 3
    extra = dead_heads(nn.MultiheadAttention(8, 4, add_bias_kv=True), [0])
    assert not removed(Attends(extra), checked(Attends(extra), x, x, x))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, nn.Tanh()])
def test_encoder_layer(batch_first, norm_first, activation):
    layer = nn.TransformerEncoderLayer(8, 4, 16, 0.1, activation, batch_first=batch_first, norm_first=norm_first)
    dead_heads(layer.self_attn, [0], [2])
    kill(layer.linear1, [0, 5])
    with torch.no_grad():
        layer.linear2.weight[:, 7] = 0
    x = torch.randn(4, 5, 8)
    smaller = checked(layer, x)
    assert (smaller.self_attn.num_heads, smaller.linear1.out_features, smaller.linear2.in_features) == (2, 13, 13)
    assert smaller.training
    smaller(x).sum().backward()


def test_a_feedforward_alone_keeps_the_fused_path():
    layer = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True)
    kill(layer.linear1, [0, 5])
    smaller = checked(layer, torch.randn(4, 5, 8))
    assert smaller.linear1.out_features == 14
    assert type(smaller.self_attn) is nn.MultiheadAttention


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("first", [0, 1])
def test_encoder_with_padding_and_masks(first):
    """Also with the nested tensors that torch makes of a padded batch in eval mode."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 16, batch_first=True), 2)
    for i, layer in enumerate(model.layers):
        dead_heads(layer.self_attn, [0] if i >= first else [], [3] if i >= first else [])
        kill(layer.linear1, [i, 5])
    x = torch.randn(3, 6, 8)
    padding = torch.arange(6) >= torch.tensor([6, 4, 2])[:, None]
    smaller = checked(model, x, None, padding)
    assert smaller.layers[1].self_attn.num_heads == 2
    assert smaller.layers[0].linear1.out_features == 14
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for args in ((x,), (x, causal), (x, causal, padding)):
        torch.testing.assert_close(outputs(smaller, *args), outputs(model, *args))
    smaller.train()(x, None, padding).sum().backward()


def test_decoder_and_a_traced_model_around_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 8))
            self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, activation="gelu"), 1)
            self.head = nn.Linear(8, 2)

        def forward(self, x, memory):
            return self.head(self.decoder(self.embed(x), memory))

    model = Net()
    layer = model.decoder.layers[0]
    kill(model.embed[0], [0])
    kill(layer.linear1, [3])
    dead_heads(layer.multihead_attn, [1])
    smaller = checked(model, torch.randn(4, 2, 3), torch.randn(5, 2, 8))
    layer = smaller.decoder.layers[0]
    assert (smaller.embed[0].out_features, layer.linear1.out_features, layer.multihead_attn.num_heads) == (5, 15, 1)
