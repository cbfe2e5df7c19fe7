"""Methods that wrap another: which of the two answers, and what a nest of them records."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from methods.steps import begin, line, network, plain, run
from rewa.methods import make, names
from rewa.methods.dense import Dense
from rewa.methods.gmp import GMP
from rewa.methods.ham import HAM
from rewa.methods.l1 import L1
from rewa.methods.method import Bound, Method, Plan
from rewa.methods.rewa import AnnealedReWA, ReWA, ReWAAdam
from rewa.methods.wrapper import Wrapper

PLAN = Plan(learning_rates=(0.1,) * 3, steps_per_epoch=1)
ANSWERS = {"planned": (PLAN,), "weight_decay": (PLAN,)}
HOOKS = {
    "before_forward": (1,),
    "penalty": (),
    "before_step": (1,),
    "after_step": (1, 0.1),
    "current": (),
    "finish": (),
    "state_dict": (),
    "load_state_dict": ({},),
}


@dataclass(frozen=True, kw_only=True)
class Upper(Wrapper):
    name: ClassVar[str] = "upper"
    line: ClassVar[str] = "does something"
    strength_is: ClassVar[str] = "size of something"

    size: int = 1

    def grid(self, plan):
        return (0.1, 0.2)


class BoundTold(Bound):
    """Notes what it is asked."""

    def __getattribute__(self, name: str):
        if name in HOOKS:
            return lambda *arguments: self.__dict__.setdefault("asked", []).append((name, arguments)) or name
        return super().__getattribute__(name)


@dataclass(frozen=True, kw_only=True)
class Told(Method):
    name: ClassVar[str] = "told"

    def grid(self, plan):
        return (0.1, 0.2)

    def planned(self, plan):
        return ("planned", plan)

    def weight_decay(self, plan):
        return ("weight_decay", plan)

    def _bound(self):
        return BoundTold


def test_every_call_goes_to_the_method_inside():
    method = Upper(strength=0.1, on=Told())
    for name, arguments in ANSWERS.items():
        assert getattr(method, name)(*arguments) == (name, *arguments)
    bound = method.bind(nn.Linear(2, 1), PLAN)
    for name, arguments in HOOKS.items():
        assert getattr(bound, name)(*arguments) in (name, None)
    assert bound.on.asked == list(HOOKS.items())


def test_the_weights_and_the_optimizer_are_those_of_the_method_inside():
    model = nn.Linear(2, 1)
    bound = Upper(strength=0.1, on=L1(strength=0.2)).bind(model, PLAN)
    optimizer = bound.start()
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer is bound.optimizer is bound.on.optimizer
    assert bound.weights["weight"] is bound.on.weights["weight"] is model.weight
    assert bound.plan is bound.on.plan is PLAN


def test_names_lines_and_settings():
    assert (Upper().label, Upper().what) == ("upper", "does something")
    method = Upper(on=ReWA(K=3), size=2)
    assert (method.label, method.what) == ("rewa+upper", "does something, while rewa trains")
    assert method.settings == {"size": 2, "on": {"name": "rewa", "strength": None, "K": 3, "M": 2, "eps": 0.0}}


def test_methods_are_frozen_and_one_serves_in_many_runs():
    on = ReWA()
    first, second = Upper(on=on), Upper(on=on)
    assert first == second
    with pytest.raises(dataclasses.FrozenInstanceError):
        on.strength = 0.5
    runs = [begin(first, line(1.0, 2.0), PLAN) for _ in range(2)]
    assert runs[0].weights is not runs[1].weights
    assert on.strength is first.on.strength is second.on.strength is None


@pytest.mark.parametrize("name", names())
def test_a_method_holds_settings_and_a_strength_and_a_run_changes_neither(name):
    method = make(name)
    before = dict(vars(method))
    assert before.keys() == {field.name for field in dataclasses.fields(method)}
    assert method.strength is None
    run(method, method.planned(PLAN))
    assert vars(method) == before
    assert method.settle(PLAN).settled


@pytest.mark.parametrize("strengths", [(math.nan, 0.1), (-1.0, 0.1), (0.1, -1.0), (0.1, math.inf)])
def test_both_strengths_are_checked(strengths):
    method = Upper(strength=strengths[0], on=ReWA(strength=strengths[1]))
    with pytest.raises(ValueError, match="Invalid strength"):
        method.check()
    with pytest.raises(ValueError, match="Invalid strength"):
        begin(method, nn.Linear(2, 1), PLAN)
    Upper(strength=0.1, on=Dense()).check()
    with pytest.raises(ValueError, match="Invalid strength: None"):
        Upper(on=Dense()).check()


# ---------------------------------------------------------------------------------------------------------------- nesting

NEST = GMP(strength=0.5, on=HAM(on=ReWA(K=3), beta=0.01))


def test_a_nest_names_its_levels():
    assert NEST.label == "rewa+ham+gmp"
    assert [one.name for one in NEST.levels()] == ["gmp", "ham", "rewa"]
    assert NEST.what.endswith(", while rewa+ham trains")
    assert NEST.source == "ReWA, ICML 2026 + Jacobs et al., ICLR 2026 + Zhu and Gupta, 2017"
    assert make("rewa+ham+gmp", strength=0.5, K=3, beta=0.01) == NEST
    assert GMP(on=HAM(on=ReWAAdam())).planned(PLAN).optimizer == "adamw"


@pytest.mark.parametrize("name", ["gmp+rewa", "rewa+dense", "nothing+gmp", "rewa+nothing", "+gmp", "rewa+"])
def test_what_cannot_be_named_is_refused(name):
    with pytest.raises(ValueError, match="there is no method"):
        make(name)


def test_a_nest_settles_and_records_every_strength():
    assert not NEST.settled
    chosen = NEST.settle(PLAN)
    decay = ReWA(K=3).grid(PLAN)[1]
    assert chosen.settled
    assert [one.strength for one in chosen.levels()] == [0.5, decay, decay]
    inside = {"name": "rewa", "strength": decay, "K": 3, "M": 2, "eps": 0.0}
    ham = {"name": "ham", "strength": decay, "on": inside, "alpha": 200.0, "beta": 0.01, "bound": 1.0}
    assert chosen.settings == {"on": ham, "begin": 0.2, "end": 0.8, "every": None}
    around = HAM(strength=0.5, on=GMP(on=ReWA(K=3))).settle(PLAN)
    assert [one.strength for one in around.levels()] == [0.5, 0.5, decay]
    assert around.settings["on"]["on"] == inside
    alone = GMP(strength=0.5, on=HAM(strength=0.3, on=Dense(strength=0.2)))
    assert [one["strength"] for one in (alone.settings["on"], alone.settings["on"]["on"])] == [0.3, 0.2]
    assert alone.settled


def test_a_nest_trains_as_its_parts_say_and_resumes_bit_for_bit():
    plan = Plan(learning_rates=(0.05,) * 20, steps_per_epoch=4, momentum=0.9)
    straight, bound = run(NEST, plan)
    assert bound.optimizer.param_groups[0]["K"] == 3
    kept = sum(int((value != 0).sum()) for name, value in plain(straight).items() if "weight" in name)
    assert kept == 49  # of 98
    resumed, _ = run(NEST, plan, stop_at=13)
    assert all(torch.equal(straight.get_parameter(name), value) for name, value in plain(resumed).items())
    # Without HAM's part of the step the rest is GMP around ReWA.
    still, _ = run(GMP(strength=0.5, on=HAM(on=ReWA(K=3), alpha=0.0, beta=0.0)), plan)
    without, _ = run(GMP(strength=0.5, on=ReWA(K=3)), plan)
    assert all(torch.equal(still.get_parameter(name), value) for name, value in plain(without).items())
    assert not torch.equal(straight[0].weight, still[0].weight)
    assert network()[0].weight.shape == straight[0].weight.shape


def test_settings_are_changed_at_the_level_that_their_name_says():
    nest = GMP(on=HAM(on=AnnealedReWA()))
    changed = nest.changed({"begin": 0.1, "on.beta": 0.5, "on.on.begin": 0.3, "K": 4, "on_strength": 0.01, "strength": 0.9})
    assert (changed.begin, changed.on.beta, changed.on.on.begin, changed.on.on.K) == (0.1, 0.5, 0.3, 4)
    assert [one.strength for one in changed.levels()] == [0.9, 0.01, 0.01]
    assert nest.changed({"on.on.K": 4}) == nest.changed({"on.K": 4}) == nest.changed({"K": 4})
    options = nest.options()
    assert {"begin", "on.begin", "on.on.begin", "K", "on.K", "on.on.K", "on_strength", "strength"} <= options.keys()
    assert not {"on", "on.on", "on.strength", "on.on.strength", "on.on_strength"} & options.keys()
    assert options["K"] is float
    # HAM's strength is GMP's, so that the strength inside is that inside GMP.
    assert HAM(on=GMP(on=ReWA())).changed({"on_strength": 0.2}).on.on.strength == 0.2
    assert HAM(on=Dense()).changed({"on_strength": 0.2}).on.strength == 0.2
