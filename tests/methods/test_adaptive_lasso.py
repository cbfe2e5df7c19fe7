"""The adaptive lasso: pilot, factors, thresholds and resuming, pinned by a plain loop."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from methods.steps import advance, begin
from rewa.methods.adaptive_lasso import AdaptiveLasso
from rewa.methods.l1 import L1
from rewa.methods.method import Plan

PLAN = Plan(learning_rates=(0.1, 0.3, 0.2, 0.1, 0.05), steps_per_epoch=1, momentum=0.9, weight_decay=0.4)
TARGET = torch.tensor([[1.0, -0.5, 0.05, 0.0]], dtype=torch.float64)


def linear() -> nn.Linear:
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.3, 0.2, 0.0]]))
        model.bias.fill_(0.25)
    return model


def quadratic(model: nn.Linear) -> Tensor:
    return ((model.weight - TARGET) ** 2).sum() / 2 + model.bias.sum()


def test_every_step_by_a_plain_loop():
    strength, gamma, largest = 0.3, 2.0, 50.0
    model = linear()
    method = AdaptiveLasso(strength=strength, gamma=gamma, largest=largest)
    bound = begin(method, model, PLAN)
    advance(bound, quadratic, range(5))

    x, momentum = np.array([0.5, -0.3, 0.2, 0.0]), np.zeros(4)
    target = TARGET.numpy()[0]
    for step, lr in enumerate(PLAN.learning_rates):
        if step == 2:  # five steps: the pilot has two
            with np.errstate(divide="ignore"):
                factors = np.minimum((np.abs(x).mean() / np.abs(x)) ** gamma, largest)
            assert factors[3] == largest
            assert (factors[:3] < largest).all()
        momentum = 0.9 * momentum + (x - target) + (0.4 * x if step < 2 else 0.0)
        x = x - lr * momentum
        if step >= 2:
            x = np.sign(x) * np.maximum(np.abs(x) - lr * strength * factors, 0)
    np.testing.assert_allclose(model.weight.detach().numpy()[0], x, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(bound.factors["weight"].numpy()[0], factors, rtol=1e-13)
    assert (x == 0).any()
    # The bias has the gradient 1 and neither decay nor threshold.
    moved = sum(lr * (1 - 0.9**count) / 0.1 for count, lr in enumerate(PLAN.learning_rates, start=1))
    assert model.bias.item() == pytest.approx(0.25 - moved)


def test_the_mean_is_over_all_weights_of_the_model():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    method = AdaptiveLasso(strength=0.1)
    bound = begin(method, model, PLAN)
    bound.before_forward(2)
    sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in model])
    for name, layer in zip(("0.weight", "1.weight"), model, strict=True):
        torch.testing.assert_close(bound.factors[name], sizes.mean() / layer.weight.detach().abs())


def test_equal_pilot_weights_make_it_l1():
    plan = Plan(learning_rates=(0.1,), steps_per_epoch=1)  # no pilot: the factors are those of the start
    results = []
    for method in (AdaptiveLasso(strength=0.7), L1(strength=0.7)):
        model = linear()
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[0.3, -0.3, 0.3, -0.3]]))
        bound = begin(method, model, plan)
        advance(bound, quadratic, range(1))
        results.append(model.weight.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
@pytest.mark.parametrize("stop", [1, 3, 4, 7])
def test_a_run_resumes_with_the_same_bits(stop: int, optimizer_name: str):
    """In the pilot, when it has ended, just after, and late in the second half; of eight steps four are the pilot."""
    plan = Plan(learning_rates=(0.05,) * 8, steps_per_epoch=1, optimizer=optimizer_name, momentum=0.9, weight_decay=0.4)
    model = linear()
    method = AdaptiveLasso(strength=0.2)
    bound = begin(method, model, plan)
    advance(bound, quadratic, range(stop))
    file = io.BytesIO()
    saved: dict[str, Any] = {
        "model": model.state_dict(),
        "optimizer": bound.optimizer.state_dict(),
        "method": bound.state_dict(),
    }
    torch.save(saved, file)
    advance(bound, quadratic, range(stop, 8))

    file.seek(0)
    loaded = torch.load(file)
    other = nn.Linear(4, 1)
    resumed = begin(method, other, plan)
    other.load_state_dict(loaded["model"])
    resumed.optimizer.load_state_dict(loaded["optimizer"])
    resumed.load_state_dict(loaded["method"])
    assert bool(resumed.factors) == (stop > 4)
    advance(resumed, quadratic, range(stop, 8))
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(other.bias, model.bias)
    assert torch.equal(resumed.factors["weight"], bound.factors["weight"])


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
def test_sharded_weights_get_sharded_factors_back_from_whole_ones():
    plan = Plan(learning_rates=(0.05,) * 4, steps_per_epoch=1, weight_decay=0.4)
    alone, method = linear(), AdaptiveLasso(strength=0.2)
    bound = begin(method, alone, plan)
    advance(bound, quadratic, range(3))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = linear()
        model.load_state_dict(alone.state_dict())
        mesh = init_device_mesh("cpu", (1,))
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(1)]))
        sharded = begin(method, model, plan)
        sharded.load_state_dict(bound.state_dict())
        assert isinstance(sharded.factors["weight"], DTensor)
        assert sharded.factors["weight"].placements == (Shard(1),)
        sharded.after_step(3, 0.05)
        bound.after_step(3, 0.05)
        assert torch.equal(model.weight.full_tensor(), alone.weight)
    finally:
        dist.destroy_process_group()


def test_the_state_is_not_changed_by_going_on():
    method = AdaptiveLasso(strength=0.2)
    model = linear()
    bound = begin(method, model, PLAN)
    assert bound.state_dict() == {"factors": {}}
    advance(bound, quadratic, range(3))
    state = bound.state_dict()
    before = copy.deepcopy(state)
    advance(bound, quadratic, range(3, 5))
    assert torch.equal(state["factors"]["weight"], before["factors"]["weight"])


def test_a_logistic_model_ends_with_the_true_features_and_exact_zeros():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(400, 20, generator=generator)
    target = (X[:, :2] @ torch.tensor([2.0, -2.0]) > 0).double()

    def loss(model: nn.Module) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], target)

    plan = Plan(learning_rates=(0.5,) * 60, steps_per_epoch=1, momentum=0.5, weight_decay=1e-3)
    weights = {}
    for method in (AdaptiveLasso(strength=0.05), L1(strength=0.05)):
        torch.manual_seed(0)
        model = nn.Linear(20, 1)
        bound = begin(method, model, plan)
        advance(bound, loss, range(60))
        weights[method.name] = model.weight.detach()[0]
    assert bool((weights["adaptive-lasso"][2:] == 0).all())
    assert bool((weights["adaptive-lasso"][:2].abs() > weights["l1"][:2].abs() + 0.2).all())  # large weights are less biased


def test_the_grid_counts_the_rates_of_the_second_half():
    plan = Plan(learning_rates=(1.0, 1.0, 0.1, 0.3), steps_per_epoch=1)
    assert [strength * 0.4 for strength in AdaptiveLasso().grid(plan)] == pytest.approx([0.2, 0.6, 2.0, 6.0])


def test_what_is_no_setting_raises():
    for settings in ({"gamma": 0.0}, {"largest": 0.0}):
        with pytest.raises(ValueError, match="needs gamma > 0 and largest > 0"):
            AdaptiveLasso(**settings)
