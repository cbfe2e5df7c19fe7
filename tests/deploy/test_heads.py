"""Heads of attention made of linear layers: which go, what stays equal, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from rewa.deploy.heads import Projections
from rewa.deploy.surgery import removed, shrink
from shrinking import returned

transformers = pytest.importorskip("transformers")

HEAD = 4  # the width of a head; four of them make 16 channels
TOKENS = torch.arange(14).view(2, 7) % 11 + 3


def lively(model):
    """Random weights everywhere, so that no bias or norm is at its neutral value."""
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(0.3 * torch.randn_like(param))
    return model.eval()


def bert(**settings):
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, **settings
    )
    return lively(transformers.BertModel(config))


def gpt2(**settings):
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, n_inner=24, **settings
    )
    return lively(transformers.GPT2Model(config))


def t5(**settings):
    config = transformers.T5Config(
        vocab_size=20, d_model=16, d_kv=HEAD, num_heads=4, d_ff=24, num_layers=2, decoder_start_token_id=0, **settings
    )
    return lively(transformers.T5Model(config))


def span(head):
    return slice(head * HEAD, (head + 1) * HEAD)


def size(model):
    return sum(param.numel() for param in model.parameters())


def assert_same(model, smaller, **inputs):
    with torch.no_grad():
        expected, found = copy.deepcopy(model).eval()(**inputs), copy.deepcopy(smaller).eval()(**inputs)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=1e-9, atol=1e-9)
    back = returned(model, smaller).eval()(**inputs)
    assert torch.equal(back.last_hidden_state, found.last_hidden_state)


@torch.no_grad()
def test_bert_loses_heads_and_neurons():
    model = bert()
    first, second = model.encoder.layer
    first.attention.self.value.weight[span(1)] = 0  # emits its bias
    second.attention.self.value.weight[span(0)] = 0
    second.attention.output.dense.weight[:, span(2)] = 0  # is not read
    first.intermediate.dense.weight[:5] = 0
    smaller = shrink(model, {"input_ids": TOKENS})
    # A head has 16 weights and a bias in each row of query, key and value, and a column of 16 in the output.
    assert size(model) - size(smaller) == 3 * (3 * HEAD * 17 + HEAD * 16) + 5 * (17 + 16)
    assert smaller.encoder.layer[1].attention.self.num_attention_heads == 2
    mask = torch.ones(2, 7)
    mask[0, 4:] = 0
    assert_same(model, smaller, input_ids=TOKENS, attention_mask=mask)
    assert_same(model, smaller, input_ids=TOKENS[:, :3])


@torch.no_grad()
def test_gpt2_loses_heads_and_neurons():
    """Its Conv1D holds the transposed weight, queries, keys and values on top of each other."""
    model = gpt2()
    first, second = model.h
    first.attn.c_attn.weight[:, 32:][:, span(1)] = 0
    second.attn.c_proj.weight[span(2)] = 0
    first.mlp.c_fc.weight[:, :5] = 0
    second.mlp.c_proj.weight[3] = 0
    smaller = shrink(model, TOKENS)
    assert size(model) - size(smaller) == 2 * (3 * HEAD * 17 + HEAD * 16) + 6 * (17 + 16)
    assert (smaller.h[0].attn.split_size, smaller.h[0].mlp.c_fc.nf, smaller.h[0].mlp.c_proj.nx) == (12, 19, 19)
    assert_same(model, smaller, input_ids=TOKENS[:, :3])
    caches = [m(TOKENS, use_cache=True).past_key_values for m in (model, smaller)]
    again = [m(TOKENS[:, :2], past_key_values=cache)[0] for m, cache in zip((model, smaller), caches, strict=True)]
    torch.testing.assert_close(*again, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_gpt2_cross_attention():
    model = gpt2(add_cross_attention=True)
    model.h[0].crossattention.c_attn.weight[:, 16:][:, span(3)] = 0
    model.h[0].crossattention.c_proj.weight[span(0)] = 0
    inputs = {"input_ids": TOKENS, "encoder_hidden_states": torch.randn(2, 5, 16)}
    smaller = shrink(model, inputs)
    assert size(model) - size(smaller) == 2 * (3 * HEAD * 17 + HEAD * 16)
    assert_same(model, smaller, **inputs)


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
def test_t5_loses_heads_and_neurons(gated):
    """Every layer picks its heads' position biases from those that the first layer computes for all."""
    model = t5(feed_forward_proj="gated-gelu" if gated else "relu")
    encoder, decoder = model.encoder.block, model.decoder.block
    encoder[0].layer[0].SelfAttention.v.weight[span(1)] = 0
    encoder[1].layer[0].SelfAttention.o.weight[:, span(2)] = 0
    decoder[0].layer[0].SelfAttention.o.weight[:, span(3)] = 0
    decoder[0].layer[1].EncDecAttention.o.weight[:, span(0)] = 0
    encoder[0].layer[1].DenseReluDense.wo.weight[:, :5] = 0
    smaller = shrink(model, {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :4]})
    assert size(model) - size(smaller) == 4 * (4 * HEAD * 16) + 5 * 16 * (3 if gated else 2)
    assert_same(model, smaller, input_ids=TOKENS[:, :5], decoder_input_ids=TOKENS)
    assert isinstance(smaller.encoder.block[0].layer[0].SelfAttention, type(encoder[0].layer[0].SelfAttention))
    stored = pickle.loads(pickle.dumps(smaller))
    for start in (model, stored):
        start.cache = start(input_ids=TOKENS, decoder_input_ids=TOKENS[:, :4], use_cache=True).past_key_values
    steps = [
        m(input_ids=TOKENS, decoder_input_ids=TOKENS[:, 4:5], past_key_values=m.cache).last_hidden_state
        for m in (model, stored)
    ]
    torch.testing.assert_close(*steps, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_heads_go_again_from_what_is_left():
    model = t5()
    attention = model.encoder.block[1].layer[0].SelfAttention
    attention.o.weight[:, span(0)] = 0
    inputs = {"input_ids": TOKENS, "decoder_input_ids": TOKENS}
    smaller = shrink(model, inputs)
    assert size(shrink(smaller, inputs)) == size(smaller)
    left = smaller.encoder.block[1].layer[0].SelfAttention
    left.o.weight[:, span(1)] = 0  # the third of the original
    attention.o.weight[:, span(2)] = 0
    smallest = shrink(smaller, inputs)
    assert smallest.encoder.block[1].layer[0].SelfAttention.heads == [1, 3]
    assert_same(model, smallest, **inputs)


@torch.no_grad()
def test_heads_that_share_keys_go_together():
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        attention_bias=True,
    )
    model = lively(transformers.LlamaModel(config))
    attention, mlp = model.layers[0].self_attn, model.layers[0].mlp
    attention.o_proj.weight[:, span(0)] = 0
    mlp.gate_proj.weight[:3] = 0  # silu(0) = 0: nothing comes through the gate
    smaller = shrink(model, TOKENS)
    assert size(model) - size(smaller) == 3 * 3 * 16
    attention.v_proj.weight[span(1)] = 0  # the queries of heads 2 and 3
    smaller = shrink(model, TOKENS)
    assert size(model) - size(smaller) == 3 * 3 * 16 + 2 * HEAD * 17 + 2 * HEAD * 17 + 2 * HEAD * 16
    assert_same(model, smaller, input_ids=TOKENS[:, :5])


@torch.no_grad()
def test_layers_that_hand_on_a_cache_lose_neurons():
    config = transformers.BartConfig(
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 1), ("ffn_dim", 24))},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 20, "d_model": 16},
        **{"max_position_embeddings": 20, "decoder_start_token_id": 2},
    )
    model = lively(transformers.BartModel(config))
    model.encoder.layers[0].fc1.weight[:2] = 0
    model.decoder.layers[0].fc2.weight[:, :3] = 0
    model.decoder.layers[0].encoder_attn.v_proj.weight[span(1)] = 0
    inputs = {"input_ids": TOKENS, "decoder_input_ids": TOKENS}
    smaller = shrink(model, inputs)
    assert size(model) - size(smaller) == 5 * (17 + 16) + 3 * HEAD * 17 + HEAD * 16
    assert_same(model, smaller, input_ids=TOKENS[:, :5], decoder_input_ids=TOKENS[:, :4])


@torch.no_grad()
def test_one_head_stays():
    model = bert()
    model.encoder.layer[0].attention.self.value.weight.zero_()
    smaller = shrink(model, TOKENS)
    assert smaller.encoder.layer[0].attention.self.query.out_features == HEAD
    assert_same(model, smaller, input_ids=TOKENS)


@torch.no_grad()
def test_attention_weights_that_are_returned_keep_all_heads():
    model = bert(attn_implementation="eager")
    model.encoder.layer[0].attention.self.value.weight[span(1)] = 0
    reports = []
    smaller = shrink(model, {"input_ids": TOKENS, "output_attentions": True}, report=reports.append)
    assert not removed(model, smaller)
    assert "other tensors" in reports[0].left["encoder.layer.0.attention.self.value"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), smaller.parameters(), strict=True))


class Biased(nn.Module):
    """Has a number for each head that cannot be cut with the projections."""

    def __init__(self, per_head):
        super().__init__()
        self.head_dim = self.num_heads = 4
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(16, 16) for _ in range(4))
        self.bias = nn.Parameter(torch.randn(4, 1, 1)) if per_head else None

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        weights = (q @ k.transpose(2, 3)).softmax(-1)
        weights = weights if self.bias is None else weights + self.bias
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


@torch.no_grad()
def test_only_the_attention_that_cannot_lose_heads_keeps_them():
    model = nn.Sequential(Biased(per_head=True), Biased(per_head=False))
    for layer in model:
        layer.o_proj.weight[:, span(1)] = 0
    reports, x = [], torch.randn(2, 5, 16)
    smaller = shrink(model, x, report=reports.append)
    assert {name.split(".")[0] for name in removed(model, smaller)} == {"1"}
    assert "without its dead heads" in reports[0].left["0.o_proj"]
    assert all(torch.equal(tensor, model.state_dict()[f"0.{name}"]) for name, tensor in smaller[0].state_dict().items())
    torch.testing.assert_close(smaller(x), model(x), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_hooks_and_shared_projections_keep_their_heads():
    def hooked(model):
        model[0].q_proj.register_forward_hook(lambda module, args, output: 2 * output)

    def shared(model):
        model[0].q_proj.weight = model[0].k_proj.weight

    for change, reason in ((hooked, "hooks"), (shared, "shares")):
        model = nn.Sequential(Biased(per_head=False))
        model[0].o_proj.weight[:, span(1)] = 0
        change(model)
        reports = []
        assert not removed(model, shrink(model, torch.randn(2, 5, 16), report=reports.append))
        assert reason in reports[0].left["0.o_proj"]


def test_what_looks_like_attention_and_is_not():
    assert Projections.of(nn.MultiheadAttention(16, 4)) is None
    assert Projections.of(nn.Linear(16, 16)) is None
    odd = Biased(per_head=False)
    odd.v_proj = nn.Linear(16, 20)
    assert Projections.of(odd) is None
