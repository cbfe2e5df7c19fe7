"""AC/DC: the phases, what is masked in them, and how weights come back."""

from __future__ import annotations

import itertools

import pytest

from methods.steps import advance, begin, fitting, line, network, plain, run, slanted
from rewa.methods.acdc import ACDC
from rewa.methods.method import Plan
from rewa.methods.rewa import ReWA


def plan(steps: int, lr: float = 0.05) -> Plan:
    return Plan(learning_rates=(lr,) * steps, steps_per_epoch=4, momentum=0.9)


def phases(method: ACDC, steps: int) -> list[tuple[bool, int]]:
    kinds = [method.is_compressed(step, steps) for step in range(steps)]
    return [(kind, len(list(group))) for kind, group in itertools.groupby(kinds)]


def test_phases_take_turns_after_a_warm_up_and_the_last_is_longer():
    assert phases(ACDC(strength=0.5), 100) == [(False, 10), *[(True, 5), (False, 5)] * 7, (True, 20)]


def test_phases_are_fitted_in_whole_pairs():
    found = phases(ACDC(strength=0.5, dense_start=0.2, phase=0.11, final=0.25), 1000)
    assert found[0] == (False, 200)
    assert found[-1] == (True, 250)
    # 550 steps hold 2.5 pairs of 2 * 110, so two pairs of 2 * 137.5.
    assert [kind for kind, _ in found] == [False, True, False, True, False, True]
    assert sorted(length for _, length in found[1:-1]) == [137, 137, 138, 138]


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_the_shortest_runs_end_compressed(steps):
    model, _ = run(ACDC(strength=0.5), plan(steps))
    assert sum(int((value == 0).sum()) for name, value in plain(model).items() if "weight" in name) == 49  # of 98


@pytest.mark.parametrize("on", [None, ReWA()], ids=["dense", "rewa"])
def test_compressed_steps_have_the_share_of_zeros_and_the_others_none(on):
    method = ACDC(strength=0.6) if on is None else ACDC(strength=0.6, on=on)
    model = network()
    bound = begin(method, model, plan(100))
    for step in range(100):
        before = bound.masks
        advance(bound, fitting, [step])
        kept = sum(int(mask.sum()) for mask in bound.masks.values())
        assert kept == (98 - round(0.6 * 98) if method.is_compressed(step, 100) else 98)
        begins = step in (10, 20, 30, 40, 50, 60, 70, 80)
        assert begins or not method.is_compressed(step, 100) or all(bound.masks[name] is before[name] for name in before)


def test_a_turn_by_hand():
    method = ACDC(strength=0.5, dense_start=0.25, phase=0.25, final=0.25)
    model = line(0.4, -0.1)
    bound = begin(method, model, plan(8, lr=0.01))
    assert phases(method, 8) == [(False, 2), (True, 2), (False, 2), (True, 2)]
    loss = slanted(0.0, -0.5)
    advance(bound, loss, [0, 1])
    assert model.weight.tolist() == [[pytest.approx(0.4), pytest.approx(-0.1 + 0.005 * (1 + 1.9))]]
    advance(bound, loss, [2, 3])
    assert model.weight.tolist() == [[pytest.approx(0.4), 0.0]]
    advance(bound, loss, [4])
    assert model.weight.tolist() == [[pytest.approx(0.4), 0.0]]  # released, and waiting for its own gradient
    advance(bound, loss, [5])
    assert model.weight.tolist() == [[pytest.approx(0.4), pytest.approx(0.005)]]
    advance(bound, loss, [6, 7])
    assert model.weight.tolist() == [[pytest.approx(0.4), 0.0]]


def test_all_momentum_is_reset_at_decompression():
    method = ACDC(strength=0.5, dense_start=0.25, phase=0.25, final=0.25)
    model = line(0.4, -0.1)
    bound = begin(method, model, plan(8, lr=0.01))
    advance(bound, slanted(1.0, 1.0), range(4))
    assert bound.optimizer.state[model.bias]["momentum_buffer"].item() == pytest.approx(1 + 0.9 + 0.81 + 0.729)
    advance(bound, slanted(1.0, 1.0), [4])
    assert bound.optimizer.state[model.bias]["momentum_buffer"].item() == pytest.approx(1)
    assert bound.optimizer.state[model.weight]["momentum_buffer"].tolist() == [[pytest.approx(1), 0.0]]


def test_decompressed_weights_come_back_to_life_under_rewa():
    method = ACDC(strength=0.5, dense_start=0.25, phase=0.25, final=0.25, on=ReWA(strength=0.001))
    model = line(0.4, -0.2)
    bound = begin(method, model, plan(80, lr=0.01))
    wanted = slanted(0.0, -2.0)  # the loss wants the second weight positive, where ReWA alone could not bring it
    advance(bound, slanted(0.0, 0.0), range(20))
    assert model.weight[0, 1] < 0
    advance(bound, wanted, range(20, 40))
    assert model.weight[0, 1] == 0
    advance(bound, wanted, range(40, 60))
    assert model.weight[0, 1] > 0.4
    advance(bound, wanted, range(60, 80))
    assert bound.masks["weight"].tolist() == [[False, True]]


def test_trains_in_turns():
    model, _ = run(ACDC(strength=0.5), plan(80, lr=0.1))
    assert fitting(model) < 0.3 * fitting(network())


def test_bad_shares_are_refused():
    with pytest.raises(ValueError, match=r"Invalid dense_start, phase and final: 0\.9, 0\.05, 0\.2"):
        ACDC(dense_start=0.9)
    with pytest.raises(ValueError, match="Invalid dense_start, phase and final"):
        ACDC(phase=0.0)
