from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import rewa
from problems import IMPLEMENTATIONS, random_problem
from rewa.optim.annealing import annealed

SETTING = {"lr": 0.01, "K": 2, "M": 1.5, "momentum": 0.9, "weight_decay": 0.05}


def slow_reference(x, grads, exponents, *, lr, K, momentum, weight_decay, **_):
    """Algorithm 1 with an exponent for each step, as it is written down."""
    x, buffer = np.array(x), np.zeros_like(x)
    for grad, M in zip(grads, exponents, strict=True):
        y = np.sign(x) * np.abs(x) ** (1 / K)
        buffer = momentum * buffer + np.abs(y) ** M * grad + weight_decay * y
        y = y - lr * buffer
        x = np.sign(y) * np.abs(y) ** K
    return x


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_annealed_steps_equal_the_reference(implementation):
    x, grads = random_problem(100)
    param = nn.Parameter(torch.tensor(x))
    optimizer = rewa.ReWASGD([param], **SETTING, **IMPLEMENTATIONS[implementation])
    annealing = rewa.Annealing(optimizer, len(grads), begin=0.2, end=0.8)
    exponents = []
    for grad in grads:
        exponents.append(optimizer.param_groups[0]["M"])
        param.grad = torch.tensor(grad)
        optimizer.step()
        annealing.step()
    # Twenty steps at 0, a straight line, twenty at 1.5.
    expected = np.interp(np.arange(100), [20, 80], [0.0, 1.5])
    np.testing.assert_allclose(exponents, expected, atol=1e-12)
    np.testing.assert_allclose(param.detach(), slow_reference(x, grads, expected, **SETTING), rtol=1e-8, atol=1e-12)


def test_the_fused_kernel_is_not_compiled_again_for_every_exponent():
    from rewa.optim import fused

    param = nn.Parameter(torch.linspace(0.1, 1, 10))
    optimizer = rewa.ReWASGD([param], **SETTING, fused=True)
    param.grad = torch.ones_like(param)
    optimizer.param_groups[0]["M"] = 0.3
    optimizer.step()
    before = fused._kernel.cache_info().currsize
    for M in (0.31, 0.7, 1.41):
        optimizer.param_groups[0]["M"] = M
        optimizer.step()
    assert fused._kernel.cache_info().currsize == before


def test_resumed_annealing_goes_on_alike():
    def make():
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = rewa.ReWASGD(rewa.param_groups(model, K=2, M=1.5, match=True), lr=0.001, momentum=0.9)
        return model, optimizer, rewa.Annealing(optimizer, 40)

    def go(model, optimizer, annealing, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, 8)).square().sum().backward()
            optimizer.step()
            annealing.step()

    whole = make()
    go(*whole, 40)
    first, second = make(), make()
    go(*first, 17)
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(old.state_dict())
    go(*second, 23)
    for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.isfinite().all()
    assert second[1].param_groups[0]["M"] == 1.5


def test_only_sparse_groups_are_annealed():
    model = nn.Linear(8, 4)
    optimizer = rewa.ReWASGD(rewa.param_groups(model, K=3, M=2), lr=0.1)
    annealing = rewa.Annealing(optimizer, 10, start=0.5, begin=0.0, end=0.5)
    assert [group["M"] for group in optimizer.param_groups] == [0.5, 0]
    for _ in range(5):
        annealing.step()
    assert [group["M"] for group in optimizer.param_groups] == [2, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "Invalid steps: 0"),
        ({"begin": 0.8}, "Invalid begin and end: 0.8, 0.7"),
        ({"end": 1.5}, "Invalid begin and end: 0.1, 1.5"),
        ({"start": -1.0}, "Invalid start: -1.0"),
    ],
)
def test_bad_values_are_named(settings, message):
    optimizer = rewa.ReWASGD(nn.Linear(3, 2).parameters(), lr=0.1, K=2, M=0)
    with pytest.raises(ValueError, match=message):
        rewa.Annealing(optimizer, **{"steps": 10, **settings})
    assert optimizer.param_groups[0]["M"] == 0


def test_a_window_of_no_length_is_a_jump():
    assert [annealed(2, share, begin=0.5, end=0.5) for share in (0.4, 0.5, 0.6)] == [0.0, 0.0, 2]
