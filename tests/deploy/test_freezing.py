from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

import rewa
from rewa.sparsity import count, prunable


def bits(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.9, centered=True),
    "adadelta": lambda params: torch.optim.Adadelta(params),
    "rprop": lambda params: torch.optim.Rprop(params),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
    "rewa": lambda params: rewa.ReWASGD(params, lr=1e-3, momentum=0.9),
    "lbfgs": lambda params: torch.optim.LBFGS(params, max_iter=3),
}


def sparse_model():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    rewa.finalize(model, sparsity=0.7)
    return model


def loss(model):
    return (model(torch.linspace(-1, 1, 40).reshape(5, 8)) - 1).square().sum()


def zeros_of(model):
    return {name: weight.detach() == 0 for name, weight in prunable(model).items()}


def train(model, optimizer, steps=5):
    def closure():
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        return value

    for _ in range(steps):
        closure()
        optimizer.step(closure if isinstance(optimizer, torch.optim.LBFGS) else None)


def same_zeros(model, zeros):
    return all(torch.equal(found, zeros[name]) for name, found in zeros_of(model).items())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("through", ["model", "optimizer"])
def test_zeros_stay_with_every_optimizer_and_the_rest_trains(make, through):
    """The optimizer has momentum from before the freeze, when the weights that are zero now were not."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = make(model.parameters())
    train(model, optimizer)
    rewa.finalize(model, sparsity=0.7)
    zeros, before = zeros_of(model), bits(model)
    frozen = rewa.freeze_zeros(model if through == "model" else optimizer)
    for _ in range(5):
        train(model, optimizer, steps=1)
        assert same_zeros(model, zeros)
    for name, tensor in model.state_dict().items():
        alive = ~zeros.get(name, torch.zeros_like(tensor, dtype=torch.bool))
        assert (tensor[alive] != before[name][alive]).any()
    frozen.remove()
    if not isinstance(optimizer, rewa.ReWASGD):  # to which zero is absorbing
        train(model, optimizer)
        assert not same_zeros(model, zeros)


def test_an_optimizer_made_later_is_covered():
    model = sparse_model()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert same_zeros(model, zeros)


def test_gradients_of_frozen_elements_do_not_reach_the_state():
    model = sparse_model()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    squares = optimizer.state[model[0].weight]["exp_avg_sq"]
    assert (squares[zeros["0.weight"]] == 0).all()
    assert (squares[~zeros["0.weight"]] > 0).any()


def test_averages_and_copies_keep_the_zeros():
    model = sparse_model()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    other = copy.deepcopy(model)
    train(other, torch.optim.SGD(other.parameters(), lr=0.1))
    assert same_zeros(other, zeros)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, optimizer, steps=1)
        average.update_parameters(model)
    assert same_zeros(average.module, zeros)


@pytest.mark.slow
def test_a_pickled_model_keeps_the_zeros():
    code = (
        "import io, torch, rewa\n"
        "model = torch.nn.Linear(8, 4)\n"
        "rewa.finalize(model, sparsity=0.7)\n"
        "rewa.freeze_zeros(model)\n"
        "buffer = io.BytesIO()\n"
        "torch.save(model, buffer)\n"
        "buffer.seek(0)\n"
        "other = torch.load(buffer, weights_only=False)\n"
        "optimizer = torch.optim.SGD(other.parameters(), lr=0.1)\n"
        "other(torch.ones(2, 8)).sum().backward()\n"
        "optimizer.step()\n"
        "assert torch.equal(other.weight == 0, model.weight == 0)\n"
        "assert not torch.equal(other.weight, model.weight)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def run(model):
    with torch.no_grad():
        model(torch.ones(1, 8))


@pytest.mark.parametrize("look", [run, lambda model: model.state_dict()], ids=["run", "save"])
def test_writes_from_outside_do_not_last_and_are_reported(look):
    """Through .data or not: gone when the model runs or is saved, with a word about how much that was."""
    model = sparse_model()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    update = torch.randn(16, 8)
    expected = model[0].weight.detach() + update.masked_fill(zeros["0.weight"], 0)
    model[0].weight.data += update
    lost = update[zeros["0.weight"]]
    with pytest.warns(UserWarning, match=rf"{len(lost)} entries of '0\.weight', of norm {lost.norm():.4g}"):
        look(model)
    assert torch.equal(model[0].weight, expected)
    look(model)  # without a warning: nothing is left to drop


def test_a_graph_that_holds_the_weight_stays_valid():
    """The model runs twice before backward: clearing the zeros again is no edit that autograd would refuse."""
    model = sparse_model()
    rewa.freeze_zeros(model)
    loss(model).backward()
    once = model[0].weight.grad.clone()
    model.zero_grad()
    (loss(model) + loss(model)).backward()
    torch.testing.assert_close(model[0].weight.grad, 2 * once)


def test_mixed_precision():
    model = sparse_model().float()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = model(torch.ones(2, 8, dtype=torch.float32)).square().sum()
        value.backward()
        optimizer.step()
    assert same_zeros(model, zeros)
    low = sparse_model().bfloat16()
    zeros = zeros_of(low)
    rewa.freeze_zeros(low)
    optimizer = torch.optim.AdamW(low.parameters(), lr=0.1)
    low(torch.ones(2, 8, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    assert same_zeros(low, zeros)


def test_resume_gives_the_same_trajectory(tmp_path):
    torch.manual_seed(1)
    model = sparse_model()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    train(model, optimizer, steps=4)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    train(model, optimizer, steps=4)
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    resumed.load_state_dict(checkpoint["model"])
    rewa.freeze_zeros(resumed)
    again = torch.optim.AdamW(resumed.parameters(), lr=0.05)
    again.load_state_dict(checkpoint["optimizer"])
    train(resumed, again, steps=4)
    assert same_zeros(resumed, zeros)
    assert unchanged(resumed, bits(model))


@pytest.mark.filterwarnings("ignore:finalize left a single weight")
def test_freezing_again_follows_the_zeros_of_now():
    model = sparse_model()
    rewa.freeze_zeros(model)
    rewa.finalize(model, sparsity=0.9)
    frozen = rewa.freeze_zeros(model)
    zeros = zeros_of(model)
    assert frozen.count == count(prunable(model).values())
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert same_zeros(model, zeros)
    assert len(model[0]._forward_pre_hooks) == 1
    frozen.remove()
    assert len(model[0]._forward_pre_hooks) == len(model[0]._state_dict_pre_hooks) == 0


def test_a_compiled_model_trains_with_its_zeros():
    model = sparse_model()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    compiled = torch.compile(model, backend="eager")
    train(compiled, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    assert same_zeros(model, zeros)


def test_biases_that_happen_to_be_zero_train():
    model = sparse_model()
    nn.init.zeros_(model[0].bias)
    rewa.freeze_zeros(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    reached = (model[2].weight != 0).any(0)
    assert (model[0].bias[reached] != 0).all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("started", ["before", "after"])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_minimizes_over_the_other_weights(seed, started, search):
    """Least squares over the weights that are left: the closed form is what LBFGS must find."""
    torch.manual_seed(seed)
    data, target = torch.randn(60, 12), torch.randn(60, 1)
    model = nn.Linear(12, 1, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=40, line_search_fn=search)

    def closure():
        optimizer.zero_grad()
        value = (model(data) - target).square().mean()
        value.backward()
        return value

    if started == "before":
        optimizer.step(closure)
    rewa.finalize(model, sparsity=0.5)
    alive = model.weight.detach().flatten() != 0
    rewa.freeze_zeros(model)
    for _ in range(5):
        optimizer.step(closure)
    assert torch.equal(model.weight.detach().flatten() != 0, alive)
    best = torch.linalg.lstsq(data[:, alive], target).solution.flatten()
    torch.testing.assert_close(model.weight.detach().flatten()[alive], best, rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_trained_later_keeps_its_zeros():
    model = sparse_model()
    zeros = zeros_of(model)
    model.requires_grad_(False)
    rewa.freeze_zeros(model)
    model[2].requires_grad_(True)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer)
    assert same_zeros(model, zeros)
    assert (optimizer.state[model[0].weight]["exp_avg_sq"][zeros["0.weight"]] == 0).all()


def pair_form(model):
    return rewa.reparametrize(model, form="pair")


def pruned(model):
    prune.l1_unstructured(model[0], "weight", amount=0.9)
    return model


def replaced(model):
    model[0].weight = nn.Parameter(torch.randn(12, 8))
    return model


@pytest.mark.parametrize("change", [pair_form, pruned, replaced])
def test_a_weight_that_is_replaced_after_the_freeze_is_refused(change):
    model = sparse_model()
    rewa.freeze_zeros(model)
    change(model)
    for look in (loss, lambda model: model.state_dict()):
        with pytest.raises(RuntimeError, match=r"zeros of '0\.weight' are frozen, but .* rewa\.deploy\.freezing\.thaw"):
            look(model)
    rewa.deploy.freezing.thaw(model)
    model.state_dict()
    if change is pair_form:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)


def test_parameters_put_in_place_of_others_are_frozen_too():
    model = sparse_model()
    zeros = zeros_of(model)
    rewa.freeze_zeros(model)
    model.load_state_dict(bits(model), assign=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loss(model).backward()
    optimizer.step()
    assert same_zeros(model, zeros)


@pytest.mark.parametrize("through", ["model", "optimizer"])
def test_a_layer_of_zeros_trains_unless_told_otherwise(through):
    model = sparse_model()
    nn.init.zeros_(model[2].weight)
    zeros = zeros_of(model)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    what = model if through == "model" else optimizer
    with pytest.warns(UserWarning, match=r"2\.weight: all zero"):
        frozen = rewa.freeze_zeros(what)
    train(model, optimizer)
    assert (model[2].weight != 0).all()
    assert torch.equal(model[0].weight == 0, zeros["0.weight"])
    frozen.remove()
    nn.init.zeros_(model[2].weight)
    rewa.freeze_zeros(what, all_zero=True)
    train(model, optimizer)
    assert (model[2].weight == 0).all()


def test_a_normalized_layer_without_zeros_is_left_alone():
    model = sparse_model()
    model.append(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    zeros = {name: mask for name, mask in zeros_of(model[:3]).items()}
    assert list(rewa.freeze_zeros(model).zeros) == ["0.weight", "2.weight"]
    train(model, torch.optim.SGD(model.parameters(), lr=0.01))
    assert same_zeros(model[:3], zeros)


# ---------------------------------------------------------------------------------------------------- PEFT


def tiny_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    return transformers.LlamaForCausalLM(config), torch.arange(1, 11).reshape(2, 5), ["q_proj", "down_proj"]


def tiny_mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.linspace(-1, 1, 40).reshape(5, 8), ["0", "2"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers by the old name
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("make", [tiny_llama, tiny_mlp])
def test_adapters_learn_over_frozen_zeros_and_a_merge_says_what_it_drops(make, when):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model, inputs, targets = make()
    rewa.finalize(model, sparsity=0.6)
    zeros = zeros_of(model)
    if when == "before":
        rewa.freeze_zeros(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=True))
    if when == "after":
        frozen = rewa.freeze_zeros(adapted)
        assert not any("lora" in name for name in frozen.zeros)
        assert frozen.count.total == sum(mask.numel() for mask in zeros.values())
        assert list(rewa.sparsity.prunable(adapted)) == list(frozen.zeros)
    optimizer = torch.optim.AdamW((param for param in adapted.parameters() if param.requires_grad), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        output = adapted(inputs)
        (output if isinstance(output, torch.Tensor) else output.logits).square().mean().backward()
        optimizer.step()
    layers = {name: layer for name, layer in adapted.named_modules() if hasattr(layer, "lora_B")}
    assert all(layer.lora_B["default"].weight.abs().max() > 0.01 for layer in layers.values())
    deltas = {name.removeprefix("base_model.model."): layer.get_delta_weight("default") for name, layer in layers.items()}
    before = {name: weight.detach().clone() for name, weight in prunable(adapted).items()}

    merged = adapted.merge_and_unload()
    with pytest.warns(UserWarning, match="written where zeros are frozen") as caught:
        merged.state_dict()
    assert len(caught) == len(deltas)
    for warning, (name, delta) in zip(caught, deltas.items(), strict=True):
        lost = delta.detach()[zeros[f"{name}.weight"]]
        number, norm = int(lost.count_nonzero()), lost.norm()
        assert f"{number} entries of " in str(warning.message)
        assert f"of norm {norm:.4g}" in str(warning.message)
        weight = merged.get_submodule(name).weight
        kept = delta.masked_fill(zeros[f"{name}.weight"], 0)
        torch.testing.assert_close(weight, before[f"base_model.model.{name}.base_layer.weight"] + kept)
    assert same_zeros(merged, zeros)


def test_copies_that_peft_trains_in_full_keep_their_zeros():
    peft = pytest.importorskip("peft")
    model, inputs, _ = tiny_mlp()
    rewa.finalize(model, sparsity=0.6)
    zeros = zeros_of(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"]))
    rewa.freeze_zeros(adapted)
    optimizer = torch.optim.AdamW((param for param in adapted.parameters() if param.requires_grad), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        adapted(inputs).square().mean().backward()
        optimizer.step()
    merged = adapted.merge_and_unload()
    with pytest.warns(UserWarning, match="written where zeros are frozen"):
        merged(inputs)
    assert same_zeros(merged, zeros)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers by the old name
def test_adapters_over_the_experts_of_a_mixture_learn():
    """Of a bare parameter PEFT makes a parametrization, for as long as the layer runs."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(config).float()  # the product over experts has no float64
    rewa.finalize(model, sparsity=0.6)
    zeros = zeros_of(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=[], target_parameters=["experts.gate_up_proj"]))
    rewa.freeze_zeros(adapted)
    optimizer = torch.optim.AdamW((param for param in adapted.parameters() if param.requires_grad), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        adapted(torch.arange(1, 11).reshape(2, 5)).logits.square().mean().backward()
        optimizer.step()
    assert all(param.abs().max() > 0.01 for name, param in adapted.named_parameters() if "lora_B" in name)
    merged = adapted.merge_and_unload()
    with pytest.warns(UserWarning, match=r"gate_up_proj', of norm .* written where zeros are frozen"):
        merged.state_dict()
    assert same_zeros(merged, zeros)


def test_a_merge_that_keeps_the_adapter_is_reported_in_training_mode_too():
    peft = pytest.importorskip("peft")
    model, inputs, targets = tiny_mlp()
    rewa.finalize(model, sparsity=0.6)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).train()
    zeros = zeros_of(adapted)
    rewa.freeze_zeros(adapted)
    adapted.merge_adapter()
    with pytest.warns(UserWarning, match=r"entries of 'base_model\.model\.[02]\.base_layer\.weight'"):
        adapted(inputs)
    assert same_zeros(adapted, zeros)
