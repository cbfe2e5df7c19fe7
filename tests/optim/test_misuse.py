"""Optimizers that would train something else than their user thinks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import rewa


def step(optimizer, model):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("base", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_groups_of_rewa_in_an_optimizer_that_does_not_read_them(base):
    """Nothing in the groups means something else to the optimizer, and its first step says what is missing."""
    model = nn.Linear(4, 2)
    optimizer = base(rewa.param_groups(model, K=3, M=1, eps=0.25), lr=0.1)
    assert optimizer.param_groups[0].get("eps") == base(model.parameters(), lr=0.1).param_groups[0].get("eps")
    before = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match=rf"{base.__name__} does not read rewa_K.*rewa\.attach\(optimizer\)"):
        step(optimizer, model)
    assert torch.equal(model.weight, before)
    step(rewa.attach(base(rewa.param_groups(model, K=3, M=1), lr=0.1)), model)
    assert not torch.equal(model.weight, before)


def test_groups_without_a_sparse_weight_are_any_optimizers():
    model = nn.Linear(4, 2)
    step(torch.optim.Adam(rewa.param_groups(model, rules={"weight": None})), model)


def test_an_attached_state_in_a_plain_optimizer():
    model = nn.Linear(4, 2)
    state = rewa.attach(torch.optim.SGD(model.parameters(), lr=0.1)).state_dict()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    plain.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"SGD does not read rewa_K"):
        step(plain, model)


@pytest.mark.parametrize("form", ["tied", "pair", "factors"])
def test_an_optimizer_of_a_form_that_was_removed(form):
    model = rewa.reparametrize(nn.Linear(4, 2), form=form, K=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    step(optimizer, model)
    rewa.remove_reparametrization(model)
    with pytest.raises(RuntimeError, match=rf"{form} form of 'weight'.*was removed: make a new optimizer"):
        step(optimizer, model)
    before = model.weight.detach().clone()
    step(torch.optim.SGD(model.parameters(), lr=1e-3), model)
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("form", ["tied", "pair", "factors"])
def test_the_originals_of_a_form_are_decayed(form):
    model = rewa.reparametrize(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), form=form, K=3)
    groups = rewa.param_groups(copy.deepcopy(model), K=9, M=2, weight_decay=0.25)
    decays = {name: group["weight_decay"] for group in groups for name, _ in group["params"]}
    originals = {name: decay for name, decay in decays.items() if "original" in name}
    assert len(originals) == {"tied": 1, "pair": 2, "factors": 3}[form]
    assert set(originals.values()) == {0.25}
    assert {decay for name, decay in decays.items() if name not in originals} == {0.0}
    assert f"{form} form" in str(groups)
    torch.optim.SGD(groups, lr=0.1)  # any optimizer will do
    rewa.ReWASGD(groups, lr=0.1)


@pytest.mark.parametrize("make", [rewa.ReWASGD, rewa.ReWAAdamW, lambda params: rewa.attach(torch.optim.SGD(params))])
def test_a_root_of_a_root_is_refused(make):
    model = rewa.reparametrize(nn.Linear(4, 2), form="pair", K=3)
    with pytest.raises(ValueError, match=r"pair form.*torch\.optim"):
        make([model.parametrizations.weight.original0])
