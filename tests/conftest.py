"""What every test starts with, which tests are slow, and in what order the files are run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# The tensors are tiny: threads would only wait for each other, here and in the processes that tests start. test_fused.py
# uses two.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A few small graphs are compiled: worker processes and precompiled headers would cost more than they save.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")

HERE = Path(__file__).parent

# Files whose tests start processes, train networks, compile or are very many, dearest first. `make quick` leaves them out, and
# `make test` starts with them, so that no worker is left alone with a long file in the end. A slow test elsewhere is marked
# itself.
SLOW = [
    "test_benchmarks.py",
    "train/test_processes.py",
    "experiments/test_regression.py",
    "test_checks.py",
    "experiments/test_comparison.py",
    "train/test_sweep.py",
    "deploy/test_export.py",
    "train/test_imagenet.py",
    "experiments/test_rows.py",
    "experiments/test_overhead.py",
    "experiments/test_linear.py",
    "train/test_shared_beginnings.py",
    "train/test_run.py",
    "deploy/test_heads.py",
    "train/test_run_folder.py",
    "train/test_image_folder.py",
    "report/test_page.py",
    "report/test_panels.py",
    "test_terminal.py",
    "train/test_numeric.py",
    "test_distributed.py",
    "test_torch_harness.py",
    "test_lockstep.py",
    "deploy/test_inference.py",
    "estimators/test_iteration.py",
]


@pytest.hookimpl(tryfirst=True)  # before "-m" selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files, and put these files first."""
    places = {HERE / name: place for place, name in enumerate(SLOW)}
    if missing := [str(path) for path in places if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py lists as slow what is not there: {', '.join(missing)}")
    for item in items:
        if item.path in places:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(autouse=True)
def seeded_float64() -> Iterator[None]:
    """Every test starts from the same seed and computes in float64 unless it says otherwise."""
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(previous)
