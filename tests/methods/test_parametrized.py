"""What all reparametrized methods share: where the forms go, who is decayed, and what is left in the end."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from methods.steps import advance, begin, fitting, line, network, plain, run
from rewa.methods.dwf import DWF
from rewa.methods.hard_concrete import HardConcrete
from rewa.methods.method import Plan
from rewa.methods.parametrized import Parametrized, decays
from rewa.methods.powerprop import PowerPropagation
from rewa.methods.rewa import MatchedPair, ReWAPair
from rewa.methods.spred import Spred
from rewa.methods.str import STR

PLAN = Plan(learning_rates=(0.05,) * 12, steps_per_epoch=4, momentum=0.9, weight_decay=0.01)
METHODS = [
    Spred(strength=1e-3),
    PowerPropagation(strength=1e-3),
    DWF(strength=1e-3),
    DWF(strength=1e-3, init="equal"),
    STR(strength=1e-3),
    HardConcrete(strength=1e-3, gate_time=100.0),
    ReWAPair(strength=1e-3),
    MatchedPair(strength=1e-3),
]
each = pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{getattr(method, 'init', '')}")


@each
def test_finish_leaves_plain_weights_and_the_same_outputs(method):
    model = network()
    names = [name for name, _ in model.named_parameters()]
    bound = begin(method, model, PLAN)
    advance(bound, fitting, range(PLAN.steps))
    X, current = torch.randn(7, 6), bound.current()
    model.eval()
    outputs = model(X).detach()
    model.train()
    with torch.no_grad():
        bound.finish()
    assert sorted(plain(model)) == sorted(names)
    assert type(model[0]) is nn.Linear
    assert model.training
    assert torch.equal(model(X), outputs)
    assert current.keys() == {"0.weight", "2.weight", "4.weight"}
    assert all(torch.equal(plain(model)[name], value) for name, value in current.items())
    assert all(param.requires_grad for param in model.parameters())


@each
def test_a_new_process_goes_on_bit_for_bit(method):
    straight, _ = run(method, PLAN)
    resumed, _ = run(method, PLAN, stop_at=5)
    assert all(torch.equal(straight.get_parameter(name), value) for name, value in plain(resumed).items())


@each
def test_a_model_can_be_finished_without_being_started(method):
    model = network()
    bound = begin(method, model, PLAN)
    advance(bound, fitting, range(3))
    other = network()
    unstarted = method.bind(other, PLAN)
    other.load_state_dict(model.state_dict())
    unstarted.finish()
    assert all(torch.equal(plain(other)[name], value) for name, value in bound.current().items())


@each
def test_grid_rises_and_scales_with_the_run(method):
    grid = method.grid(PLAN)
    assert len(grid) == 4
    assert list(grid) == sorted(set(grid))
    longer = method.grid(dataclasses.replace(PLAN, learning_rates=PLAN.learning_rates * 2))
    times = 1 if method.name == "hard-concrete" else 2  # its gates have their own time
    assert longer == pytest.approx([strength / times for strength in grid], rel=1e-12)


def test_every_parameter_is_in_one_group_with_its_decay():
    class Offset(nn.Module):
        def __init__(self):
            super().__init__()
            self.offset = nn.Parameter(torch.zeros(1, 1))

        def forward(self, w):
            return w + self.offset

        def right_inverse(self, x):
            return x

    class Method(Parametrized):
        def grid(self, plan):
            return (0.1,)

        def form(self, weight):
            return Offset()

        def form_settings(self, plan):
            return {"weight_decay": 0.3, "lr_scale": 5.0}

    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    bound = begin(Method(strength=0.1), model, PLAN)
    groups = [(group["param_names"], group["weight_decay"], group.get("lr_scale")) for group in bound.optimizer.param_groups]
    assert groups == [
        (["0.parametrizations.weight.original"], 0.01, None),
        (["0.parametrizations.weight.0.offset"], 0.3, 5.0),
        (["0.bias", "1.weight", "1.bias"], 0.0, None),
    ]


def test_a_shared_weight_is_refused_before_anything_changes():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match=r"'1.weight' and '0.weight' are one shared weight"):
        Spred(strength=0.1).bind(model, PLAN)
    assert model[1].weight is model[0].weight


def test_the_weight_of_a_single_layer_has_no_owner_in_its_name():
    model = line(0.5, -0.3)
    method = Spred(strength=0.1)
    bound = begin(method, model, PLAN)
    assert torch.allclose(bound.current()["weight"], torch.tensor([[0.5, -0.3]]))


# ----------------------------------------------------------------------------------------------------------------- grids


@pytest.mark.parametrize(("optimizer", "expected"), [("sgd", 6 / (3 * 0.5 * 4)), ("adamw", 0.9 / (3 * 0.5))])
def test_decays_spend_their_budget_over_the_run(optimizer, expected):
    plan = Plan(learning_rates=(0.2, 0.3), steps_per_epoch=1, momentum=0.75, optimizer=optimizer)
    assert decays(plan, {"sgd": (6.0,), "adamw": (0.9,)}, factors=3) == pytest.approx((expected,))


@pytest.mark.parametrize(
    ("kind", "weakest", "strongest"),
    [
        (Spred, 0.3 / 0.9, 3.2 / 0.9),
        (PowerPropagation, 0.2 / 0.45, 1.6 / 0.45),
        (DWF, 0.4 / 1.35, 2.2 / 1.35),
        (STR, 0.15 / 0.45, 0.8 / 0.45),
        (ReWAPair, 0.8 / 4.05, 4 / 4.05),
    ],
)
def test_on_adamw_the_decays_are_such_that_its_steps_can_hold_a_weight(kind, weakest, strongest):
    plan = Plan(learning_rates=(1.5e-3,) * 300, steps_per_epoch=100, optimizer="adamw", momentum=0.9)
    grid = kind().grid(plan)
    assert sorted(grid) == list(grid)
    assert (grid[0], grid[-1]) == pytest.approx((weakest, strongest))
