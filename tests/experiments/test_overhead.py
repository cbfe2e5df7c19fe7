from __future__ import annotations

import copy
import io
import json
import math
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

import rewa
from rewa import cli
from rewa.experiments import RESULTS, overhead
from rewa.experiments.overhead import PUBLISHED, VARIANTS, Loop, Overhead, peak_memory

SETTING = {"batch_size": 2, "epochs": 3, "lr": 0.05, "lam": 0.25}


def by_hand(variant, X, y, weight, bias, orders):
    """The same steps, a number at a time: lr, then the gradient of the mean squared error, then the rule."""
    lr, lam, K, M = SETTING["lr"], SETTING["lam"], 9, 5
    batches = [order[start : start + 2] for order in orders for start in range(0, len(order), 2)]
    for step, batch in enumerate(batches):
        rate = lr * (1 + math.cos(math.pi * step / (3 * len(orders[0]) / 2))) / 2
        errors = [sum(w * v for w, v in zip(weight, X[i], strict=True)) + bias - y[i] for i in batch]
        slope = [sum(2 * e * X[i][j] for e, i in zip(errors, batch, strict=True)) / 2 for j in range(len(weight))]
        bias -= rate * sum(2 * e for e in errors) / 2
        for j, w in enumerate(weight):
            if variant == "SGD-l1":
                weight[j] = w - rate * (slope[j] + lam * math.copysign(1, w))
            elif variant == "SGD, no penalty":
                weight[j] = w - rate * slope[j]
            else:
                root = math.copysign(abs(w) ** (1 / K), w)
                root = root - rate * (abs(root) ** M * slope[j] + lam * root)
                weight[j] = math.copysign(abs(root) ** K, root)
    return weight, bias


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_does_what_it_says(variant):
    X, y = torch.randn(6, 4), torch.randn(6)
    run = Loop(variant, X, y, **SETTING)
    weight, bias = run.model.weight[0].tolist(), run.model.bias.item()
    sampler = copy.deepcopy(run.loader)
    orders = [[next(i for i in range(6) if torch.equal(X[i], row)) for rows, _ in sampler for row in rows] for _ in range(2)]
    assert orders[0] != orders[1], "shuffled"
    run.epoch()
    run.epoch()
    expected, expected_bias = by_hand(variant, X.tolist(), y.tolist(), weight, bias, orders)
    assert run.model.weight[0].tolist() == pytest.approx(expected, rel=1e-10)
    assert run.model.bias.item() == pytest.approx(expected_bias, rel=1e-10)


def test_variants_are_what_the_table_calls_them():
    X, y = torch.randn(6, 4), torch.randn(6)
    runs = {name: Loop(name, X, y, **SETTING) for name in VARIANTS}
    assert {name for name, run in runs.items() if isinstance(run.optimizer, rewa.ReWASGD)} == {"ReWA", "ReWA, fused"}
    assert {name for name, run in runs.items() if run.optimizer.defaults.get("fused")} == {"ReWA, fused"}
    assert {name for name, run in runs.items() if run.penalty} == {"SGD-l1"}
    first, *others = (run.model.weight for run in runs.values())
    assert all(torch.equal(first, other) for other in others), "all start from the same weights"
    assert set(PUBLISHED) <= set(VARIANTS)


def test_the_default_is_the_papers_setting():
    study = RESULTS["overhead"]
    assert (study.n, study.d, study.batch_size, study.epochs, study.lr, study.lam) == (2000, 10_000, 25, 800, 2e-4, 0.25)


def test_memory_that_cannot_be_measured_says_why(monkeypatch):
    monkeypatch.setattr(overhead, "PEAK", "import sys; sys.exit('no room')")
    with pytest.raises(RuntimeError, match=r"^measuring the memory of ReWA failed: no room$"):
        peak_memory("ReWA", n=2, d=2, batch_size=1)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What the command says, and the numbers it writes."""
    out, said = tmp_path_factory.mktemp("overhead"), io.StringIO()
    torch.set_default_dtype(torch.float32)
    ballast = torch.ones(200_000_000)  # 800 MB in this process, none of it in those whose memory is measured
    with redirect_stdout(said):
        assert cli.main(["reproduce", "overhead", "--quick", "--out", str(out)]) == 0
    del ballast
    return said.getvalue().splitlines(), json.loads((out / "overhead.json").read_text())


def test_what_the_command_says(quick):
    lines, _ = quick
    assert [line for line in lines if line in ("timing epochs", "measuring memory")] == ["timing epochs", "measuring memory"]
    written = [Path(line.removeprefix("wrote ")) for line in lines if line.startswith("wrote ")]
    assert "overhead.json" in {path.name for path in written}
    assert all(path.stat().st_size for path in written)


def test_memory_is_that_of_a_fresh_process(quick):
    _, numbers = quick
    small = numbers["variants"]["SGD-l1"]["memory"]
    assert 50 < small["before_mb"] <= small["peak_mb"] < 800
    large = peak_memory("SGD-l1", n=100, d=400_200, batch_size=5)
    # The data grows by 100 * 400000 floats, that is 160 MB; a batch, weights and gradients are 1.6 to 8 MB each.
    assert 155 < large["before_mb"] - small["before_mb"] < 175
    assert 5 < large["peak_mb"] - large["before_mb"] < 60


def test_numbers_and_table(quick):
    _, numbers = quick
    setting = {**SETTING, "n": 100, "d": 200, "batch_size": 25, "epochs": 800, "lr": 2e-4, "rounds": 3}
    assert numbers["setting"] == setting
    assert list(numbers["variants"]) == list(VARIANTS)
    for row in numbers["variants"].values():
        for measured in (row["seconds_per_epoch"], row["ratio_to_sgd_l1"]):
            low, high = measured["quartiles"]
            assert 0 < low <= measured["median"] <= high
        assert row["extrapolated_seconds"] == 800 * row["seconds_per_epoch"]["median"]
        assert row["memory"]["before_mb"] <= row["memory"]["peak_mb"]
    assert numbers["variants"]["SGD-l1"]["ratio_to_sgd_l1"] == {"median": 1.0, "quartiles": [1.0, 1.0]}

    table = Overhead().table(numbers)
    assert [row[0] for row in table.rows] == list(VARIANTS)
    assert table.rows[0][2] == "1.000 (1.000 to 1.000)"
    assert [row[-2:] for row in table.rows] == [("202.1", "307.6"), ("200.1", "307.8"), ("-", "-"), ("-", "-")]
    assert "extrapolated" in table.header[3]
