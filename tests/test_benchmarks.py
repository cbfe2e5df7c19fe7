"""The benchmarks run and print what they promise; how fast is their own business."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def test_optimizer_step():
    result = json.loads(run("optimizer_step.py", "--repeats", "4", "--json"))
    rows = {row["name"]: row for row in result["rows"]}
    assert result["parameters"] == 11_173_962
    assert rows["torch SGD fused"]["ratio"] == rows["small: torch SGD fused"]["ratio"] == 1
    # ReWA keeps nothing above what torch keeps.
    for name in ("ReWASGD K=9 M=2", "ReWASGD K=9 M=2 match", "ReWASGD loop K=9 M=2"):
        assert rows[name]["state_bytes_per_parameter"] == rows["torch SGD fused"]["state_bytes_per_parameter"] == 4
    assert rows["ReWAAdamW K=9 M=2"]["state_bytes_per_parameter"] == 8
    assert result["speedup_over_eager"] > 0
    assert "--repeats" in run("optimizer_step.py", "--help")


def test_deploy():
    result = json.loads(
        run("deploy.py", "--rounds", "2", "--models", "mlp", "--sparsities", "0.98", "--batches", "2", "--json")
    )
    (row,) = result["rows"]
    assert row["sparsity"] == pytest.approx(0.98, abs=0.001)
    size = row["bytes"]
    assert size["packed"] < 1.15 * size["bound"]
    assert size["packed"] < size["gzip"] < size["dense"]
    assert set(row["ms"]["2"]) == {"dense", "accelerated", "shrunk", "shrunk and accelerated", "ONNX Runtime"}
    assert "--rounds" in run("deploy.py", "--help")


def test_synthetic():
    result = json.loads(run("synthetic.py", "--small", "--rounds", "2", "--json"))
    assert (result["samples"], result["features"]) == (200, 500)
    assert set(result["one_run"]["speedup"]) == {"lockstep", "lockstep, nothing dropped"}
    assert len(result["one_run"]["all_seconds"]["eager epoch"]) == 10
    assert result["step"]["bytes_per_step"] == 25 * 500 * 4 + 2 * 500 * 4
    assert {"share_of_triad", "share_of_product"} <= set(result["step"])  # at this size the timings are noise
    assert result["all_figures"]["command"] == "rewa reproduce synthetic --quick"
    assert "--parts" in run("synthetic.py", "--help")


def test_published_tables_are_the_record():
    rows = json.loads((ROOT / "results" / "deploy" / "deploy.json").read_text())["rows"]
    specification = importlib.util.spec_from_file_location("deploy", BENCHMARKS / "deploy.py")
    deploy = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(deploy)
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


def test_kills():
    """The short version: `python benchmarks/kills.py` kills twenty times."""
    lines = run("kills.py", "--kills", "3", "--set", "epochs=4", "--set", "compressions=1,5").splitlines()
    assert len(lines) == 4
    assert lines[-1] == "3 of 3 identical in weights and record"


def test_first_steps():
    result = json.loads(run("first_steps.py", "--recipes", "imagenet-resnet50", "--steps", "1", "--batch", "2", "--json"))
    rows = {row["method"]: row for row in result["rows"]}
    assert set(rows) == {None, "dense", "l1", "rewa"}
    assert len({row["loss"][0] for method, row in rows.items() if method}) == 1, "the same weights and images for all"
    assert rows["rewa"]["reference_error"] < 1e-5
    assert 0 < rows[None]["activation_bytes"]["bfloat16"] < rows[None]["activation_bytes"]["float32"]
