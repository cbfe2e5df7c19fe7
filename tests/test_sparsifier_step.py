"""What a Sparsifier does to a step, and which weights it cuts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import rewa
from rewa.cutting import cubic, global_masks
from sparsifying import OPTIMIZERS, batch, lower_rate, make, network, train, weights, zeros


@pytest.mark.parametrize("kind", ["sgd", "nesterov", "adam", "adamw", "amsgrad", "maximize", "decay"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_and_copy_make_the_same_steps(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(dtype)
    made: dict[str, Callable[[Any], Optimizer]] = {
        "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=1e-2),
        "nesterov": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
        "decay": lambda params: torch.optim.SGD(params, lr=0.05, weight_decay=1e-2),
        "adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=1e-2),
        "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=1e-1),
        "amsgrad": lambda params: torch.optim.AdamW(params, lr=1e-2, amsgrad=True),
        "maximize": lambda params: torch.optim.Adam(params, lr=1e-3, maximize=True),
    }
    start, results, states = network(), [], []
    for known in (True, False):
        if not known:
            monkeypatch.setattr("rewa.optim.growth._is_known", lambda *_: False)
        model = copy.deepcopy(start)
        optimizer = made[kind](model.parameters())
        rewa.Sparsifier(model, optimizer, sparsity=0.8, steps=30)
        train(model, optimizer, 0, 30)
        assert zeros(model) == round(0.8 * 252)
        results.append(weights(model))
        states.append(optimizer.state_dict()["state"])
    near = {"rtol": 1e-10, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 1e-2, "atol": 1e-4}
    torch.testing.assert_close(results[0], results[1], **near)
    assert {key: sorted(state) for key, state in states[0].items()} == {key: sorted(state) for key, state in states[1].items()}


@pytest.mark.parametrize("known", [True, False])  # by the kernel, and by a copy
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "nadam"])
def test_steps_are_lengthened_up_to_a_bound(kind: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's by at most a tenth of the weight, at the highest rate up to now; others to that rate's own steps."""
    if not known:
        monkeypatch.setattr("rewa.optim.growth._is_known", lambda *_: False)
    kinds: dict[str, tuple[type[Optimizer], float]] = {
        "sgd": (torch.optim.SGD, 0.0),
        "adam": (torch.optim.Adam, 0.3),
        "adamw": (torch.optim.AdamW, 0.3),
        "nadam": (torch.optim.NAdam, 0.3),
    }
    make_one, weight_decay = kinds[kind]
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.1, -1.0, 4.0]]))
    plain = copy.deepcopy(model)
    made = [make_one(one.parameters(), lr=0.1, weight_decay=weight_decay) for one in (model, plain)]  # type: ignore[call-arg]
    sparsifier = rewa.Sparsifier(model, made[0], sparsity=0.5, steps=100)
    size = sparsifier.state_dict()["sizes"]["weight"]
    assert size == pytest.approx((17.01 / 3) ** 0.5)
    highest = 0.0
    for rate in (0.05, 0.1, 0.05, 0.025, 0.0, 0.2, 0.1):
        highest = max(highest, rate)
        plain.load_state_dict(model.state_dict())
        before = plain.weight.detach().clone()
        for one, optimizer in zip((model, plain), made, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            one.weight.grad = torch.tensor([[1.0, -2.0, 3.0, 0.5]])
            optimizer.step()
        if kind.startswith("adam"):
            factor = 1 + min(3, 0.1 * size / highest) * before.abs() / size
        else:
            factor = 1 + (before.abs() / size).clamp(max=highest / rate - 1 if rate else 0.0)
        decay = rate * weight_decay * before if kind == "adamw" else 0.0  # stays beside
        expected = before + factor * (plain.weight.detach() - before + decay) - decay
        torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
def test_sgd_takes_longer_gradients_and_decays_beside_them(
    known: bool, maximize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow reference: momentum of phi(x) g + 2 weight_decay x, with phi = 1 + min(|x|/s, highest rate / rate - 1)."""
    if not known:
        monkeypatch.setattr("rewa.optim.growth._is_known", lambda *_: False)
    model = nn.Linear(5, 3, bias=False)
    x, buffer = model.weight.detach().clone(), torch.zeros(3, 5)
    size = x.square().mean().sqrt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8, weight_decay=0.03, maximize=maximize)
    rewa.Sparsifier(model, optimizer, sparsity=0.0, steps=40)
    for step in range(20):
        grad = torch.randn(3, 5)
        model.weight.grad = grad.clone()
        lower_rate(optimizer, step)
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        assert torch.equal(model.weight.grad, grad)
        phi = 1 + (x.abs() / size).clamp(max=0.1 / rate - 1)
        buffer = 0.8 * buffer + phi * (-grad if maximize else grad) + 2 * 0.03 * x
        x = x - rate * buffer
        torch.testing.assert_close(model.weight.detach(), x, rtol=1e-12, atol=1e-14)


def test_gradients_are_there_after_the_step_as_before() -> None:
    for kind in ("sgd", "adamw", "nadam"):
        model = network()
        optimizer = make(kind, model)
        rewa.Sparsifier(model, optimizer, sparsity=0.8, steps=30)
        nn.functional.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
        before = [param.grad.clone() for param in model.parameters()]
        optimizer.step()
        assert all(torch.equal(param.grad, old) for param, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_without_growth_it_is_gradual_pruning_by_hand(kind: str) -> None:
    model = network()
    by_hand = copy.deepcopy(model)
    optimizer = make(kind, model)
    rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=50, growth=0, worth="magnitude", begin=0.2, end=0.8)
    train(model, optimizer, 0, 50)
    prune_by_hand(by_hand, make(kind, by_hand), 50, 10, 40, graded=False)
    torch.testing.assert_close(weights(model), weights(by_hand), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["sgd", "adamw", "nadam"])
def test_weights_of_the_least_worth_are_cut(kind: str) -> None:
    """By hand: magnitude times the root of the mean square gradient, which Adam and its like hold already."""
    model = network()
    by_hand = copy.deepcopy(model)
    optimizer = make(kind, model)
    rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=48, growth=0, begin=0.25, end=0.75)
    train(model, optimizer, 0, 48)
    prune_by_hand(by_hand, make(kind, by_hand), 48, 12, 36, graded=True)
    torch.testing.assert_close(weights(model), weights(by_hand), rtol=1e-12, atol=1e-14)
    assert any("grad_square" in state for state in optimizer.state.values()) == (kind == "sgd")


def prune_by_hand(model: nn.Module, optimizer: Optimizer, steps: int, first: int, last: int, *, graded: bool) -> None:
    """To 90 % zeros, by magnitude or by magnitude times gradient."""
    chosen = dict(rewa.sparsity.prunable(model))
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in chosen.items()}
    squares = {name: torch.zeros_like(weight) for name, weight in chosen.items()}
    for step in range(steps):
        optimizer.zero_grad()
        data, label = batch(step)
        nn.functional.cross_entropy(model(data), label).backward()
        for name, weight in chosen.items():
            weight.grad.mul_(masks[name])
            if step % 4 == 0 and step < last:
                squares[name] += max(4 / (step + 4), 0.08) * (weight.grad.square() - squares[name])
        lower_rate(optimizer, step)
        optimizer.step()
        with torch.no_grad():
            for name, weight in chosen.items():
                weight.mul_(masks[name])
            if first < step + 1 <= last:
                worth = {name: weight.abs() for name, weight in chosen.items()}
                for name, weight in chosen.items() if graded else ():
                    worth[name] *= optimizer.state[weight].get("exp_avg_sq", squares[name]).sqrt()
                masks = global_masks(worth, 0.9 * cubic((step + 1 - first) / (last - first)))
                for name, weight in chosen.items():
                    weight.mul_(masks[name])


def test_weights_without_gradient_are_cut_before_others_but_after_zeros() -> None:
    model = nn.Linear(6, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, 9.0, 8.0, 0.4, 0.3, 0.2]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=4, begin=0.25, end=0.75, schedule="linear")
    counts = []
    for _ in range(4):
        model.weight.grad = torch.tensor([[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]])
        optimizer.step()
        counts.append((model.weight == 0).int().flatten().tolist())
    assert counts == [[0] * 6, [0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 1], [0, 1, 1, 0, 0, 1]]


def test_weights_that_never_had_a_gradient_are_cut_by_magnitude() -> None:
    for dtype in (torch.float64, torch.float16):
        model = nn.Linear(6, 1, bias=False).to(dtype)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=4, growth=0)
        for _ in range(4):
            model.weight.grad = torch.full_like(model.weight, 0.0 if dtype is torch.float64 else 1e-5)
            optimizer.step()
        assert (model.weight != 0).tolist() == [[False, False, False, True, True, True]]


@pytest.mark.parametrize("known", [True, False])
def test_a_gradient_without_a_finite_square_changes_no_mean(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    if not known:
        monkeypatch.setattr("rewa.optim.growth._is_known", lambda *_: False)
    model = nn.Linear(8, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=20, growth=1e-6)
    for step in range(20):
        model.weight.grad = torch.randn(2, 8)
        if step == 4:
            model.weight.grad[0, 0] = 1e20
            start = model.weight.detach().clone()
        optimizer.step()
        if step == 4:
            with torch.no_grad():
                model.weight.copy_(start)
    assert bool(optimizer.state[model.weight]["grad_square"].isfinite().all())
    assert sparsifier.finish().count.nonzero == 8


def test_a_mean_that_is_not_one_for_each_weight_does_not_count() -> None:
    """An optimizer may keep one number for a whole row under the name that Adam has for one of each weight."""

    class ByRow(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for param in self.param_groups[0]["params"]:
                self.state[param]["exp_avg_sq"] = param.grad.square().mean(1, keepdim=True)
            super().step()

    model = nn.Linear(6, 6, bias=False)
    optimizer = ByRow(model.parameters(), lr=0.01)
    rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=8)
    for _ in range(8):
        model.weight.grad = torch.randn(6, 6)
        optimizer.step()
    assert optimizer.state[model.weight]["grad_square"].shape == (6, 6)
    assert int((model.weight == 0).sum()) == 18


def test_weights_that_train_in_turns_are_all_noted() -> None:
    model = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=20)
    for step in range(6):
        optimizer.zero_grad()
        model[step % 2].weight.grad = torch.randn(4, 4)
        optimizer.step()
    assert all(bool((optimizer.state[layer.weight]["grad_square"] > 0).all()) for layer in model)


def test_before_the_first_cut_and_without_growth_it_is_the_optimizer() -> None:
    model = network()
    plain = copy.deepcopy(model)
    optimizer, other = make("adamw", model), make("adamw", plain)
    rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=100, growth=0, begin=0.5)
    train(model, optimizer, 0, 49)
    train(plain, other, 0, 49)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(plain), strict=True))


def test_a_layer_of_zeros_trains_before_the_cut() -> None:
    model = network()
    nn.init.zeros_(model[5].weight)
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=40)
    assert sparsifier.state_dict()["sizes"]["5.weight"] == pytest.approx((3 * 12) ** -0.5)
    train(model, optimizer, 0, 10)
    assert bool((model[5].weight != 0).all())


def test_a_weight_that_comes_to_zero_by_chance_is_not_cut() -> None:
    for kind in ("sgd", "nadam"):
        model = nn.Linear(4, 1, bias=False)
        optimizer = (
            torch.optim.SGD(model.parameters(), lr=1.0) if kind == "sgd" else torch.optim.NAdam(model.parameters(), lr=0.5)
        )
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[0.1, 1.0, 2.0, 3.0]]))
        rewa.Sparsifier(model, optimizer, sparsity=0.25, steps=4, begin=0, end=0, growth=0)
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        with torch.no_grad():
            model.weight[0, 1] = 0.5 if kind == "sgd" else 1e-300
        model.weight.grad = torch.tensor([[0.0, 0.5, 0.0, 0.0]]) if kind == "sgd" else torch.zeros(1, 4)
        optimizer.step()
        assert int((model.weight == 0).sum()) == 1
