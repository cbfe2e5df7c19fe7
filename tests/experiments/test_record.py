from __future__ import annotations

import json

import pytest

from rewa.experiments import record


def test_provenance_is_json_and_names_what_made_it():
    entry = json.loads(json.dumps(record.provenance()))
    assert entry["command"].startswith("python")
    assert set(entry["versions"]) == {"rewa", "torch", "numpy", "python"}
    assert entry["hardware"]["threads"] >= 1


def test_without_git_the_commit_is_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert record.provenance()["commit"] is None


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    record.write_atomically(path, "old")
    assert path.read_text() == "old"
    record.write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"

    def full_disk(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(path), "replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        record.write_atomically(path, "half")
    assert path.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]
