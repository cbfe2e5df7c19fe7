"""Methods that stand on another: which of the two answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import nn

from rewa.methods.dense import Dense
from rewa.methods.l1 import L1
from rewa.methods.method import Method, Plan
from rewa.methods.on import On
from rewa.methods.rewa import ReWA

PLAN = Plan(learning_rates=(0.1,) * 3, steps_per_epoch=1)
HOOKS = {
    "planned": (PLAN,),
    "prepare": (nn.Linear(2, 1),),
    "optimizer": (nn.Linear(2, 1),),
    "weight_decay": (),
    "before_forward": (1,),
    "penalty": (),
    "before_step": (1,),
    "after_step": (1, 0.1),
    "current": (),
    "finish": (nn.Linear(2, 1),),
    "state_dict": (),
    "load_state_dict": ({},),
}


@dataclass(kw_only=True)
class Upper(On):
    name: ClassVar[str] = "upper"
    line: ClassVar[str] = "does something"
    strength_is: ClassVar[str] = "size of something"

    size: int = 1

    def grid(self, plan):
        return (0.1,)


@dataclass(kw_only=True)
class Told(Method):
    """Notes what it is asked."""

    name: ClassVar[str] = "told"
    asked: list[object] = field(default_factory=list, init=False)

    def grid(self, plan):
        return (0.1,)

    def __getattribute__(self, name: str):
        if name in HOOKS:
            return lambda *arguments: self.asked.append((name, arguments)) or name
        return super().__getattribute__(name)


def test_every_call_goes_to_the_method_below():
    method = Upper(strength=0.1, on=Told())
    for name, arguments in HOOKS.items():
        assert getattr(method, name)(*arguments) in (name, None)
    assert method.on.asked == list(HOOKS.items())


def test_the_weights_are_those_of_the_method_below():
    model = nn.Linear(2, 1)
    method = Upper(strength=0.1, on=L1(strength=0.2))
    optimizer = method.start(model, PLAN)
    assert isinstance(optimizer, torch.optim.SGD)
    assert method.weights["weight"] is method.on.weights["weight"] is model.weight
    assert method.plan is PLAN


def test_names_lines_and_settings():
    assert (Upper().label, Upper().what) == ("upper", "does something")
    method = Upper(on=ReWA(K=3), size=2)
    assert (method.label, method.what) == ("rewa+upper", "does something, while rewa trains")
    assert method.settings == {"size": 2, "on": {"name": "rewa", "K": 3, "M": 2, "eps": 0.0}}


def test_the_method_below_is_a_copy():
    on = ReWA()
    first, second = Upper(on=on), Upper(on=on)
    first.on.strength = 0.5
    assert math.isnan(on.strength)
    assert math.isnan(second.on.strength)


@pytest.mark.parametrize("strengths", [(math.nan, 0.1), (-1.0, 0.1), (0.1, -1.0), (0.1, math.inf)])
def test_both_strengths_are_checked(strengths):
    method = Upper(strength=strengths[0], on=ReWA(strength=strengths[1]))
    with pytest.raises(ValueError, match="Invalid strength"):
        method.check()
    with pytest.raises(ValueError, match="Invalid strength"):
        method.start(nn.Linear(2, 1), PLAN)
    Upper(strength=0.1, on=Dense()).check()
