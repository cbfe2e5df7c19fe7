"""The programs that check what is too large for the suite, at toy size."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import first_steps

CHECKS = Path(__file__).parent.parent / "checks"


def test_kills():
    """The short version: `python checks/kills.py` kills twenty times."""
    command = [sys.executable, str(CHECKS / "kills.py"), "--kills", "1", "--set", "epochs=4", "--set", "compressions=1,5"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.splitlines()
    assert len(lines) == 2
    assert lines[-1] == "1 of 1 identical in weights and record"


@pytest.fixture(scope="module")
def rows():
    """The rows of ResNet-50, in this process."""
    options = Namespace(steps=1, batch=2, data=None, threads=1)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        found = [first_steps.measure(("imagenet-resnet50", method), options) for method in ("", "dense", "l1", "rewa")]
    finally:
        torch.set_default_dtype(default)
    return found


def test_first_steps(rows):
    named = {row["method"]: row for row in rows}
    assert set(named) == {None, "dense", "l1", "rewa"}
    assert len({row["loss"][0] for method, row in named.items() if method}) == 1, "the same weights and images for all"
    assert named["rewa"]["reference_error"] < 1e-5
    assert 0 < named[None]["activation_bytes"]["bfloat16"] < named[None]["activation_bytes"]["float32"]
    assert first_steps.right(rows)
    assert not first_steps.right([{"loss": [float("nan")]}])
    assert not first_steps.right([*rows, {"loss": [1.0], "reference_error": 1e-3}])
    assert "loss" in first_steps.to_text(named["rewa"])
