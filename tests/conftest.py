from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

# The tensors are tiny: threads would only wait for each other. test_fused.py uses two.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded_float64() -> Iterator[None]:
    """Every test starts from the same seed and computes in float64 unless it says otherwise."""
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(previous)
