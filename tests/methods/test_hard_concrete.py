"""Hard concrete gates: both gates, the penalty and a step by hand; what is left is what evaluation saw."""

from __future__ import annotations

import math

import pytest
import torch

from methods.steps import advance, begin, fitting, line, network, plain, run, slanted
from rewa.methods.hard_concrete import HardConcrete
from rewa.methods.method import Plan

PLAN = Plan(learning_rates=(0.1,), steps_per_epoch=1)
SHIFT = 2 / 3 * math.log(0.1 / 1.1)


def sigmoid(t: float) -> float:
    return 1 / (1 + math.exp(-t))


def logits(model) -> dict[str, torch.Tensor]:
    return {name: param for name, param in model.named_parameters() if name.endswith("log_alpha")}


def with_logits(method, *values: float, plan=PLAN):
    """The method at work on a layer with weights 1, 2, ... whose gates have these logits."""
    model = line(*range(1, 1 + len(values)))
    bound = begin(method, model, plan)
    with torch.no_grad():
        next(iter(logits(model).values())).copy_(torch.tensor([values]))
    return bound


def test_gates_of_training_and_of_evaluation_by_hand():
    values = (-4.0, -0.5, 0.0, 1.0, 6.0)
    model = with_logits(HardConcrete(strength=0.1), *values).model
    torch.manual_seed(7)
    weight = model.weight
    torch.manual_seed(7)
    u = torch.rand(1, 5)[0].tolist()
    stretched = [sigmoid((math.log(one / (1 - one)) + a) * 1.5) * 1.2 - 0.1 for one, a in zip(u, values, strict=True)]
    assert weight.tolist() == [pytest.approx([w * min(1, max(0, z)) for w, z in enumerate(stretched, 1)])]
    model.eval()
    gates = [min(1, max(0, sigmoid(a) * 1.2 - 0.1)) for a in values]
    assert gates[0] == 0
    assert gates[-1] == 1
    assert model.weight.tolist() == [pytest.approx([w * z for w, z in enumerate(gates, 1)])]


def test_penalty_is_the_expected_number_of_open_gates():
    bound = with_logits(HardConcrete(strength=0.25), -4.0, 0.0, 1.0)
    expected = sum(sigmoid(a - SHIFT) for a in (-4.0, 0.0, 1.0))
    assert bound.penalty().item() == pytest.approx(0.25 * expected)
    # It is the probability that a gate of training is not zero.
    form = bound.forms()[0]
    with torch.no_grad():
        form.log_alpha = torch.nn.Parameter(form.log_alpha.expand(20000, 3))
        drawn = form(torch.ones(20000, 3))
    assert (drawn != 0).double().mean(0).sum().item() == pytest.approx(expected, abs=0.03)


def test_one_step_by_hand():
    method = HardConcrete(strength=0.3, gate_time=2.0)  # the rates sum to 0.1: the gates' are 20 times the weights'
    bound = with_logits(method, -5.0, plan=Plan(learning_rates=(0.1,), steps_per_epoch=1, weight_decay=0.5))
    advance(bound, slanted(1.5), [0])
    torch.manual_seed(0)
    u = torch.rand(1, 1).item()
    s = sigmoid((math.log(u / (1 - u)) - 5.0) * 1.5)
    z = s * 1.2 - 0.1
    assert 0 < z < 1
    open_probability = sigmoid(-5.0 - SHIFT)
    slope = 1.5 * 1.0 * 1.2 * s * (1 - s) * 1.5 + 0.3 * open_probability * (1 - open_probability)
    assert next(iter(logits(bound.model).values())).item() == pytest.approx(-5.0 - 2.0 * slope)
    assert bound.weights["parametrizations.weight.original"].item() == pytest.approx(1.0 - 0.1 * (1.5 * z + 0.5))


def test_gates_start_at_their_droprate():
    method, model = HardConcrete(strength=0.1, droprate_init=0.3), torch.nn.Linear(100, 100)
    method.bind(model, PLAN)
    values = next(iter(logits(model).values()))
    assert values.mean().item() == pytest.approx(math.log(7 / 3), abs=1e-3)
    assert values.std().item() == pytest.approx(0.01, rel=0.05)


def test_closing_time_is_that_of_small_steps_by_the_penalty_alone():
    method = HardConcrete()
    a, steps = math.log(9), 0
    while sigmoid(a) * 1.2 - 0.1 > 0:
        p = sigmoid(a - SHIFT)
        a, steps = a - 0.02 * p * (1 - p), steps + 1
    assert 0.02 * steps == pytest.approx(method.closing_time(), rel=1e-3)
    assert method.grid(PLAN) == pytest.approx([c * 0.02 * steps / 1e5 for c in (1.5, 3, 6, 12)], rel=1e-3)


def test_adamws_costs_are_its_own():
    adam = Plan(learning_rates=(0.1,), steps_per_epoch=1, optimizer="adamw")
    assert HardConcrete().grid(adam) == (5e-6, 3e-5, 2e-4, 1e-3)


@pytest.mark.parametrize(
    ("plan", "scale"),
    [
        (Plan(learning_rates=(0.2, 0.3), steps_per_epoch=1, momentum=0.9), 1e5 / (0.5 * 10)),
        (Plan(learning_rates=(0.2, 0.3), steps_per_epoch=1, momentum=0.9, optimizer="adamw"), 30 / 0.5),
    ],
)
def test_gates_have_their_own_time(plan, scale):
    bound = begin(HardConcrete(strength=0.1), network(), plan)
    groups = bound.optimizer.param_groups
    scales = [(group.get("lr_scale"), all("log_alpha" in name for name in group["param_names"])) for group in groups]
    assert scales == [(None, False), (pytest.approx(scale), True), (None, False)]


def test_looking_at_the_weights_draws_nothing_and_changes_no_mode():
    bound = with_logits(HardConcrete(strength=0.1), -4.0, 0.0, 1.0)
    state = torch.get_rng_state()
    first, second = bound.current()["weight"], bound.current()["weight"]
    assert torch.equal(first, second)
    assert first[0, 0] == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in bound.model.modules())


def test_a_run_closes_gates_and_leaves_exact_zeros():
    plan = Plan(learning_rates=(0.1,) * 80, steps_per_epoch=10, momentum=0.9)
    zeros, values = [], []
    for strength in (1e-4, 1e-2):
        model, _ = run(HardConcrete(strength=strength, gate_time=2e4), plan)
        zeros.append(sum(int((value == 0).sum()) for name, value in plain(model).items() if "weight" in name))
        values.append(fitting(model).item())
    assert zeros[0] < 10 < 50 < zeros[1] < 98
    assert max(values) < 0.3 * fitting(network()).item()


def test_a_droprate_outside_is_refused():
    with pytest.raises(ValueError, match=r"Invalid droprate_init: 1\.0"):
        HardConcrete(droprate_init=1.0)
