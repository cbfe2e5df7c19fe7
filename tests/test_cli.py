from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import rewa
from rewa import cli


def model():
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 5)).float()
    rewa.finalize(model, sparsity=0.95)
    return model


def run(capsys, *arguments):
    assert cli.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_pack_inspect_unpack(tmp_path, capsys):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "run.pt")
    out = run(capsys, "pack", tmp_path / "run.pt", tmp_path / "net.safetensors", "--key", "model")
    assert "times smaller than" in out
    text = run(capsys, "inspect", tmp_path / "net.safetensors")
    assert "0.weight" in text
    assert "delta" in text
    result = json.loads(run(capsys, "inspect", tmp_path / "net.safetensors", "--json"))
    (row,) = (row for row in result["tensors"] if row["name"] == "0.weight")
    assert row["nonzero"] == int(net[0].weight.count_nonzero())
    assert row["form"] == "delta"
    assert result["dense_bytes"] > 2 * result["file_bytes"]
    run(capsys, "unpack", tmp_path / "net.safetensors", tmp_path / "plain.safetensors")
    run(capsys, "unpack", tmp_path / "net.safetensors", tmp_path / "plain.pt")
    for loaded in (load_file(tmp_path / "plain.safetensors"), torch.load(tmp_path / "plain.pt", weights_only=True)):
        assert loaded.keys() == net.state_dict().keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in net.state_dict().items())


def test_inspect_reads_checkpoints_and_plain_safetensors(tmp_path, capsys):
    net = model()
    save_file(net.state_dict(), tmp_path / "plain.safetensors")
    torch.save(net.state_dict(), tmp_path / "plain.pt")
    torch.save({"deep": {"er": torch.tensor([1.0, 0.0, 1e-3])}, "flags": torch.tensor([True])}, tmp_path / "deep.pt")
    for name in ("plain.safetensors", "plain.pt"):
        text = run(capsys, "inspect", tmp_path / name)
        assert "0.weight" in text
        assert "dense" in text
    result = json.loads(run(capsys, "inspect", tmp_path / "deep.pt", "--threshold", "0.01", "--json"))
    assert [(row["name"], row["nonzero"]) for row in result["tensors"]] == [("deep.er", 1), ("flags", 1)]


def test_rounded_values(tmp_path, capsys):
    save_file({"w": torch.randn(50, 50)}, tmp_path / "a.safetensors")
    for values in ("exact", "bfloat16"):
        run(capsys, "pack", tmp_path / "a.safetensors", tmp_path / f"{values}.safetensors", "--values", values)
    sizes = [(tmp_path / f"{values}.safetensors").stat().st_size for values in ("exact", "bfloat16")]
    assert sizes[0] > 3 * sizes[1]


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


def test_no_code_in_a_checkpoint_is_run(tmp_path, capsys):
    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    assert cli.main(["inspect", str(tmp_path / "evil.pt")]) == 2
    streams = capsys.readouterr()
    assert "code was run" not in streams.out
    assert "without running code" in streams.err
    assert streams.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere.pt"], "no such file: nowhere.pt"),
        (["inspect", "noise"], "not a safetensors file"),
        (["pack", "noise", "out"], "not a safetensors file"),
        (["pack", "empty.pt", "out"], "empty.pt holds no tensors"),
        (["pack", "full.pt", "out", "--key", "model"], "full.pt holds no tensors under 'model'"),
        (["unpack", "plain.safetensors", "out"], "not a packed one"),
        (["pack", "full.pt", "nowhere/out"], "no folder 'nowhere'"),
    ],
)
def test_bad_files_are_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").write_bytes(b"noise" * 20)
    torch.save({"epoch": 1}, "empty.pt")
    torch.save({"w": torch.ones(3)}, "full.pt")
    save_file({"w": torch.ones(3)}, "plain.safetensors")
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["inspect", "pack", "unpack"])
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    assert f"rewa {command} model" in capsys.readouterr().out


def test_inspect_counts_every_dtype(tmp_path, capsys):
    dtypes = (torch.uint16, torch.uint32, torch.bool, torch.int8, torch.float8_e4m3fn, torch.complex64, torch.bfloat16)
    save_file({str(dtype): torch.tensor([0, 1, 0]).to(dtype) for dtype in dtypes}, tmp_path / "a.safetensors")
    result = json.loads(run(capsys, "inspect", tmp_path / "a.safetensors", "--json"))
    assert [row["nonzero"] for row in result["tensors"]] == [1] * len(dtypes)


def test_what_safetensors_cannot_hold_is_one_line(tmp_path, capsys):
    rewa.save_packed({"z": torch.ones(3, dtype=torch.complex128)}, tmp_path / "a.safetensors")
    assert cli.main(["unpack", str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "b.safetensors").exists()
