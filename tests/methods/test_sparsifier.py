"""The Sparsifier in the harness: the loop that anyone would write, to the bit, and the share of zeros, to the weight."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

import rewa
from methods.steps import advance, begin, fitting, network, plain, run
from rewa.methods import make
from rewa.methods.method import Plan
from rewa.methods.sparsifier import Sparsifying
from rewa.optim.target import Course
from rewa.sparsity import count, prunable
from rewa.train import checkpoint
from rewa.train.data import mix
from rewa.train.datasets import load
from rewa.train.job import WEIGHTS, Job, build_model
from rewa.train.processes import World
from rewa.train.recipes import RECIPES
from rewa.train.run import train
from rewa.train.signals import Stopped
from rewa.train.trainer import Trainer
from rewa.train.watch import Watch

SHORT = replace(RECIPES["digits"], epochs=2, model="mlp", hidden=(25, 20), compressions=(1.0, 10.0), weight_decay=1e-3)
RECIPE = {"sgd": SHORT, "adamw": replace(SHORT, optimizer="adamw", lr=3e-3, clip_norm=1.0)}
STEPS = 32  # of SHORT


def plan(steps: int = 24, optimizer: str = "sgd", lr: float = 0.05) -> Plan:
    rates = tuple(lr * (1 - step / steps) for step in range(steps))
    return Plan(learning_rates=rates, steps_per_epoch=4, momentum=0.9, weight_decay=1e-3, optimizer=optimizer)


def zeros(model: nn.Module) -> int:
    return sum(int((weight == 0).sum()) for weight in prunable(model).values())


def trainer(job: Job) -> Trainer:
    return Trainer(job, load("digits"), World(), Watch())


class StopAt(Watch):
    """Sends this process a signal after a number of steps."""

    def __init__(self, step):
        self.at = step

    def step(self, done, loss):
        if done == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


# ------------------------------------------------------------------------------------------------------------ the steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_run_is_the_loop_that_anyone_would_write(tmp_path, float32, kind):
    recipe = RECIPE[kind]
    train(Job(recipe=recipe, method=make("sparsifier", strength=0.9), name="run"), tmp_path)
    trained = load_file(tmp_path / "run" / "trained.safetensors")

    data = load("digits")
    torch.manual_seed(mix(0, WEIGHTS))
    model = build_model(recipe, data)
    rest = [param for param in model.parameters() if param.dim() < 2]
    groups = [{"params": list(prunable(model).values()), "weight_decay": 1e-3}, {"params": rest, "weight_decay": 0.0}]
    if kind == "sgd":
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=recipe.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=recipe.betas)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=STEPS)
    rates = recipe.plan(16).learning_rates
    assert len(rates) == STEPS
    for epoch in range(2):
        for step, (images, labels) in enumerate(data.batches(epoch, seed=0, batch_size=64)):
            for group in optimizer.param_groups:
                group["lr"] = rates[16 * epoch + step]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            if kind == "adamw":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert sparsifier.finish().before == pytest.approx(0.9, abs=1e-3)
    assert trained.keys() == model.state_dict().keys()
    assert all(torch.equal(trained[name], tensor) for name, tensor in model.state_dict().items())


def test_the_settings_reach_the_sparsifier():
    bound = begin(Sparsifying(strength=0.8, begin=0.1, end=0.6, law="linear", growth=0.5), network(), plan())
    one = bound.sparsifier
    assert (one.course, one.growth) == (Course(24, 0.1, 0.6, "linear"), 0.5)
    by_default = begin(Sparsifying(strength=0.8), network(), plan()).sparsifier
    model = network()
    own = rewa.Sparsifier(model, torch.optim.SGD(model.parameters(), 0.1), sparsity=0.8, steps=24)
    for name in ("course", "growth", "pools"):
        assert getattr(by_default, name) == getattr(own, name), name


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_run_resumes_with_the_same_bits_at_any_step(optimizer):
    the_plan, method = plan(12, optimizer=optimizer, lr=0.01), Sparsifying(strength=0.7)
    whole = plain(run(method, the_plan)[0])
    assert sum(int((value == 0).sum()) for name, value in whole.items() if "weight" in name) == round(0.7 * 98)
    for at in range(1, 12):
        resumed = plain(run(method, the_plan, stop_at=at)[0])
        assert all(torch.equal(whole[name], resumed[name]) for name in whole), at


@pytest.mark.slow
def test_a_checkpoint_keeps_the_state_to_the_bit(tmp_path, float32):
    job = Job(recipe=SHORT, method=make("sparsifier", strength=0.9))
    first = trainer(job)
    first.begin()
    first.epoch(lambda: None)
    model, state = first.state()
    checkpoint.save(tmp_path, first.step, model, state)
    second = trainer(job)
    second.restore(checkpoint.load(tmp_path, 16))
    before, after = (one.bound.sparsifier.state_dict() for one in (first, second))
    squares, others = (state.pop("squares") for state in (before, after))
    assert before == after
    assert squares.keys() == before["sizes"].keys()
    assert all(torch.equal(square, others[name]) for name, square in squares.items())
    assert before["done"] == 16
    for one in (first, second):
        one.model.train()
        one.epoch(lambda: None)
    assert all(torch.equal(first.plain.state_dict()[name], value) for name, value in second.plain.state_dict().items())


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_files(tmp_path, float32):
    one = Job(recipe=SHORT, method=make("sparsifier", strength=0.9), name="run")
    train(one, tmp_path / "whole")
    for at in (1, 8, 9, 16, 23, 24, 31):  # around the first cut and the last, and at the end of an epoch
        with pytest.raises(Stopped):
            train(one, tmp_path / "broken", watch=StopAt(at))
    train(one, tmp_path / "broken")
    for name in ("trained.safetensors", "model.rewa", "record.json"):
        assert (tmp_path / "whole/run" / name).read_bytes() == (tmp_path / "broken/run" / name).read_bytes()


@pytest.mark.parametrize(("begins", "ends", "alike"), [(0.25, 0.75, 6), (0.5, 0.5, 11), (0.0, 1.0, 1), (1.0, 1.0, 23)])
def test_before_the_first_cut_the_share_plays_no_part(begins, ends, alike):
    shares, the_plan = (0.5, 0.9), plan()
    method = Sparsifying(begin=begins, end=ends)
    assert method.alike_for(the_plan) == alike
    runs = [begin(replace(method, strength=share), network(), the_plan) for share in shares]
    same = []
    for step in range(24):
        for bound in runs:
            advance(bound, fitting, [step])
        one, other = (plain(bound.model) for bound in runs)
        same.append(all(torch.equal(one[name], other[name]) for name in one))
    assert all(same[:alike])
    assert not same[-1]
    assert runs[0].sparsifier.state_dict().keys() == runs[1].sparsifier.state_dict().keys()


def test_steps_that_a_scaler_skips_are_not_counted():
    torch.set_default_dtype(torch.float32)
    job = Job(recipe=replace(SHORT, epochs=1), method=make("sparsifier", strength=0.9, begin=0.5, end=1.0))
    one = trainer(job)
    one.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)  # as a GPU in float16 has one
    one.begin()
    skipped = []
    for step, (images, labels) in enumerate(one.data.batches(0, seed=0, batch_size=64)):
        before = copy.deepcopy(one.plain.state_dict())
        one._step((images * 1e20 if step in (0, 9, 10) else images, labels))  # gradients that overflow, and a finite loss
        if all(torch.equal(before[name], tensor) for name, tensor in one.plain.state_dict().items()):
            skipped.append(step)
    assert skipped == [0, 9, 10]
    assert one.bound.sparsifier.done == 16 - 3
    total = count(prunable(one.plain).values()).total
    assert zeros(one.plain) < round(0.9 * total), "the last cut is still to come"
    assert zeros(one.trained()) == round(0.9 * total)


# ------------------------------------------------------------------------------------------------------------ the zeros


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.9, 0.987])
def test_the_files_and_the_record_have_exactly_the_share(tmp_path, float32, share):
    record = train(Job(recipe=SHORT, method=make("sparsifier", strength=share), name="run"), tmp_path)
    total = record.final.prunable.total
    assert total == 2300
    assert record.final.prunable.nonzero == total - round(share * total)
    assert record.final.threshold == 0
    trained, packed = load_file(tmp_path / "run/trained.safetensors"), rewa.load_packed(tmp_path / "run/model.rewa")
    for name, tensor in trained.items():
        assert torch.equal(packed[name], tensor), "no norms to estimate: the packed model is the trained one"
    assert record.epochs[-1].compression == pytest.approx(total / (total - round(share * total)), rel=0.02)


@pytest.mark.slow
def test_at_its_own_compression_the_curve_has_the_model_as_it_is(tmp_path, float32):
    record = train(Job(recipe=SHORT, method=make("sparsifier", strength=0.9), name="run"), tmp_path)
    (point,) = record.curve  # every compression up to 10 is that of the trained model
    assert point.threshold == 0
    assert point.prunable == record.final.prunable
    assert (point.validation_accuracy, point.test_loss) == (record.final.validation_accuracy, record.final.test_loss)


@pytest.mark.slow
def test_a_fine_tune_keeps_the_share(tmp_path, float32):
    recipe = replace(SHORT, epochs=3, finetune_epochs=1)
    record = train(Job(recipe=recipe, method=make("sparsifier", strength=0.9), name="run"), tmp_path)
    assert [row.phase for row in record.epochs] == ["train", "train", "finetune"]
    assert record.final.prunable.nonzero == 230


def test_a_trained_model_is_left_as_it_is():
    """A new process binds the method to it, and does not start it."""
    the_plan, method, model = plan(), Sparsifying(strength=0.7), network()
    advance(begin(method, model, the_plan), fitting, range(24))
    other = network()
    bound = method.bind(other, the_plan)
    other.load_state_dict(model.state_dict())
    bound.finish()
    assert all(torch.equal(plain(model)[name], value) for name, value in plain(other).items())
    bound.optimizer.step()  # without hooks: it would count one step too many
    assert "sparsifier" not in bound.optimizer.param_groups[0]


def test_a_run_that_is_finished_early_says_so():
    bound = begin(Sparsifying(strength=0.7), network(), plan())
    advance(bound, fitting, range(10))
    with pytest.warns(UserWarning, match="before the last cut"):
        bound.finish()
    assert zeros(bound.model) == round(0.7 * 98)


def test_ham_around_it_keeps_the_zeros_and_a_mask_is_refused():
    method = make("sparsifier+ham", strength=0.7)
    assert (method.exact, method.shards, method.strength_is) == (True, True, "share of zeros")
    model, _ = run(method, plan())
    assert zeros(model) == round(0.7 * 98)
    with pytest.raises(ValueError, match="gmp cannot wrap sparsifier, which cuts weights itself"):
        make("sparsifier+gmp")
    with pytest.raises(ValueError, match=r"rigl cannot wrap sparsifier\+ham, which cuts"):
        make("sparsifier+ham+rigl")


# -------------------------------------------------------------------------------------------------------- bad settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"begin": 0.8}, r"Invalid begin and end: 0\.8, 0\.75"),
        ({"law": "cubik"}, "there is no law 'cubik'; did you mean 'cubic'?"),
        ({"growth": -1.0}, r"Invalid growth: -1\.0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Sparsifying(**settings)


@pytest.mark.parametrize("strength", [None, -0.1, 1.0, 95.0, float("nan")])
def test_what_is_no_share_is_refused(strength):
    with pytest.raises(ValueError, match=f"Invalid strength: {strength} .allowed: a share of zeros"):
        Sparsifying(strength=strength).check()
