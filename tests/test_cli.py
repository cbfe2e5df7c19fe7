from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

import rewa
from rewa import cli
from rewa.experiments import RESULTS
from rewa.experiments.digits import SweepResult
from rewa.experiments.result import How, Result
from rewa.methods import make, names
from rewa.train import checkpoint
from rewa.train.attempts import Failure
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Sweep


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
    share = (tmp_path / "net.safetensors").stat().st_size / (tmp_path / "run.pt").stat().st_size
    assert f" bytes, {share:.1%} of the size of {tmp_path / 'run.pt'}" in out
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
    torch.save({"deep": {"er": torch.tensor([[1.0, 0.0], [1e-3, 0.0]])}, "flags": torch.tensor([True])}, tmp_path / "deep.pt")
    for name in ("plain.safetensors", "plain.pt"):
        text = run(capsys, "inspect", tmp_path / name)
        assert "0.weight" in text
        assert "dense" in text
    result = json.loads(run(capsys, "inspect", tmp_path / "deep.pt", "--threshold", "0.01", "--json"))
    assert [(row["name"], row["nonzero"]) for row in result["tensors"]] == [("deep.er", 1), ("flags", 1)]


def test_inspect_ends_with_the_sums(tmp_path, capsys):
    net = model()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    weights = [net[0].weight, net[2].weight]
    nonzero = sum(int(weight.count_nonzero()) for weight in weights)
    lines = run(capsys, "inspect", tmp_path / "net.pt").splitlines()
    assert lines[-3].split() == ["weights", "1,350", f"{nonzero:,}", f"{1 - nonzero / 1350:.2%}"]
    assert lines[-2].split()[:2] == ["total", "1,506"]
    result = json.loads(run(capsys, "inspect", tmp_path / "net.pt", "--json", "--threshold", "10"))
    assert result["weights"] == {"numel": 1350, "nonzero": 0}
    everything = sum(int(tensor.count_nonzero()) for tensor in net.state_dict().values())
    assert result["total"] == {"numel": 1506, "nonzero": everything - nonzero}  # the threshold is for weights
    assert [row["name"] for row in result["tensors"] if row["weight"]] == ["0.weight", "2.weight"]


def test_pack_says_what_it_changed_and_left_out(tmp_path, capsys):
    net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 5)).float()
    prune.l1_unstructured(net[0], "weight", 0.9)
    negative = int((torch.signbit(net[0].weight) & (net[0].weight == 0)).sum())
    torch.save({"model": net.state_dict(), "epoch": 3, "notes": {"by": "me"}}, tmp_path / "run.pt")
    out = run(capsys, "pack", tmp_path / "run.pt", tmp_path / "net.rewa", "--key", "model")
    assert f"stored {negative:,} values of -0.0 as 0.0" in out
    assert "applied the masks of 0.weight" in out
    assert "left out" not in out
    out = run(capsys, "pack", tmp_path / "run.pt", tmp_path / "all.rewa", "--keep-negative-zeros")
    assert "left out what is no tensor: epoch, notes.by\n" in out
    assert "-0.0" not in out
    prune.remove(net[0], "weight")
    torch.save(net.state_dict(), tmp_path / "final.pt")
    run(capsys, "pack", tmp_path / "final.pt", tmp_path / "final.rewa")
    assert (tmp_path / "net.rewa").stat().st_size == (tmp_path / "final.rewa").stat().st_size
    loaded = rewa.load_packed(tmp_path / "net.rewa")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in net.state_dict().items())


def test_an_unpacked_file_is_one_that_transformers_accepts(tmp_path, capsys):
    rewa.save_packed({"a": torch.eye(9)}, tmp_path / "a.rewa")
    run(capsys, "unpack", tmp_path / "a.rewa", tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    run(capsys, "unpack", tmp_path / "a.rewa", tmp_path / "pytorch_model.bin")
    assert torch.equal(torch.load(tmp_path / "pytorch_model.bin", weights_only=True)["a"], torch.eye(9))


def test_without_safetensors_the_smallest_extra_is_named(tmp_path, capsys, monkeypatch):
    torch.save({"w": torch.eye(3)}, tmp_path / "a.pt")
    save_file({"w": torch.eye(3)}, tmp_path / "a.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "safetensors.torch")
    for line in (["pack", "a.pt", "b.rewa"], ["unpack", "a.safetensors", "b.pt"], ["inspect", "a.safetensors"]):
        assert cli.main([line[0], *(str(tmp_path / name) for name in line[1:])]) == 2
        error = capsys.readouterr().err
        assert "pip install 'rewa[packed]'" in error
        assert "rewa[train]" not in error


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
        (["pack", "full.pt", "out.pt"], "'out.pt' looks like another format: call it 'out.rewa'"),
        (["pack", "full.pt", "model.safetensors"], "from_pretrained takes for plain weights"),
        (["pack", "clash.pt", "out"], "two tensors called 'a.b'"),
        (["unpack", "packed.rewa", "out.rewa"], "unpack writes .safetensors, .pt, .pth or .bin files, not 'out.rewa'"),
    ],
)
def test_bad_files_are_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").write_bytes(b"noise" * 20)
    torch.save({"epoch": 1}, "empty.pt")
    torch.save({"w": torch.ones(3)}, "full.pt")
    save_file({"w": torch.ones(3)}, "plain.safetensors")
    torch.save({"a": {"b": torch.ones(3)}, "a.b": torch.zeros(3)}, "clash.pt")
    rewa.save_packed({"w": torch.ones(3)}, "packed.rewa")
    before = sorted(tmp_path.iterdir())
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


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


# ------------------------------------------------------------------------------------------------- training

TINY = ["--set", "model=mlp", "--set", "hidden=20", "--set", "compressions=1,5", "--method", "l1", "--strength", "0.01"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in; a run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REWA_DATA", raising=False)
    return tmp_path


def interrupted(arguments, number, folder):
    """The exit code of a run that gets a signal after its first checkpoint."""

    def interrupt():
        end = time.monotonic() + 30
        while not list(folder.glob("checkpoints/step-*")) and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = cli.main(arguments)
    thread.join()
    return code


def outcome(folder):
    record = json.loads((folder / "record.json").read_text())
    del record["command"]
    return record, (folder / "trained.safetensors").read_bytes(), (folder / "model.rewa").read_bytes()


LONG = ["train", "digits", *TINY, "--set", "epochs=30", "--quiet", "--name", "run"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the long run leaves when nothing stops it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert cli.main([*LONG, "--out", str(folder)]) == 0
    return outcome(folder / "run")


@pytest.mark.parametrize("command", ["train", "sweep", "report", "reproduce", "list"])
def test_examples_of_the_help_parse(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    _, _, examples = capsys.readouterr().out.partition("example")
    lines = [line for line in examples.splitlines() if "rewa " in line]
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert cli._parser().parse_args(words[words.index("rewa") + 1 :]).command == command


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"rewa {rewa.__version__}\n"


def test_list(capsys):
    content = json.loads(run(capsys, "list", "--json"))
    assert list(content) == ["recipes", "methods", "results"]
    assert list(content["recipes"]) == list(RECIPES)
    assert list(content["methods"]) == list(names())
    for name in ("gmp", "rigl", "acdc", "ham"):
        line, _, _ = content["methods"][name].partition(" [")
        assert content["methods"][f"rewa+{name}"].startswith(f"{line}; wraps rewa [")
        assert "wraps rewa" not in content["methods"][name]
    text = run(capsys, "list")
    for part, rows in content.items():
        assert part in text.splitlines()
        for name, words in rows.items():
            assert re.search(rf"^  {re.escape(name)} +{re.escape(words)}$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train digit", "there is no recipe 'digit'; did you mean 'digits'?"),
        ("train digits --method rewaa", "there is no method 'rewaa'; did you mean 'rewa'?"),
        ("train digits --set epoch=3", "there is no setting 'epoch'; did you mean 'epochs'?"),
        ("train digits --set epochs=many", "epochs=many: this setting is a whole number"),
        ("train digits --strength nan", "'nan' is not a finite number"),
        ("train digits --seed one", "invalid int value: 'one'"),
        ("train digits --seed -1", "Invalid seed: -1 (allowed: a whole number from 0 to 2**32 - 1)"),
        ("train digits --strength -1", "Invalid strength: -1.0 (allowed: a finite number >= 0"),
        ("train digits --method dense --strength -1", "Invalid strength: -1.0"),
        ("train digits --method gmp --strength 1", "Invalid strength: 1.0 (allowed: a share of zeros"),
        ("train digits --method rewa+gmp --set on_strength=-1", "Invalid strength: -1.0"),
        ("train digits --sparsity 95", "--sparsity: 95 is not a share of zeros, at least 0 and below 1; 95 % is 0.95"),
        ("train digits --sparsity 1", "--sparsity: 1 is not a share of zeros, at least 0 and below 1; see"),
        ("train digits --sparsity -0.5", "--sparsity: -0.5 is not a share of zeros"),
        ("train digits --sparsity nan", "'nan' is not a finite number"),
        ("train digits --compression 0.5", "--compression: 0.5 is not a compression, at least 1: 20 is for 95 % zeros"),
        ("train digits --sparsity 0.9 --method gmp", "--sparsity is for --method sparsifier, not gmp: leave it out, or give"),
        ("train digits --compression 9 --method l1", "--compression is for --method sparsifier, not l1"),
        ("train digits --sparsity 0.9 --method sparsifer", "did you mean 'sparsifier'?"),
        ("train digits --sparsity 0.9 --strength 0.9", "--strength: not allowed with argument --sparsity"),
        ("train digits --sparsity 0.9 --compression 9", "--compression: not allowed with argument --sparsity"),
        ("train digits --sparsity 0.9 --set law=cubik", "there is no law 'cubik'; did you mean 'cubic'?"),
        ("train digits --sparsity 0.9 --set begin=0.9", "Invalid begin and end: 0.9, 0.75"),
        ("train digits --set compressions=0.5", "Invalid compressions"),
        ("train cifar10-cpu --data empty", "(looked in empty/cifar-10-batches-bin, empty)"),
        ("train cifar10-cpu --data empty", "REWA_DATA"),
        ("sweep digits --methods l1,l9", "there is no method 'l9'; did you mean 'l1'?"),
        ("sweep digits --methods l1 --strengths 0.1,b", "'b' is not a finite number"),
        ("sweep digits --methods l1 --seeds 0", "Invalid seeds: 0"),
        ("sweep digits --methods l1 --workers 0", "Invalid workers: 0"),
        ("sweep digits --methods l1 --workers 2 --ray auto", "leave out --workers or --ray"),
        ("sweep digits --methods l1 --set strength=7", "--strengths"),
        ("sweep digits --methods l1 --set epoch=3", "did you mean 'epochs'?"),
        ("sweep cifar10-cpu --methods l1 --data empty", "(looked in empty/cifar-10-batches-bin, empty)"),
        ("sweep digits", "the following arguments are required: --methods"),
        ("report nowhere", "there is no 'nowhere'"),
        ("report empty", "no record.json in 'empty'"),
        ("reproduce nothing", "there is no result 'nothing'"),
        ("reproduce digit", "did you mean 'digits'?"),
        ("reproduce digits --workers 0", "Invalid workers: 0"),
        ("reproduce fig1 --workers 0", "Invalid workers: 0"),
        ("reproduce fig1 --device cuda", "fig1 trains no network and draws its own data on the CPU: leave out --device\n"),
        ("reproduce maps --quick --data empty --download", "leave out --data, --download\n"),
        ("trian", "invalid choice: 'trian'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(here, capsys, line, message):
    (here / "empty").mkdir()
    try:
        code = cli.main(line.split())
    except SystemExit as stopped:  # what argparse finds
        code = stopped.code
    streams = capsys.readouterr()
    assert code == 2
    assert streams.err.startswith("rewa")
    assert message in streams.err
    assert streams.err.count("\n") == 1
    assert streams.out == ""
    assert [path.name for path in here.iterdir()] == ["empty"], "nothing was written"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(here, capsys):
    for command in (["train"], ["sweep", "digits", "--methods", "l1"]):
        assert cli.main([*command, "--device", "cuda"]) == 2
        assert "--device cuda: torch finds no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train digits", "sweep digits --methods l1", "reproduce digits"])
def test_a_device_that_no_one_has(here, capsys, command):
    """torch's own words are a list of thirty backends."""
    assert cli.main([*command.split(), "--device", "gpu"]) == 2
    error = capsys.readouterr().err
    assert "--device gpu: there is no such device; use cpu, cuda or cuda:N" in error
    assert "mkldnn" not in error


@pytest.mark.parametrize("method", ["l1", "rewa", "gmp", "ham", "rewa+gmp"])
def test_a_strength_that_cannot_be_is_explained_in_words(here, capsys, method):
    assert cli.main(["train", "digits", "--method", method, "--strength", "-1"]) == 2
    error = capsys.readouterr().err
    assert "Invalid strength: -1.0" in error
    assert make(method).strength_is in error
    assert "grid(" not in error


def test_messages_are_plain_text():
    """torch and Ray colour their errors whatever they are printed to."""
    words = "\x1b[31mgraph break\x1b[0m: \x1b[1;33msee\x1b[K\n below\x1b[0m"
    assert cli._words(RuntimeError(words)) == "graph break: see below"
    assert str(Failure("run", words)) == "run: graph break: see below"


@pytest.mark.parametrize(
    "line",
    [
        "train digit",
        "sweep digit --methods l1",
        "report nowhere",
        "reproduce nothing",
        "explain --K 0",
        "inspect nowhere",
        "pack nowhere out",
        "unpack nowhere out",
    ],
)
def test_tracebacks_are_for_debugging(here, line):
    with pytest.raises((ValueError, OSError)):
        cli.main([*line.split(), "--debug"])


def test_list_has_a_debug_too(capsys):
    assert run(capsys, "list", "--debug") == run(capsys, "list")


@pytest.mark.slow
def test_a_lost_run_is_one_line_and_exit_code_1(here, capsys):
    arguments = ["train", "digits", *TINY, "--set", "epochs=2", "--set", "lr=1e25", "--quiet"]
    assert cli.main(arguments) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert re.fullmatch(r"rewa train: the loss is \S+ in epoch 1, step \d+: lower lr=1e\+25 .*\n", streams.err)
    with pytest.raises(rewa.train.run_folder.TrainingError, match="the loss is"):
        cli.main([*arguments, "--debug"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(here, capsys, undisturbed, number):
    assert interrupted([*LONG, "--out", "broken"], number, here / "broken/run") == 128 + number
    assert capsys.readouterr().err == f"rewa train: stopped by {number.name}; saved, and the same command resumes\n"
    assert json.loads((here / "broken/run/record.json").read_text())["status"] == "running"
    assert cli.main([*LONG, "--out", "broken"]) == 0
    assert capsys.readouterr() == ("", "")
    assert outcome(here / "broken" / "run") == undisturbed


@pytest.mark.slow
def test_an_interrupt_outside_of_training_is_one_line(here, capsys):
    (here / "runs" / "run").mkdir(parents=True)
    os.mkfifo(here / "runs" / "run" / "record.json")  # nobody writes to it: whoever reads it waits
    # A process that a shell started in the background ignores the signal, and would wait for ever.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        assert cli.main(["train", "digits", *TINY, "--name", "run"]) == 130
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "rewa train: stopped by SIGINT\n"


@pytest.mark.slow
def test_train_prints_json_and_report_reads_the_run(here, capsys):
    arguments = ["train", "digits", *TINY, "--set", "epochs=2", "--json"]
    events = [json.loads(line) for line in run(capsys, *arguments).splitlines()]
    assert [event["event"] for event in events] == ["epoch", "epoch", "end"]
    assert events[-1]["record"]["status"] == "finished"
    again = [json.loads(line) for line in run(capsys, *arguments).splitlines()]
    assert again == events[-1:], "a finished run is only told"
    assert "| l1" in run(capsys, "report", "runs", "--markdown")
    assert "wrote page.html" in run(capsys, "report", "runs", "-o", "page.html")
    assert (here / "page.html").stat().st_size > 1000


@pytest.mark.slow
def test_a_share_of_zeros_is_one_option(here, capsys):
    short = ["--set", "model=mlp", "--set", "hidden=25,20", "--set", "compressions=1", "--set", "epochs=1"]
    said = (["--sparsity", "0.95"], ["--compression", "20"], ["--method", "sparsifier", "--strength", "0.95"])
    ends = []
    for number, words in enumerate(said):
        text = run(capsys, "train", "digits", *words, *short, "--json", "--out", str(number))
        ends.append(json.loads(text.splitlines()[-1])["record"])
        assert ends[-1]["name"] == "digits-sparsifier-0.95-s0"
        assert ends[-1]["final"]["prunable"] == {"total": 2300, "nonzero": 115}
        del ends[-1]["command"]
    assert ends[0] == ends[1] == ends[2]
    text = run(capsys, "sweep", "digits", "--methods", "sparsifier", "--strengths", "0.9,0.95", "--seeds", "1", *short)
    assert "sparsifier" in text
    assert {path.name for path in (here / "runs").iterdir()} == {f"digits-sparsifier-{x}-s0" for x in (0.9, 0.95)}


@pytest.mark.slow
def test_reproduce_prints_as_it_is_told(here, capsys, monkeypatch):
    recipe = replace(RECIPES["digits"], epochs=2, model="mlp", hidden=(20,), compressions=(1.0, 5.0))
    small = Sweep(recipe=recipe, methods=("l1",), strengths=(0.01,), seeds=1)
    monkeypatch.setitem(RESULTS, "small", SweepResult(line="a small one", sweep=small))
    arguments = ["reproduce", "small", "--out", "small", "--workers", "1"]
    assert run(capsys, *arguments, "--quiet") == ""
    files = [f"small/{path.name}" for path in (here / "small").iterdir() if path.is_file()]
    events = [json.loads(line) for line in run(capsys, *arguments, "--json").splitlines()]
    assert [event["event"] for event in events] == ["finished", *["wrote"] * len(files)]
    assert {event["file"] for event in events[1:]} == set(files)
    assert [line for line in run(capsys, *arguments).splitlines() if line.startswith("wrote")] == [
        f"wrote {event['file']}" for event in events[1:]
    ]


@dataclass(frozen=True, kw_only=True)
class Study(Result):
    line: str = "a study"
    quick: bool = True
    seen: list[How] = field(default_factory=list)

    def run(self, out, how):
        self.seen.append(how)
        how.progress.stage("counting", 2)
        how.progress.advance()
        how.progress.advance()
        (out / "numbers.json").write_text("{}")
        return [out / "numbers.json"]


@dataclass(frozen=True, kw_only=True)
class NetworkStudy(Study):
    trains_networks: ClassVar[bool] = True


def test_reproduce_a_study(here, capsys, monkeypatch):
    study = Study()
    monkeypatch.setitem(RESULTS, "study", study)
    assert run(capsys, "reproduce", "study").splitlines() == ["counting", "wrote results/study/numbers.json"]
    arguments = ["--quick", "--workers", "3", "--json"]
    assert [json.loads(line) for line in run(capsys, "reproduce", "study", *arguments).splitlines()] == [
        {"event": "stage", "stage": "counting", "done": 0.0, "of": 2},
        {"event": "stage", "stage": "counting", "done": 2.0, "of": 2},
        {"event": "wrote", "file": "quick/study/numbers.json"},
    ]
    assert run(capsys, "reproduce", "study", "--quick", "--out", "there", "--quiet") == ""
    assert (here / "there" / "numbers.json").exists()
    first, second, third = study.seen
    assert (first.quick, first.workers, first.root, first.download, first.device) == (False, None, None, False, None)
    assert (second.quick, second.workers) == (True, 3)
    assert third.quick


@pytest.mark.parametrize("arguments", [["--data", "d"], ["--download"], ["--device", "cpu"], ["--trained"]])
def test_a_device_and_data_are_for_networks(here, capsys, monkeypatch, arguments):
    study, networks = Study(), NetworkStudy()
    monkeypatch.setitem(RESULTS, "study", study)
    monkeypatch.setitem(RESULTS, "networks", networks)
    assert cli.main(["reproduce", "study", *arguments]) == 2
    sentence = f"study trains no network and draws its own data on the CPU: leave out {arguments[0]}"
    assert capsys.readouterr() == ("", f"rewa reproduce: {sentence}\n")
    assert study.seen == []
    assert not any(here.iterdir())
    run(capsys, "reproduce", "networks", *arguments)
    (how,) = networks.seen
    given = {"--data": how.root == Path("d"), "--download": how.download, "--device": how.device == "cpu"}
    given |= {"--trained": how.trained}
    assert [name for name, is_given in given.items() if is_given] == arguments[:1]


def test_studies_of_linear_models_train_no_network():
    networks = {name for name, result in RESULTS.items() if result.trains_networks}
    choices = {"cifar10-schedules", "cifar10-tuning", "fashion-mnist-ablations"}
    tables = {
        "cifar10",
        "cifar10-cpu",
        "cifar10-paper",
        "digits",
        "digits-methods",
        "fashion-mnist",
        "readme-rows",
        "shakespeare",
    }
    assert networks == tables | choices | {"sparsifier"}


def test_reproduce_into_a_file(here, capsys, monkeypatch):
    monkeypatch.setitem(RESULTS, "study", Study())
    (here / "taken").write_text("kept")
    assert cli.main(["reproduce", "study", "--out", "taken"]) == 2
    assert capsys.readouterr() == ("", "rewa reproduce: --out taken is a file: give a folder\n")
    assert (here / "taken").read_text() == "kept"


@pytest.mark.slow
def test_a_reader_who_has_enough_gets_no_traceback(here):
    words = [sys.executable, "-m", "rewa", "train", "digits", *TINY, "--set", "epochs=200"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().startswith("digits-l1-0.01-s0: l1")
            process.stdout.close()
            assert process.wait(60) == 128 + signal.SIGPIPE
            assert process.stderr.read() == ""
        finally:
            process.kill()


FULL = """
import resource, sys
from rewa import cli

# The system refuses what a file holds beyond the limit, as it does on a full disk.
for limit in map(int, sys.argv[1].split(",")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    assert cli.main(sys.argv[2:]) == 2
"""


@pytest.mark.slow
def test_a_full_disk_costs_nothing_that_was_saved(here, undisturbed):
    assert interrupted([*LONG, "--out", "broken"], signal.SIGTERM, here / "broken/run") == 143
    before = checkpoint.load_latest(here / "broken/run/checkpoints")
    # Below the record, the weights, the state of the optimizer.
    words = [sys.executable, "-c", FULL, "1000,5000,6500,8000", *LONG, "--out", "broken"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith("rewa train: ")
        assert line.endswith("is the disk full? What was saved before is whole: make room, and the same command resumes")
    after = checkpoint.load_latest(here / "broken/run/checkpoints")
    assert after.step == before.step
    assert all(torch.equal(after.model[name], tensor) for name, tensor in before.model.items())
    assert not list(here.glob("broken/run/**/.*.*")), "no half files are left"
    assert cli.main([*LONG, "--out", "broken"]) == 0
    assert outcome(here / "broken" / "run") == undisturbed
