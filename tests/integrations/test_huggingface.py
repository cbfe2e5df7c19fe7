from __future__ import annotations

import copy
import json
import os
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import rewa
from rewa.deploy.packed import PackedFileError, save_packed
from rewa.integrations import huggingface

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

SIZE = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def gpt2(**options):
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=32, **SIZE, **options)
    return transformers.GPT2LMHeadModel(config).eval()


def llama():
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, **SIZE, tie_word_embeddings=False
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_model_comes_back_with_the_same_outputs(make, dtype, tmp_path):
    model = make().to(dtype)
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() == 2:
                param.mul_(torch.rand_like(param) < 0.1)
    model.generation_config.max_new_tokens = 7
    packed = huggingface.save_pretrained(model, tmp_path / "net", report={"note": "sparse"})
    assert packed.size < 0.7 * packed.dense_size
    with torch.no_grad():
        expected = model(TOKENS).logits
        assert expected.std() > 0
        for model_class in (transformers.AutoModelForCausalLM, type(model)):
            loaded = huggingface.from_pretrained(model_class, tmp_path / "net")
            assert type(loaded) is type(model)
            assert loaded.dtype == dtype
            assert not loaded.training
            assert torch.equal(loaded(TOKENS).logits, expected)
            assert torch.equal(loaded.generate(TOKENS, do_sample=False), model.generate(TOKENS, do_sample=False))
            assert loaded.generation_config.max_new_tokens == 7


def test_tied_weights_stay_tied(tmp_path):
    for tied in (True, False):
        model = gpt2(tie_word_embeddings=tied)
        huggingface.save_pretrained(model, tmp_path / f"{tied}")
        loaded = huggingface.from_pretrained(transformers.AutoModelForCausalLM, tmp_path / f"{tied}")
        assert (loaded.lm_head.weight is loaded.transformer.wte.weight) == tied
        assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
        assert sum(param.numel() for param in loaded.parameters()) == sum(param.numel() for param in model.parameters())
        assert all(param.requires_grad for param in loaded.parameters())


def test_transformers_does_not_take_the_folder_for_its_own(tmp_path):
    """Random weights would be the worst outcome: it must find none, or the right ones."""
    huggingface.save_pretrained(gpt2(), tmp_path)
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path)


def test_wrong_folders_and_models_are_refused(tmp_path):
    model = gpt2()
    with pytest.raises(FileNotFoundError, match=r"no model\.rewa in"):
        huggingface.from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "nowhere")
    model.save_pretrained(tmp_path / "dense")
    with pytest.raises(FileExistsError, match=r"holds model\.safetensors, which transformers would load instead"):
        huggingface.save_pretrained(model, tmp_path / "dense")
    assert not (tmp_path / "dense" / "model.rewa").exists()
    with pytest.raises(TypeError, match=r"no plain model of transformers.*merge_and_unload"):
        huggingface.save_pretrained(nn.Linear(3, 2), tmp_path / "linear")
    huggingface.save_pretrained(model, tmp_path / "net")
    with pytest.raises(TypeError, match="no model class of transformers"):
        huggingface.from_pretrained(nn.Linear, tmp_path / "net")
    state = model.state_dict()
    state.pop("transformer.h.0.mlp.c_fc.weight")
    save_packed(state, tmp_path / "net" / "model.rewa")
    with pytest.raises(PackedFileError, match=r"'transformer\.h\.0\.mlp\.c_fc\.weight' has shape none in the file"):
        huggingface.from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "net")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks transformers
def test_adapters_are_merged_first(tmp_path):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(gpt2(), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    with pytest.raises(TypeError, match="merge_and_unload"):
        huggingface.save_pretrained(adapted, tmp_path)
    merged = adapted.merge_and_unload()
    huggingface.save_pretrained(merged, tmp_path)
    loaded = huggingface.from_pretrained(transformers.AutoModelForCausalLM, tmp_path)
    assert torch.equal(loaded(TOKENS).logits, merged.eval()(TOKENS).logits)


def test_the_model_is_left_as_it_was(tmp_path):
    model = gpt2()
    before = model.config.to_dict()
    huggingface.save_pretrained(model, tmp_path)
    assert model.config.to_dict() == before
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["architectures"] == ["GPT2LMHeadModel"]
    assert saved.get("dtype", saved.get("torch_dtype")) == "float32"


def test_an_unpacked_file_is_loaded_by_transformers(tmp_path, capsys):
    from rewa.cli import main

    model = gpt2()
    huggingface.save_pretrained(model, tmp_path)
    assert main(["unpack", str(tmp_path / "model.rewa"), str(tmp_path / "model.safetensors")]) == 0
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)


def test_without_transformers_the_remedy_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rewa\[integrations\]'"):
        huggingface.from_pretrained(None, tmp_path)


def test_shrunk_models_say_that_they_are_another(tmp_path):
    """The configuration still has the sizes from before, so that the names and shapes decide."""
    model = gpt2()
    huggingface.save_pretrained(model, tmp_path)
    smaller = gpt2()
    smaller.transformer.wpe = nn.Embedding(16, 16)
    rewa.save_packed(smaller, tmp_path / "model.rewa")
    with pytest.raises(PackedFileError, match=r"'transformer\.wpe\.weight' has shape \(16, 16\) in the file and \(32, 16\)"):
        huggingface.from_pretrained(transformers.AutoModelForCausalLM, tmp_path)


@torch.no_grad()
def test_a_shrunk_model_comes_back(tmp_path):
    model = llama()
    layer = model.model.layers[0]
    layer.mlp.gate_proj.weight[:5] = 0
    layer.self_attn.o_proj.weight[:, : layer.self_attn.o_proj.in_features // 2] = 0
    smaller = rewa.shrink(model, {"input_ids": TOKENS}, report=None)
    assert smaller.model.layers[0].mlp.gate_proj.out_features == layer.mlp.gate_proj.out_features - 5
    assert smaller.model.layers[0].self_attn.o_proj.in_features < layer.self_attn.o_proj.in_features
    huggingface.save_pretrained(smaller, tmp_path)
    loaded = huggingface.from_pretrained(transformers.AutoModelForCausalLM, tmp_path)
    assert torch.equal(loaded(TOKENS).logits, smaller(TOKENS).logits)
    assert loaded.model.layers[0].mlp.gate_proj.out_features == layer.mlp.gate_proj.out_features - 5


def test_a_model_that_its_configuration_cannot_build_is_refused(tmp_path):
    model = llama()
    folder = tmp_path / "folder"
    smaller = copy.deepcopy(model)
    mlp = smaller.model.layers[0].mlp
    for projection in (mlp.gate_proj, mlp.up_proj):  # by hand, so that nothing says how
        projection.weight = nn.Parameter(projection.weight.detach()[5:])
    mlp.down_proj.weight = nn.Parameter(mlp.down_proj.weight.detach()[:, 5:])
    with pytest.raises(ValueError, match=r"'model\.layers\.0\.mlp\..*' has shape .*19.* torch\.save\(model, path\)"):
        huggingface.save_pretrained(smaller, folder)
    assert not folder.exists()
    extended = gpt2()
    extended.score = nn.Linear(16, 2)
    with pytest.raises(ValueError, match=r"'score\.(weight|bias)' has shape .* and none"):
        huggingface.save_pretrained(extended, folder)
    assert not folder.exists()
    prune.l1_unstructured(model.lm_head, "weight", 0.5)  # saved as it will be once pruning is final
    huggingface.save_pretrained(model, folder)
    loaded = huggingface.from_pretrained(transformers.AutoModelForCausalLM, folder)
    assert torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)
