from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from rewa.baselines import names
from rewa.experiments import RESULTS
from rewa.experiments.digits import DIGITS_METHODS, SweepResult
from rewa.experiments.result import How
from rewa.train.recipes import RECIPES
from rewa.train.sweep import RunsFailed, Sweep


def test_results_are_fair():
    sweeps = [result.sweep for result in RESULTS.values() if isinstance(result, SweepResult)]
    assert len(sweeps) >= 2
    for sweep in sweeps:
        assert sweep.seeds >= 3
        assert sweep.strengths is None, "every method has a grid of its own"
    assert list(DIGITS_METHODS.sweep.methods) == names()


def test_a_result_is_written_with_the_numbers_behind_it(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=2, compressions=(1, 2, 5))
    sweep = Sweep(recipe=recipe, methods=("dense", "l1"), seeds=2, strengths=(1e-3, 1e-2))
    written = {path.name for path in SweepResult(line="a small one", sweep=sweep).run(tmp_path, How(workers=2))}
    assert len(list((tmp_path / "runs").iterdir())) == 8
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


def test_runs_that_fail_are_named(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1,))
    result = SweepResult(line="one", sweep=Sweep(recipe=recipe, methods=("l1",), seeds=1, strengths=(1e-3, 1e-2)))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits-l1-0.001-s0").write_text("in the way of a folder")
    with pytest.raises(RunsFailed, match=r"^1 of 2 runs failed:\n  digits-l1-0.001-s0: "):
        result.run(tmp_path, How(workers=1))
    assert (tmp_path / "runs" / "digits-l1-0.01-s0" / "record.json").exists()
