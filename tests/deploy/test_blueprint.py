"""A shrunk model comes back from its file into a fresh one; that every architecture does is part of ``shrinking.checked``."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

import rewa
from rewa.cli import main
from rewa.deploy import packed
from rewa.deploy.blueprint import Blueprint
from rewa.deploy.heads import FewerHeads
from rewa.deploy.packed import PackedFileError, load_packed, read_packed, save_packed
from shrinking import Attends, bits, dead_heads, fresh, kill, lively, outputs, returned, same_bits

X = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def net():
    """Two convolutions with a norm; the second has no bias."""
    return lively(nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3, bias=False)))


def sparse():
    model = net()
    kill(model[0], [1, 2, 5])
    return model


@pytest.fixture
def small():
    return rewa.shrink(sparse(), X, report=None)


@pytest.fixture
def path(small, tmp_path):
    return save_packed(small, tmp_path / "small.rewa").path


def test_the_file_says_what_became_of_each_layer(path):
    assert read_packed(path).blueprint.to_dict() == {
        "version": 1,
        "layers": {
            "0": {
                "before": {"weight": [6, 1, 3, 3], "bias": [6]},
                "after": {"weight": [3, 1, 3, 3], "bias": [3]},
                "sizes": {"out_channels": [6, 3]},
            },
            "1": {
                "before": {name: [6] for name in ("weight", "bias", "running_mean", "running_var")},
                "after": {name: [3] for name in ("weight", "bias", "running_mean", "running_var")},
                "sizes": {"num_features": [6, 3]},
            },
            "3": {
                "before": {"weight": [3, 6, 3, 3]},
                "after": {"weight": [3, 3, 3, 3], "bias": [3]},
                "sizes": {"in_channels": [6, 3]},
            },
        },
    }
    assert str(read_packed(path)).startswith("small.rewa: ")
    assert str(read_packed(path)).endswith(", shrunk from 247 to 127 weights")


def test_a_file_of_a_model_that_was_not_shrunk_is_as_before(tmp_path):
    model = net()
    file = save_packed(rewa.shrink(model, X, report=None), tmp_path / "a.rewa")
    assert not file.blueprint.changes
    assert file.path.read_bytes() == save_packed(model, tmp_path / "b.rewa").path.read_bytes()
    with safe_open(file.path, "pt") as opened:
        assert opened.metadata()["version"] == "1"


@pytest.mark.slow
def test_another_process_loads_it(small, path, tmp_path):
    torch.save((X, outputs(small, X)), tmp_path / "expected.pt")
    code = (
        "import torch, rewa, sys\nfrom torch import nn\ntorch.set_default_dtype(torch.float64)\n"
        "model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3, bias=False))\n"
        "x, expected = torch.load(sys.argv[2])\n"
        "assert torch.equal(rewa.load_packed(sys.argv[1], model).eval()(x), expected)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, path, tmp_path / "expected.pt"], check=True, timeout=120)


def test_inspect_shows_from_what_to_what(path, capsys):
    assert main(["inspect", str(path)]) in (0, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == ["shrunk: 247 -> 127 elements", "  0  6x1x3x3 -> 3x1x3x3", "  1  6 -> 3", "  3  3x6x3x3 -> 3x3x3x3"]
    main(["inspect", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["shrunk"] == read_packed(path).blueprint.to_dict()


def test_packed_again_it_still_comes_back(small, path, tmp_path):
    main(["pack", str(path), str(tmp_path / "rounded.rewa"), "--values", "bfloat16"])
    back = load_packed(tmp_path / "rounded.rewa", net())
    assert torch.equal(back[0].weight, small[0].weight.bfloat16().double())
    assert str(back) == str(small)


def test_shrunk_twice_it_loads_into_the_first_architecture(small):
    kill(small[0], [0])
    smallest = rewa.shrink(small, X, report=None)
    assert smallest[0].out_channels == 2
    back = returned(net(), smallest)
    assert torch.equal(outputs(back, X), outputs(smallest, X))


def test_what_happens_to_it_afterwards(small, tmp_path):
    """Copies, pickles, other optimizers of the forward pass, zeros, pruning and training leave the way back open."""
    torch.save(small, tmp_path / "whole.pt")
    for after in (copy.deepcopy(small), torch.load(tmp_path / "whole.pt", weights_only=False)):
        rewa.finalize(after, threshold=0.1)
        prune.l1_unstructured(after[0], "weight", 0.5)
        path = save_packed(after, tmp_path / "after.rewa").path
        prune.remove(after[0], "weight")
        assert torch.equal(outputs(load_packed(path, net()), X), outputs(after, X))
    x = torch.randn(4, 64, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).float()
    kill(model[0], slice(0, 60))
    fast = rewa.shrink(model, x, report=None)
    rewa.accelerate(fast, x, verbose=False, rounds=1)
    path = save_packed(fast, tmp_path / "fast.rewa").path
    loaded = load_packed(path, fresh(model))
    assert same_bits(loaded.state_dict(), fast.state_dict())
    rewa.accelerate(loaded, x, verbose=False, rounds=1).undo()
    loaded(x).sum().backward()
    assert loaded[0].weight.grad.shape == (4, 64)


def test_a_part_of_it_and_a_model_around_it(small, tmp_path):
    around = nn.ModuleDict({"body": small, "head": nn.Linear(3, 2)})
    fresh_one = nn.ModuleDict({"body": net(), "head": nn.Linear(3, 2)})
    load_packed(save_packed(around, tmp_path / "a.rewa").path, fresh_one)
    assert same_bits(fresh_one.state_dict(), around.state_dict())
    part = load_packed(save_packed(small[0], tmp_path / "b.rewa").path, nn.Conv2d(1, 6, 3))
    assert (part.out_channels, part.weight.shape) == (3, (3, 1, 3, 3))
    # A layer that somebody replaced is theirs.
    around["body"][3] = nn.Conv2d(3, 2, 3)
    fresh_one["body"][3] = nn.Conv2d(3, 2, 3)
    load_packed(save_packed(around, tmp_path / "c.rewa").path, fresh_one)
    assert same_bits(fresh_one.state_dict(), around.state_dict())


@pytest.mark.parametrize("assign", [False, True])
def test_dtype_device_and_gradients_are_those_of_the_fresh_model(small, path, assign):
    model = load_packed(path, net().float().requires_grad_(False), assign=assign)
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float64 if assign else torch.float32}
    assert not any(param.requires_grad for param in model.parameters())
    with torch.device("meta"):
        empty = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3, bias=False))
    assert torch.equal(outputs(load_packed(path, empty, assign=True), X), outputs(small, X))


def test_an_attention_that_is_the_model_itself(tmp_path):
    attention = dead_heads(nn.MultiheadAttention(8, 4), [0], [2])
    x = torch.randn(3, 2, 8)
    small = rewa.shrink(attention, (x, x, x, None, False), report=None)
    path = save_packed(small, tmp_path / "x.rewa").path
    back = load_packed(path, nn.MultiheadAttention(8, 4))
    assert type(back) is FewerHeads
    assert back.heads == (1, 3)
    with torch.device("meta"):
        empty = nn.MultiheadAttention(8, 4)
    for loaded in (back, load_packed(path, empty, assign=True)):
        assert torch.equal(loaded(x, x, x)[0], small(x, x, x)[0])
        mask = torch.randn(2 * 4, 3, 3)
        assert torch.equal(loaded(x, x, x, attn_mask=mask)[0], small(x, x, x, attn_mask=mask)[0])


def test_other_heads_of_the_same_number_are_another_model(tmp_path):
    x = torch.randn(3, 2, 8)
    smalls = [rewa.shrink(Attends(dead_heads(nn.MultiheadAttention(8, 4), [i])), (x, x, x), report=None) for i in (0, 1)]
    path = save_packed(smalls[0], tmp_path / "x.rewa").path
    with pytest.raises(PackedFileError, match="'attention' was shrunk from"):
        load_packed(path, smalls[1])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: nn.Sequential(nn.Conv2d(1, 7, 3), *net()[1:]), r"'0' was shrunk from .*6, 1, 3, 3.* Conv2d has .*7, 1, 3, 3"),
        (lambda: net()[:3], "'3' was shrunk .* has no such layer"),
        (lambda: nn.Sequential(*net()[:3], nn.Linear(6, 3)), r"'3' was shrunk from .* model's Linear has"),
        (lambda: nn.Sequential(*net()[:3], nn.ReLU()), r"'3' was shrunk from .* model's ReLU has no such tensors"),
        (lambda: nn.Sequential(*net(), nn.Linear(3, 3)), r"'4\.(weight|bias)' has shape none in the file"),
        (lambda: nn.Sequential(*net()[:3], nn.Conv2d(6, 3, 5, bias=False)), "'3' was shrunk from"),
    ],
)
def test_another_model_is_named_and_not_touched(other, words, path):
    model = other()
    before, shown = bits(model), str(model)
    with pytest.raises(PackedFileError, match=words):
        load_packed(path, model)
    assert same_bits(model.state_dict(), before)
    assert str(model) == shown


# ---------------------------------------------------------------------------------------------------- hostile files


def tamper(path, change):
    """A file whose blueprint was changed, with a digest that fits."""
    with safe_open(path, "pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = json.loads(metadata["blueprint"])
    changed = change(content)
    metadata["blueprint"] = changed if isinstance(changed, str) else json.dumps(content)
    metadata["digest"] = packed._digest(metadata, sorted(tensors.items()))
    save_file(tensors, path, metadata)


def put(layer, key, name, value):
    def change(content):
        content["layers"][layer][key][name] = value

    return change


def extra(layer, **fields):
    return lambda content: content["layers"][layer].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(version=2),
        lambda content: content.update(layers=[]),
        lambda content: content["layers"].update({"0": None}),
        lambda content: content["layers"]["0"].pop("sizes"),
        lambda content: "[]",
        lambda content: "{",
        lambda content: "[" * 100_000,
        put("0", "after", "weight", [2**40, 1, 3, 3]),  # larger than before
        put("0", "after", "weight", [3, 9]),
        put("0", "after", "weight", [-1, 1, 3, 3]),
        put("0", "after", "weight", [3.0, 1, 3, 3]),
        put("0", "after", "weight", "many"),
        put("0", "after", "more", [3]),  # no cut adds such a tensor
        put("3", "after", "bias", [2**40]),
        put("3", "after", "bias", [3, 3]),
        put("0", "before", "gone", [3]),
        put("0", "sizes", "__class__", [6, 3]),
        put("0", "sizes", "forward", [6, 3]),
        put("0", "sizes", "out_channels", [6, 7]),
        put("0", "sizes", "out_channels", [6, -3]),
        put("0", "sizes", "out_channels", [6, None]),
        put("0", "sizes", "groups", 1),
        extra("0", replaced_by="os.system"),
        extra("0", heads=[0], of=1),  # no attention
        extra("0", heads=[0, 0], of=6),
        extra("0", heads=[2**70], of=6),
        extra("0", heads="all", of=6),
    ],
)
def test_a_blueprint_that_no_cut_gives_is_refused(change, path):
    tamper(path, change)
    model = net()
    before, shown = bits(model), str(model)
    for load in (lambda: load_packed(path), lambda: load_packed(path, model), lambda: read_packed(path)):
        with pytest.raises(PackedFileError):
            load()
    assert same_bits(model.state_dict(), before)
    assert str(model) == shown


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["layers"].update(nobody=content["layers"]["0"]),
        lambda content: content["layers"].update({"__class__": content["layers"]["0"]}),
        lambda content: content["layers"].pop("0"),  # the file's shapes are then not the model's
        put("0", "before", "weight", [5, 1, 3, 3]),
        put("0", "after", "weight", [2, 1, 3, 3]),  # not the tensor that is there
        put("0", "sizes", "in_channels", [2, 1]),
        put("1", "sizes", "out_features", [6, 3]),
        extra("0", heads=[0, 1, 2], of=6),
    ],
)
def test_a_blueprint_of_another_model_changes_nothing(change, path):
    """Possible for some model, but not for this one: the weights load without it, the model stays as it was."""

    def named(content):
        change(content)
        if "heads" in content["layers"].get("0", {}):
            content["layers"]["0"]["sizes"]["num_heads"] = [6, 3]

    tamper(path, named)
    load_packed(path)
    model = net()
    before, shown = bits(model), str(model)
    with pytest.raises(PackedFileError):
        load_packed(path, model)
    assert same_bits(model.state_dict(), before)
    assert str(model) == shown


def test_attention_that_lies_about_its_heads_is_refused(tmp_path):
    x = torch.randn(3, 2, 8)
    model = Attends(dead_heads(nn.MultiheadAttention(8, 4), [0]))
    path = save_packed(rewa.shrink(model, (x, x, x), report=None), tmp_path / "x.rewa").path
    honest = path.read_bytes()
    for heads, of in (([0, 1], 4), ([1, 2, 3], 5), ([1, 2, 4], 4), ([], 4)):
        path.write_bytes(honest)
        tamper(path, lambda content, heads=heads, of=of: content["layers"]["attention"].update(heads=heads, of=of))
        fresh_one = fresh(model)
        with pytest.raises(PackedFileError):
            load_packed(path, fresh_one)
        assert type(fresh_one.attention) is nn.MultiheadAttention


def test_a_changed_blueprint_is_a_damaged_file(path):
    content = path.read_bytes()
    assert content.count(b'\\"before\\"') == 3
    path.write_bytes(content.replace(b'\\"out_channels\\":[6,3]', b'\\"out_channels\\":[6,2]'))
    with pytest.raises(PackedFileError, match="do not match its SHA-256"):
        load_packed(path)
    path.write_bytes(content)
    with safe_open(path, "pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del metadata["blueprint"]
    save_file(tensors, path, metadata)
    with pytest.raises(PackedFileError, match="do not match its SHA-256"):
        load_packed(path)


def test_a_limit_counts_the_blueprint(path):
    with safe_open(path, "pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers = {f"layer{i}": {"before": {}, "after": {}, "sizes": {}} for i in range(50_000)}
    metadata["blueprint"] = json.dumps({"version": 1, "layers": layers})
    save_file(tensors, path, metadata)
    with pytest.raises(PackedFileError, match=r"blueprint of [\d,]+ characters, more than"):
        read_packed(path, max_bytes=1 << 27)


def test_an_empty_blueprint_is_no_change():
    assert Blueprint.from_dict({"version": 1, "layers": {}}) == Blueprint()
    model = net()
    assert Blueprint().apply(model) is model
