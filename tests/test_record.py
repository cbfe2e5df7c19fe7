from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import rewa
from rewa import record
from rewa.record import UNKNOWN, BeganWith, Continuation, Run, Timing, read_run

RECORDS = sorted((Path(__file__).parents[1] / "results").rglob("record.json"))


def some_record():
    return json.loads(RECORDS[0].read_text())


def test_every_published_record_is_read_and_written_back_to_the_byte():
    assert len(RECORDS) > 400
    for path in RECORDS:
        text = path.read_text()
        assert json.dumps(Run.from_json(json.loads(text)).to_json(), indent=1) == text, path


def test_every_published_timing_is_read():
    for path in sorted(RECORDS[0].parents[2].rglob("timing.json")):
        content = json.loads(path.read_text())
        assert Timing.from_json(content).to_json() == {"resumed": 0, **content}, path


def test_what_only_some_runs_have_comes_back():
    run = replace(
        Run.from_json(some_record()),
        began_with=BeganWith("digits-gmp-0.5-s0", 32),
        continued_by=(Continuation("abc", {"rewa": "0.2.0"}), Continuation(UNKNOWN, {})),
        commit=UNKNOWN,
        strength=None,
    )
    written = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert written["commit"] is None
    assert written["continued_by"][1] == {"commit": None, "versions": {}}
    assert written["began_with"] == {"run": "digits-gmp-0.5-s0", "steps": 32}
    assert Run.from_json(written) == run


def test_a_run_that_failed_has_a_reason_and_no_results():
    failed = {key: value for key, value in some_record().items() if key not in ("curve", "final", "layers", "histogram")}
    failed |= {"status": "failed", "reason": "the loss is nan in epoch 1, step 3"}
    run = Run.from_json(failed)
    assert (run.finished, run.final, run.curve, run.remarks()) == (False, None, (), [failed["reason"]])
    assert run.to_json() == failed


def test_json_has_no_number_for_what_is_not_finite():
    content = some_record()
    content["epochs"][0]["compression"] = None
    content["curve"][0]["test_loss"] = None
    run = Run.from_json(content)
    assert run.epochs[0].compression == math.inf
    assert math.isnan(run.curve[0].test_loss)
    assert run.to_json() == content


def test_a_newer_format_names_the_remedy():
    message = f"its format is 2, of a newer rewa, and rewa {rewa.__version__} reads format 1: upgrade with `pip install"
    with pytest.raises(record.NewerFormat, match=message):
        Run.from_json(some_record() | {"format": 2})
    with pytest.raises(ValueError, match="not a record of a run in format 1"):
        Run.from_json({"results": []})


def test_a_folder_without_a_record_has_no_run(tmp_path):
    assert read_run(tmp_path) is None
    assert read_run(RECORDS[0].parent).folder == RECORDS[0].parent


def test_provenance_is_json_and_names_what_made_it():
    entry = json.loads(json.dumps(record.provenance()))
    assert entry["command"].startswith("python")
    assert set(entry["versions"]) == {"rewa", "torch", "numpy", "python"}
    assert entry["hardware"]["threads"] >= 1


def test_without_git_the_commit_is_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert record.provenance()["commit"] is None
