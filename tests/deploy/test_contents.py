from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

from rewa.deploy.contents import inspect, is_weight, read_contents, to_text, total
from rewa.deploy.packed import PackedFileError, save_packed
from rewa.sparsity import Count


def test_what_is_no_tensor_is_named_and_a_clash_is_an_error(tmp_path):
    content = {"model": {"w": torch.ones(2)}, "epoch": 3, "names": ["a"], "best": {"loss": 0.1, "model": {"w": torch.ones(1)}}}
    torch.save(content, tmp_path / "a.pt")
    contents = read_contents(tmp_path / "a.pt")
    assert list(contents.tensors) == ["model.w", "best.model.w"]
    assert contents.dropped == ("epoch", "names", "best.loss")
    for clash in ({"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)}, {0: torch.ones(1), "0": torch.zeros(1)}):
        torch.save(clash, tmp_path / "b.pt")
        with pytest.raises(PackedFileError, match=r"two tensors called '(a\.b|0)'"):
            read_contents(tmp_path / "b.pt")


def test_a_packed_file_is_not_taken_for_a_checkpoint(tmp_path):
    """Its values may hold the bytes that end a zip file."""
    end = torch.frombuffer(bytearray(b"PK\x05\x06" + bytes(18)), dtype=torch.uint8)
    path = save_packed({"a": end}, tmp_path / "x").path
    assert torch.equal(read_contents(path).tensors["a"], end)
    save_file({"a": end}, tmp_path / "y.safetensors")
    assert torch.equal(read_contents(tmp_path / "y.safetensors").tensors["a"], end)


def test_checkpoints_need_no_safetensors(tmp_path, monkeypatch):
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    assert list(read_contents(tmp_path / "a.pt").tensors) == ["w"]


def test_weights_are_told_from_the_rest_by_name_and_shape():
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "norm": nn.BatchNorm2d(4),
            "embed": nn.Embedding(7, 3),
            "one": nn.Linear(5, 1),
            "scale": nn.ParameterList([nn.Parameter(torch.ones(4, 1, 1))]),
        }
    )
    model.register_buffer("causal", torch.ones(1, 1, 8, 8, dtype=torch.bool))
    model.register_buffer("positions", torch.arange(10)[None])
    found = [name for name, tensor in model.state_dict().items() if is_weight(name, tensor)]
    assert found == ["conv.weight", "embed.weight"]
    assert not is_weight("bn.running_mean", torch.ones(4, 4))


def test_a_threshold_is_for_weights(tmp_path):
    model = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20)).float()
    with torch.no_grad():
        model[0].weight.fill_(1e-4)
        model[0].weight[0] = 1
        model[1].running_mean.fill_(1e-4)
        model[1].running_var.fill_(1e-4)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    rows = {row.name: row for row in inspect(read_contents(tmp_path / "a.pt"), threshold=1e-3)}
    assert rows["0.weight"].count == Count(600, 30)
    assert rows["1.running_mean"].count == Count(20, 20)
    assert rows["1.running_var"].count == Count(20, 20)
    assert rows["1.num_batches_tracked"].count == Count(1, 0)
    assert total(list(rows.values())) == Count(701, 30 + 20 + 20 + 20 + 20)  # the norm's bias and the count are zero
    text = to_text(list(rows.values())).splitlines()
    assert text[-2].split() == ["weights", "600", "30", "95.00%"]
    assert text[-1].split() == ["total", "701", "110", "84.31%"]


@pytest.mark.parametrize("kind", ["packed", "checkpoint"])
def test_tied_tensors_count_once(kind, tmp_path):
    weight = torch.eye(20)
    state = {"a": weight, "b": weight, "c": torch.zeros(20, 20)}
    path = tmp_path / "x"
    if kind == "packed":
        save_packed(state, path)
    else:
        torch.save(state, path)
    rows = inspect(read_contents(path))
    assert [row.form for row in rows] == ["delta", "alias", "delta"] if kind == "packed" else ["dense", "alias", "dense"]
    assert total(rows) == Count(800, 20)
    assert sum(row.nbytes for row in rows) == 800 * 8


def test_a_pruned_weight_counts_as_its_mask_leaves_it(tmp_path):
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    prune.l1_unstructured(model[0], "weight", 0.9)
    torch.save({"model": model.state_dict()}, tmp_path / "x.pt")
    rows = {row.name: row for row in inspect(read_contents(tmp_path / "x.pt"))}
    assert rows.keys() == {"model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias"}
    assert (rows["model.0.weight"].count, rows["model.0.weight"].form) == (Count(600, 60), "dense, masked")
    assert total([row for row in rows.values() if row.weight]) == Count(900, 360)
    assert sum(row.nbytes for row in rows.values()) == 8 * sum(param.numel() for param in model.parameters())


@pytest.mark.parametrize("shared", ["module", "weight"])
def test_a_pruned_weight_with_two_names_counts_once(shared, tmp_path):
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))
    if shared == "module":
        model[1] = model[0]
    model[1].weight = model[0].weight
    mask = (torch.rand(20, 20) < 0.5).double()
    for layer in {*model}:
        prune.custom_from_mask(layer, "weight", mask)
    torch.save(model.state_dict(), tmp_path / "x.pt")
    rows = {row.name: row for row in inspect(read_contents(tmp_path / "x.pt"))}
    assert [rows[f"{i}.weight"].form for i in (0, 1)] == ["dense, masked", "alias"]
    assert total([row for row in rows.values() if row.weight]) == Count(400, int(mask.sum()))
    entries = save_packed(model, tmp_path / "x.rewa").entries
    assert [entry.form == "alias" for entry in entries if entry.name.endswith("weight")] == [False, True]
    # With masks of their own they are two weights.
    prune.random_unstructured(model[1], "weight", 0.5)
    torch.save(model.state_dict(), tmp_path / "x.pt")
    weights = [row for row in inspect(read_contents(tmp_path / "x.pt")) if row.weight]
    assert total(weights).total == (400 if shared == "module" else 800)


def test_a_pickled_module_is_refused_without_advice_to_run_its_code(tmp_path):
    torch.save(nn.Linear(3, 3), tmp_path / "x.pt")
    with pytest.raises(PackedFileError, match=r"holds an object of torch\.nn\..*Linear; save model\.state_dict\(\) instead$"):
        read_contents(tmp_path / "x.pt")
