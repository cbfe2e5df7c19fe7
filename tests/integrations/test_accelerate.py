"""Accelerate needs no adapter: the sparsifier's hooks are on the optimizer that it wraps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rewa
from killing import die, in_new_process

accelerate = pytest.importorskip("accelerate")

STEPS, SAVED, KILLED, ACCUMULATED = 40, 18, 23, 2


def train(folder: str, mode: str = "whole", made: str = "after") -> None:
    """Train and write the weights: whole, killed after a checkpoint, or resumed from it.

    Args:
        folder: For the checkpoint and the weights.
        mode: "whole", "killed" or "resumed".
        made: Whether the sparsifier is made "before" or "after" prepare() and load_state().
    """
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    data = torch.randn(640, 12)
    loader = DataLoader(TensorDataset(data, data[:, :3].argmax(1)), batch_size=8)
    torch.manual_seed(0 if mode != "resumed" else 1)  # what is loaded must not depend on the first weights
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    options = {"sparsity": 0.9, "steps": STEPS}
    sparsifier = rewa.Sparsifier(model, optimizer, **options) if made == "before" else None
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    first = 0
    if mode == "resumed":
        accelerator.load_state(Path(folder) / "state")
        first = SAVED
    if sparsifier is None:
        sparsifier = rewa.Sparsifier(model, optimizer, **options)
    assert sparsifier.done == first
    for number, (inputs, labels) in enumerate(accelerator.skip_first_batches(loader, first * ACCUMULATED)):
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert sparsifier.done == first + (number + 1) // ACCUMULATED
        if mode == "killed" and sparsifier.done == SAVED and accelerator.sync_gradients:
            accelerator.save_state(Path(folder) / "state")
        if mode == "killed" and sparsifier.done == KILLED:
            die()
    assert sparsifier.done == STEPS
    report = sparsifier.finish()
    assert report.before == report.sparsity == report.target
    torch.save(accelerator.unwrap_model(model).state_dict(), Path(folder) / f"{mode}-{made}.pt")


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    folder = str(tmp_path)
    train(folder)
    whole = torch.load(tmp_path / "whole-after.pt", weights_only=True)
    in_new_process(__file__, "train", folder, "killed", killed=True)
    assert not (tmp_path / "killed-after.pt").exists()
    for made in ("before", "after"):
        in_new_process(__file__, "train", folder, "resumed", made)
        resumed = torch.load(tmp_path / f"resumed-{made}.pt", weights_only=True)
        assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    zeros = sum(int((whole[name] == 0).sum()) for name in ("0.weight", "2.weight"))
    assert zeros == round(0.9 * (12 * 24 + 24 * 3))
