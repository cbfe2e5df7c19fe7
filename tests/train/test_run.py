from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

import rewa
from rewa.methods import make, names
from rewa.methods.method import Bound
from rewa.record import read
from rewa.sparsity import prunable
from rewa.train import checkpoint
from rewa.train.data import mix
from rewa.train.datasets import load
from rewa.train.job import WEIGHTS, Job, build_model, job, load_data
from rewa.train.recipes import RECIPES
from rewa.train.run import train
from rewa.train.run_folder import TrainingError
from rewa.train.signals import Stopped
from rewa.train.trainer import NOISE
from rewa.train.watch import Watch

SHORT = replace(RECIPES["digits"], epochs=3, compressions=(1, 5, 20))
PLAIN = replace(SHORT, model="mlp", hidden=(20,))


@pytest.fixture(autouse=True)
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


class StopAt(Watch):
    """Sends this process a signal after a number of steps."""

    def __init__(self, step, number=signal.SIGTERM):
        self.at, self.number = step, number

    def step(self, done, loss):
        if done == self.at:
            os.kill(os.getpid(), self.number)


class KillAt(Watch):
    """Ends a run in the hardest way that leaves pytest alive: by an exception nobody expects."""

    def __init__(self, step):
        self.at = step

    def step(self, done, loss):
        if done == self.at:
            raise KeyboardInterrupt


def result(folder: Path):
    return [(folder / name).read_bytes() for name in ("trained.safetensors", "model.rewa", "record.json")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that others are compared with: its job, the folder of it, and its record."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    out, one = tmp_path_factory.mktemp("whole"), Job(recipe=SHORT, method=make("rewa", strength=0.02), name="run")
    record = train(one, out)
    torch.set_default_dtype(previous)
    return one, out / "run", record


def test_the_loop_is_the_obvious_loop(tmp_path):
    """Dense training by the loop equals the lines that anyone would write, bit for bit."""
    train(Job(recipe=SHORT, method=make("dense", strength=1e-3)), tmp_path)
    trained = load_file(tmp_path / "digits-dense-0.001-s0" / "trained.safetensors")

    data = load("digits")
    torch.manual_seed(mix(0, WEIGHTS))
    model = build_model(SHORT, data)
    rest = [param for param in model.parameters() if param.dim() < 2]
    groups = [{"params": list(prunable(model).values()), "weight_decay": 1e-3}, {"params": rest}]
    optimizer = torch.optim.SGD(groups, 0.1, momentum=0.9)
    rates = SHORT.plan(16).learning_rates
    for epoch in range(3):
        for step, (images, labels) in enumerate(data.batches(epoch, seed=0, batch_size=64)):
            for group in optimizer.param_groups:
                group["lr"] = rates[16 * epoch + step]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    assert set(trained) == set(model.state_dict())
    assert all(torch.equal(trained[name], tensor) for name, tensor in model.state_dict().items())


def test_a_record_says_all(tmp_path):
    run = train(Job(recipe=SHORT, method=make("rewa", strength=0.02), seed=4, name="mine"), tmp_path)
    record = run.to_json()
    assert record == json.loads((tmp_path / "mine" / "record.json").read_text())
    assert run.folder == tmp_path / "mine"
    assert record["status"] == "finished"
    assert record["seed"] == 4
    assert record["method"] == {
        "name": "rewa",
        "strength": 0.02,
        "strength_is": "weight decay of y",
        "settings": {"K": 9, "M": 2, "eps": 0.0},
    }
    assert record["recipe"]["epochs"] == 3
    assert record["versions"]["torch"] == torch.__version__
    assert record["numeric"]["precision"] == "float32"
    assert record["data"].pop("fingerprint") == load("digits").fingerprint
    assert record["data"] == {"name": "digits", "train": 1077, "validation": 360, "test": 360}
    assert [row["epoch"] for row in record["epochs"]] == [1, 2, 3]
    trained = load_file(tmp_path / "mine" / "trained.safetensors")
    weights = [tensor for tensor in trained.values() if tensor.dim() >= 2]
    for point, compression in zip(record["curve"], SHORT.compressions, strict=True):
        left = rewa.sparsity.count(weights, point["threshold"])
        assert point["prunable"] == {"total": left.total, "nonzero": left.nonzero}
        assert left.compression_ratio >= compression
        assert 0 <= point["test_accuracy"] <= 100
    final = record["final"]
    packed = rewa.load_packed(tmp_path / "mine" / "model.rewa")
    assert sum(int((tensor != 0).sum()) for tensor in packed.values() if tensor.dim() >= 2) == final["prunable"]["nonzero"]
    assert final["file_bytes"] == (tmp_path / "mine" / "model.rewa").stat().st_size
    assert sum(record["histogram"]["counts"]) + record["histogram"]["zeros"] == 25744
    assert sum(layer["nonzero"] for layer in record["layers"]) == final["prunable"]["nonzero"]
    assert list((tmp_path / "mine" / "tensorboard").iterdir())
    assert not (tmp_path / "mine" / "checkpoints").exists()


def test_the_final_cut_and_the_curve_are_what_the_model_does(whole):
    """Accuracies of the record, measured again from the files, with the statistics that the cut model has."""
    _, folder, record = whole
    data = load_data(SHORT)
    model = build_model(SHORT, data)
    model.load_state_dict(rewa.load_packed(folder / "model.rewa"))
    model.eval()
    for split in ("validation", "test"):
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in data.evaluation(split, batch_size=360))
        assert 100 * right / 360 == pytest.approx(getattr(record.final, f"{split}_accuracy"))


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_resumed_is_identical(tmp_path, whole, how):
    """After the first step, at the end of an epoch, within one, just before and at the end: one run is stopped at each."""
    one, folder, _ = whole
    begun, places = [], [1, 16, 23, 47, 48]
    for at in places:
        watch, ends = (StopAt(at), Stopped) if how == "signal" else (KillAt(at), KeyboardInterrupt)
        watch.begin = lambda job, steps, before: begun.append(before)
        with pytest.raises(ends):
            train(one, tmp_path, watch=watch)
    watch = Watch()
    watch.begin = lambda job, steps, before: begun.append(before)
    train(one, tmp_path, watch=watch)
    # A signal saves the step; what is killed goes back to the end of an epoch, which is saved after its last step.
    assert begun == [0, *(places if how == "signal" else [0, 0, 16, 32, 32])]
    assert result(tmp_path / "run") == result(folder)
    timing = json.loads((tmp_path / "run" / "timing.json").read_text())
    assert (len(timing["epoch_seconds"]), timing["steps"]) == (3, 48)
    assert timing["resumed"] == (5 if how == "signal" else 3), "times that it began with a checkpoint"
    assert read(tmp_path)[0].timing.resumed == timing["resumed"]


@pytest.mark.parametrize(
    "name", ["hard-concrete", "spred", "adaptive-lasso", "rewa+rigl", "acdc", "gmp", "sparsifier", "rewa-pair-matched", "ham"]
)
def test_methods_with_a_state_of_their_own_resume_identically(tmp_path, name):
    recipe = replace(SHORT, epochs=4)
    one = replace(job("digits", name, changes=["epochs=4"]), recipe=recipe, name="run")
    train(one, tmp_path / "whole")
    for at in (29, 60):
        with pytest.raises(KeyboardInterrupt):
            train(one, tmp_path / "broken", watch=KillAt(at))
    with pytest.raises(Stopped):
        train(one, tmp_path / "broken", watch=StopAt(55))
    train(one, tmp_path / "broken")
    assert result(tmp_path / "whole" / "run") == result(tmp_path / "broken" / "run")


@pytest.mark.parametrize("name", names())
def test_every_method_trains_digits(tmp_path, name):
    changes = ["epochs=4", "compressions=1,2,5,10", "recalibrate=500"]
    one = job("digits", name, changes=changes)
    weakest = one.method.grid(one.method.planned(one.recipe.plan(16)))[0]
    record = train(replace(one, method=replace(one.method, strength=weakest)), tmp_path)
    assert record.finished
    assert record.method == name
    assert len(record.epochs) == 4
    best = max(row.train_accuracy for row in record.epochs)
    assert best > 30, "nothing was learned"
    trained = load_file(tmp_path / record.name / "trained.safetensors")
    assert {tuple(tensor.shape) for tensor in trained.values()} >= {(16, 1, 3, 3), (64, 32, 3, 3), (10, 256)}
    assert len(trained) == 20, "a plain model is left"


def test_a_finished_run_is_not_repeated(tmp_path):
    one = Job(recipe=PLAIN, method=make("dense", strength=1e-4), name="run")
    first = train(one, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir() if path.name != ".lock"}
    assert train(one, tmp_path, watch=KillAt(1)) == first
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(tmp_path):
    recipe = replace(PLAIN, lr=1e25, warmup=0.9)
    with pytest.raises(TrainingError, match=r"the loss is .* in epoch \d+, step \d+: lower lr="):
        train(Job(recipe=recipe, method=make("dense", strength=0.0), name="run"), tmp_path)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "failed"
    assert "the loss is" in record["reason"]
    assert read(tmp_path)[0].remarks() == [record["reason"]]


def test_weights_that_are_not_finite_at_a_cut_end_the_run_as_failed(tmp_path):
    recipe = replace(PLAIN, lr=3e38, weight_decay=1e3, warmup=0.0)  # the first loss is finite, and no weight after it
    method = make("sparsifier", strength=0.9, begin=0.0, end=0.01)
    with pytest.raises(TrainingError, match=r"not finite after 1 steps: training diverged; lower its lr; the last checkpoint"):
        train(Job(recipe=recipe, method=method, name="run"), tmp_path)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "failed"
    assert "training diverged" in record["reason"]


def test_a_signal_while_measuring_stops_at_once(tmp_path, whole):
    class Then(Watch):
        def doing(self, what):
            seen.append(what)
            os.kill(os.getpid(), signal.SIGTERM)

    (one, folder, _), seen = whole, []
    with pytest.raises(Stopped):
        train(one, tmp_path, watch=Then())
    assert len(seen) == 1
    train(one, tmp_path)
    assert result(tmp_path / "run") == result(folder)


def test_a_run_that_came_to_a_layer_of_zeros_resumes(tmp_path):
    """ReWA refuses to begin with such a layer; to go on with one is another matter."""
    one = Job(recipe=replace(PLAIN, momentum=0.0), method=make("rewa", strength=9.0), name="run")
    train(one, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(one, tmp_path / "broken", watch=StopAt(40))
    saved = checkpoint.load_latest(tmp_path / "broken" / "run" / "checkpoints")
    assert any(not tensor.any() for name, tensor in saved.model.items() if name.endswith("weight")), "the test is about that"
    train(one, tmp_path / "broken")
    assert result(tmp_path / "whole" / "run") == result(tmp_path / "broken" / "run")


def test_a_damaged_checkpoint_costs_an_epoch_not_the_run(tmp_path, whole):
    one, folder, _ = whole
    with pytest.raises(KeyboardInterrupt):
        train(one, tmp_path, watch=KillAt(40))
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    (newest / "state.pt").write_bytes(b"\0" * 100)
    with pytest.warns(RuntimeWarning, match="damaged"):
        train(one, tmp_path)
    assert result(tmp_path / "run") == result(folder)


def test_the_masked_fine_tune_keeps_the_zeros(tmp_path):
    recipe = replace(SHORT, epochs=6, finetune_epochs=2)
    record = train(Job(recipe=recipe, method=make("l1", strength=0.3), name="run"), tmp_path)
    assert [row.phase for row in record.epochs] == ["train"] * 4 + ["finetune"] * 2
    assert record.epochs[4].lr < 0.1 * SHORT.lr
    assert record.curve[0].threshold == 0
    # The cut before the fine-tune wrote exact zeros, and they are there in the end.
    assert record.curve[0].prunable.nonzero < 0.5 * record.prunable


def test_a_batch_in_parts_is_the_same_batch(tmp_path):
    """Without batch norms, whose statistics are of a part."""
    losses = []
    for parts in (1, 4):
        one = Job(recipe=replace(PLAIN, accumulate=parts), method=make("rewa", strength=1e-3), name=f"run{parts}")
        losses.append([row.train_loss for row in train(one, tmp_path).epochs])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_gradients_are_clipped_before_the_method_sees_them(tmp_path):
    seen = []

    class BoundLook(Bound):
        def before_step(self, step):
            params = [param for group in self.optimizer.param_groups for param in group["params"]]
            seen.append(float(torch.stack([param.grad.norm() for param in params]).norm()))

    class Look(type(make("dense"))):
        def _bound(self):
            return BoundLook

    train(Job(recipe=replace(PLAIN, clip_norm=0.01), method=Look(strength=0.0), name="run"), tmp_path)
    assert len(seen) == 48
    assert max(seen) <= 0.0100001
    assert min(seen) > 0.009


def test_test_data_is_read_once_and_after_everything(tmp_path, monkeypatch):
    """Every read of the test split comes after the last choice on validation data."""
    reads = []
    original = type(load("digits")).evaluation

    def spy(self, split, **options):
        reads.append(split)
        return original(self, split, **options)

    monkeypatch.setattr(type(load("digits")), "evaluation", spy)
    record = train(Job(recipe=SHORT, method=make("rewa", strength=0.02), name="run"), tmp_path)
    assert reads.count("test") == len(record.curve) + 1
    first = reads.index("test")
    choosing = len(SHORT.compressions) + 1  # what is left then: one validation score for each point that is reported
    assert reads[first:].count("validation") <= choosing


def test_default_strength_and_name():
    one = job("digits", "rewa")
    assert one.folder_name == f"digits-rewa-{one.method.strength:.4g}-s0"
    assert one.method.strength == pytest.approx(make("rewa").grid(RECIPES["digits"].plan(16))[1], rel=1e-3)
    assert job("digits", "rewa", strength=0.5).method.strength == 0.5


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "/tmp", ".", ".hidden"])
def test_a_run_stays_in_its_folder(name):
    with pytest.raises(ValueError, match="Invalid name"):
        Job(recipe=PLAIN, method=make("dense", strength=0.0), name=name)


def test_randomness_is_of_the_step_not_of_the_past():
    assert mix(0, 5, 0, NOISE) != mix(0, 6, 0, NOISE) != mix(1, 6, 0, NOISE)


def test_checkpoints_are_written_at_every_epoch(tmp_path):
    seen = []
    watch = Watch()
    watch.epoch = lambda row: seen.append(checkpoint.load_latest(tmp_path / "run" / "checkpoints"))
    train(Job(recipe=PLAIN, method=make("dense", strength=0.0), name="run"), tmp_path, watch=watch)
    assert [found and found.step for found in seen] == [None, 16, 32]


def test_the_first_epochs_are_validated_with_fresh_batch_norms(tmp_path):
    """After two steps running averages are still those of the start; the row has the accuracy with averages over the data."""
    recipe = replace(SHORT, epochs=1, batch_size=512)
    record = train(Job(recipe=recipe, method=make("dense", strength=1e-3)), tmp_path)
    data = load("digits")
    model = build_model(recipe, data)
    trained = load_file(tmp_path / "digits-dense-0.001-s0" / "trained.safetensors")
    model.load_state_dict(trained)

    def validated():
        model.eval()
        with torch.no_grad():
            right = [(model(x).argmax(1) == y).double() for x, y in data.evaluation("validation", batch_size=512)]
        return 100 * torch.cat(right).mean().item()

    stale = validated()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for x, _ in data.evaluation("train", batch_size=512, limit=recipe.recalibrate):
            model(x)
    assert record.epochs[0].validation_accuracy == pytest.approx(validated())
    assert abs(stale - validated()) > 1
    # What is trained is left alone: two steps of momentum 0.1 from the start.
    assert {int(value) for name, value in trained.items() if name.endswith("num_batches_tracked")} == {2}
