from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

import rewa
from rewa.sparsifier import KEY, Sparsified
from sparsifying import OPTIMIZERS, batch, lower_rate, make, network, train, weights, zeros

# What it promises.


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    share=st.floats(0, 0.999),
    steps=st.integers(1, 25),
    kind=st.sampled_from(list(OPTIMIZERS)),
    window=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    schedule=st.sampled_from(["cubic", "linear"]),
    seed=st.integers(0, 1000),
)
def test_the_target_is_met_exactly_from_end_on(sizes, share, steps, kind, window, schedule, seed) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))
    total = sum(a * b for a, b in itertools.pairwise(sizes))
    wanted = round(share * total)
    if wanted == total:
        with pytest.raises(ValueError, match="leaves none"):
            rewa.Sparsifier(model, make(kind, model), sparsity=share, steps=steps)
        return
    optimizer = make(kind, model)
    begin, end = sorted(window)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=share, steps=steps, begin=begin, end=end, schedule=schedule)
    last = max(1, round(begin * steps), round(end * steps))
    counts = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, sizes[0])).square().mean().backward()
        optimizer.step()
        counts.append(zeros(model))
    assert counts == sorted(counts)
    assert counts[last - 1 :] == [wanted] * (steps - last + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a layer that lost all its weights
        report = sparsifier.finish()
    assert report.count.total - report.count.nonzero == zeros(model) == wanted
    assert report.before == pytest.approx(wanted / total)


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_no_layer_loses_its_last_weight_while_there_are_enough(kind: str) -> None:
    model = network()
    with torch.no_grad():
        model[3].weight.mul_(1e-3)
    optimizer = make(kind, model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 0, 40)
    assert zeros(model) == round(0.9 * 252)
    assert all(weight.any() for weight in rewa.sparsity.prunable(model).values())
    assert sparsifier.finish().emptied == ()


def test_a_target_below_one_weight_per_layer_is_met_and_said() -> None:
    model = network()
    optimizer = make("sgd", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=250 / 252, steps=10)
    train(model, optimizer, 0, 10)
    with pytest.warns(UserWarning, match=r"no weight is left in \d\.weight: such a layer returns a constant"):
        report = sparsifier.finish()
    assert report.count.nonzero == 2
    assert len(report.emptied) == 1


def test_compression_and_shares_of_parts() -> None:
    model = network()
    optimizer = make("adamw", model)
    rewa.Sparsifier(model, optimizer, compression=4, steps=8)
    train(model, optimizer, 0, 8)
    assert zeros(model) == round(0.75 * 252)

    model = network()
    before = model[5].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity={r"0\..*": 0.5, r"3\.weight": 0.9}, steps=8)
    plain = copy.deepcopy(model)
    train(model, optimizer, 0, 1)
    other = torch.optim.SGD(plain.parameters(), lr=0.05)
    train(plain, other, 0, 1)
    assert torch.equal(model[5].weight, plain[5].weight)  # under no pattern: trained as without it
    assert not torch.equal(model[5].weight, before)
    train(model, optimizer, 1, 8)
    report = sparsifier.finish()
    assert [int((model[i].weight == 0).sum()) for i in (0, 3, 5)] == [36, round(0.9 * 144), 0]
    assert report.count.total == 72 + 144


def test_rules_decide_as_for_param_groups() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules: dict[str, Any] = {r"0\.weight": {"sparse": True}, r"2\.weight": None}
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=4, rules=rules)
    assert list(sparsifier.weights) == ["0.weight", "1.weight"]
    assert list(rewa.sparsity.prunable(model)) == ["0.weight", "1.weight"]  # what counts and deploys knows it too


# Whatever happens on the way.


def test_steps_that_a_scaler_skips_are_not_counted() -> None:
    for fused in (False, True):
        torch.set_default_dtype(torch.float32)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused)
        sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=8)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10_000)
        plain, twin = network(), None
        plain.load_state_dict(model.state_dict())
        twin = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
        rewa.Sparsifier(plain, twin, sparsity=0.9, steps=8)
        train(plain, twin, 0, 8)
        for step in range(8):
            # Not at the first step: torch's own fused SGD would begin its momentum with whatever the memory holds.
            for overflow in (True, False) if step else (False,):
                before = weights(model)
                optimizer.zero_grad()
                data, label = batch(step)
                scaler.scale(nn.functional.cross_entropy(model(data), label)).backward()
                if overflow:
                    model[0].weight.grad[0, 0] = math.inf
                lower_rate(optimizer, step)
                scaler.step(optimizer)
                scaler.update(4.0)
                if overflow:
                    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))
                    assert sparsifier.done == step
        assert zeros(model) == round(0.9 * 252)
        torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-6)


def test_accumulated_gradients_are_one_step() -> None:
    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=5)
    for step in range(15):
        nn.functional.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    assert sparsifier.done == 5
    assert zeros(model) == round(0.9 * 252)


def test_a_closure_is_evaluated_on_the_weights() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch(0)[0]), batch(0)[1])
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(10)]
    assert zeros(model) == round(0.9 * 252)
    assert sparsifier.finish().sparsity == pytest.approx(0.9, abs=1e-2)
    assert all(map(math.isfinite, losses))


def test_finish_early_cuts_and_says_how_far_it_was() -> None:
    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=100)
    train(model, optimizer, 0, 40)
    before = sparsifier.sparsity
    with pytest.warns(UserWarning, match=r"finish\(\) after 40 of 100 steps, before the last cut at step 75"):
        report = sparsifier.finish()
    assert 0 < report.before == before < report.sparsity
    assert "were before the last cut, which no step of training has followed" in str(report)
    assert zeros(model) == round(0.9 * 252)

    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=100)
    train(model, optimizer, 0, 40)
    kept = weights(model)
    with pytest.warns(UserWarning, match="after 40 of 100 steps"):
        report = sparsifier.finish(cut=False)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), kept, strict=True))
    assert report.sparsity == report.before == before


def test_a_longer_run_keeps_the_zeros_and_warns_once() -> None:
    model = network()
    optimizer = make("sgd", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 0, 20)
    with pytest.warns(UserWarning, match="step 21 of a run that was planned with steps=20") as caught:
        train(model, optimizer, 20, 30)
    assert len(caught) == 1
    assert zeros(model) == round(0.9 * 252)
    assert sparsifier.finish().done == 30


def test_zeros_that_were_overwritten_are_cut_again() -> None:
    model = network()
    dense = copy.deepcopy(model.state_dict())
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 0, 17)
    model.load_state_dict(dense)
    train(model, optimizer, 17, 18)
    assert zeros(model) == round(0.9 * 252)
    model.load_state_dict(dense)
    sparsifier.finish()
    assert zeros(model) == round(0.9 * 252)


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
@pytest.mark.parametrize("made_first", [True, False])
@pytest.mark.parametrize("at", [3, 12, 18])
def test_resuming_is_bit_exact(kind: str, made_first: bool, at: int) -> None:
    start = network()
    whole, part = copy.deepcopy(start), copy.deepcopy(start)
    optimizer = make(kind, whole)
    rewa.Sparsifier(whole, optimizer, sparsity=0.9, steps=20)
    train(whole, optimizer, 0, 20)

    optimizer = make(kind, part)
    rewa.Sparsifier(part, optimizer, sparsity=0.9, steps=20)
    train(part, optimizer, 0, at)
    file = io.BytesIO()
    torch.save({"model": part.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network()
    optimizer = make(kind, resumed)
    if made_first:
        sparsifier = rewa.Sparsifier(resumed, optimizer, sparsity=0.9, steps=20)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if not made_first:
        sparsifier = rewa.Sparsifier(resumed, optimizer, sparsity=0.9, steps=20)
    assert sparsifier.done == at
    train(resumed, optimizer, at, 20)
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))


def test_its_own_state_serves_where_the_optimizers_is_not_saved() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 0, 12)
    state, twin = sparsifier.state_dict(), copy.deepcopy(model)
    train(model, optimizer, 12, 20)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    sparsifier = rewa.Sparsifier(twin, optimizer, sparsity=0.9, steps=20)
    sparsifier.load_state_dict(state)
    train(twin, optimizer, 12, 20)
    assert all(torch.equal(a, b) for a, b in zip(weights(twin), weights(model), strict=True))
    with pytest.raises(ValueError, match="the state has no done, peaks"):
        sparsifier.load_state_dict({"share": 0.0, "best": 0.0, "sizes": {}})


@pytest.mark.parametrize("other", [torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.AdamW, torch.optim.SGD])
def test_its_own_state_serves_an_optimizer_without_state(other: Callable[..., Optimizer]) -> None:
    """Many make their state at the first step if it is empty; what was noted must not be in their way."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 0, 12)
    state = sparsifier.state_dict()
    optimizer = other(model.parameters(), lr=1e-3)
    second = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=20)
    second.load_state_dict(state)
    train(model, optimizer, 12, 20)
    assert second.finish().count.nonzero == 25


def test_a_state_without_sparsifier_starts_anew_and_says_so() -> None:
    model = network()
    optimizer = make("adamw", model)
    plain = copy.deepcopy(optimizer.state_dict())
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 0, 5)
    optimizer.load_state_dict(plain)
    with pytest.warns(UserWarning, match="loaded from a checkpoint without a sparsifier: it starts at step 0"):
        assert sparsifier.done == 0


def test_copies_train_apart() -> None:
    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 0, 8)
    twin = copy.deepcopy(sparsifier)
    assert twin.model is not model
    assert twin.optimizer is not optimizer
    train(twin.model, twin.optimizer, 8, 20)
    assert sparsifier.done == 8
    train(model, optimizer, 8, 20)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(twin.model), strict=True))
    assert str(twin.finish()) == str(sparsifier.finish())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_low_precision_takes_its_steps_in_float32(dtype: torch.dtype, kind: str) -> None:
    torch.set_default_dtype(torch.float32)
    model = nn.Linear(8, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(model.weight.to(dtype))
    low = copy.deepcopy(model).to(dtype)
    start, results = model.weight.detach().clone(), []
    for one in (model, low):
        optimizer = low_optimizer(kind, one)
        rewa.Sparsifier(one, optimizer, sparsity=0.5, steps=400, begin=0.75)
        low_train(one, optimizer, 0, 400)
        results.append(one.weight.detach().float())
        assert one.weight.dtype is (torch.float32 if one is model else dtype)
    assert not torch.allclose(
        results[0][results[0] != 0], start[results[0] != 0], rtol=1e-3
    )  # by steps that rounding would lose
    torch.testing.assert_close(results[1], results[0].to(dtype).float(), rtol=1e-2, atol=1e-3)
    assert torch.equal(results[0] == 0, results[1] == 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("made_first", [True, False])
def test_low_precision_resumes_to_the_bit(dtype: torch.dtype, kind: str, made_first: bool) -> None:
    torch.set_default_dtype(torch.float32)
    start = nn.Linear(8, 4, bias=False).to(dtype)
    whole, part, resumed = (copy.deepcopy(start) for _ in range(3))
    for one, end in ((whole, 40), (part, 25)):
        optimizer = low_optimizer(kind, one)
        rewa.Sparsifier(one, optimizer, sparsity=0.5, steps=40)
        low_train(one, optimizer, 0, end)
    file = io.BytesIO()
    torch.save({"model": part.state_dict(), "optimizer": optimizer.state_dict()}, file)
    low_train(part, optimizer, 25, 40)  # saving disturbs nothing
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    optimizer = low_optimizer(kind, resumed)
    if made_first:
        rewa.Sparsifier(resumed, optimizer, sparsity=0.5, steps=40)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if not made_first:
        rewa.Sparsifier(resumed, optimizer, sparsity=0.5, steps=40)
    low_train(resumed, optimizer, 25, 40)
    assert torch.equal(part.weight, whole.weight)
    assert torch.equal(resumed.weight, whole.weight)


def low_optimizer(kind: str, model: nn.Module) -> Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-5, eps=1e-6)


def low_train(model: nn.Module, optimizer: Optimizer, start: int, end: int) -> None:
    for step in range(start, end):
        grad = torch.randn(4, 8, generator=torch.Generator().manual_seed(step % 7)) + 1
        model.weight.grad = grad.to(torch.bfloat16).to(model.weight.dtype)
        lower_rate(optimizer, step // 40)
        optimizer.step()


def test_a_closure_and_a_plain_step_are_the_same() -> None:
    start, results = network(), []
    for kind in ("sgd", "adamw", "nadam"):
        for closed in (False, True):
            model = copy.deepcopy(start)
            optimizer = make(kind, model)
            rewa.Sparsifier(model, optimizer, sparsity=0.8, steps=20)
            for step in range(20):

                def closure() -> Tensor:
                    optimizer.zero_grad()
                    data, label = batch(step)
                    loss = nn.functional.cross_entropy(model(data), label)
                    loss.backward()
                    return loss

                lower_rate(optimizer, step)
                if closed:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
            results.append(weights(model))
        torch.testing.assert_close(*results[-2:], rtol=0, atol=0)


def test_a_run_that_diverged_is_an_error() -> None:
    model = network()
    optimizer = make("sgd", model)
    rewa.Sparsifier(model, optimizer, sparsity=0.8, steps=20)
    train(model, optimizer, 0, 4)
    with torch.no_grad():
        model[3].weight[0, 0] = math.nan
    with pytest.raises(RuntimeError, match=r"'0\.weight' is not finite after 6 steps: training diverged"):
        train(model, optimizer, 4, 20)


@pytest.mark.slow
def test_a_compiled_model_and_step_train_as_eager_ones() -> None:
    torch.set_default_dtype(torch.float32)
    start, results = network(), []
    for compiled in (False, True):
        model = copy.deepcopy(start)
        used = torch.compile(model, backend="aot_eager") if compiled else model
        optimizer = make("adamw", model)
        sparsifier = rewa.Sparsifier(used, optimizer, sparsity={r"[03]\.weight": 0.9}, steps=12)  # names without a wrapper's
        step = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for number in range(12):
            optimizer.zero_grad()
            data, label = batch(number)
            nn.functional.cross_entropy(used(data), label).backward()
            lower_rate(optimizer, number)
            step()
        assert sparsifier.done == 12
        results.append(weights(model))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


# As sparse as the value allows.


def test_max_drop_cuts_as_far_as_the_value_allows() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data, label = (torch.cat(parts) for parts in zip(*map(batch, range(1000, 1020)), strict=True))
    modes = []

    def accuracy(candidate: nn.Module) -> float:
        modes.append(candidate.training)
        return float((candidate(data).argmax(1) == label).double().mean())

    sparsifier = rewa.Sparsifier(model, optimizer, max_drop=0.03, evaluate=accuracy, steps=1200)
    train(model, optimizer, 0, 1200)
    assert model.training
    assert not any(modes)
    assert sparsifier.target == pytest.approx(sparsifier.sparsity, abs=1 / 252)
    report = sparsifier.finish()
    assert report.sparsity > 0.5  # three numbers of six decide the label
    assert report.value is not None
    assert report.best is not None
    assert report.value >= report.best - 0.03
    assert f"value {report.value:.6g}" in str(report)


def test_max_drop_holds_where_the_value_falls() -> None:
    model = network()
    optimizer = make("sgd", model)
    values = iter([1.0, 1.0, 1.0] + [0.5] * 100)
    sparsifier = rewa.Sparsifier(model, optimizer, max_drop=0.1, evaluate=lambda _: next(values), steps=100)
    train(model, optimizer, 0, 100)
    # Three of fifty levels, of which the last was taken back when the value fell.
    assert sparsifier.sparsity == pytest.approx(1 - 0.001 ** (2 / 50), abs=1 / 252)
    with pytest.warns(UserWarning, match=r"the value is 0\.5, more than max_drop=0\.1 below the best of the run, 1"):
        sparsifier.finish()


def test_max_drop_goes_to_the_end_in_a_short_run_too() -> None:
    model = network()
    optimizer = make("sgd", model)
    sparsifier = rewa.Sparsifier(model, optimizer, max_drop=0.1, evaluate=lambda _: 1.0, steps=20)
    train(model, optimizer, 0, 20)
    assert sparsifier.sparsity == pytest.approx(251 / 252)


def test_finishing_early_takes_back_a_cut_that_the_value_does_not_allow() -> None:
    model = network()
    optimizer = make("sgd", model)
    values = iter([1.0, 0.5, 1.0])
    sparsifier = rewa.Sparsifier(model, optimizer, max_drop=0.1, evaluate=lambda _: next(values), steps=100)
    train(model, optimizer, 0, 25)
    assert zeros(model) > 0
    with pytest.warns(UserWarning, match=r"before the last cut at step 75: \d+\.\d+% of the weights are zero$"):
        report = sparsifier.finish()
    assert zeros(model) == 0
    assert report.value == 1.0


# What it shows.


def test_print_before_training_says_what_will_happen() -> None:
    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=1000)
    text = str(sparsifier)
    assert re.search(r"3\.weight +12x12 +144 +0\.\d+", text)
    assert "252 weights to 25" in text
    assert "cuts: from step 250 to 750 of 1,000, every 10 steps, cubic" in text
    assert "p = 1" in text
    assert sparsifier.line == "step 0/1,000, zeros 0.0% of 90.1%"
    assert "on AdamW" in repr(sparsifier)
    train(model, optimizer, 0, 3)
    assert sparsifier.line.startswith("step 3/1,000")
    assert sparsifier.target == 0


def test_the_report_is_plain_and_counts_the_model() -> None:
    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)
    train(model, optimizer, 0, 10)
    report = sparsifier.finish()
    assert isinstance(report, Sparsified)
    assert "227 of 252 weights are zero (90.08%) after 10 steps" in str(report)
    assert report.to_dict()["count"] == {"total": 252, "nonzero": 25}


def test_remove_leaves_no_state_of_weights() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)
    train(model, optimizer, 0, 9)
    sparsifier.remove()
    assert optimizer.state_dict()["state"] == {}


def test_remove_leaves_a_plain_optimizer() -> None:
    model = network()
    optimizer = make("adamw", model)
    keys = set(optimizer.param_groups[0])
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)
    train(model, optimizer, 0, 9)
    sparsifier.remove()
    assert set(optimizer.param_groups[0]) == keys | {"initial_lr"}
    train(model, optimizer, 9, 10)
    assert zeros(model) < round(0.9 * 252)  # they train again
    rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)


# What it refuses, with nothing changed.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.0}, r"Invalid sparsity: 1\.0 \(allowed: a share of zeros, at least 0 and below 1\)"),
        ({"sparsity": 95}, r"Invalid sparsity: 95 .*; 95 % is 0\.95\)"),
        ({"sparsity": -0.1}, r"Invalid sparsity: -0\.1"),
        ({"sparsity": math.nan}, r"Invalid sparsity: nan"),
        ({"sparsity": 0.999}, r"0\.999 of 252 weights leaves none \(allowed: at most 0\.996031\)"),
        ({"sparsity": {}}, r"Invalid sparsity: \{\}"),
        ({"sparsity": {"head": 0.9}}, r"'head' matches the whole name of no weight that is left, such as 0\.weight.*biases"),
        ({"sparsity": {"(": 0.9}}, "is not a regular expression"),
        ({"sparsity": {r"0\.weight": 2.0}}, r"Invalid sparsity for '0\\\\.weight': 2\.0"),
        ({"compression": 0.5}, r"Invalid compression: 0\.5"),
        ({}, "give exactly one of sparsity, compression and max_drop; got none"),
        ({"sparsity": 0.9, "compression": 10}, "got sparsity, compression"),
        ({"max_drop": 0.1}, "max_drop needs evaluate"),
        ({"max_drop": -1, "evaluate": len}, "Invalid max_drop: -1"),
        ({"sparsity": 0.9, "evaluate": len}, "evaluate is for max_drop"),
        ({"sparsity": 0.9, "steps": 0}, r"Invalid steps: 0 \(allowed: a whole number >= 1"),
        ({"sparsity": 0.9, "steps": 10.5}, r"Invalid steps: 10\.5"),
        ({"sparsity": 0.9, "begin": 0.8, "end": 0.2}, r"Invalid begin and end: 0\.8, 0\.2"),
        ({"sparsity": 0.9, "schedule": "cubik"}, "did you mean 'cubic'"),
        ({"sparsity": 0.9, "pattern": "2:4"}, "there is no pattern .2:4."),
        ({"sparsity": 0.9, "growth": -1}, "Invalid growth: -1"),
        ({"sparsity": 0.9, "worth": "magnitud"}, "did you mean 'magnitude'"),
        ({"sparsity": "0.5"}, r"Invalid sparsity: '0\.5'"),
        ({"compression": "20"}, r"Invalid compression: '20'"),
        ({"sparsity": 0.9, "begin": "0"}, r"Invalid begin: '0'"),
        ({"sparsity": 0.9, "schedule": None}, "there is no schedule 'None'"),
        ({"max_drop": 0.1, "evaluate": 0.9}, r"Invalid evaluate: 0\.9"),
        ({"sparsity": 0.9, "rules": {"x": None}}, "rule 'x' matches no parameter"),
        ({"sparsity": 0.9, "rules": {".*": None}}, "no weight that can become sparse"),
    ],
)
def test_bad_input_names_the_value_and_the_remedy(options: dict[str, Any], message: str) -> None:
    model = network()
    optimizer = make("adamw", model)
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        rewa.Sparsifier(model, optimizer, **{"steps": 10, **options})
    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))
    assert optimizer.state_dict() == state
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert len(rewa.sparsity.prunable(model)) == 3  # no rule is remembered


def test_the_wrong_optimizer_is_an_error() -> None:
    model, other = network(), network()
    with pytest.raises(ValueError, match=r"AdamW does not train '0\.weight' and 2 more weights of this model"):
        rewa.Sparsifier(model, make("adamw", other), sparsity=0.9, steps=10)
    with pytest.raises(ValueError, match=r"does not train '0\.weight' of this model"):
        rewa.Sparsifier(model, torch.optim.SGD(list(model.parameters())[1:], lr=0.1), sparsity=0.9, steps=10)
    with pytest.raises(TypeError, match="needs the model first"):
        rewa.Sparsifier(make("adamw", model), model, sparsity=0.9, steps=10)
    with pytest.raises(TypeError, match="needs the optimizer"):
        rewa.Sparsifier(model, model, sparsity=0.9, steps=10)


def test_weights_that_do_not_train_are_left_alone() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    assert "0.weight" not in rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10).weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # which has it, but no gradient for it
    assert "0.weight" not in rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10).weights
    for param in model.parameters():
        param.requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=False"):
        rewa.Sparsifier(model, torch.optim.SGD(model[2].parameters(), lr=0.1), sparsity=0.9, steps=10)


def test_two_sparsifiers_are_an_error() -> None:
    model = network()
    optimizer = make("adamw", model)
    first = rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)
    with pytest.raises(ValueError, match="this AdamW has a sparsifier already: call its finish"):
        rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)
    first.remove()
    rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)


def test_zeros_under_rewa_are_an_error() -> None:
    model = network()
    optimizer = make("rewa", model)
    nn.init.zeros_(model[3].weight)
    with pytest.raises(ValueError, match=r"'3\.weight' is all zero, which ReWA's step never leaves"):
        rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10)
    assert KEY not in optimizer.param_groups[0]
    with pytest.raises(ValueError, match="growth=2 has no effect on ReWASGD"):
        rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10, growth=2, rules={r"3\.weight": None})


def test_a_weight_behind_a_mask_of_torch_is_an_error() -> None:
    model = network()
    nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"prune\.remove"):
        rewa.Sparsifier(model, make("adamw", model), sparsity=0.9, steps=10)


def test_what_evaluate_and_rules_must_be() -> None:
    model = network()
    optimizer = make("sgd", model)
    with pytest.raises(TypeError, match=r"rules are a dictionary, \{regular expression: settings or None\}, not list"):
        rewa.Sparsifier(model, optimizer, sparsity=0.9, steps=10, rules=["0.weight"])
    rewa.Sparsifier(model, optimizer, max_drop=0.1, evaluate=lambda _: None, steps=8)
    with pytest.raises(TypeError, match="evaluate returned NoneType: it must return a number, larger is better"):
        train(model, optimizer, 0, 8)


# What others do to the same weights and the same optimizer.


def test_hooks_of_others_find_gradients_and_stepped_weights() -> None:
    for kind in ("sgd", "adamw"):
        model = network()
        optimizer = make(kind, model)
        seen: list[Tensor] = []
        optimizer.register_step_post_hook(lambda *_, model=model, seen=seen: seen.append(model[0].weight.detach().clone()))
        rewa.Sparsifier(model, optimizer, sparsity=0.8, steps=20)
        train(model, optimizer, 0, 10)
        assert torch.equal(seen[-1], model[0].weight)  # an average of weights, registered before
        twin = copy.deepcopy(model[0].weight.detach())

        def clear(*_: Any) -> None:
            for param in model.parameters():
                param.grad.zero_()

        optimizer.register_step_pre_hook(clear)
        optimizer.param_groups[0]["weight_decay"] = 0.0
        optimizer.state.clear()
        train(model, optimizer, 10, 11)
        changed = model[0].weight != twin
        assert not (changed & (model[0].weight != 0)).any()  # only the cut changes them


def test_after_a_failed_step_the_next_has_its_own_gradient() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=100)
    train(model, optimizer, 0, 1)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = optimizer.register_step_post_hook(fail)
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, 1, 2)
    handle.remove()
    before = weights(model)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))
    assert sparsifier.done == 2


@pytest.mark.parametrize("retried", [True, False])
def test_after_a_failed_step_on_a_copy_the_gradient_is_the_newest(retried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where zero_grad keeps the tensor, the new gradient is in the one that the failed step was given."""
    monkeypatch.setattr("rewa.optim.growth._is_known", lambda *_: False)
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=100)
    model.weight.grad = torch.ones(1, 4)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = optimizer.register_step_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    handle.remove()
    if not retried:
        optimizer.zero_grad(set_to_none=False)
        model.weight.grad += 5
    before = model.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before - model.weight.detach(), torch.full((1, 4), 0.1 if retried else 0.5))


def test_types_and_layouts_may_differ_in_a_model() -> None:
    for share in (0.5, 0.95, 0.999):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3)).to(memory_format=torch.channels_last)
        model[1].float()
        model[0].weight.data = model[0].weight.data.transpose(0, 1).contiguous().transpose(0, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rewa.Sparsifier(model, optimizer, sparsity=share, steps=4)
        for _ in range(4):
            for param in model.parameters():
                param.grad = torch.randn_like(param)
            optimizer.step()
        assert zeros(model) == round(share * (216 + 432))


def test_switching_a_setting_on_is_torchs_own_error() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=10)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(KeyError, match="max_exp_avg_sq"):
        optimizer.step()


def test_a_state_kept_in_memory_does_not_move_on() -> None:
    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=20)
    train(model, optimizer, 0, 3)
    kept = optimizer.state_dict()
    train(model, optimizer, 3, 9)
    optimizer.load_state_dict(kept)
    assert sparsifier.done == 3


def test_a_state_of_other_settings_is_completed() -> None:
    model = network()
    optimizer = make("adamw", model)
    first = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=20, growth=0)
    train(model, optimizer, 0, 3)
    kept = copy.deepcopy(optimizer.state_dict())
    first.remove()
    optimizer.load_state_dict(kept)
    with pytest.warns(UserWarning, match=r"no first size of '0\.weight' and 2 more weights"):
        second = rewa.Sparsifier(model, optimizer, max_drop=0.1, evaluate=lambda _: 1.0, steps=20)
    assert second.done == 3
    assert second.state_dict()["sizes"].keys() == second.weights.keys()
    train(model, optimizer, 3, 20)


def test_it_ends_once() -> None:
    model = network()
    optimizer = make("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=8)
    train(model, optimizer, 0, 8)
    report = sparsifier.finish()
    assert sparsifier.finish() is report
    assert sparsifier.done == 8
    assert "step 8/8" in str(sparsifier)
    assert KEY not in optimizer.param_groups[0]
    other = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=8)
    other.remove()
    other.remove()
    with pytest.raises(ValueError, match="was removed from its optimizer"):
        other.finish()


def test_an_optimizer_in_low_precision_goes_on_alone_afterwards() -> None:
    torch.set_default_dtype(torch.float32)
    model = nn.Linear(8, 4, bias=False).to(torch.bfloat16)
    optimizer = low_optimizer("adamw", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=4)
    low_train(model, optimizer, 0, 4)
    sparsifier.finish()
    low_train(model, optimizer, 4, 6)
    assert {value.dtype for value in optimizer.state[model.weight].values() if value.dim()} == {torch.bfloat16}


def test_zeros_from_before_do_not_count_where_none_are_asked_for() -> None:
    model = network()
    with torch.no_grad():
        model[3].weight[:4] = 0
    optimizer = make("sgd", model)
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.0, steps=4)
    for _ in range(4):
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert sparsifier.finish().count.nonzero == 252


def test_wrapped_models_have_the_names_of_their_weights() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.module = nn.Linear(4, 4), nn.ModuleDict({"fc": nn.Linear(4, 4)})

    model = Nested()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert list(rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=4).weights) == ["fc.weight", "module.fc.weight"]
    wrapped = nn.DataParallel(network())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    one = rewa.Sparsifier(wrapped, optimizer, sparsity={r"[03]\.weight": 0.5}, steps=4, rules={r"3\.weight": None})
    assert list(one.weights) == ["0.weight"]


def test_it_is_copied_but_not_pickled() -> None:
    model = network()
    with pytest.raises(TypeError, match=r"save optimizer\.state_dict"):
        pickle.dumps(rewa.Sparsifier(model, make("adamw", model), sparsity=0.5, steps=4))


def test_an_optimizer_that_chooses_its_own_rate() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            self.param_groups[0]["lr"] = 0.1
            super().step()
            self.param_groups[0]["lr"] = None

    model = network()
    optimizer = Own(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = None
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=8)
    train(model, optimizer, 0, 8)
    assert zeros(model) == 126
    assert sparsifier.done == 8  # although torch runs the hooks of a class and of its parent


def test_lbfgs_keeps_its_steps_and_still_finds_the_minimum() -> None:
    """Its steps are chosen by a line search, and it learns the curvature from them."""
    data, target = torch.randn(60, 8), torch.tensor([3.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    model = nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")
    sparsifier = rewa.Sparsifier(model, optimizer, sparsity=0.75, steps=12)
    assert sparsifier.growth == 0

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(data)[:, 0] - data @ target).square().mean()
        loss.backward()
        return loss

    for _ in range(12):
        optimizer.step(closure)
    sparsifier.finish()
    torch.testing.assert_close(model.weight.detach()[0], target, rtol=0, atol=1e-4)
