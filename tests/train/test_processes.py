"""Two processes on this machine, through torchrun and gloo, against one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rewa.train.processes import World, full_state, load_state

SET = ["model=mlp", "hidden=40,20", "epochs=4", "compressions=1,5", "recalibrate=200"]


TWO = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
TWO += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]  # a port that is free


def launch(out: Path, name: str, *more: str, processes: int = 2, changes=SET, expect: int = 0) -> dict:
    changes = [word for change in (*changes, *more) for word in ("--set", change)]
    arguments = ["train", "digits", "--strength", "0.002", "--out", str(out), "--name", name, "--quiet", *changes]
    start = [*(TWO if processes == 2 else [sys.executable]), "-m", "rewa"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*start, *arguments], timeout=300, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode != 0) == bool(expect), done.stderr
    return json.loads((out / name / "record.json").read_text()) if not expect else {"stderr": done.stderr}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("processes")
    return out, launch(out, "one", processes=1)


def losses(record):
    return [row[key] for row in record["epochs"] for key in ("train_loss", "validation_loss")]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one(alone, parallel):
    out, one = alone
    two = launch(out, parallel, f"parallel={parallel}")
    assert two["numeric"]["processes"] == 2
    assert len(losses(two)) == 8
    assert losses(two)[::2] == pytest.approx(losses(one)[::2], rel=1e-6), "in training"
    assert losses(two)[1::2] == pytest.approx(losses(one)[1::2], rel=1e-5), "on validation data"
    here, there = (load_file(out / name / "trained.safetensors") for name in ("one", parallel))
    assert here.keys() == there.keys()
    assert all(torch.allclose(here[name], there[name], rtol=1e-3, atol=1e-5) for name in here)
    assert losses(one)[-1] < 0.7 * losses(one)[0], "something was learned"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_may_change_the_number_of_its_processes(alone, parallel, tmp_path):
    """A checkpoint of two processes is the checkpoint of one."""
    _, one = alone
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from rewa.train.job import job\n"
        "from rewa.train.loop import train\n"
        "from rewa.train.signals import Stopped\n"
        "from rewa.train.watch import Watch\n"
        "class At(Watch):\n"
        "    def step(self, done, loss):\n"
        "        if done == 40: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"one = job('digits', 'rewa', strength=0.002, name='run', changes={[*SET, f'parallel={parallel}']!r})\n"
        "try:\n"
        f"    train(one, Path({str(tmp_path)!r}), watch=At())\n"
        "except Stopped:\n"
        "    pass\n"
    )
    file = tmp_path / "part.py"
    file.write_text(script)
    subprocess.run([*TWO, str(file)], check=True, timeout=300, capture_output=True)
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())] == ["step-00000032", "step-00000040"]
    # The record names the setting, so the same settings go on, in one process.
    done = launch(tmp_path, "run", f"parallel={parallel}", processes=1)
    assert losses(done) == pytest.approx(losses(one), rel=1e-5)


def test_parts_of_a_batch_and_processes_are_the_same_to_the_bit(tmp_path):
    """With batch norms of each part: two processes, or one that takes the parts one after the other."""
    changes = ["epochs=2", "compressions=1", "recalibrate=200", "sync_batchnorm=false"]
    one = launch(tmp_path, "one", "accumulate=2", processes=1, changes=changes)
    two = launch(tmp_path, "two", processes=2, changes=changes)
    assert [row["train_loss"] for row in one["epochs"]] == [row["train_loss"] for row in two["epochs"]]


def test_a_sharded_gpt_trains_as_one_process(tmp_path):
    text = "".join(chr(97 + (i * i + i // 7) % 26) for i in range(6000))
    (tmp_path / "input.txt").write_text(text)
    small = ["context=16", "layers=2", "heads=2", "width=16", "epochs=1", "batch_size=16", "compressions=1", "recalibrate=32"]
    small.append("precision=float32")
    records = []
    for processes, parallel in ((1, "ddp"), (2, "fsdp")):
        changes = [word for change in (*small, f"parallel={parallel}") for word in ("--set", change)]
        start = [*(TWO if processes == 2 else [sys.executable]), "-m", "rewa", "train", "shakespeare-gpt", "--method", "l1"]
        rest = ["--strength", "0.01", "--data", str(tmp_path), "--out", str(tmp_path), "--name", parallel, "--quiet", *changes]
        subprocess.run([*start, *rest], check=True, timeout=300, capture_output=True)
        records.append(json.loads((tmp_path / parallel / "record.json").read_text()))
    assert losses(records[1]) == pytest.approx(losses(records[0]), rel=1e-5)


def test_a_method_that_needs_whole_weights_says_so(tmp_path):
    arguments = ("parallel=fsdp", "finetune_epochs=1")
    assert "masked fine-tune needs whole weights" in launch(tmp_path, "run", *arguments, expect=1)["stderr"]


NORMS = """
import torch, torch.distributed as dist
from rewa.train.processes import SyncedBatchNorm
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
"""


def test_synced_norms_are_the_norms_of_the_whole_batch(tmp_path):
    (tmp_path / "norms.py").write_text(NORMS)
    done = subprocess.run([*TWO, str(tmp_path / "norms.py")], timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
