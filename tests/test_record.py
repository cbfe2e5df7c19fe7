from __future__ import annotations

import json

from rewa import record


def test_provenance_is_json_and_names_what_made_it():
    entry = json.loads(json.dumps(record.provenance()))
    assert entry["command"].startswith("python")
    assert set(entry["versions"]) == {"rewa", "torch", "numpy", "python"}
    assert entry["hardware"]["threads"] >= 1


def test_without_git_the_commit_is_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert record.provenance()["commit"] is None
