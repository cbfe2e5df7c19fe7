"""Powerpropagation: its step by hand, its reduction to dense training, its gradient at zero."""

from __future__ import annotations

import pytest
import torch

from methods.steps import advance, begin, fitting, line, network, plain, run, slanted
from rewa.methods.dense import Dense
from rewa.methods.method import Plan
from rewa.methods.powerprop import PowerPropagation


def test_one_step_by_hand():
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1)
    method, model = PowerPropagation(strength=0.5), line(0.25, -0.09)
    bound = begin(method, model, plan)
    advance(bound, slanted(2.0, -1.0), [0])
    # w = 0.5: w - 0.1 (2 * 0.5 * 2 + 0.5 * 0.5) = 0.275. w = -0.3: w - 0.1 (2 * 0.3 * -1 + 0.5 * -0.3) = -0.225.
    bound.finish()
    assert model.weight.tolist() == [pytest.approx([0.275**2, -(0.225**2)])]


def test_with_alpha_one_it_is_dense_training():
    plan = Plan(learning_rates=(0.1, 0.05, 0.02), steps_per_epoch=1, momentum=0.9)
    powered, _ = run(PowerPropagation(strength=0.02, alpha=1.0), plan)
    dense, _ = run(Dense(strength=0.02), plan)
    assert all(torch.equal(dense.get_parameter(name), value) for name, value in plain(powered).items())


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0, 4.0])
def test_gradient_is_the_derivative_and_zero_at_zero(alpha):
    form = PowerPropagation(alpha=alpha).form(torch.zeros(1))
    w = torch.tensor([-1.3, -0.2, 0.4, 2.0], requires_grad=True)
    assert torch.autograd.gradcheck(form, (w,))
    zero = torch.zeros(1, requires_grad=True)
    form(zero).backward()
    assert zero.grad.item() == 0


def test_starts_at_the_weights_of_the_model():
    method, model = PowerPropagation(strength=0.0, alpha=3.0), network()
    bound = method.bind(model, Plan(learning_rates=(0.1,), steps_per_epoch=1))
    first = dict(network().named_parameters())
    assert all(torch.allclose(value, first[name], rtol=1e-13) for name, value in bound.current().items())


def test_power_below_one_is_refused():
    with pytest.raises(ValueError, match=r"Invalid alpha: 0\.5"):
        PowerPropagation(alpha=0.5)


def test_trains():
    plan = Plan(learning_rates=(0.1,) * 60, steps_per_epoch=10, momentum=0.9)
    model, _ = run(PowerPropagation(strength=1e-4), plan)
    assert fitting(model) < 0.1 * fitting(network())
