"""Gradual magnitude pruning: the cubic law by hand, and what it leaves."""

from __future__ import annotations

import pytest
import torch

from methods.steps import advance, begin, fitting, line, network, plain, run, slanted
from rewa.methods.gmp import GMP
from rewa.methods.method import Plan
from rewa.methods.rewa import ReWA


def plan(steps: int, lr: float = 0.05) -> Plan:
    return Plan(learning_rates=(lr,) * steps, steps_per_epoch=4, momentum=0.9)


def test_the_share_of_zeros_follows_the_cubic_law():
    method = GMP(strength=0.8, every=10)
    changes = {step: zeros for step in range(100) if (zeros := method.zeros_at(step, 100)) is not None}
    expected = {20 + 10 * i: 0.8 * (1 - (1 - i / 6) ** 3) for i in range(7)}
    assert changes == pytest.approx(expected)
    assert changes[20] == 0
    assert changes[50] == pytest.approx(0.7)
    assert changes[80] == 0.8


def test_by_default_there_is_a_cut_every_hundredth_of_the_run():
    method = GMP(strength=0.8)
    changes = [step for step in range(1000) if method.zeros_at(step, 1000) is not None]
    assert changes == list(range(200, 801, 10))


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("end", [0.8, 1.0])
def test_the_shortest_runs_reach_their_share(steps, end):
    model, _ = run(GMP(strength=0.5, end=end), plan(steps))
    weights = [value for name, value in plain(model).items() if "weight" in name]
    assert sum(int((value == 0).sum()) for value in weights) == 49  # of 98


def test_the_smallest_are_dropped_and_stay_dropped():
    method, model = GMP(strength=0.5, begin=0.0, end=0.5, every=1), line(0.4, -0.1, 0.3, 0.2)
    bound = begin(method, model, plan(8, lr=0.0))
    zeros = []
    for step in range(8):
        advance(bound, slanted(1.0, 1.0, 1.0, 1.0), [step])
        zeros.append((model.weight == 0).int().tolist()[0])
    # Shares 0, 0.289, 0.4375, 0.492 and 0.5 of four weights.
    assert zeros == [[0, 0, 0, 0], [0, 1, 0, 0]] + [[0, 1, 0, 1]] * 6


def test_masks_only_shrink():
    method, model = GMP(strength=0.9), network()
    bound = begin(method, model, plan(50))
    before = bound.masks
    for step in range(50):
        advance(bound, fitting, [step])
        assert all(not (mask & ~before[name]).any() for name, mask in bound.masks.items())
        before = bound.masks


def test_dropped_weights_do_not_return_where_others_became_zero_by_themselves():
    method = GMP(strength=0.5, on=ReWA(strength=0.01), begin=0.0, end=0.5, every=1)
    model = line(0.4, -0.1, 0.3, 0.2)
    bound = begin(method, model, plan(8))
    advance(bound, slanted(0.1, 0.1, 0.1, 0.1), range(2))
    assert model.weight[0, 1] == 0
    with torch.no_grad():
        model.weight[0, 2:] = 0.0
    advance(bound, slanted(0.1, 0.1, 0.1, 0.1), range(2, 8))
    assert model.weight[0, 1:].tolist() == [0.0, 0.0, 0.0]


def test_pruned_training_still_fits():
    model, _ = run(GMP(strength=0.5), plan(80, lr=0.1))
    assert fitting(model) < 0.2 * fitting(network())


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"Invalid begin and end: 0\.9, 0\.8"):
        GMP(begin=0.9)
    with pytest.raises(ValueError, match="Invalid every: 0"):
        GMP(every=0)
