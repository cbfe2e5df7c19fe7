from __future__ import annotations

import pytest
import torch

from methods.steps import advance, begin, line, slanted
from rewa.methods.dense import Dense
from rewa.methods.method import Plan

PLAN = Plan(learning_rates=(0.1,) * 4, steps_per_epoch=2, momentum=0.9, weight_decay=0.25)


@pytest.mark.parametrize(("strength", "decay"), [(0.5, 0.5), (None, 0.25), (0.0, 0.0)])
def test_a_step_by_hand(strength, decay):
    """The strength is the decay of the weights; without one, as inside another method, the recipe's is."""
    model, method = line(0.5, -0.2), Dense(strength=strength)
    bound = begin(method, model, PLAN)
    advance(bound, slanted(1.0, -2.0), [0])
    assert model.weight.tolist()[0] == pytest.approx([0.5 - 0.1 * (1 + decay * 0.5), -0.2 - 0.1 * (-2 + decay * -0.2)])
    assert model.bias.item() == pytest.approx(0.25 - 0.1)


def test_the_grid_counts_momentum():
    assert [strength * 0.4 * 10 for strength in Dense().grid(PLAN)] == pytest.approx([0.01, 0.05, 0.2, 1])
    adam = Plan(learning_rates=(0.1,) * 4, steps_per_epoch=2, momentum=0.9, optimizer="adamw")
    assert [strength * 0.4 for strength in Dense().grid(adam)] == pytest.approx([0.01, 0.05, 0.2, 1])


def test_a_plan_knows_its_optimizers():
    with pytest.raises(ValueError, match="Invalid optimizer: 'lion'"):
        Plan(learning_rates=(0.1,), steps_per_epoch=1, optimizer="lion").base_optimizer([{"params": [torch.zeros(1)]}])
