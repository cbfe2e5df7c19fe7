"""What a folder of a run accepts and refuses; most tests copy the same stopped run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

from rewa.methods import make
from rewa.train.job import Job
from rewa.train.recipes import RECIPES
from rewa.train.run import train
from rewa.train.run_folder import TrainingError
from rewa.train.signals import Stopped
from rewa.train.watch import Watch

PLAIN = replace(RECIPES["digits"], epochs=3, compressions=(1, 5, 20), model="mlp", hidden=(20,))
JOB = Job(recipe=PLAIN, method=make("l1", strength=0.01), name="run")


@pytest.fixture(autouse=True)
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


class StopAtStep20(Watch):
    def step(self, done, loss):
        if done == 20:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    out, previous = tmp_path_factory.mktemp("stopped"), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    with pytest.raises(Stopped):
        train(JOB, out, watch=StopAtStep20())
    torch.set_default_dtype(previous)
    return out


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A folder of runs with a copy of the run that was stopped."""
    return shutil.copytree(stopped_once, tmp_path / "runs")


def record_of(out):
    return json.loads((out / "run" / "record.json").read_text())


def rewrite(out, **changes):
    (out / "run" / "record.json").write_text(json.dumps(record_of(out) | changes))


def test_a_changed_recipe_is_refused_and_nothing_overwritten(stopped):
    files = sorted(path for path in stopped.rglob("*") if path.is_file())
    before = [path.read_bytes() for path in files]
    others = {
        "recipe.epochs: 3 there, 4 here": replace(JOB, recipe=replace(PLAIN, epochs=4)),
        "method.strength: 0.01 there, 0.02 here": replace(JOB, method=make("l1", strength=0.02)),
        "seed: 0 there, 1 here": replace(JOB, seed=1),
        "method.name: 'l1' there, 'mcp' here": replace(JOB, method=make("mcp", strength=0.01)),
    }
    for words, other in others.items():
        with pytest.raises(TrainingError, match=words):
            train(other, stopped)
    assert [path.read_bytes() for path in files] == before
    assert train(JOB, stopped).finished


@pytest.mark.parametrize("text", ["{ my notes", "[]", '{"status": "running"}'])
def test_a_foreign_record_is_left_alone(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text(text)
    with pytest.raises(TrainingError, match="is not a record"):
        train(JOB, tmp_path)
    assert (tmp_path / "run" / "record.json").read_text() == text


def test_a_record_of_a_newer_version_is_left_alone(stopped):
    rewrite(stopped, format=2)
    before = (stopped / "run" / "record.json").read_text()
    with pytest.raises(TrainingError, match=r"its format is 2, of a newer rewa, .*: upgrade with `pip install --upgrade rewa`"):
        train(JOB, stopped)
    assert (stopped / "run" / "record.json").read_text() == before


def test_a_run_may_resume_with_other_threads(stopped):
    with pytest.warns(RuntimeWarning, match="resumes with"):
        assert train(replace(JOB, recipe=replace(PLAIN, threads=2)), stopped).finished


def test_a_recipe_in_other_words_is_the_same(stopped):
    assert train(replace(JOB, recipe=replace(PLAIN, line="other words")), stopped).finished


def test_other_data_is_refused(stopped):
    rewrite(stopped, data=record_of(stopped)["data"] | {"fingerprint": "of other images"})
    with pytest.raises(TrainingError, match=r"the data is not what the run in .* began with"):
        train(JOB, stopped)


def test_what_resumed_a_run_is_recorded(stopped):
    rewrite(stopped, commit="older")
    with pytest.warns(RuntimeWarning, match="this run began with older"):
        run = train(JOB, stopped)
    record = record_of(stopped)
    assert record["commit"] == "older"
    assert [set(other) for other in record["continued_by"]] == [{"commit", "versions"}]
    assert run.remarks()[0].startswith("begun by commit older, resumed by commit ")


def test_damaged_times_cost_the_times_not_the_run(stopped):
    (stopped / "run" / "timing.json").write_text("[")
    assert train(JOB, stopped).finished
    timing = json.loads((stopped / "run" / "timing.json").read_text())
    assert (len(timing["epoch_seconds"]), timing["resumed"]) == (2, 1)


def test_what_a_killed_process_left_half_written_is_cleared(stopped):
    (stopped / "run" / ".record.json.4711").write_text("half of")
    train(JOB, stopped)
    assert not (stopped / "run" / ".record.json.4711").exists()


def test_two_processes_do_not_share_a_folder(tmp_path):
    class Nested(Watch):
        def step(self, done, loss):
            with pytest.raises(TrainingError, match="another process is training"):
                train(JOB, tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(JOB, tmp_path, watch=Nested())
    assert train(JOB, tmp_path).finished, "the lock went with its owner"
