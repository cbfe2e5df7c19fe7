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
    before = model.weight.detach().clone()
    step(torch.optim.Adam(rewa.param_groups(model, rules={"weight": None})), model)
    assert not torch.equal(model.weight, before)


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


class Wrapper(torch.optim.Optimizer):
    """Holds another optimizer and shares its groups, as the usual sharpness-aware optimizer does."""

    def __init__(self, params, base, **settings):
        super().__init__(params, settings)
        self.base_optimizer = base(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    def step(self, closure):
        saved = [param.clone() for group in self.param_groups for param in group["params"]]
        with torch.enable_grad():
            loss = closure()
        for old, param in zip(saved, (param for group in self.param_groups for param in group["params"]), strict=True):
            param.copy_(old)
        self.base_optimizer.step()
        return loss


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_inside_another_one(base):
    param, plain = nn.Parameter(torch.full((2, 2), 0.5)), nn.Parameter(torch.full((2, 2), 0.5))
    optimizer = rewa.attach(Wrapper([param], base, lr=1e-2, weight_decay=0.1), K=3, M=1)
    reference = rewa.attach(base([plain], lr=1e-2, weight_decay=0.1), K=3, M=1)

    def closure():
        optimizer.zero_grad()
        param.square().sum().backward()

    for _ in range(5):
        optimizer.step(closure)
        plain.grad = 2 * plain.detach()
        reference.step()
    torch.testing.assert_close(param, plain, rtol=1e-9, atol=0)


def test_a_wrapper_of_an_optimizer_that_reads_the_keys():
    model = nn.Linear(4, 2)
    wrapper = torch.optim.SGD(rewa.param_groups(model))
    wrapper.inner = rewa.ReWASGD(rewa.param_groups(model))
    before = model.weight.detach().clone()
    step(wrapper, model)
    assert not torch.equal(model.weight, before)


def test_annealing_an_optimizer_that_is_not_attached():
    optimizer = torch.optim.Adam(rewa.param_groups(nn.Linear(4, 2), K=2, M=1, match=True))
    with pytest.raises(ValueError, match=r"Adam does not read K and M: call rewa\.attach"):
        rewa.Annealing(optimizer, steps=20)


def test_a_state_from_the_start_of_annealing_in_a_plain_optimizer():
    model = nn.Linear(4, 2)
    attached = rewa.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    rewa.Annealing(attached, 100)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    plain.load_state_dict(attached.state_dict())
    with pytest.raises(RuntimeError, match=r"SGD does not read rewa_K"):
        step(plain, model)


@pytest.mark.parametrize("form", ["tied", "pair", "factors"])
def test_copies_of_a_form(form):
    """A copy is refused like the first, and removing its form leaves the first one whole."""
    model = rewa.reparametrize(nn.Linear(4, 2), form=form, K=3)
    twin = copy.deepcopy(model)
    with pytest.raises(ValueError, match=rf"{form} form"):
        rewa.ReWASGD(twin.parametrizations.weight.parameters())
    expected = model(torch.ones(1, 4))
    rewa.remove_reparametrization(twin)
    torch.testing.assert_close(model(torch.ones(1, 4)), expected)
    torch.testing.assert_close(twin(torch.ones(1, 4)), expected)
    assert type(rewa.remove_reparametrization(model)) is nn.Linear
