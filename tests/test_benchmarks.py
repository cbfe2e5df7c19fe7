"""The benchmarks run and print what they promise; how fast is their own business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(*arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / "optimizer_step.py"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def test_optimizer_step():
    result = json.loads(run("--repeats", "4", "--json"))
    rows = {row["name"]: row for row in result["rows"]}
    assert result["parameters"] == 11_173_962
    assert rows["torch SGD fused"]["ratio"] == 1
    # ReWA keeps nothing above what torch keeps.
    for name in ("ReWASGD fused K=9 M=2", "ReWASGD loop K=9 M=2"):
        assert rows[name]["state_bytes_per_parameter"] == rows["torch SGD fused"]["state_bytes_per_parameter"] == 4
    assert rows["ReWAAdamW fused K=9 M=2"]["state_bytes_per_parameter"] == 8
    assert result["speedup_over_eager"] > 0
    assert "--repeats" in run("--help")
