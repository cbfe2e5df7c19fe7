from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import reference
import rewa
from problems import IMPLEMENTATIONS, log_shrinkage, race, random_problem, run, run_parametrized

EXPONENTS = [(9, 2, 0.0), (3, 2, 1e-3), (2, 1, 0.0), (5, 0, 0.0), (1, 0, 0.0), (2.5, 0.5, 0.0), (7, 1.5, 1e-5)]
VARIANTS = [{}, {"amsgrad": True}, {"betas": (0.5, 0.9), "adam_eps": 1e-3}]
DECAYS = [0.0, 0.1]


# torch's own AdamW, to which K = 1 reduces, allows capturable on accelerators only.
@pytest.mark.parametrize(
    ("K", "M", "eps", "implementation"),
    [(*e, i) for e in EXPONENTS for i in [*IMPLEMENTATIONS, "capturable"] if not (e[0] == 1 and i == "capturable")],
)
def test_100_steps_equal_the_reference(K, M, eps, implementation):
    x, grads = random_problem(100)
    flags = IMPLEMENTATIONS.get(implementation, {"capturable": True, "fused": False})
    for variant, weight_decay in itertools.product(VARIANTS, DECAYS):
        setting = {"lr": 0.002, "K": K, "M": M, "eps": eps, "weight_decay": weight_decay, **variant}
        result = run(lambda params: rewa.ReWAAdamW(params, **setting, **flags), x, grads)
        np.testing.assert_allclose(
            result, reference.algorithm_2(x, grads, **setting), rtol=1e-9, atol=1e-12, err_msg=str(setting)
        )


@pytest.mark.parametrize(("K", "M", "eps"), EXPONENTS)
def test_attached_and_parametrized_adamw_equal_the_reference(K, M, eps):
    x, grads = random_problem(100)
    for weight_decay, amsgrad in itertools.product(DECAYS, (False, True)):
        setting = {"lr": 0.002, "weight_decay": weight_decay, "amsgrad": amsgrad}
        expected = reference.algorithm_2(x, grads, K=K, M=M, eps=eps, **setting)

        def make(params):
            return torch.optim.AdamW(params, **setting)

        attached = run(lambda params: rewa.attach(make(params), K=K, M=M, eps=eps), x, grads)
        np.testing.assert_allclose(attached, expected, rtol=1e-9, atol=1e-12)
        parametrized = run_parametrized(make, x, grads, form="tied", K=K, M=M, eps=eps)
        np.testing.assert_allclose(parametrized, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "default"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_K_1_M_0_is_exactly_torch_adamw(amsgrad, implementation, dtype):
    setting = {"lr": 0.01, "weight_decay": 0.05, "amsgrad": amsgrad, **IMPLEMENTATIONS.get(implementation, {})}
    ours, theirs = race(
        lambda params: rewa.ReWAAdamW(params, K=1, M=0, **setting),
        lambda params: torch.optim.AdamW(params, **setting),
        dtype=dtype,
    )
    assert torch.equal(ours, theirs)


def test_adam_cancels_a_scale_that_does_not_change():
    # One step from equal state: with M = 0 and M = 4 the very first move of y is the same up to adam_eps.
    moves = []
    for M in (0, 4):
        param = torch.nn.Parameter(torch.tensor([0.2, -0.7]))
        optimizer = rewa.ReWAAdamW([param], lr=1e-4, K=9, M=M, weight_decay=0.0, adam_eps=0.0)
        param.grad = torch.tensor([1.0, -3.0])
        optimizer.step()
        moves.append(param.detach())
    torch.testing.assert_close(*moves, rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_float32_decays_at_the_right_rate(amsgrad, implementation):
    x, orders = np.geomspace(1e-6, 1e-1, 101), (2, 3, 4, 5, 9, 2.5)
    setting = {"lr": 1e-3, "weight_decay": 1e-2, "amsgrad": amsgrad, **IMPLEMENTATIONS[implementation]}
    rates = log_shrinkage(lambda groups: rewa.ReWAAdamW(groups, **setting), orders, x, [np.zeros_like(x)] * 6, steps=1000)
    for K, rate in zip(orders, rates, strict=True):
        np.testing.assert_allclose(rate, 1000 * K * np.log1p(-1e-5), rtol=0.01, err_msg=f"K={K}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_stabilizer_that_rounds_to_zero_leaves_zeros_alone(implementation):
    for eps in ({"eps": 1e-46, "adam_eps": 1e-8}, {"adam_eps": 0.0}, {"adam_eps": 1e-46}):
        param = torch.nn.Parameter(torch.tensor([0.0, 0.5], dtype=torch.float32))
        optimizer = rewa.ReWAAdamW([param], lr=0.01, K=3, **eps, **IMPLEMENTATIONS[implementation])
        param.grad = torch.ones(2, dtype=torch.float32)
        optimizer.step()
        assert param[0] == 0
        assert param[1] < 0.5


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        ({"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
        ({"adam_eps": -1}, "Invalid adam_eps value: -1"),
        ({"lr": torch.tensor(0.1), "foreach": True}, "lr as a Tensor is not supported"),
        ({"weight_decay": -1}, "Invalid weight_decay value: -1"),
        ({"K": 0}, "Invalid K value: 0"),
    ],
)
def test_bad_values_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        rewa.ReWAAdamW([torch.nn.Parameter(torch.ones(2))], **bad)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("K", "M", "eps"), [(2, 1, 0.0), (9, 2, 0.0), (2.5, 0.5, 1e-3)])
def test_a_matched_step_is_another_rate_with_the_same_decay(K, M, eps, implementation):
    x, grads = random_problem(50)
    step = K * 0.03 ** (1 - 1 / K)
    setting = {"lr": 1e-3, "K": K, "M": M, "eps": eps, "weight_decay": 0.1}
    result = run(lambda params: rewa.ReWAAdamW(params, match=0.03, **setting, **IMPLEMENTATIONS[implementation]), x, grads)
    expected = reference.algorithm_2(x, grads, **{**setting, "lr": 1e-3 / step, "weight_decay": 0.1 * step})
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


def test_a_matched_weight_moves_as_under_adamw():
    """To first order in the rate, whatever K is."""
    for K in (1.5, 2, 9):
        params = [torch.nn.Parameter(torch.full((3,), 0.05)) for _ in range(2)]
        optimizers = [
            rewa.ReWAAdamW(params[:1], lr=1e-7, K=K, M=1, weight_decay=0.0, match=0.05),
            torch.optim.AdamW(params[1:], lr=1e-7, weight_decay=0.0),
        ]
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = torch.tensor([1.0, -2.0, 0.5])
            optimizer.step()
        ours, theirs = (param.detach() - 0.05 for param in params)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)
