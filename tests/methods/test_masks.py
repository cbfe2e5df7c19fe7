"""What all masked methods share: who is masked, what masked weights cannot do, how they come back, what is saved."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from methods.steps import advance, begin, line, plain, run, slanted
from rewa.cutting import global_masks, largest
from rewa.methods import make
from rewa.methods.acdc import ACDC
from rewa.methods.dense import Dense
from rewa.methods.gmp import GMP
from rewa.methods.ham import HAM
from rewa.methods.masks import BoundMasked, Masked
from rewa.methods.method import Plan
from rewa.methods.rewa import ReWA, ReWAAdam
from rewa.methods.rigl import RigL
from rewa.methods.spred import Spred

PLAN = Plan(learning_rates=(0.05,) * 40, steps_per_epoch=4, momentum=0.9, weight_decay=0.01)
ADAM = Plan(learning_rates=(0.01,) * 40, steps_per_epoch=4, optimizer="adamw")


@dataclass(frozen=True, kw_only=True)
class Script(Masked):
    """Puts given masks at given steps."""

    name: ClassVar[str] = "script"

    forward: dict[int, list[bool]] = field(default_factory=dict)
    backward: dict[int, list[bool]] = field(default_factory=dict)

    def _bound(self):
        return BoundScript


class BoundScript(BoundMasked):
    def masks_before_forward(self, step):
        masks = self.method.forward
        return {"weight": torch.tensor([masks[step]])} if step in masks else None

    def masks_before_step(self, step):
        masks = self.method.backward
        return {"weight": torch.tensor([masks[step]])} if step in masks else None


def momentum_of(optimizer, param) -> Tensor:
    state = optimizer.state[param]
    return state["momentum_buffer"] if "momentum_buffer" in state else state["exp_avg"]


# ------------------------------------------------------------------------------------------------- choosing the largest


def test_largest_is_exact_and_takes_the_first_of_equal_values():
    values = torch.tensor([[2.0, 5.0, 2.0], [2.0, 0.0, 7.0]])
    chosen = [largest(values, count).int().tolist() for count in range(7)]
    assert chosen == [
        [[0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 1]],
        [[0, 1, 0], [0, 0, 1]],
        [[1, 1, 0], [0, 0, 1]],
        [[1, 1, 1], [0, 0, 1]],
        [[1, 1, 1], [1, 0, 1]],
        [[1, 1, 1], [1, 1, 1]],
    ]


def test_global_masks_keep_the_largest_of_all_layers():
    weights = {"a": torch.tensor([[1.0, -4.0]]), "b": torch.tensor([[0.5], [-3.0], [0.1]])}
    masks = global_masks(weights, zeros=0.4)
    assert masks["a"].tolist() == [[True, True]]
    assert masks["b"].tolist() == [[False], [True], [False]]


def test_no_layer_loses_its_last_weight():
    masks = global_masks({"a": torch.tensor([[0.1, -0.2]]), "b": torch.tensor([[3.0, 4.0, 5.0, 6.0]])}, zeros=0.5)
    assert masks["a"].tolist() == [[False, True]]
    assert masks["b"].tolist() == [[False, False, True, True]]


def test_every_layer_keeps_a_weight_when_fewer_than_layers_are_asked_for():
    weights = {"a": torch.tensor([[0.1, -0.2]]), "b": torch.tensor([[3.0, 4.0]]), "c": torch.tensor([[6.0, 5.0]])}
    masks = global_masks(weights, zeros=0.9)
    assert [mask.tolist() for mask in masks.values()] == [[[False, True]], [[False, True]], [[True, False]]]


@pytest.mark.parametrize("zeros", [0.0, 0.3, 0.9, 0.99])
def test_global_masks_have_the_exact_count(zeros):
    weights = {"a": torch.randn(30, 20), "b": torch.zeros(7, 5), "c": torch.randn(41)}
    kept = sum(int(mask.sum()) for mask in global_masks(weights, zeros).values())
    assert kept == round((1 - zeros) * 676)


# ------------------------------------------------------------------------------------------------------ one masked step


def test_a_masked_step_by_hand():
    plan = Plan(learning_rates=(0.1,) * 3, steps_per_epoch=1, momentum=0.5, weight_decay=0.2)
    method = Script(strength=0.5, forward={1: [True, False]})
    model = line(1.0, 2.0)
    bound = begin(method, model, plan)
    advance(bound, slanted(3.0, 4.0), [0])
    first = 1.0 - 0.1 * (3 + 0.2)
    assert model.weight.tolist() == [pytest.approx([first, 2.0 - 0.1 * (4 + 0.4)])]
    advance(bound, slanted(3.0, 4.0), [1])
    # Dense training's own second step for the first weight; the second is zero, without gradient or momentum.
    assert model.weight.tolist() == [[pytest.approx(first - 0.1 * (0.5 * 3.2 + 3 + 0.2 * first)), 0.0]]
    assert model.weight.grad.tolist() == [[3.0, 0.0]]
    assert momentum_of(bound.optimizer, model.weight)[0, 1] == 0
    advance(bound, slanted(3.0, 4.0), [2])
    assert model.weight[0, 1] == 0
    assert momentum_of(bound.optimizer, model.weight)[0, 1] == 0


@pytest.mark.parametrize("plan", [PLAN, ADAM], ids=["sgd", "adamw"])
@pytest.mark.parametrize("on", [Dense(), ReWA(strength=0.05)], ids=["dense", "rewa"])
def test_no_momentum_builds_up_behind_a_mask(on, plan):
    method, model = Script(strength=0.5, on=on, forward={3: [True, False, True]}), line(0.5, 0.5, 0.5)
    bound = begin(method, model, plan)
    advance(bound, slanted(-1.0, -1.0, 1.0), range(3))
    assert (momentum_of(bound.optimizer, model.weight) != 0).all()
    advance(bound, slanted(-1.0, -1.0, 1.0), range(3, 10))
    assert momentum_of(bound.optimizer, model.weight)[0, 1] == 0
    assert model.weight[0, 1] == 0
    assert (model.weight[0, [0, 2]] != 0).all()


def test_the_first_masks_are_put_at_the_first_step_not_at_the_start():
    class BoundHalf(BoundScript):
        def first_masks(self):
            return {"weight": torch.tensor([[True, False]])}

    class Half(Script):
        def _bound(self):
            return BoundHalf

    method, model = Half(strength=0.5), line(1.0, 2.0)
    bound = begin(method, model, PLAN)
    assert model.weight.tolist() == [[1.0, 2.0]]
    bound.before_forward(0)
    assert model.weight.tolist() == [[1.0, 0.0]]


# -------------------------------------------------------------------------------------------------------------- returning


def test_a_weight_returns_at_zero_in_dense_training_and_moves_with_the_next_gradient():
    plan = Plan(learning_rates=(0.1,) * 3, steps_per_epoch=1)
    method = Script(strength=0.5, forward={0: [True, False]}, backward={1: [True, True]})
    model = line(1.0, 2.0)
    bound = begin(method, model, plan)
    advance(bound, slanted(0.0, 4.0), [0, 1])
    assert model.weight.tolist() == [[1.0, 0.0]]
    advance(bound, slanted(0.0, 4.0), [2])
    assert model.weight.tolist() == [[1.0, pytest.approx(-0.4)]]


def test_a_weight_returns_under_rewa_against_its_gradient_and_grows_by_the_growth_condition():
    K, M, lam, lr = 3, 2, 0.5, 0.1
    plan = Plan(learning_rates=(lr,) * 3, steps_per_epoch=1)
    off, on = [True, False, False, False, False], [True] * 5
    method = Script(strength=0.5, on=ReWA(strength=lam, K=K, M=M), forward={0: off}, backward={1: on})
    model = line(2.0, -1.0, 1.0, 1.0, -1.0)
    size = 0.1 * math.sqrt((4 + 1 + 1 + 1 + 1) / 5)
    u = size ** (1 / K)
    bar = lam * u ** (1 - M)  # |g| u^(M-1) = lam
    loss = slanted(0.0, 1.01 * bar, -1.01 * bar, 0.99 * bar, -0.99 * bar)
    bound = begin(method, model, plan)
    advance(bound, loss, [0])
    assert model.weight[0, 1:].tolist() == [0.0] * 4
    advance(bound, loss, [1])
    # In this step the decay acts and the gradient does not: y = u (1 - lr lam).
    returned = (u * (1 - lr * lam)) ** K
    assert model.weight[0, 1:].tolist() == pytest.approx([-returned, returned, -returned, returned])
    with torch.no_grad():
        model.weight[0, 1:] *= (1 - lr * lam) ** -K  # back at the size the condition was stated for
    advance(bound, loss, [2])
    y = [u + lr * (factor * bar * u**M - lam * u) for factor in (1.01, 1.01, 0.99, 0.99)]
    assert y[0] > u > y[2]
    signed = [-y[0], y[1], -y[2], y[3]]
    assert model.weight[0, 1:].tolist() == pytest.approx([math.copysign(abs(one) ** K, one) for one in signed])


def test_without_help_a_weight_at_zero_stays_there_under_rewa():
    model = line(1.0, 0.0)
    method = ReWA(strength=0.01)
    bound = begin(method, model, PLAN)
    advance(bound, slanted(1.0, 100.0), range(20))
    assert model.weight[0, 1] == 0


def test_a_weight_without_gradient_returns_with_a_sign_all_the_same():
    method = Script(strength=0.5, on=ReWA(strength=0.01), forward={0: [True, False]}, backward={1: [True, True]})
    model = line(1.0, 1.0)
    bound = begin(method, model, PLAN)
    advance(bound, slanted(1.0, 0.0), [0, 1])
    assert model.weight[0, 1] > 0


def test_where_zero_is_no_trap_a_weight_returns_at_zero_under_rewa_too():
    method = Script(strength=0.5, on=ReWA(strength=0.01, M=0), forward={0: [True, False]}, backward={1: [True, True]})
    model = line(1.0, 1.0)
    bound = begin(method, model, PLAN)
    advance(bound, slanted(1.0, 1.0), [0, 1])
    assert model.weight[0, 1] == 0
    advance(bound, slanted(1.0, 1.0), [2])
    assert model.weight[0, 1] < 0


# ------------------------------------------------------------------------------------------------------ settings and state

ALL = [cls(strength=0.8, on=on) for cls in (GMP, RigL, ACDC) for on in (Dense(), ReWA(), ReWA(K=3, M=1.5, eps=0.1), ReWAAdam())]
each = pytest.mark.parametrize("method", ALL, ids=lambda m: f"{m.label}-{getattr(m.on, 'K', '')}")


@pytest.mark.slow
@each
@pytest.mark.parametrize("plan", [PLAN, ADAM], ids=["sgd", "adamw"])
def test_the_share_of_zeros_is_exact_and_a_new_process_goes_on_bit_for_bit(method, plan):
    plan = method.planned(plan)
    straight, done = run(method, plan)
    weights = {name: value for name, value in plain(straight).items() if name in done.masks}
    total = sum(value.numel() for value in weights.values())
    assert sum(int(mask.sum()) for mask in done.masks.values()) == total - round(0.8 * total)
    assert all((value[~done.masks[name]] == 0).all() for name, value in weights.items())
    assert all((value[done.masks[name]] != 0).any() for name, value in weights.items())
    for stop_at in (5, 19, 33):
        resumed, _ = run(method, plan, stop_at=stop_at)
        assert all(torch.equal(straight.get_parameter(name), value) for name, value in plain(resumed).items())


@each
def test_settings_are_plain_values_and_the_methods_do_not_share_state(method):
    settings = json.loads(json.dumps(method.settings, allow_nan=False))
    assert settings["on"]["name"] == method.on.name
    assert settings["on"]["strength"] is None
    assert "strength" not in settings
    bound = begin(method, line(0.3, 0.2, 0.1, -0.1, -0.2), method.planned(PLAN))
    assert method.on.strength is None
    if not isinstance(method.on, Dense):
        chosen = method.on.grid(bound.plan)[1]
        assert bound.on.method.strength == chosen == bound.method.settings["on"]["strength"]


def test_the_strength_of_the_other_method_can_be_set_and_is_chosen_for_the_run():
    assert GMP(strength=0.5, on=ReWA(K=3)).changed({"on_strength": 0.2}).on.strength == 0.2
    assert make("rewa+gmp", strength=0.5, on_strength=0.2).on.strength == 0.2
    assert dataclasses.replace(GMP(on=ReWA(strength=0.2)), strength=0.7).settings["on"]["strength"] == 0.2
    bound = begin(GMP(strength=0.5, on=Dense(strength=0.3)), line(1.0, 2.0), PLAN)
    assert bound.optimizer.param_groups[0]["weight_decay"] == 0.3
    method = GMP(on=ReWA(K=3))
    assert not method.settled
    assert not dataclasses.replace(method, strength=0.5).settled
    chosen = method.settle(PLAN)
    assert chosen.settled
    assert (chosen.strength, chosen.on.strength) == (0.95, ReWA(K=3).grid(PLAN)[1])
    assert method.on.strength is None
    assert GMP(strength=0.5).settled
    assert GMP(strength=0.5, on=ReWA(strength=0.1)).settle(PLAN).on.strength == 0.1
    for strength in (-1.0, math.inf):
        with pytest.raises(ValueError, match="Invalid strength"):
            GMP(strength=0.5, on=ReWA(strength=strength)).check()


def test_state_holds_boolean_masks_and_refuses_those_of_another_model():
    method = GMP(strength=0.5)
    bound = begin(method, line(1.0, 2.0), PLAN)
    state = bound.state_dict()
    assert state["masks"]["weight"].dtype == torch.bool
    with pytest.raises(ValueError, match=r"masks for other weights than the model \('other'\)"):
        bound.load_state_dict({**state, "masks": {"weight": state["masks"]["weight"], "other": state["masks"]["weight"]}})


def test_the_recipes_decay_is_that_of_dense_training_below_a_mask():
    bound = begin(GMP(strength=0.5), line(1.0, 2.0), PLAN)
    assert [group["weight_decay"] for group in bound.optimizer.param_groups] == [0.01, 0.0]


@pytest.mark.parametrize("strength", [math.nan, -0.1, 1.0])
def test_a_share_outside_is_refused(strength):
    with pytest.raises(ValueError, match="Invalid strength"):
        begin(GMP(strength=strength), line(1.0, 2.0), PLAN)


@pytest.mark.parametrize("on", [Spred(), GMP()], ids=["spred", "gmp"])
def test_what_does_not_train_the_weights_themselves_is_refused(on):
    for wrapped in (on, HAM(on=on), HAM(on=HAM(on=on))):
        with pytest.raises(ValueError, match=f"rigl cannot wrap {on.name}"):
            RigL(on=wrapped)
