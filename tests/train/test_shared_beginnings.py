from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext

import pytest
import torch
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

from rewa.methods import make
from rewa.methods.method import Plan
from rewa.train import checkpoint
from rewa.train.job import job
from rewa.train.run import train
from rewa.train.shared_beginnings import Beginning
from rewa.train.signals import Stopped
from rewa.train.sweep import run_jobs
from rewa.train.watch import Watch

SHORT = ("epochs=4", "compressions=1,5", "model=mlp", "hidden=20")
LATE = ("begin=0.6", "end=0.9")  # 2.4 epochs are before the first cut: two whole ones are shared


@pytest.fixture(autouse=True)
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


def record_of(folder):
    return json.loads((folder / "record.json").read_text())


@pytest.mark.parametrize("name", ["gmp", "gmp+ham", "rewa-annealed+gmp", "sparsifier"])
def test_a_run_that_begins_with_another_is_what_it_would_have_been_alone(tmp_path, name):
    jobs = [job("digits", name, strength=zeros, changes=[*SHORT, *LATE]) for zeros in (0.8, 0.95)]
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    for one in jobs:
        train(one, alone)
        train(one, shared, beginnings=tmp_path / "beginnings")
    first, second = (one.folder_name for one in jobs)
    steps = 2 * (record_of(alone / first)["data"]["train"] // jobs[0].recipe.batch_size)
    assert record_of(shared / first) == record_of(alone / first)
    assert record_of(shared / second) == record_of(alone / second) | {"began_with": {"run": first, "steps": steps}}
    for run in (first, second):
        for file in ("trained.safetensors", "model.rewa"):
            assert (shared / run / file).read_bytes() == (alone / run / file).read_bytes()


def test_other_seeds_settings_and_methods_begin_by_themselves(tmp_path):
    begins_late = [
        job("digits", "gmp", strength=0.8, changes=[*SHORT, *LATE]),
        job("digits", "gmp", strength=0.9, changes=[*SHORT, *LATE], seed=1),
        job("digits", "gmp", strength=0.95, changes=[*SHORT, *LATE, "lr=0.01"]),
        job("digits", "gmp+ham", strength=0.9, changes=[*SHORT, *LATE]),
    ]
    at_once = [job("digits", name, strength=0.5, changes=SHORT) for name in ("gmp", "rigl", "l1")]
    for one in (*begins_late, *at_once):
        assert train(one, tmp_path / "runs", beginnings=tmp_path / "beginnings").began_with is None
    assert len(list((tmp_path / "beginnings").iterdir())) == len(begins_late)


def test_a_sweep_shares_beginnings_and_leaves_none_behind(tmp_path):
    jobs = [job("digits", "gmp", strength=zeros, changes=[*SHORT, *LATE]) for zeros in (0.8, 0.95)]
    run_jobs(jobs, tmp_path, workers=1, show=lambda progress: nullcontext(lambda: None))
    assert record_of(tmp_path / jobs[1].folder_name)["began_with"]["run"] == jobs[0].folder_name
    assert len(json.loads((tmp_path / jobs[1].folder_name / "timing.json").read_text())["epoch_seconds"]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {one.folder_name for one in jobs}


class StopAfter(Watch):
    def __init__(self, epochs):
        self.epochs = epochs

    def epoch(self, row):
        if row.epoch == self.epochs:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_run_still_says_what_it_began_with_and_leaves_nothing_that_others_trained(tmp_path):
    jobs = [job("digits", "gmp", strength=zeros, changes=[*SHORT, *LATE]) for zeros in (0.8, 0.95)]
    beginnings = tmp_path / "beginnings"
    with pytest.raises(Stopped):
        train(jobs[0], tmp_path, beginnings=beginnings, watch=StopAfter(1))
    train(jobs[0], tmp_path, beginnings=beginnings)  # its first epoch may be another machine's
    assert not beginnings.exists()
    train(job("digits", "gmp", strength=0.5, changes=[*SHORT, *LATE]), tmp_path, beginnings=beginnings)
    with pytest.raises(Stopped):
        train(jobs[1], tmp_path, beginnings=beginnings, watch=StopAfter(3))
    record = train(jobs[1], tmp_path)
    assert record.began_with.run == "digits-gmp-0.5-s0"
    assert record.remarks() == [f"its first {record.began_with.steps} steps were trained by digits-gmp-0.5-s0"]


def test_the_strength_plays_no_part_before_the_first_cut():
    plan = Plan(learning_rates=(0.1,) * 100, steps_per_epoch=10)
    assert make("gmp", strength=0.9).alike_for(plan) == 20
    assert make("gmp+ham", strength=0.9).alike_for(plan) == 20
    assert make("sparsifier", strength=0.9).alike_for(plan) == 25
    assert make("ham", strength=0.9).alike_for(plan) == 0
    assert make("rigl", strength=0.9).alike_for(plan) == 0
    assert make("l1", strength=0.9).alike_for(plan) == 0


def test_a_damaged_beginning_is_not_taken(tmp_path):
    beginning = Beginning(tmp_path, {"seed": 0}, 5)
    assert beginning.take() is None
    for run in ("first", "second"):  # the second comes too late
        beginning.leave({"weight": torch.ones(2)}, {"run": run})
    saved = beginning.take()
    assert (saved.step, saved.state) == (5, {"run": "first"})
    assert Beginning(tmp_path, {"seed": 1}, 5).take() is None
    (path,) = tmp_path.glob("*/step-*/model.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert beginning.take() is None


def test_a_beginning_that_cannot_be_left_does_not_end_the_run(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.warns(RuntimeWarning, match="cannot continue from this one: no space left"):
        Beginning(tmp_path, {"seed": 0}, 5).leave({"weight": torch.ones(2)}, {})
