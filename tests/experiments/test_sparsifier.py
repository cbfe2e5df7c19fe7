from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import rewa
from rewa.experiments.result import How
from rewa.experiments.sparsifier import SPARSIFIER, USUAL, VARIANTS, Varied
from rewa.methods.method import Plan
from rewa.methods.sparsifier import Sparsifying

pytestmark = pytest.mark.slow
RATES = tuple(0.1 * (1 - step / 40) for step in range(40))
PLAN = Plan(learning_rates=RATES, steps_per_epoch=10, momentum=0.9, weight_decay=1e-3)


def trained(method: Sparsifying) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    bound = method.bind(model, PLAN)
    optimizer = bound.start()
    for step, lr in enumerate(PLAN.learning_rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        bound.before_forward(step)
        data = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), (data[:, 0] > 0).long()).backward()
        bound.before_step(step)
        optimizer.step()
        bound.after_step(step, lr)
    bound.finish()
    return model


def test_with_nothing_exchanged_it_is_the_sparsifier():
    varied, plain = trained(Varied(strength=0.8)), trained(Sparsifying(strength=0.8))
    torch.testing.assert_close(varied.state_dict(), plain.state_dict(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name] not in ({}, {"growth": USUAL["sgd"]})])
def test_every_variant_is_another_run_with_the_same_number_of_zeros(name):
    plain, model = trained(Varied(strength=0.8)), trained(Varied(strength=0.8, **VARIANTS[name]))
    weights = torch.cat([model[0].weight.flatten(), model[2].weight.flatten()])
    assert int((weights == 0).sum()) == round(0.8 * 180)
    assert not torch.equal(model[0].weight, plain[0].weight)


def test_the_table_has_a_row_for_each_variant(tmp_path):
    written = SPARSIFIER.run(tmp_path, How(quick=True, workers=1))
    text = (tmp_path / "sparsifier.md").read_text()
    assert text.count("(0.1) |") == 3
    assert all(path.exists() for path in written)
    before = {path: path.read_bytes() for path in tmp_path.rglob("record.json")}
    SPARSIFIER.run(tmp_path, replace(How(quick=True), trained=True))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("record.json")}


def test_every_run_can_be_recorded():
    for *_, job in SPARSIFIER.jobs():
        assert json.dumps(job.settings(), allow_nan=False)  # infinity is no JSON


def test_a_variant_that_diverges_has_a_cell_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(VARIANTS, "cut by LAMP", {"growth": 1e30, "reach": 1e30})
    SPARSIFIER.run(tmp_path, How(quick=True, workers=1))
    assert "| cut by LAMP | diverges |" in (tmp_path / "sparsifier.md").read_text()
    record = next((tmp_path / "runs").glob("*LAMP*/record.json"))
    before = record.stat().st_mtime_ns
    SPARSIFIER.run(tmp_path, How(quick=True, workers=1))
    assert record.stat().st_mtime_ns == before, "it is not tried again"


def test_the_usual_growth_is_the_sparsifiers():
    model = nn.Linear(3, 2)
    for name, kind in (("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)):
        assert rewa.Sparsifier(model, kind(model.parameters(), lr=0.1), sparsity=0.5, steps=2).growth == USUAL[name]
