from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from rewa.baselines import names
from rewa.experiments import RESULTS, Result
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Sweep, run_local


def test_results_are_fair():
    for result in RESULTS.values():
        assert result.sweep.seeds >= 3
        assert result.sweep.strengths is None, "every method has a grid of its own"
    assert list(RESULTS["digits-methods"].sweep.methods) == names()


def test_a_result_is_written_with_the_numbers_behind_it(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=2, compressions=(1, 2, 5))
    result = Result("a small one", Sweep(recipe=recipe, methods=("dense", "l1"), seeds=2, strengths=(1e-3, 1e-2)))
    jobs = result.sweep.jobs()
    assert len(jobs) == 8
    assert run_local(jobs, tmp_path / "runs", workers=2) == []
    written = {path.name for path in result.write(tmp_path)}
    assert {"report.html", "report.png", "numbers.json", "table.md"} <= written
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["recipe"]["epochs"] == 2
    (comparison,) = numbers["comparisons"]
    cells = {(cell["method"], cell["compression"]): cell for cell in comparison["cells"]}
    cell = cells["dense", 2.0]
    assert cell["n"] == 2
    assert [chosen["seed"] for chosen in cell["chosen"]] == [0, 1]
    assert cell["mean"] == pytest.approx(sum(chosen["test"] for chosen in cell["chosen"]) / 2)
    for chosen in cell["chosen"]:
        run = tmp_path / "runs" / f"digits-dense-{chosen['strength']:g}-s{chosen['seed']}"
        record = json.loads((run / "record.json").read_text())
        assert any(point["threshold"] == chosen["threshold"] for point in record["curve"])
    assert "dense" in (tmp_path / "table.md").read_text()
