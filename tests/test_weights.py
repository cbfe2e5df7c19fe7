"""The table of decisions over real architectures: tiny, with random weights."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import rewa
from rewa.weights import check_unshared, classify, computed, decisions, remembered_rules, table

SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION = {key: SMALL[key] for key in SMALL if key != "vocab_size"} | {"image_size": 8, "patch_size": 4}
STAGES = {
    "hidden_sizes": [4, 4],
    "depths": [1, 1],
    "num_stages": 2,
    "num_encoder_blocks": 2,
    "patch_sizes": [3, 3],
    "strides": [2, 2],
}
T5 = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
SWIN = {"image_size": 8, "patch_size": 2, "embed_dim": 4, "depths": [1], "num_heads": [2], "window_size": 2}
WHISPER = {
    "vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_mel_bins": 4, "max_source_positions": 8,
    "max_target_positions": 8, "decoder_start_token_id": 3, **TOKENS,
}  # fmt: skip
PERCEIVER = {
    "vocab_size": 20, "num_latents": 3, "d_latents": 8, "d_model": 8, "num_blocks": 1, "num_self_attends_per_block": 1,
    "num_self_attention_heads": 2, "num_cross_attention_heads": 2, "max_position_embeddings": 8,
}  # fmt: skip
CLIP = {"text_config": {**SMALL, **TOKENS, "max_position_embeddings": 8}, "vision_config": VISION, "projection_dim": 8}
WAV2VEC2 = {
    **SMALL, "conv_dim": [4, 4], "conv_kernel": [3, 3], "conv_stride": [2, 2], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip

# By architecture: its configuration, the dense tensors of two dimensions and more with the start of the reason, and the sparse
# tensors that no Linear or Conv holds. All weights of Linear and Conv are sparse, unless they are in the second column.
ARCHITECTURES = {
    "BertForMaskedLM": (
        {**SMALL, "max_position_embeddings": 8},
        {
            r"bert\.embeddings\.word_embeddings\.weight": "embedding, tied to cls.predictions.decoder.weight",
            r"bert\.embeddings\.(position|token_type)_embeddings\.weight": "embedding",
        },
        (),
    ),
    "GPT2LMHeadModel": (
        {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8, **TOKENS},
        {r"transformer\.wte\.weight": "embedding, tied to lm_head.weight", r"transformer\.wpe\.weight": "embedding"},
        (r"transformer\.h\.0\.(attn|mlp)\.c_(attn|proj|fc)\.weight",),
    ),
    "T5ForConditionalGeneration": (
        T5,
        {
            r"shared\.weight": "embedding, tied to lm_head.weight",
            r".*\.relative_attention_bias\.weight": "embedding",
        },
        (),
    ),
    "LlamaForCausalLM": (SMALL, {r"model\.embed_tokens\.weight": "embedding"}, ()),
    "MixtralForCausalLM": (
        {**SMALL, "num_key_value_heads": 1, "num_local_experts": 2},
        {r"model\.embed_tokens\.weight": "embedding"},
        (r".*\.mlp\.gate\.weight", r".*\.experts\.gate_up_proj", r".*\.experts\.down_proj"),
    ),
    "MambaForCausalLM": (
        {"vocab_size": 20, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1},
        {
            r"backbone\.embeddings\.weight": "embedding, tied to lm_head.weight",
            r".*\.mixer\.A_log": "rate, by 'log' in its name",
        },
        (),
    ),
    "ViTModel": (VISION, {r"embeddings\.(cls_token|position_embeddings)": "embedding"}, ()),
    "ConvNextModel": ({"hidden_sizes": [4, 4], "depths": [1, 1], "num_stages": 2}, {}, ()),
    "ConvNextV2Model": (
        {"hidden_sizes": [4, 4], "depths": [1, 1], "num_stages": 2},
        {r".*\.grn\.weight": "at most one axis longer than 1", r".*\.grn\.bias": "bias"},
        (),
    ),
    "SwinModel": (SWIN, {r".*\.relative_position_bias_table": "bias"}, ()),
    "Swinv2Model": (SWIN, {r".*\.logit_scale": "scale, by 'scale' in its name"}, ()),
    "SegformerModel": (
        {**STAGES, "num_attention_heads": [1, 1], "mlp_ratios": [2, 2], "sr_ratios": [2, 1]},
        {},
        (),
    ),
    "WhisperForConditionalGeneration": (
        WHISPER,
        {
            r"model\.decoder\.embed_tokens\.weight": "embedding, tied to proj_out.weight",
            r".*\.embed_positions\.weight": "embedding",
        },
        (),
    ),
    "CLIPModel": (CLIP, {r".*\.(token|position)_embedding\.weight": "embedding"}, ()),
    "SiglipVisionModel": (
        VISION,
        {r".*position_embedding\.weight": "embedding", r".*\.probe": "at most one axis longer than 1"},
        (r".*\.in_proj_weight", r".*\.out_proj\.weight"),
    ),
    "PerceiverForMaskedLM": (
        PERCEIVER,
        {
            r"perceiver\.embeddings\.latents": "embedding",
            r".*\.output_position_encodings\.position_embeddings": "embedding, by 'position' in its name",
            r"perceiver\.input_preprocessor\.(embeddings|position_embeddings)\.weight": "embedding",
        },
        (),
    ),
    "SamVisionModel": (
        {**VISION, "image_size": 16, "window_size": 2, "output_channels": 4},
        {r".*(pos_embed|rel_pos_h|rel_pos_w)": "embedding, by 'pos' in its name"},
        (),
    ),
    "Wav2Vec2Model": (
        WAV2VEC2,
        {r".*\.conv\.parametrizations\.weight\.original[01]": "already parametrized"},
        (),
    ),
    "XLNetModel": (
        {"vocab_size": 20, "d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 16},
        {
            r"word_embedding\.weight": "embedding",
            "mask_emb": "embedding, by 'emb' in its name",
            r".*\.seg_embed": "embedding, by 'embed' in its name",
            r".*\.r_[rsw]_bias": "bias",
        },
        (r".*\.rel_attn\.[qkvor]",),
    ),
}


def architecture(name):
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(kind.config_class(**ARCHITECTURES[name][0]))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_table_of_decisions_over_real_architectures(name):
    _, dense, loose = ARCHITECTURES[name]
    model = architecture(name).requires_grad_(True)  # some tables of sines are frozen
    layers = {id(layer.weight) for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d))}
    groups = rewa.param_groups(model)
    matched = set()
    for decision in groups.decisions:
        if decision.param.dim() < 2:
            assert not decision.is_sparse
            continue
        pattern = next((pattern for pattern in (*dense, *loose) if re.fullmatch(pattern, decision.name)), None)
        matched.add(pattern)
        assert decision.is_sparse == (pattern not in dense), f"{decision.name}: {decision.reason}"
        if pattern in dense:
            assert decision.reason.startswith(dense[pattern]), f"{decision.name}: {decision.reason}"
        else:
            assert pattern is not None or id(decision.param) in layers, f"{decision.name} is in no column of the table"
    assert matched >= {*dense, *loose}, "a row of the table matches nothing"
    rewa.ReWASGD(groups)  # no sparse tensor starts at zero


class Block(nn.Module):
    """What people write by hand around their layers."""

    def __init__(self):
        super().__init__()
        self.layer_scale = nn.Parameter(1e-6 * torch.ones(6, 1, 1))
        self.gamma = nn.Parameter(torch.ones(1, 6, 1, 1))
        self.logit_scale = nn.Parameter(torch.ones(4, 1, 1))
        self.temperature = nn.Parameter(torch.ones(1, 1))
        self.mixing = nn.Parameter(torch.ones(1, 7))
        self.pos_emb = nn.Parameter(torch.randn(1, 5, 6))
        self.latents = nn.Parameter(torch.randn(5, 6))
        self.register_tokens = nn.Parameter(torch.randn(1, 4, 6))
        self.A_log = nn.Parameter(torch.arange(1, 5).repeat(6, 1).double().log())
        self.scales = nn.ParameterList([torch.ones(3, 4)])
        self.tables = nn.ParameterDict({"position": torch.ones(3, 4)})
        self.experts = nn.Parameter(torch.randn(3, 4, 5))
        self.text_projection = nn.Parameter(torch.randn(6, 4))
        self.matrices = nn.ParameterList([torch.randn(3, 4)])


def test_loose_parameters_are_judged_by_shape_and_name():
    reasons = {name: None if found.is_sparse else found.reason for name, found in classify(Block()).items()}
    assert [name for name, reason in reasons.items() if reason is None] == ["experts", "text_projection", "matrices.0"]
    assert reasons["mixing"] == "at most one axis longer than 1"
    assert reasons["A_log"] == "rate, by 'log' in its name"
    assert reasons["scales.0"] == "scale, by 'scales' in its name"
    assert reasons["tables.position"] == "embedding, by 'position' in its name"
    table = str(rewa.param_groups(Block()))
    assert "scale, by 'gamma' in its name" in table
    rewa.ReWASGD(rewa.param_groups(Block()))


def test_weights_of_known_layers_are_weights_whatever_their_shape():
    layers = {
        "regression": nn.Linear(5, 1), "spread": nn.Linear(1, 5), "single": nn.Linear(1, 1), "pointwise": nn.Conv2d(1, 4, 1),
        "depthwise": nn.Conv1d(4, 4, 3, groups=4), "transposed": nn.ConvTranspose2d(1, 1, 3), "bilinear": nn.Bilinear(2, 3, 1),
        "attention": nn.MultiheadAttention(4, 1, kdim=2, vdim=3, add_bias_kv=True), "recurrent": nn.LSTM(1, 3, proj_size=1),
        "cell": nn.GRUCell(1, 1),
    }  # fmt: skip
    found = [name for name, one in classify(nn.ModuleDict(layers)).items() if one.is_sparse]
    assert found == [
        "regression.weight", "spread.weight", "single.weight", "pointwise.weight", "depthwise.weight", "transposed.weight",
        "bilinear.weight", "attention.q_proj_weight", "attention.k_proj_weight", "attention.v_proj_weight",
        "attention.out_proj.weight", "recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "recurrent.weight_hr_l0",
        "cell.weight_ih", "cell.weight_hh",
    ]  # fmt: skip


def weight_norm_by_hook(layer):
    with pytest.warns(FutureWarning, match="deprecated"):
        return torch.nn.utils.weight_norm(layer)


@pytest.mark.parametrize("wrap", [weight_norm_by_hook, parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parts_of_a_normalized_weight_stay_plain_and_the_weight_is_seen(wrap):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), wrap(nn.Conv2d(2, 3, 3)))
    assert [decision.name for decision in rewa.param_groups(model).decisions if decision.is_sparse] == ["0.weight"]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (found,) = computed(model)
    assert (found.name, found.is_sparse) == ("1.weight", True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(found.value, model.eval()[1].weight.detach())
    assert {*found.originals} == {name for name, _ in model.named_parameters() if "weight" in name} - {"0.weight"}


def test_quantized_tensors_stay_as_they_are():
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(torch.ones(2, 3, dtype=torch.uint8), requires_grad=False)
    assert classify(model)["weight"].reason == "quantized (torch.uint8)"


def test_requires_grad_matters_to_training_only():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert classify(model)["0.weight"].is_sparse
    assert rewa.param_groups(model).decisions[0].reason == "not trained: make the groups again once it requires a gradient"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers by the old name
@pytest.mark.parametrize("kind", ["LoraConfig", "IA3Config", "LoHaConfig", "PrefixTuningConfig"])
def test_what_peft_adds_is_an_adapter(kind):
    peft = pytest.importorskip("peft")
    model = architecture("LlamaForCausalLM")
    own = [one.param for one in classify(model).values() if one.is_sparse]
    options = {
        "IA3Config": {"target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
        "PrefixTuningConfig": {"num_virtual_tokens": 3, "prefix_projection": True, "task_type": "CAUSAL_LM"},
    }.get(kind, {"target_modules": ["q_proj", "down_proj"]})
    adapted = peft.get_peft_model(model, getattr(peft, kind)(**options))
    found = [one.param for one in classify(adapted).values() if one.is_sparse]
    assert [id(param) for param in found] == [id(param) for param in own]
    added = [decision for decision in rewa.param_groups(adapted).decisions if decision.settings is not None]
    assert added
    assert not any(decision.is_sparse for decision in added)


# --------------------------------------------------------------------------------------- what rules decided


class Classifier(nn.Module):
    """An embedding, which is dense by default, a layer, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(torch.relu(self.layer(self.words(tokens))))


RULES = {
    "excluded": ({r"head\.weight": None}, ["layer.weight"]),
    "included": ({r"words\.weight": {"sparse": True}}, ["words.weight", "layer.weight", "head.weight"]),
    "plain by its exponents": ({r"head\.weight": {"K": 1, "M": 0}}, ["layer.weight"]),
    "another order": ({r"head\.weight": {"K": 3}}, ["layer.weight", "head.weight"]),
    "none": (None, ["layer.weight", "head.weight"]),
}
DECIDED = pytest.mark.parametrize(("rules", "expected"), RULES.values(), ids=RULES)


def changed(model, act):
    """The parameters that a call changes."""
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    act(model)
    return [name for name, param in model.named_parameters() if not torch.equal(param.detach(), before[name])]


def seen_at(model, threshold):
    """The parameters that have zeros while a curve is evaluated."""
    found = []

    def value(model):
        found.extend(name for name, param in model.named_parameters() if (param == 0).any())
        return 0.0

    rewa.sparsity.curve(model, value, [threshold])
    return found


def frozen(model, **options):
    """The parameters whose zeros are frozen, if all of them have one."""
    for param in model.parameters():
        param.data.view(-1)[0] = 0
    return list(rewa.freeze_zeros(model, **options).zeros)


# What each call takes for the weights that can become sparse.
ASKED = {
    "finalize": lambda model, **given: changed(model, lambda model: rewa.finalize(model, sparsity=0.5, **given)),
    "a threshold": lambda model, **given: changed(model, lambda model: rewa.finalize(model, threshold=0.3, **given)),
    "freeze_zeros": frozen,
    "summary": lambda model, **given: [layer.name for layer in rewa.sparsity.summary(model, **given).layers],
    "prunable": lambda model, **given: list(rewa.sparsity.prunable(model, **given)),
    "decisions": lambda model, **given: [one.name for one in decisions(model, **given).values() if one.is_sparse],
}


@DECIDED
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_what_rules_decided_holds_after_training(ask, rules, expected):
    model = Classifier()
    rewa.param_groups(model, rules=rules)
    assert ask(model) == expected


@DECIDED
def test_what_rules_decided_holds_for_every_count(rules, expected):
    model = Classifier()
    rewa.param_groups(model, rules=rules)
    sizes = {name: param.numel() for name, param in model.named_parameters()}
    total = sum(sizes[name] for name in expected)
    assert seen_at(model, 0.3) == expected
    assert rewa.sparsity.whole(model, threshold=torch.inf).nonzero == sum(sizes.values()) - total
    assert rewa.sparsity.histogram(model)[0].sum() == total
    report = rewa.finalize(model, sparsity=0.5)
    assert (report.summary.prunable.total, report.summary.prunable.nonzero) == (total, total // 2)


@DECIDED
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("given", ["groups", "optimizer", "attached", "groups of the optimizer", "annealed"])
def test_groups_and_optimizers_give_the_same_answer(given, ask, rules, expected):
    model = Classifier()
    groups = rewa.param_groups(model, rules=rules)
    attached = given == "attached"
    optimizer = rewa.attach(torch.optim.AdamW(groups)) if attached else rewa.ReWASGD(groups, lr=0.1, decoupled=True)
    if given == "annealed":
        rewa.Annealing(optimizer, 10)
    rewa.param_groups(model)  # the model itself is back at the default
    what = {"groups": groups, "groups of the optimizer": optimizer.param_groups}.get(given, optimizer)
    assert ask(model, groups=what) == expected
    assert list(rewa.sparsity.prunable(what)) == [name for name in names_of(what) if name in expected]


def names_of(what):
    """The names in the order in which groups or an optimizer hold them; what param_groups returned knows the model's order."""
    if hasattr(what, "decisions"):
        return [one.name for one in what.decisions]
    return [name for group in getattr(what, "param_groups", what) for name in group["param_names"]]


def test_an_optimizer_with_groups_by_hand_is_heard():
    model = Classifier()
    rest = [param for name, param in model.named_parameters() if name != "layer.weight"]
    optimizer = rewa.ReWASGD([{"params": [model.layer.weight]}, {"params": rest, "K": 1, "M": 0}])
    assert list(rewa.sparsity.prunable(model, groups=optimizer)) == ["layer.weight"]
    assert [one.param is model.layer.weight for one in decisions(optimizer).values() if one.is_sparse] == [True]
    assert list(rewa.sparsity.prunable(model)) == ["layer.weight", "head.weight"]
    with pytest.raises(ValueError, match=r"SGD has no setting of ReWA.*give the model"):
        decisions(torch.optim.SGD(model.parameters()))
    with pytest.raises(TypeError, match=r"needs a model, .* not generator"):
        decisions(model.parameters())


def test_freezing_by_an_optimizer_leaves_its_plain_groups_alone():
    model = Classifier()
    for param in model.parameters():
        param.data.view(-1)[0] = 0
    optimizer = rewa.ReWASGD(rewa.param_groups(model, rules={r"head\.weight": None}))
    assert list(rewa.freeze_zeros(optimizer).zeros) == ["layer.weight"]
    everywhere = ["words.weight", "layer.weight", "head.weight"]
    plain = rewa.ReWASGD(rewa.param_groups(model, K=1, M=0))  # nothing of it is ReWA's, so that it is like any of torch's
    for other in (plain, torch.optim.SGD(model.named_parameters())):
        assert list(rewa.freeze_zeros(other).zeros) == everywhere


class Wrapper(nn.Module):
    """As DistributedDataParallel holds a model."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


WRAPPED = {
    "itself": lambda model: model,
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "wrapped": Wrapper,
    "a part": lambda model: nn.ModuleDict({"encoder": nn.Linear(2, 2), "classifier": model}),
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "averaged": torch.optim.swa_utils.AveragedModel,
    "assigned": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True) and model,
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_what_rules_decided_travels_with_the_layers(wrap):
    model = Classifier()
    keys = list(model.state_dict())
    rewa.param_groups(model, rules={r"head\.weight": None, r"words\.weight": {"sparse": True}})
    found = wrap(model)
    named = [name for name in rewa.sparsity.prunable(found) if "encoder" not in name]
    assert [name.rpartition("weight")[0].split(".")[-2] for name in named] == ["words", "layer"]
    assert list(model.state_dict()) == keys
    if isinstance(found, Wrapper):  # and the other way round
        rewa.param_groups(found, rules={r"module\.layer\.weight": None})
        assert list(rewa.sparsity.prunable(model)) == ["head.weight"]


def test_the_next_groups_replace_what_was_decided():
    model = Classifier()
    rewa.param_groups(model, rules={r"head\.weight": None})
    rewa.param_groups(model, rules={r"layer\.weight": None})
    assert list(rewa.sparsity.prunable(model)) == ["head.weight"]
    with pytest.raises(ValueError, match="matches no parameter"):
        rewa.param_groups(model, rules={"nothing": None})
    assert list(rewa.sparsity.prunable(model)) == ["head.weight"]  # a call that fails decides nothing
    rewa.param_groups(model)
    assert list(rewa.sparsity.prunable(model)) == ["layer.weight", "head.weight"]
    assert not any("rewa" in key for module in model.modules() for key in vars(module))


def test_groups_without_rules_decide_nothing():
    """What is not trained, or trained plainly for its K and M, is a weight as before."""
    model = Classifier()
    model.head.requires_grad_(False)
    for groups in (rewa.param_groups(model), rewa.param_groups(model, K=1, M=0)):
        for what in (model, groups):
            assert list(rewa.sparsity.prunable(what)) == ["layer.weight", "head.weight"]
    rewa.param_groups(model, K=1, M=0, rules={r"layer\.weight": {"lr": 0.5}})
    assert list(rewa.sparsity.prunable(model)) == ["layer.weight", "head.weight"]


def test_rules_hold_through_parametrizations_and_masks():
    model = Classifier()
    rewa.param_groups(model, rules={r"head\.weight": None})
    parametrizations.weight_norm(model.head)
    prune.l1_unstructured(model.words, "weight", amount=2)
    assert [layer.name for layer in rewa.sparsity.summary(model).layers] == ["layer.weight"]
    assert list(rewa.sparsity.prunable(model)) == ["layer.weight"]  # the head's is computed, but is not to be cut
    rewa.param_groups(model, rules={r"words\.weight_orig": {"sparse": True}, r"head\.parametrizations\.weight\..*": None})
    assert [layer.name for layer in rewa.sparsity.summary(model).layers] == ["words.weight", "layer.weight"]
    torch.nn.utils.parametrize.remove_parametrizations(model.head, "weight")
    prune.remove(model.words, "weight")
    assert list(rewa.sparsity.prunable(model)) == ["words.weight", "layer.weight"]


def test_forms_take_what_was_decided():
    model = Classifier()
    rewa.param_groups(model, rules={r"head\.weight": None})
    rewa.reparametrize(model, form="pair")
    assert [name for name, _ in model.named_parameters() if "parametrizations" in name] == [
        "layer.parametrizations.weight.original0", "layer.parametrizations.weight.original1",
    ]  # fmt: skip
    rewa.remove_reparametrization(model)
    assert list(rewa.sparsity.prunable(model)) == ["layer.weight"]


def test_a_tied_weight_is_decided_once():
    model = Classifier()
    model.head = nn.Linear(4, 7, bias=False)
    model.head.weight = model.words.weight
    rewa.param_groups(model, rules={r"words\.weight": {"sparse": True}})
    assert list(rewa.sparsity.prunable(model)) == ["words.weight", "layer.weight"]
    assert list(rewa.sparsity.prunable(model.head)) == ["weight"]


def test_a_method_takes_what_was_decided():
    model = Classifier()
    rewa.param_groups(model, rules={r"head\.weight": None, r"words\.weight": {"sparse": True}})
    groups = rewa.param_groups(model, K=3, rules=remembered_rules(model))
    assert [one.name for one in groups.decisions if one.is_reparameterized] == ["words.weight", "layer.weight"]
    assert list(rewa.sparsity.prunable(model)) == ["words.weight", "layer.weight"]
    rewa.param_groups(model)
    assert remembered_rules(model) == {}


def test_a_shrunk_model_keeps_what_was_decided():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    rewa.param_groups(model, rules={r"2\.weight": None})
    with torch.no_grad():
        model[2].weight[:, 0] = 0
    small = rewa.shrink(model, torch.ones(1, 3), report=None)
    assert small[0].out_features == 4
    assert list(rewa.sparsity.prunable(small)) == ["0.weight"]


def test_the_table_is_of_any_decisions():
    model = Classifier()
    rewa.param_groups(model, rules={r"head\.weight": None})
    text = table(decisions(model).values())
    assert "head.weight   3x4    12     -        rule 'head\\\\.weight'" in text
    assert text.endswith("sparse: 0 of 63 parameters (0.0%)")


@pytest.mark.slow
def test_counting_needs_no_optimizer():
    code = "import sys, rewa.sparsity\nassert not [name for name in sys.modules if name.startswith('rewa.optim')]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_shared_weights_are_refused_and_shared_layers_are_not():
    layer = nn.Linear(3, 3)
    check_unshared(nn.Sequential(layer, layer), {"0.weight"})
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    check_unshared(model, {"0.bias"})
    with pytest.raises(ValueError, match=r"'1\.weight' and '0\.weight' are one shared weight, .*: copy it$"):
        check_unshared(model, {"0.weight"}, "copy it")


def test_an_optimizer_of_plain_groups_cannot_tell():
    model = nn.Linear(4, 3)
    groups = rewa.param_groups(model, K=1, M=0, eps=0)
    assert [name for name, one in decisions(groups).items() if one.is_sparse] == ["weight"]
    with pytest.raises(ValueError, match=r"every group is plain .* give the model, or what rewa.param_groups returned"):
        decisions(rewa.ReWASGD(groups, lr=0.1))
