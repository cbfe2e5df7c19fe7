"""Two processes on this machine, through gloo, against one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

from rewa import cli
from rewa.train.job import job
from rewa.train.processes import World, full_state, load_state
from rewa.train.run import train

SET = ["model=mlp", "hidden=40,20", "epochs=4", "compressions=1,5", "recalibrate=200"]
NORMED = ["epochs=2", "compressions=1", "recalibrate=200", "sync_batchnorm=false"]
GPT = ["context=16", "layers=2", "heads=2", "width=16", "epochs=1", "batch_size=16", "compressions=1", "recalibrate=32"]
GPT += ["precision=float32"]
STOPPED = [("rewa", 0.002, "ddp"), ("rewa", 0.002, "fsdp"), ("sparsifier", 0.9, "fsdp")]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
TORCHRUN += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]  # a port that is free


def digits(out: Path, name: str, *changes: str) -> list[str]:
    """The words of a run on the digits."""
    words = [word for change in changes for word in ("--set", change)]
    return ["train", "digits", "--strength", "0.002", "--out", str(out), "--name", name, "--quiet", *words]


def sparse(out: Path, name: str, parallel: str = "ddp") -> list[str]:
    """The words of a run to a share of zeros."""
    words = [word for change in (*SET, f"parallel={parallel}") for word in ("--set", change)]
    return ["train", "digits", "--sparsity", "0.9", "--out", str(out), "--name", name, "--quiet", *words]


def gpt(out: Path, parallel: str) -> list[str]:
    words = [word for change in (*GPT, f"parallel={parallel}") for word in ("--set", change)]
    rest = ["--strength", "0.01", "--data", str(out), "--out", str(out), "--name", f"gpt-{parallel}", "--quiet"]
    return ["train", "shakespeare-gpt", "--method", "l1", *rest, *words]


def record_of(out: Path, name: str) -> dict:
    return json.loads((out / name / "record.json").read_text())


def losses(record):
    return [row[key] for row in record["epochs"] for key in ("train_loss", "validation_loss")]


# What each of two processes does. A process is started once for all of it: to start takes longer than to train.
TOGETHER = """
import contextlib, io, json, os, signal, sys
from pathlib import Path

import torch
import torch.distributed as dist

from rewa import cli
from rewa.train.job import job
from rewa.train.run import train
from rewa.train.processes import SyncedBatchNorm
from rewa.train.signals import Stopped
from rewa.train.watch import Watch

out, tasks, settings = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])


class At(Watch):
    def step(self, done, loss):
        if done == 40:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(method, strength, parallel):
    name = f"stopped-{method}-{parallel}"
    one = job("digits", method, strength=strength, name=name, changes=[*settings, f"parallel={parallel}"])
    try:
        train(one, out, watch=At())
    except Stopped:
        pass


def norms():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x, direction = torch.randn(6, 4, 3, 3), torch.randn(6, 4, 3, 3)
    plain, synced = torch.nn.BatchNorm2d(4), SyncedBatchNorm(4)
    for norm in (plain, synced):
        torch.nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(1))
    mine = slice(3 * rank, 3 * rank + 3)
    for _ in range(2):
        whole = x.clone().requires_grad_()
        part = x[mine].clone().requires_grad_()
        (plain(whole) * direction).sum().backward()
        (synced(part) * direction[mine]).sum().backward()
        torch.testing.assert_close(part.grad, whole.grad[mine], rtol=1e-12, atol=1e-12)
    for one, other in zip(plain.buffers(), synced.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    grad = synced.weight.grad.clone()
    dist.all_reduce(grad)
    torch.testing.assert_close(grad, plain.weight.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain.eval()(x), synced.eval()(x))
    dist.destroy_process_group()
    return "as the whole batch"


def command(*words):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = cli.main(list(words))
    return [code, errors.getvalue()]


answers = {}
for name, port, kind, words in tasks:
    os.environ["MASTER_PORT"] = str(port)  # a group of its own for each
    answers[name] = {"command": command, "stopped": stopped, "norms": norms}[kind](*words)
print(json.dumps(answers))
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    (folder / "input.txt").write_text("".join(chr(97 + (i * i + i // 7) % 26) for i in range(6000)))
    return folder


@pytest.fixture(scope="module")
def together(out):
    """What two processes answered, each to every task."""
    tasks = [
        ("fsdp", "command", digits(out, "fsdp", *SET, "parallel=fsdp")),
        ("parts", "command", digits(out, "two", *NORMED)),
        ("gpt", "command", gpt(out, "fsdp")),
        ("sparse-ddp", "command", sparse(out, "sparse-ddp", "ddp")),
        ("sparse-fsdp", "command", sparse(out, "sparse-fsdp", "fsdp")),
        *((f"stopped-{way[0]}-{way[2]}", "stopped", way) for way in STOPPED),
        ("refused", "command", digits(out, "refused", *SET, "parallel=fsdp", "finetune_epochs=1")),
        ("norms", "norms", []),
    ]
    tasks = [(name, port, kind, words) for (name, kind, words), port in zip(tasks, free_ports(len(tasks)), strict=True)]
    command = [sys.executable, "-c", TOGETHER, str(out), json.dumps(tasks), json.dumps(SET)]
    where = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pair = [subprocess.Popen(command, env={**where, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes) for rank in (0, 1)]
    try:
        ends = [process.communicate(timeout=300) for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [0, 0], ends
    return [json.loads(output) for output, _ in ends]


@pytest.fixture(scope="module")
def alone(out):
    """The same runs in one process."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    for words in (
        digits(out, "one", *SET),
        digits(out, "parts", *NORMED, "accumulate=2"),
        gpt(out, "ddp"),
        sparse(out, "sparse"),
    ):
        assert cli.main(words) == 0
    torch.set_default_dtype(previous)
    return {name: record_of(out, name) for name in ("one", "parts", "gpt-ddp", "sparse")}


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one(out, alone, together, parallel):
    one = alone["one"]
    if parallel == "ddp":  # the way that people start them
        command = [*TORCHRUN, "-m", "rewa", *digits(out, "ddp", *SET, "parallel=ddp")]
        done = subprocess.run(command, timeout=300, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
    else:
        assert [answer["fsdp"] for answer in together] == [[0, ""], [0, ""]]
    two = record_of(out, parallel)
    assert two["numeric"]["processes"] == 2
    assert len(losses(two)) == 8
    assert losses(two)[::2] == pytest.approx(losses(one)[::2], rel=1e-6), "in training"
    assert losses(two)[1::2] == pytest.approx(losses(one)[1::2], rel=1e-5), "on validation data"
    here, there = (load_file(out / name / "trained.safetensors") for name in ("one", parallel))
    assert here.keys() == there.keys()
    assert all(torch.allclose(here[name], there[name], rtol=1e-3, atol=1e-5) for name in here)
    assert losses(one)[-1] < 0.7 * losses(one)[0], "something was learned"


@pytest.mark.parametrize(("method", "strength", "parallel"), STOPPED)
def test_a_run_may_change_the_number_of_its_processes(out, alone, together, method, strength, parallel):
    """A checkpoint of two processes is the checkpoint of one."""
    run = out / f"stopped-{method}-{parallel}"
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-00000032", "step-00000040"]
    # The record names the setting, so the same settings resume, in one process.
    torch.set_default_dtype(torch.float32)
    same = job("digits", method, strength=strength, name=run.name, changes=[*SET, f"parallel={parallel}"])
    with pytest.warns(RuntimeWarning, match="'processes': 2} and resumes with"):
        train(same, out)
    one = alone["one" if method == "rewa" else "sparse"]
    assert losses(record_of(out, run.name)) == pytest.approx(losses(one), rel=1e-5)
    if method == "sparsifier":
        assert record_of(out, run.name)["final"]["prunable"] == one["final"]["prunable"]


def test_parts_of_a_batch_and_processes_are_the_same_to_the_bit(out, alone, together):
    """With batch norms of each part: two processes, or one that takes the parts one after the other."""
    assert [answer["parts"] for answer in together] == [[0, ""], [0, ""]]
    one, two = alone["parts"], record_of(out, "two")
    assert [row["train_loss"] for row in one["epochs"]] == [row["train_loss"] for row in two["epochs"]]


def test_a_sharded_gpt_trains_as_one_process(out, alone, together):
    assert [answer["gpt"] for answer in together] == [[0, ""], [0, ""]]
    assert losses(record_of(out, "gpt-fsdp")) == pytest.approx(losses(alone["gpt-ddp"]), rel=1e-5)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_reach_the_zeros_of_one(out, alone, together, parallel):
    name = f"sparse-{parallel}"
    assert [answer[name] for answer in together] == [[0, ""], [0, ""]]
    one, two = alone["sparse"], record_of(out, name)
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert two["final"]["prunable"] == one["final"]["prunable"]
    assert one["final"]["prunable"]["nonzero"] == round(0.1 * one["final"]["prunable"]["total"])
    here, there = (load_file(out / run / "trained.safetensors") for run in ("sparse", name))
    for key in here:
        assert torch.equal(here[key] == 0, there[key] == 0), "the same zeros"
        assert torch.allclose(here[key], there[key], rtol=1e-3, atol=1e-5)


def test_a_method_that_needs_whole_weights_says_so(together):
    for code, errors in (answer["refused"] for answer in together):
        assert code == 1
        assert "masked fine-tune needs whole weights" in errors


def test_synced_norms_are_the_norms_of_the_whole_batch(together):
    assert [answer["norms"] for answer in together] == ["as the whole batch"] * 2


def test_one_process_is_the_whole_world():
    world = World()
    values = torch.arange(3.0)
    assert world.first
    assert world.sum(values) is values
    assert world.agreed(True)
    assert not world.agreed(False)


def test_a_state_is_copied_whole():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = full_state(optimizer.state_dict())
    optimizer.step()
    other = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    load_state(other, state)
    assert other.param_groups[0]["lr"] == 0.1
    assert torch.equal(other.state[model.weight]["momentum_buffer"], torch.ones(2, 3))
