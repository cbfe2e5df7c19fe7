"""The calls of docs/optimizers.md: what they make, and what they reach beside gradual pruning by hand."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import rewa
from rewa.experiments import rows
from rewa.experiments.result import How

PAGE = (Path(rows.__file__).parents[3] / "docs" / "optimizers.md").read_text()
OURS = [(base, name) for base, found in rows.ROWS.items() for name in found if name != rows.HAND and "paper" not in name]


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)  # as users train; each test starts with double precision


@functools.cache
def accuracy(base, name, shares):
    """On digits, a mean of two seeds and of all images that were not trained on; each share of zeros."""
    row = rows.ROWS[base][name]
    lr = row.rates["cnn"][0]
    trials = [
        rows.Trial(task="cnn", base=base, row=name, lr=lr, seed=seed, shares=part, data="digits", batch_size=64, steps=400)
        for seed in range(2)
        for part in ([(share,) for share in shares] if row.masked else [shares])
    ]
    found = [value for trial in trials for value in rows.train(trial, None)["values"]]
    return {
        share: sum(value["validation"] + value["test"] for value in found if value["share"] == share) / 4 for share in shares
    }


@pytest.mark.parametrize(("base", "name"), OURS, ids=[name for _, name in OURS])
def test_every_call_reaches_pruning_by_hand(base, name):
    """Within the noise of 1,440 images, at 90 and at 95 % zeros."""
    by_hand, ours = (accuracy(base, each, (0.9, 0.95)) for each in (rows.HAND, name))
    assert min(by_hand.values()) > 90
    for share, value in ours.items():
        assert value > by_hand[share] - 1.5, (share, value, by_hand[share])


def settings(optimizer):
    ignored = {"params", "param_names", "lr", "initial_lr", "rewa_match", "match"}
    return type(optimizer), [{k: v for k, v in group.items() if k not in ignored} for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("base", "name", "words"),
    [
        ("SGD", "ReWASGD, annealed, with cuts", "on SGD"),
        ("AdamW", "ReWAAdamW, annealed, with cuts", "on AdamW"),
        ("AdamW", "attach(NAdam), annealed, with cuts", "any other optimizer"),
    ],
)
def test_the_page_shows_what_was_measured(base, name, words):
    call = re.search(rf"^\| [^|]*{words}[^|]*\| `([^`]*)`", PAGE, re.M).group(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    shown = eval(call, {"rewa": rewa, "torch": torch, "model": model})
    shown = getattr(shown, "optimizer", shown)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    measured = rows.ROWS[base][name].start(model, 10_000, 0.05, 0.95).optimizer
    assert settings(shown) == settings(measured)


def test_pruning_by_hand_is_gradual_pruning():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    after_step = rows.pruning_by_hand(model, steps=40, sparsity=0.8)
    zeros = []
    for _ in range(40):
        after_step()
        zeros.append(sum(int((layer.weight == 0).sum()) for layer in model))
    assert zeros[9] == 0
    assert zeros[19] == round(0.8 * (1 - 0.5**3) * 200)
    assert set(zeros[29:]) == {160}


def test_the_result_resumes_and_writes_its_table(tmp_path):
    result = rows.README_ROWS
    written = result.run(tmp_path, How(quick=True, workers=1))
    record = json.loads((tmp_path / "rows.json").read_text())
    trials = dataclasses.replace(result, shares=(0.5,), seeds=1).trials(quick=True)
    assert [run["row"] for run in record["runs"]] == [trial.row for trial in trials]
    before = (tmp_path / "rows.json").read_bytes()
    assert result.run(tmp_path, How(quick=True, workers=1)) == written
    assert (tmp_path / "rows.json").read_bytes() == before
    text = (tmp_path / "rows.md").read_text()
    assert rows.HAND in text
    assert "50% zeros" in text
    assert text.count("|") > 20


def test_the_page_has_the_recorded_numbers():
    runs = json.loads((Path(rows.__file__).parents[3] / "results" / "readme-rows" / "rows.json").read_text())["runs"]
    lines = []
    for table in rows.README_ROWS.tables(runs):
        for name, *cells in (row for row in table.rows if "paper" not in row[0]):  # they have one decay, not swept
            values = " | ".join(re.sub(r" \(.*\)", "", cell) for cell in cells)  # the rates are in the record
            lines.append(f"| {table.title}: {name} | {values} |")
    assert len(lines) == 16
    missing = [line for line in lines if line not in PAGE]
    assert not missing
