"""Kill and resume in a plain loop of torch: the checkpoint is that of the model and of its optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rewa
from killing import die, in_new_process

STEPS, SAVED, KILLED = 60, 25, 31
OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=3e-3),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
}


def train(folder: str, optimizer: str, mode: str = "whole", made: str = "after") -> None:
    """Train and write the weights: whole, killed after a checkpoint, or resumed from it.

    Args:
        folder: For the checkpoint and the weights.
        optimizer: Name of the optimizer.
        mode: "whole", "killed" or "resumed".
        made: Whether the sparsifier is made "before" or "after" the checkpoint is loaded.
    """
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0 if mode != "resumed" else 1)  # what is loaded must not depend on the first weights
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))
    base = OPTIMIZERS[optimizer](model.parameters())
    options = {"sparsity": 0.9, "steps": STEPS}
    sparsifier = rewa.Sparsifier(model, base, **options) if made == "before" else None
    first = 0
    if mode == "resumed":
        saved = torch.load(Path(folder) / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        base.load_state_dict(saved["optimizer"])
        first = saved["step"]
    if sparsifier is None:
        sparsifier = rewa.Sparsifier(model, base, **options)
    assert sparsifier.done == first
    for step in range(first, STEPS):
        data = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
        base.zero_grad()
        nn.functional.cross_entropy(model(data), data[:, :3].argmax(1)).backward()
        base.step()
        if mode == "killed" and step + 1 == SAVED:
            state = {"model": model.state_dict(), "optimizer": base.state_dict(), "step": SAVED}
            torch.save(state, Path(folder) / "checkpoint.pt")
        if mode == "killed" and step + 1 == KILLED:
            die()
    report = sparsifier.finish()
    assert report.before == report.sparsity == report.target
    torch.save(model.state_dict(), Path(folder) / f"{mode}-{made}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_killed_run_resumes_to_the_same_bits(optimizer, tmp_path):
    folder = str(tmp_path)
    train(folder, optimizer)
    whole = torch.load(tmp_path / "whole-after.pt", weights_only=True)
    in_new_process(__file__, "train", folder, optimizer, "killed", killed=True)
    assert not (tmp_path / "killed-after.pt").exists()
    for made in ("before", "after"):
        in_new_process(__file__, "train", folder, optimizer, "resumed", made)
        resumed = torch.load(tmp_path / f"resumed-{made}.pt", weights_only=True)
        assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    zeros = sum(int((whole[name] == 0).sum()) for name in ("0.weight", "2.weight"))
    assert zeros == round(0.9 * (12 * 24 + 24 * 3))
