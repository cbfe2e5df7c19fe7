"""The benchmarks run at toy size and print what they promise; how fast is their own business."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import deploy
import optimizer_step
import reference
import synthetic
import training_step
from eager import eager_step

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def float32(seeded_float64: None) -> None:
    """As in a process of their own."""
    torch.set_default_dtype(torch.float32)


def printed(capsys: pytest.CaptureFixture[str], benchmark, *words: str) -> str:
    benchmark.main([*words])
    return capsys.readouterr().out


@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_the_eager_step_is_algorithm_1(eps):
    """What ReWA is timed against computes the same."""
    random = np.random.default_rng(0)
    x, grads = random.standard_normal(20), random.standard_normal((5, 20))
    setting = {"lr": 0.01, "K": 3, "M": 2, "eps": eps, "weight_decay": 0.1, "momentum": 0.9}
    param = torch.from_numpy(x.copy())
    y, buffer = torch.from_numpy(reference.to_y(x, 3)), torch.zeros_like(param)
    for grad in grads:
        eager_step([param], [y], [torch.from_numpy(grad)], [buffer], **setting)
    np.testing.assert_allclose(param.numpy(), reference.algorithm_1(x, grads, **setting))


def test_training_step(capsys):
    words = ("digits", "--steps", "2", "--warmup", "1", "--set", "model=mlp", "--set", "hidden=20")
    (row,) = json.loads(printed(capsys, training_step, *words, "--json"))["rows"]
    assert row["operations_per_step"] == 64 * (2 * 2 * 64 * 20 + 3 * 2 * 20 * 10)  # of the images nobody wants a gradient
    assert sum(row[key] for key in row if key.startswith("share_")) == pytest.approx(1)
    assert row["seconds_per_epoch"] == pytest.approx(row["ms_per_step"] / 1000 * (1077 // 64))
    assert row["limit_per_second"] > 0
    assert "of a matrix product's" in printed(capsys, training_step, *words)


def test_optimizer_step(capsys):
    result = json.loads(printed(capsys, optimizer_step, "--small", "--repeats", "4", "--threads", "1", "--json"))
    rows = {row["name"]: row for row in result["rows"]}
    assert result["parameters"] == 7200
    assert sum(torch.Size(shape).numel() for shape in optimizer_step.resnet18_shapes()) == 11_173_962
    assert rows["torch SGD fused"]["ratio"] == rows["small: torch SGD fused"]["ratio"] == 1
    # ReWA keeps nothing above what torch keeps.
    for name in ("ReWASGD K=9 M=2", "ReWASGD K=9 M=2 match", "ReWASGD loop K=9 M=2"):
        assert rows[name]["state_bytes_per_parameter"] == rows["torch SGD fused"]["state_bytes_per_parameter"] == 4
    assert rows["ReWAAdamW K=9 M=2"]["state_bytes_per_parameter"] == 8
    for name in ("SGD, Sparsifier", "SGD, Sparsifier, 95 % zeros"):  # a mean of squares for each weight that may be cut
        assert 4 < rows[name]["state_bytes_per_parameter"] <= 8
    assert rows["AdamW, Sparsifier, 95 % zeros"]["state_bytes_per_parameter"] == 8
    assert result["speedup_over_eager"] > 0
    assert result["resnet18_training_step"]["ratio"] > 0


def test_deploy(capsys):
    words = ("--rounds", "2", "--models", "mlp", "--sparsities", "0.98", "--batches", "2", "--threads", "1", "--json")
    (row,) = json.loads(printed(capsys, deploy, *words))["rows"]
    assert row["sparsity"] == pytest.approx(0.98, abs=0.001)
    size = row["bytes"]
    assert size["packed"] < 1.15 * size["bound"]
    assert size["packed"] < size["gzip"] < size["dense"]
    assert set(row["ms"]["2"]) == {"dense", "accelerated", "shrunk", "shrunk and accelerated", "ONNX Runtime"}


def test_synthetic(capsys):
    result = json.loads(printed(capsys, synthetic, "--small", "--rounds", "2", "--threads", "1", "--parts", "a,c", "--json"))
    assert (result["samples"], result["features"]) == (200, 500)
    assert set(result["one_run"]["speedup"]) == {"lockstep", "lockstep, nothing dropped"}
    assert len(result["one_run"]["all_seconds"]["eager epoch"]) == 10
    assert result["step"]["bytes_per_step"] == 25 * 500 * 4 + 2 * 500 * 4
    assert {"share_of_triad", "share_of_product"} <= set(result["step"])  # at this size the timings are noise


def test_synthetic_times_a_command():
    """Here one figure; all of them are `rewa reproduce synthetic`, whose quick version tests/experiments runs."""
    assert synthetic.all_figures.__defaults__ == ("synthetic",)
    timed = synthetic.all_figures(small=True, result="fig2b")
    assert timed["command"] == "rewa reproduce fig2b --quick"
    assert timed["seconds"] > 0


@pytest.mark.parametrize(("benchmark", "option"), [(optimizer_step, "--repeats"), (deploy, "--rounds"), (synthetic, "--parts")])
def test_help(capsys, benchmark, option):
    with pytest.raises(SystemExit):
        benchmark.main(["--help"])
    assert option in capsys.readouterr().out


def test_published_tables_are_the_record():
    rows = json.loads((ROOT / "results" / "deploy" / "deploy.json").read_text())["rows"]
    table = deploy.to_markdown(rows)
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert table in page
    for line in table.splitlines():
        model, _, share = line.removeprefix("| ").split(" | ")[0].rpartition(", ")
        if share == "98%":
            size, accelerated = line.split(" | ")[1:3]
            assert f"| {model} | {size} | {accelerated} |" in page
    (comparison,) = json.loads((ROOT / "results" / "digits" / "numbers.json").read_text())["comparisons"]
    for row in comparison["deployed"]:
        assert f"{row['file_bytes']:,.0f}" in page
        assert f"{row['test']:.1f}" in page
