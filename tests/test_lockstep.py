"""Lockstep against ReWASGD and plain torch, one column at a time; the kernel against torch; dropping against not dropping."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import rewa
from rewa import lockstep, native, theory
from rewa.lockstep import Column, epoch_order, fit
from rewa.schedules import learning_rates

KERNEL = pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
SETTINGS = [
    Column(K=9, M=4, lr=0.01, weight_decay=0.1, seed=0),
    Column(K=9, M=2, lr=0.02, weight_decay=0.2, seed=1),
    Column(K=3, M=2, lr=0.05, weight_decay=0.1, eps=1e-3, seed=2),
    Column(K=2, M=0, lr=0.03, weight_decay=0.3, seed=3),
    Column(K=1, M=0, lr=0.02, weight_decay=0.05, seed=3),
    Column(K=1, M=0, lr=0.02, weight_decay=0.05, seed=4, form="l1"),
    Column(K=5, M=1, lr=0.02, weight_decay=0.1, seed=5, form="pair"),
    Column(K=9, M=4, lr=0.05, weight_decay=0.1, seed=6, form="pair", start=0.1),
    Column(K=3, M=5, lr=0.05, weight_decay=0.0, eps=0.01, seed=7, form="pair"),
    Column(K=9, M=5, lr=0.01, weight_decay=0.1, seed=8, scale=10.0),
]
LOGISTIC = [Column(**{**vars(column), "loss": "logistic", "seed": 20 + index}) for index, column in enumerate(SETTINGS)]


def data(n=60, d=70, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = X[:, 0] - 0.7 * X[:, 1] + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return X.to(dtype), y.to(dtype), (y > 0).to(dtype)


def alone(X, y, column, *, epochs, batch_size, seed, schedule="cosine", bias=True):
    """One model trained by ReWASGD (or torch's SGD and a penalty) on an ordinary loop; weights and bias."""
    model = nn.Linear(X.shape[1], 1, bias=bias, dtype=X.dtype)
    weight, start = column.initial(X.shape[1])
    with torch.no_grad():
        model.weight.copy_(weight[None])
        if bias:
            model.bias.fill_(start)
    if column.form == "pair":
        rewa.reparametrize(model, form="pair", K=column.K, M=column.M, eps=column.eps, start=column.start)
        params = [param for name, param in model.named_parameters() if name != "bias"]
        sparse = {"params": params, "K": 1, "M": 0, "eps": 0, "weight_decay": column.weight_decay}
    elif column.form == "l1":
        sparse = {"params": [model.weight], "K": 1, "M": 0, "eps": 0, "weight_decay": 0.0}
    else:
        sparse = {"params": [model.weight], "K": column.K, "M": column.M, "eps": column.eps}
        sparse["weight_decay"] = column.weight_decay
    plain = {"params": [model.bias] if bias else [], "K": 1, "M": 0, "eps": 0.0, "weight_decay": 0.0}
    optimizer = rewa.ReWASGD([sparse, plain] if bias else [sparse], lr=column.lr)
    criterion = nn.MSELoss() if column.loss == "squared" else nn.BCEWithLogitsLoss()
    rates = iter(learning_rates(column.lr, epochs * -(-len(X) // batch_size), schedule=schedule))
    for order in epoch_order(len(X), seed, epochs):
        for rows in order.split(batch_size):
            for group in optimizer.param_groups:
                group["lr"] = next(rates) if group is optimizer.param_groups[0] else optimizer.param_groups[0]["lr"]
            loss = criterion(model(X[rows])[:, 0], y[rows])
            if column.form == "l1":
                loss = loss + column.weight_decay * model.weight.abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.weight.detach()[0], model.bias.detach()[0] if bias else torch.zeros(())


@KERNEL
@pytest.mark.parametrize("columns", [SETTINGS, LOGISTIC], ids=["squared", "logistic"])
@pytest.mark.parametrize("batch_size", [12, 25, 60])
def test_every_column_is_the_optimizer_alone(columns, batch_size, kernel):
    """Also when the batches leave a rest, and for a batch of all rows."""
    X, y, labels = data()
    target = labels if columns is LOGISTIC else y
    result = fit(X, target, columns, epochs=12, batch_size=batch_size, seed=3, drop=None, kernel=kernel)
    for index, column in enumerate(columns):
        weight, bias = alone(X, target, column, epochs=12, batch_size=batch_size, seed=3)
        torch.testing.assert_close(result.coef[index], weight, rtol=0, atol=1e-9)
        torch.testing.assert_close(result.bias[index], bias, rtol=0, atol=1e-9)
        assert (weight - column.initial(X.shape[1])[0]).abs().max() > 1e-4, "nothing was trained"


@KERNEL
def test_losses_targets_and_schedules_mix(kernel):
    """Each column has a target of its own; both losses in one call; no bias; another schedule."""
    X, y, labels = data()
    columns = [column for pair in zip(SETTINGS, LOGISTIC, strict=True) for column in pair]
    targets = torch.stack(
        [labels if column.loss == "logistic" else (index + 1) / 10 * y for index, column in enumerate(columns)]
    )
    common = {"epochs": 5, "batch_size": 20, "seed": 1, "schedule": "constant", "bias": False}
    result = fit(X, targets.T, columns, drop=None, kernel=kernel, **common)
    for index, column in enumerate(columns):
        weight, _ = alone(X, targets[index], column, **common)
        torch.testing.assert_close(result.coef[index], weight, rtol=0, atol=1e-9)
    assert not result.bias.any()


def test_real_exponents_are_trained_by_torch():
    X, y, _ = data()
    column = Column(K=2.5, M=1.5, lr=0.02, weight_decay=0.1)
    result = fit(X, y, [column], epochs=5, seed=1, drop=None)
    torch.testing.assert_close(result.coef[0], alone(X, y, column, epochs=5, batch_size=25, seed=1)[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_kernel_at_every_remainder(count, threads):
    """Columns by fours, rows by fours, weights by whole vectors and tiles: the rests of each."""
    for n, d, batch in ((7, 3, 2), (30, 257, 5), (22, 600, 11)):
        X, y, _ = data(n, d)
        columns = [SETTINGS[index % len(SETTINGS)] for index in range(count)]
        expected, found = (
            fit(X, y, columns, epochs=2, batch_size=batch, drop=None, threads=threads, kernel=kernel)
            for kernel in (False, True)
        )
        torch.testing.assert_close(found.coef, expected.coef, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.bias, expected.bias, rtol=0, atol=1e-12)


def test_float32_follows_float64():
    X, y, _ = data()
    low = fit(X.float(), y.float(), SETTINGS, epochs=10, drop=None)
    high = fit(X, y, SETTINGS, epochs=10, drop=None)
    assert low.coef.dtype == torch.float32
    torch.testing.assert_close(low.coef.double(), high.coef, rtol=1e-3, atol=1e-4)


# ------------------------------------------------------------------------------------------------ dropping


def study(loss, form):
    """Many features, two of which count, and settings for which the others die."""
    X, y, labels = data(n=400, d=600, seed=5)
    pairs = [(9, 4), (9, 2), (5, 2), (3, 2)]
    lr, decay = (0.02, 0.3) if loss == "squared" else (0.1, 0.1)
    columns = [
        Column(K=K, M=M, lr=lr, weight_decay=decay, form=form, loss=loss, seed=seed, start=0.05, scale=3.0)
        for K, M in pairs
        for seed in range(4)
    ]
    return X, (y if loss == "squared" else labels), columns


@pytest.mark.slow
@KERNEL
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("form", ["tied", "pair"])
def test_dropping_changes_nothing_that_counts(loss, form, kernel):
    X, y, columns = study(loss, form)
    common = {"epochs": 200, "batch_size": 20, "kernel": kernel}
    if not kernel:
        columns, common["epochs"] = columns[:4], 100
    whole, dropped = (fit(X, y, columns, drop=drop, **common) for drop in (None, 1e-7))
    assert [one.weights for one in whole.survivors] == [600] * len(whole.survivors)
    assert min(one.weights for one in dropped.survivors) < 60, "nothing was dropped"
    torch.testing.assert_close(dropped.coef, whole.coef, rtol=0, atol=1e-6)
    torch.testing.assert_close(dropped.bias, whole.bias, rtol=0, atol=1e-6)
    for threshold in (1e-4, 1e-3, 1e-2):
        assert ((dropped.coef.abs() > threshold) == (whole.coef.abs() > threshold)).all()
    if form == "pair":
        assert ((whole.coef.abs() > 1e-2).sum(dim=1) >= 1).all(), "a study in which everything dies shows nothing"


def parts_of_a_run(X, drop, *, kernel=False, epochs=2, batch_size=20):
    steps = epochs * -(-len(X) // batch_size)
    return lockstep._Shared(
        X=X,
        seed=0,
        batch_size=batch_size,
        rates=torch.linspace(1, 0.2, steps, dtype=torch.float64),
        drop=drop,
        bias=True,
        kernel=kernel,
        packed=lockstep._packed(X, None) if kernel else X,
        size=X.square().mean(dim=0).sqrt(),
    )


@KERNEL
@pytest.mark.parametrize("form", ["tied", "pair"])
def test_dropped_weights_decay_and_keep_predicting(form, kernel, monkeypatch):
    """Large weights dropped by decree, against every step in torch with their decay written out."""
    X, y, _ = data(n=45)
    columns = [
        Column(K=K, M=2, lr=0.02, weight_decay=decay, form=form, scale=3.0, start=0.05) for K, decay in ((3, 0.5), (9, 0.2))
    ]
    run = parts_of_a_run(X, 1.0, kernel=kernel, epochs=4, batch_size=10)  # the last batch of an epoch has five rows
    away = torch.zeros(70, dtype=torch.bool)
    away[5:40] = True
    monkeypatch.setattr(lockstep._Block, "needed", lambda self: ~away)
    block = lockstep._Block(run, columns, y.expand(2, 45), 1, 0.0)
    for first, last in ((0, 1), (1, 3), (3, 4)):
        block.select(first)  # also folds the decay so far into the kept predictions
        block.train(first, last)
    block.gather()
    assert len(block.live) == 35
    slow = lockstep._Block(parts_of_a_run(X, None, epochs=4, batch_size=10), columns, y.expand(2, 45), 1, 0.0)
    rates = iter(run.rates)
    for order in epoch_order(45, 0, 4):
        for rows in order.split(10):
            rate = next(rates)
            before = slow.live_u[:, away].clone(), slow.live_v[:, away].clone()
            lockstep._steps_torch(slow, rows, len(rows), rate[None])
            shrink = torch.tensor([1 - column.lr * float(rate) * column.weight_decay for column in columns])[:, None]
            slow.live_u[:, away], slow.live_v[:, away] = shrink * before[0], shrink * before[1]
    slow.gather()
    for found, expected in ((block.u, slow.u), (block.v, slow.v), (block.bias, slow.bias)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_what_dropping_does_not_promise():
    """A suppressor: B has no gradient until A has grown. Dropping misses its first steps, and finds it in the end."""
    generator = torch.Generator().manual_seed(0)
    A, other = (torch.randn(2000, generator=generator) for _ in range(2))
    B = 0.8 * A + 0.6 * other
    noise = torch.randn(2000, 58, generator=generator)
    X = torch.cat([A[:, None], B[:, None], noise], dim=1)
    y = 2 * A - 1.6 * B
    column = Column(K=9, M=2, weight_decay=0.15, lr=0.02, form="pair", start=1e-5)
    whole, dropped = (fit(X, y, [column], epochs=100, batch_size=50, drop=drop) for drop in (None, 1e-8))
    assert min(one.weights for one in dropped.survivors) <= 2
    for result in (whole, dropped):
        assert (result.coef[0].abs() > 1e-3).tolist() == [True, True] + [False] * 58
    torch.testing.assert_close(dropped.coef, whole.coef, rtol=0, atol=1e-2)


def test_a_dropped_weight_comes_back_when_it_could_grow():
    """The growth condition is looked at again: a rule that only ever drops would lose the second feature."""
    X, y, columns = study("squared", "tied")
    run = parts_of_a_run(X, drop=1.0)
    block = lockstep._Block(run, columns[:1], y[None], 1, 0.0)
    block.u.fill_(0.05)
    block.live_u.fill_(0.05)
    block.select(0)
    assert len(block.live) == 0
    block.targets *= 1e6  # a gradient that no weight could have been expected to see
    block.select(1)
    assert len(block.live) == 600
    assert block.survivors == [(0, 600), (0, 0), (1, 600)]


@pytest.mark.parametrize("drop", [1e-4, 1.0])
def test_the_bound_is_the_growth_condition(drop):
    """A weight is needed exactly when its bound exceeds half the growth threshold, or its error the tolerance."""
    X, y, columns = study("squared", "tied")
    run = parts_of_a_run(X, drop)
    column = columns[0]
    block = lockstep._Block(run, [column], y[None], 1, 0.0)
    x = block.weights(block.u, block.v)[0].numpy()
    residual = 2 * (X.numpy() @ x + float(block.bias[0]) - y.numpy())
    gradient = np.abs(X.numpy().T @ residual) / len(X)
    bound = gradient + 4 * np.sqrt((X.numpy() ** 2).mean(axis=0) * (residual**2).mean() / len(X))
    share = bound / theory.growth_threshold(x, column.K, column.M, lam=column.weight_decay)
    np.testing.assert_array_equal(block.needed().numpy(), (share > 0.5) | (share * np.abs(x) > drop))
    assert 0 < block.needed().sum() < 600


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
def test_decay_alone_stays_within_the_stated_error(share):
    """The docstring's inequality, on one weight under the worst gradient that the bound allows."""
    K, M, lam, lr, x = 9, 4, 0.25, 1e-3, 1e-2
    threshold = float(theory.growth_threshold(x, K, M, lam=lam))
    for sign in (1, -1):
        trained = decayed = x ** (1 / K)
        for _ in range(50_000):
            trained -= lr * (lam * trained + sign * trained**M * share * threshold)
            decayed -= lr * lam * decayed
            assert abs(trained**K - decayed**K) <= share * x
            assert trained <= x ** (1 / K)


def test_what_cannot_be_dropped_is_not():
    X, y, _ = data()
    columns = [Column(K=9, M=0.0), Column(K=1, M=0, form="l1"), Column(K=9, M=4, weight_decay=0.0)]
    result = fit(X, y, columns, epochs=10, drop=1.0)
    assert {one.weights for one in result.survivors} == {70}


def test_a_block_without_weights_goes_on():
    """All weights dead: the bias still trains, the dead go on decaying."""
    X, y, _ = data()
    column = Column(K=9, M=4, lr=0.1, weight_decay=2.0, scale=1e-3)
    whole, dropped = (fit(X, y + 1, [column], epochs=60, drop=drop) for drop in (None, 1e-9))
    assert dropped.survivors[-1].weights == 0
    torch.testing.assert_close(dropped.bias, whole.bias, rtol=0, atol=1e-9)
    assert whole.bias[0] > 0.5
    torch.testing.assert_close(dropped.coef, whole.coef, rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------ use and misuse


def test_blocks_hold_like_columns_and_every_column_once():
    columns = tuple(Column(K=K, M=M, seed=seed) for seed in range(20) for K in (3, 9) for M in (0, 2, 4))
    X, y, _ = data(n=200, d=100)
    needed = [lockstep._needed_decay(parts_of_a_run(X, 1e-5), column, y) for column in columns]
    groups = lockstep._blocks(needed, columns, 2)
    assert sorted(index for group in groups for index in group) == list(range(120))
    assert max(map(len, groups)) <= lockstep.BLOCK
    for group in groups:
        assert len({needed[index] >= 1 for index in group}) == 1
    assert len(lockstep._blocks([0.5], columns[:1], 2)) == 1
    assert len(lockstep._blocks([math.inf] * 8, columns[:8], 2)) == 2, "a block for each thread"


def test_columns_do_not_depend_on_their_company():
    X, y, _ = data()
    columns = [Column(K=9, M=M, lr=0.02, seed=seed) for seed in range(9) for M in (0, 2, 4, 5)]
    together = fit(X, y, columns, epochs=5, threads=2)
    for index in (0, 7, 35):
        one = fit(X, y, [columns[index]], epochs=5, threads=1)
        torch.testing.assert_close(together.coef[index], one.coef[0], rtol=0, atol=1e-9)


def test_progress_adds_up_and_predictions_are_linear():
    X, y, _ = data()
    shares, lock = [], threading.Lock()

    def progress(share):
        with lock:
            shares.append(share)

    result = fit(X, y, SETTINGS * 3, epochs=50, threads=2, progress=progress)
    assert sum(shares) == pytest.approx(1)
    torch.testing.assert_close(result.predict(X), X @ result.coef.T + result.bias)


def test_an_error_in_one_block_ends_the_others(monkeypatch):
    """Two blocks at a time: the second fails at once, and the first does not go on to its end."""
    X, y, _ = data()
    stages, failed = [], threading.Event()

    def train(block, first, last):
        if block.columns[0].M == 1:
            failed.set()
            raise ZeroDivisionError
        assert failed.wait(10)
        time.sleep(0.01)
        stages.append(first)

    monkeypatch.setattr(lockstep._Block, "train", train)
    columns = [Column(K=9, M=M, seed=seed) for M in (0, 1) for seed in range(8)]
    monkeypatch.setattr(lockstep, "_blocks", lambda *_: [list(range(8)), list(range(8, 16))])
    with pytest.raises(ZeroDivisionError):
        fit(X, y, columns, epochs=40, threads=2)
    assert len(stages) < 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"K": 0.5}, "K"),
        ({"lr": 0.0}, "Invalid lr: 0.0"),
        ({"weight_decay": -1.0}, "Invalid weight_decay: -1.0"),
        ({"weight_decay": 1e9}, "lr \\* weight_decay < 1"),
        ({"form": "par"}, "'tied', 'pair', 'l1'"),
        ({"loss": "hinge"}, "'squared', 'logistic'"),
        ({"form": "l1"}, "form='l1' is plain SGD"),
        ({"scale": math.inf}, "Invalid scale or start"),
        ({"start": 0.0}, "Invalid scale or start"),
    ],
)
def test_bad_settings_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Column(**change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": torch.ones(3)}, "must be a matrix"),
        ({"X": torch.ones(60, 3, dtype=torch.int64)}, "float32 or float64"),
        ({"y": torch.ones(59)}, r"must have the shape \(60,\) or \(60, 1\)"),
        ({"y": torch.full((60,), math.nan)}, "must be finite"),
        ({"columns": []}, "columns is empty"),
        ({"columns": [Column(loss="logistic")]}, "targets from 0 to 1"),
        ({"epochs": 0}, "epochs must be >= 1"),
        ({"batch_size": 61}, "batch_size from 1 to 60"),
        ({"drop": -1.0}, "Invalid drop: -1.0"),
        ({"schedule": "cos"}, "Invalid schedule"),
        ({"threads": 0}, "Invalid threads: 0"),
        ({"kernel": True, "columns": [Column(K=2.5)]}, "whole K and M up to 15; got K=2.5"),
        ({"kernel": True, "columns": [Column(K=16)]}, "got K=16"),
    ],
)
def test_bad_calls_are_refused(change, words):
    X, y, _ = data()
    with pytest.raises(ValueError, match=words):
        fit(**{"X": X, "y": y, "columns": [Column()], "epochs": 1, **change})


def test_without_a_compiler_it_says_so_and_goes_on(monkeypatch):
    X, y, _ = data()
    monkeypatch.setattr(native, "load", lambda *_: (_ for _ in ()).throw(FileNotFoundError("no C++ compiler was found.")))
    monkeypatch.setattr(native, "_warned", set())
    lockstep._library.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler was found"):
            result = fit(X, y, SETTINGS, epochs=2)
        with pytest.raises(RuntimeError, match="install a C\\+\\+ compiler"):
            fit(X, y, SETTINGS, epochs=2, kernel=True)
    finally:
        monkeypatch.undo()
        lockstep._library.cache_clear()
    torch.testing.assert_close(result.coef, fit(X, y, SETTINGS, epochs=2, kernel=True).coef, rtol=0, atol=1e-9)


def test_autograd_is_left_out():
    X, y, _ = data()
    for kernel in (True, False):
        for columns, threads in (([Column()], 1), ([Column(seed=seed) for seed in range(8)], 2)):
            result = fit(X.requires_grad_(), y.requires_grad_(), columns, epochs=1, kernel=kernel, threads=threads)
            assert not result.coef.requires_grad


def test_starts_are_those_of_a_linear_layer_and_leave_the_generator_alone():
    torch.manual_seed(7)
    layer = nn.Linear(30, 1, dtype=torch.float32)
    before = torch.get_rng_state()
    weight, bias = Column(seed=7).initial(30)
    assert torch.equal(weight, layer.weight.detach()[0])
    assert torch.equal(bias, layer.bias.detach()[0])
    assert torch.equal(Column(seed=7, scale=3.0).initial(30)[0], 3 * weight)
    assert torch.equal(torch.get_rng_state(), before)
