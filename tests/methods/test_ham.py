"""HAM: its mirror step by hand, alone and on other methods, which it leaves as they are."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from methods.steps import advance, begin, train
from rewa.methods.adaptive_lasso import AdaptiveLasso
from rewa.methods.dense import Dense
from rewa.methods.ham import HAM
from rewa.methods.l1 import L1, L1Subgradient
from rewa.methods.method import Bound, Method, Plan
from rewa.methods.rewa import ReWA, ReWAAdam, ReWAPair

PLAN = Plan(learning_rates=(0.1, 0.2), steps_per_epoch=1, momentum=0.9, weight_decay=0.5)
START = torch.tensor([[0.5, -0.3, 0.02, 0.0]], dtype=torch.float64)
SLOPES = torch.tensor([[0.01, 0.02, 0.3, 0.0]], dtype=torch.float64)


def linear() -> nn.Linear:
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(START)
        model.bias.fill_(0.25)
    return model


def slanted(model: nn.Linear) -> Tensor:
    """A loss whose gradient is ``SLOPES``, and 1 for the bias."""
    return (SLOPES * model.weight).sum() + model.bias.sum()


def test_steps_by_hand():
    model = train(HAM(strength=0.3), linear(), slanted, PLAN)
    # First step: the recipe's decay in the gradient, then the mirror step with the gradient alone and the new signs.
    momentum = SLOPES + 0.5 * START
    x = START - 0.1 * momentum
    assert x[0, 2] < 0 < START[0, 2]
    x = x * torch.exp(torch.tensor([[-0.2, 0.4, 1.0, 0.0]]) - 0.03)  # -0.1 * 200 * sign(x) * g; 6 is above the bound 1
    momentum = 0.9 * momentum + SLOPES + 0.5 * x
    x = x - 0.2 * momentum
    x = x * torch.exp(torch.tensor([[-0.4, 0.8, 1.0, 0.0]]) - 0.06)
    torch.testing.assert_close(model.weight.detach(), x)
    assert model.weight[0, 3].item() == 0.0
    assert model.bias.item() == pytest.approx(0.25 - 0.1 - 0.38)
    torch.testing.assert_close(model.weight.grad, SLOPES, rtol=0, atol=0)  # as the backward pass left it


def test_without_a_bound_it_is_the_papers_step():
    plan = replace(PLAN, learning_rates=(0.1,), weight_decay=0.0)
    model = train(HAM(strength=0.3, bound=math.inf), linear(), slanted, plan)
    x = START - 0.1 * SLOPES
    torch.testing.assert_close(model.weight.detach(), x * torch.exp(0.1 * (-200 * x.sign() * SLOPES - 0.3)))


def test_dense_may_have_its_own_decay():
    plan = replace(PLAN, learning_rates=(0.1,))
    model = train(HAM(strength=0.0, alpha=0.0, on=Dense(strength=0.2)), linear(), slanted, plan)
    torch.testing.assert_close(model.weight.detach(), START - 0.1 * (SLOPES + 0.2 * START))


@pytest.mark.parametrize("make", [L1, L1Subgradient])
def test_on_another_method_its_step_comes_first(make: type[Method]):
    plan = replace(PLAN, learning_rates=(0.1,))
    plain = train(make(strength=0.25), linear(), slanted, plan)
    x = plain.weight.detach()
    expected = x * torch.exp((-0.1 * 50 * x.sign() * plain.weight.grad).clamp(-1, 1) - 0.1 * 0.7)
    model = train(HAM(on=make(), strength=0.25, alpha=50.0, beta=0.7), linear(), slanted, plan)
    torch.testing.assert_close(model.weight.detach(), expected)


def test_on_rewa_the_strength_is_the_decay_of_y():
    ham = HAM(on=ReWA(K=3, M=1), strength=0.02, alpha=0.0, beta=0.0)
    plain, model = linear(), linear()
    train(ReWA(K=3, M=1, strength=0.02), plain, slanted, PLAN)
    train(ham, model, slanted, PLAN)
    torch.testing.assert_close(model.weight, plain.weight, rtol=0, atol=0)
    once = replace(PLAN, learning_rates=(0.1,))
    shrunk = train(HAM(on=ReWA(K=3, M=1), strength=0.02, alpha=0.0, beta=0.4), linear(), slanted, once)
    plain = train(ReWA(K=3, M=1, strength=0.02), linear(), slanted, once)
    torch.testing.assert_close(shrunk.weight.detach(), math.exp(-0.04) * plain.weight.detach())


def test_one_method_serves_in_many_runs():
    on = ReWA(K=3, M=1)
    sweep = [replace(HAM(on=on), strength=strength) for strength in (0.01, 0.02)]
    assert [ham.on.strength for ham in sweep] == [0.01, 0.02]
    assert on.strength is None
    runs = [begin(sweep[0], linear(), PLAN) for _ in range(2)]
    assert runs[0].on.weights is not runs[1].on.weights


def test_the_strength_may_be_given_to_either_and_the_outer_one_decides():
    given = HAM(on=ReWA(strength=0.03))
    assert (given.strength, given.on.strength) == (0.03, 0.03)
    assert replace(given, strength=0.5).on.strength == 0.5
    assert HAM(on=Dense(strength=0.2)).strength is None


def test_grids():
    assert [beta * PLAN.rate_sum for beta in HAM().grid(PLAN)] == pytest.approx([0.5, 2, 5, 10])
    assert HAM(on=ReWA(K=5)).grid(PLAN) == ReWA(K=5).grid(PLAN)


def test_settings_are_plain_values():
    assert HAM(strength=0.1, beta=2.0).settings == {
        "on": {"name": "dense"},
        "alpha": 200.0,
        "beta": 2.0,
        "bound": 1.0,
    }
    assert HAM(strength=0.1, on=Dense(strength=0.2)).settings["on"] == {"name": "dense", "strength": 0.2}
    settings = json.loads(json.dumps(HAM(strength=0.1, on=ReWA(K=5)).settings, allow_nan=False))
    assert settings["on"] == {"name": "rewa", "K": 5, "M": 2, "eps": 0.0}


def test_the_other_method_plans_prepares_and_finishes():
    plan = replace(PLAN, learning_rates=(0.1,) * 2)
    assert HAM(on=ReWAAdam()).planned(plan) == ReWAAdam().planned(plan)
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    ham = HAM(on=ReWAPair(K=3), strength=0.01)
    bound = ham.bind(model, plan)
    assert parametrize.is_parametrized(model, "weight")
    bound.start()
    torch.testing.assert_close(bound.current()["weight"], before)
    advance(bound, lambda model: model.weight.sum(), range(2))
    trained = bound.current()["weight"]
    bound.finish()
    assert not parametrize.is_parametrized(model)
    assert torch.equal(model.weight.detach(), trained)
    assert not torch.allclose(trained, before)


def test_a_run_on_a_method_with_state_resumes_with_the_same_bits():
    plan = Plan(learning_rates=(0.05,) * 6, steps_per_epoch=1, momentum=0.9, weight_decay=0.1)
    model, method = linear(), HAM(on=AdaptiveLasso(), strength=0.2)
    bound = begin(method, model, plan)
    advance(bound, slanted, range(4))
    assert list(bound.state_dict()["factors"]) == ["weight"]
    other = linear()
    resumed = begin(method, other, plan)
    other.load_state_dict(model.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(bound.optimizer.state_dict()))  # torch shares the tensors it loads
    resumed.load_state_dict(bound.state_dict())
    advance(bound, slanted, range(4, 6))
    advance(resumed, slanted, range(4, 6))
    assert torch.equal(other.weight, model.weight)


@dataclass(frozen=True, kw_only=True)
class Ridge(Method):
    """A penalty in the loss, for a method that does not shard and keeps some epochs."""

    name: ClassVar[str] = "ridge"
    finetune_share: ClassVar[float] = 0.3
    strength_is: ClassVar[str] = "ridge"

    def grid(self, plan):
        return (0.1,)

    def _bound(self):
        return BoundRidge


class BoundRidge(Bound):
    def penalty(self) -> Tensor | None:
        return sum((self.method.strength * (weight**2).sum() for weight in self.weights.values()), torch.zeros(()))


def test_it_answers_for_the_other_method():
    ham = HAM(on=Ridge(), strength=0.5)
    assert (ham.finetune_share, ham.shards, ham.strength_is) == (0.3, False, "ridge")
    assert (HAM().finetune_share, HAM().shards, HAM().strength_is) == (0.0, True, "shrinkage beta")
    penalty = begin(ham, linear(), PLAN).penalty()
    assert penalty is not None
    assert penalty.item() == pytest.approx(0.5 * float((START**2).sum()))
    assert begin(HAM(), linear(), PLAN).penalty() is None
    l1 = HAM(on=L1(), strength=0.5)
    assert l1.weight_decay(PLAN) == 0.0
    assert begin(l1, linear(), PLAN).optimizer.param_groups[0]["weight_decay"] == 0.0


def test_a_logistic_model_learns_and_what_is_not_needed_fades():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(400, 20, generator=generator)
    target = (X[:, :2] @ torch.tensor([2.0, -2.0]) > 0).double()

    def loss(model: nn.Module) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], target)

    plan = Plan(learning_rates=(0.1,) * 60, steps_per_epoch=1, momentum=0.5)
    shares = {}
    for method in (HAM(strength=1.0, alpha=20.0), Dense(strength=0.0)):
        torch.manual_seed(0)
        weight = train(method, nn.Linear(20, 1), loss, plan).weight.detach()[0]
        assert bool((weight != 0).all())
        shares[method.name] = float(weight[2:].abs().max() / weight[:2].abs().min())
    assert shares["ham"] < 0.05 < 0.1 < shares["dense"]
    # On l1 the zeros are exact and stay so.
    weight = train(HAM(on=L1(), strength=0.05, alpha=20.0), nn.Linear(20, 1), loss, plan).weight.detach()[0]
    assert bool((weight[:2] != 0).all())
    assert int((weight == 0).sum()) >= 15


@pytest.mark.parametrize("settings", [{"alpha": -1.0}, {"beta": -1.0}, {"bound": 0.0}])
def test_what_is_no_setting_raises(settings: dict[str, Any]):
    with pytest.raises(ValueError, match="HAM needs alpha >= 0, beta >= 0 and bound > 0"):
        HAM(**settings)


def test_a_strength_must_be_chosen():
    for strength in (math.nan, -1.0, math.inf):
        with pytest.raises(ValueError, match=f"Invalid strength: {strength}"):
            begin(HAM(strength=strength), linear(), PLAN)
