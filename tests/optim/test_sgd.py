from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import rewa
from problems import IMPLEMENTATIONS, log_shrinkage, race, random_problem, run, run_parametrized

EXPONENTS = [
    (9, 2, 0.0),
    (3, 2, 1e-3),
    (9, 4, 0.0),
    (2, 1, 0.0),
    (4, 3, 1e-2),
    (5, 0, 0.0),
    (1, 0, 0.0),
    (1, 1, 0.5),
    (2.5, 0.5, 0.0),
    (7, 1.5, 1e-5),
]
MOMENTA = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.875, "decoupled": True},
    {"momentum": 0.9, "nesterov": True, "decoupled": True},
]
DECAYS = [0.0, 0.05]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("K", "M", "eps"), EXPONENTS)
def test_100_steps_equal_the_reference(K, M, eps, implementation):
    x, grads = random_problem(100)
    for momenta, weight_decay in itertools.product(MOMENTA, DECAYS):
        setting = {"lr": 0.005, "K": K, "M": M, "eps": eps, "weight_decay": weight_decay, **momenta}
        result = run(lambda params: rewa.ReWASGD(params, **setting, **IMPLEMENTATIONS[implementation]), x, grads)
        np.testing.assert_allclose(
            result, reference.algorithm_1(x, grads, **setting), rtol=1e-9, atol=1e-12, err_msg=str(setting)
        )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("K", "M", "eps"), EXPONENTS)
def test_a_matched_step_is_that_of_sgd_at_the_modulus(K, M, eps, implementation):
    """At |x| = match and with a small rate, x moves by lr times the gradient, and decays as without match."""
    x = torch.tensor([0.05, -0.05])
    grads = np.array([[1.0, 0.5]])
    setting = {"lr": 1e-7, "K": K, "M": M, "eps": eps, "momentum": 0.5, **IMPLEMENTATIONS[implementation]}
    moved = run(lambda params: rewa.ReWASGD(params, match=0.05, weight_decay=0.0, **setting), x.numpy(), grads) - x.numpy()
    np.testing.assert_allclose(moved, -1e-7 * grads[0], rtol=1e-4)
    decayed = [
        run(lambda params, match=match: rewa.ReWASGD(params, match=match, weight_decay=0.1, **setting), x.numpy(), 0 * grads)
        for match in (0.0, 0.05)
    ]
    np.testing.assert_array_equal(*decayed)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_matched_steps_equal_the_reference_with_a_scaled_gradient(implementation):
    x, grads = random_problem(100)
    setting = {"lr": 0.005, "K": 3, "M": 1.5, "eps": 1e-3, "weight_decay": 0.05, "momentum": 0.9}
    u = 0.2 ** (1 / 3)
    factor = 3 * u**2 * u**1.5 * u**2 / (u**2 + 1e-3)
    result = run(lambda params: rewa.ReWASGD(params, match=0.2, **setting, **IMPLEMENTATIONS[implementation]), x, grads)
    np.testing.assert_allclose(
        result, reference.algorithm_1(x, [grad / factor for grad in grads], **setting), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(("K", "M", "eps"), EXPONENTS)
def test_attached_sgd_equals_the_reference(K, M, eps, foreach):
    x, grads = random_problem(100)
    for momenta, weight_decay in itertools.product(MOMENTA[:3], DECAYS):
        setting = {"lr": 0.005, "weight_decay": weight_decay, **momenta}

        def make(params):
            return rewa.attach(torch.optim.SGD(params, foreach=foreach, **setting), K=K, M=M, eps=eps)

        expected = reference.algorithm_1(x, grads, K=K, M=M, eps=eps, **setting)
        np.testing.assert_allclose(run(make, x, grads), expected, rtol=1e-9, atol=1e-12, err_msg=str(setting))


@pytest.mark.parametrize(("K", "M", "eps"), EXPONENTS)
def test_parametrized_sgd_equals_the_reference(K, M, eps):
    x, grads = random_problem(100)
    for momenta, weight_decay in itertools.product(MOMENTA[:3], DECAYS):
        setting = {"lr": 0.005, "weight_decay": weight_decay, **momenta}
        result = run_parametrized(lambda params: torch.optim.SGD(params, **setting), x, grads, form="tied", K=K, M=M, eps=eps)
        expected = reference.algorithm_1(x, grads, K=K, M=M, eps=eps, **setting)
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12, err_msg=str(setting))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("momenta", MOMENTA[:3])
def test_K_1_M_0_is_exactly_torch_sgd(momenta, implementation, dtype):
    setting = {"lr": 0.01, "weight_decay": 0.05, **momenta, **IMPLEMENTATIONS[implementation]}
    torch_setting = dict(setting)
    if dtype == torch.bfloat16 and implementation == "fused":
        torch_setting["fused"] = False  # torch's kernel is broken here (pytorch issue 191763): we use its loop
    ours, theirs = race(
        lambda params: rewa.ReWASGD(params, K=1, M=0, **setting),
        lambda params: torch.optim.SGD(params, **torch_setting),
        dtype=dtype,
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("momenta", MOMENTA[:3])
def test_K_1_M_0_has_the_bits_of_torch_sgd_by_default(momenta, dtype):
    setting = {"lr": 0.01, "weight_decay": 0.05, **momenta}
    ours, theirs = race(
        lambda params: rewa.ReWASGD(params, K=1, M=0, **setting), lambda params: torch.optim.SGD(params, **setting), dtype=dtype
    )
    assert torch.equal(ours, theirs)


def test_M_of_K_less_1_is_gradient_descent_on_y():
    # Through autograd the derivative of y^K brings a factor K, which the learning rate takes up.
    x, K, lr = torch.tensor([0.5, -0.3, 0.9]), 5, 0.01
    y = (x.sign() * x.abs() ** (1 / K)).requires_grad_()
    param = torch.nn.Parameter(x.clone())
    optimizer = rewa.ReWASGD([param], lr=lr, K=K, M=K - 1, weight_decay=0.0)
    for _ in range(50):
        optimizer.zero_grad()
        ((param - 1) ** 2).sum().backward()
        optimizer.step()
        (gradient,) = torch.autograd.grad((((y**K) - 1) ** 2).sum(), y)
        y = (y - lr / K * gradient).detach().requires_grad_()
    torch.testing.assert_close(param.detach(), (y**K).detach(), rtol=1e-11, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("K", "M", "eps"), [(9, 2, 0.0), (3, 1.5, 1e-2), (4, 3, 0.0)])
def test_converges_to_a_stationary_point_of_the_penalized_loss(K, M, eps, implementation):
    # f(x) = |x - c|^2 / 2 by coordinates. Stationary in y: scale(y) (x - c) + lambda y = 0, with y = 0 or a root.
    target = torch.tensor([2.0, -1.5, 0.7, 0.02, 0.0])
    lam = 0.05
    param = torch.nn.Parameter(torch.tensor([1.0, -1.0, 0.5, 0.3, 0.2]))
    optimizer = rewa.ReWASGD([param], lr=0.06, K=K, M=M, eps=eps, weight_decay=lam, **IMPLEMENTATIONS[implementation])
    for _ in range(6000):
        param.grad = param.detach() - target
        optimizer.step()
    x = param.detach()
    y = x.sign() * x.abs() ** (1 / K)
    scale = y.abs() ** M * (y.abs() ** (K - 1) / (y.abs() ** (K - 1) + eps) if eps else 1)
    assert (scale * (x - target) + lam * y).abs().max() < 1e-6
    assert (x[:3] * target[:3] > 0).all()  # what the data support survives
    assert (x[3:].abs() < 1e-3).all()  # what they do not is gone


@pytest.mark.parametrize("implementation", ["loop", "foreach"])
@given(
    x=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5),
    K=st.one_of(st.integers(1, 13), st.floats(1, 13)),
    M=st.floats(0.0, 6.0),
    shrink=st.floats(0.0, 0.5),
    momentum=st.sampled_from([0.0, 0.5]),
    decoupled=st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_decay_without_gradient_is_monotone(implementation, x, K, M, shrink, momentum, decoupled):
    """Without a gradient |x| never grows (no momentum), never changes sign then, and shrinks by (1 - lr lambda)^K a step."""
    start = torch.tensor(x) * torch.tensor([(-1.0) ** i for i in range(len(x))])
    param = torch.nn.Parameter(start.clone())
    setting = {"K": K, "M": M, "weight_decay": shrink / 0.1, "momentum": momentum, "decoupled": decoupled}
    optimizer = rewa.ReWASGD([param], lr=0.1, **setting, **IMPLEMENTATIONS[implementation])
    previous = start.abs()
    for _ in range(5):
        param.grad = torch.zeros(len(x))
        optimizer.step()
        if momentum == 0 or decoupled:
            assert (param.detach().abs() <= previous).all()
            assert (param.detach() * start >= 0).all()
        previous = param.detach().abs()
    if momentum == 0 or decoupled:
        torch.testing.assert_close(param.detach(), start * (1 - shrink) ** (5 * K), rtol=1e-10, atol=0)


def test_fused_decay_without_gradient_is_exact():
    for K, lam in itertools.product((1, 3, 9, 2.5), (0.0, 0.5)):
        param = torch.nn.Parameter(torch.tensor([0.5, -0.1, 1e-3]))
        start = param.detach().clone()
        optimizer = rewa.ReWASGD([param], lr=0.1, K=K, M=2, weight_decay=lam, fused=True)
        for _ in range(20):
            param.grad = torch.zeros(3)
            optimizer.step()
        torch.testing.assert_close(param.detach(), start * (1 - 0.1 * lam) ** (20 * K), rtol=1e-12, atol=0)


def test_coupled_decay_is_harder_by_the_momentum():
    # In the long run coupled decay shrinks y at the rate lambda / (1 - momentum), decoupled decay at lambda.
    rates = {}
    for decoupled in (False, True):
        param = torch.nn.Parameter(torch.ones(1))
        optimizer = rewa.ReWASGD([param], lr=1e-3, K=3, weight_decay=0.1, momentum=0.875, decoupled=decoupled)
        for _ in range(3000):
            param.grad = torch.zeros(1)
            optimizer.step()
        rates[decoupled] = -param.detach().log().item()
    assert rates[False] / rates[True] == pytest.approx(8, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float32_stays_near_float64_over_many_steps(implementation):
    # y is taken from x anew at every step: rounding must not add up to a drift.
    rng = np.random.default_rng(0)
    results = []
    for dtype in (torch.float64, torch.float32):
        param = torch.nn.Parameter(torch.linspace(0.01, 0.5, 64, dtype=dtype))
        setting = {"lr": 0.1, "K": 9, "M": 2, "weight_decay": 1e-4, "momentum": 0.9}
        optimizer = rewa.ReWASGD([param], **setting, **IMPLEMENTATIONS[implementation])
        rng = np.random.default_rng(0)
        for _ in range(5000):
            param.grad = torch.tensor(0.01 * rng.standard_normal(64)).to(dtype)
            optimizer.step()
        results.append(param.detach().double())
    torch.testing.assert_close(results[1], results[0], rtol=2e-3, atol=1e-9)


ORDERS = (2, 3, 4, 5, 9, 2.5)
MAGNITUDES = np.geomspace(1e-6, 1e-1, 101) * (-1.0) ** np.arange(101)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("push", [0.0, -0.5], ids=["no gradient", "tiny gradient"])
@pytest.mark.parametrize("momenta", [{}, {"momentum": 0.9}, {"decoupled": True}, {"momentum": 0.9, "decoupled": True}], ids=str)
def test_float32_decays_at_the_right_rate(momenta, push, implementation):
    """Within 1 % for each weight, where a step changes it by two hundred ulps and y by a hundred."""
    setting = {"lr": 0.1, "M": 2, "eps": 0.0, "weight_decay": 1e-4, **momenta}
    x = MAGNITUDES.astype(np.float32).astype(np.float64)
    roots = [reference.to_y(x, K) for K in ORDERS]
    grads = [
        (push * setting["weight_decay"] / y).astype(np.float32).astype(np.float64) for y in roots
    ]  # |y|^2 g is half the decay
    flags = IMPLEMENTATIONS[implementation]
    actual = log_shrinkage(lambda groups: rewa.ReWASGD(groups, **setting, **flags), ORDERS, x, grads, steps=1000)
    for K, grad, rate in zip(ORDERS, grads, actual, strict=True):
        expected = np.log(reference.algorithm_1(x, [grad] * 1000, K=K, **setting) / x)
        np.testing.assert_allclose(rate, expected, rtol=0.01, err_msg=f"K={K}")


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_decay_of_the_defaults_over_10_000_steps(implementation):
    """lr * weight_decay is 1e-7, a step 8 to 15 ulps: as exact as float32 can be if every step is rounded once."""
    x = np.geomspace(1e-6, 1e-1, 1001).astype(np.float32)
    (rate,) = log_shrinkage(
        lambda groups: rewa.ReWASGD(groups, **IMPLEMENTATIONS[implementation]), (9,), x, [0 * x], steps=10_000
    )
    ideal = x
    for _ in range(10_000):
        ideal = (ideal.astype(np.float64) * (1 - 1e-7) ** 9).astype(np.float32)
    np.testing.assert_allclose(rate, np.log(ideal.astype(np.float64) / x), rtol=2e-3)
    assert rate.mean() == pytest.approx(9 * 10_000 * np.log1p(-1e-7), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_low_precision_decays_at_the_right_rate(implementation, dtype):
    x, orders = np.geomspace(1e-3, 1e-1, 101), (3, 9, 2.5)
    for decoupled in (False, True):
        setting = {"lr": 0.1, "weight_decay": 1e-4, "decoupled": decoupled, **IMPLEMENTATIONS[implementation]}
        rates = log_shrinkage(lambda groups: rewa.ReWASGD(groups, **setting), orders, x, [0 * x] * 3, steps=1000, dtype=dtype)
        for K, rate in zip(orders, rates, strict=True):
            np.testing.assert_allclose(rate, 1000 * K * np.log1p(-1e-5), rtol=0.01, err_msg=f"K={K}")


def test_attached_sgd_decays_at_the_right_rate():
    """To the rounding of torch's SGD, which steps y."""

    def make(groups):
        return rewa.attach(torch.optim.SGD(groups[0]["params"], lr=0.1, weight_decay=1e-4), K=3, M=2)

    x = np.geomspace(1e-6, 1e-1, 101)
    (rate,) = log_shrinkage(make, (3,), x, [0 * x], steps=1000)
    np.testing.assert_allclose(rate, 1000 * 3 * np.log1p(-1e-5), rtol=0.01)


@pytest.mark.slow
def test_the_compiled_step_decays_at_the_right_rate():
    def make(groups):
        optimizer = rewa.ReWASGD(groups, lr=0.1, weight_decay=1e-4)
        optimizer.step = torch.compile(optimizer.step)
        return optimizer

    x = np.geomspace(1e-6, 1e-1, 101)
    (rate,) = log_shrinkage(make, (3,), x, [0 * x], steps=1000)
    np.testing.assert_allclose(rate, 1000 * 3 * np.log1p(-1e-5), rtol=0.01)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_eps_that_rounds_to_zero_leaves_zeros_alone(dtype, implementation):
    eps = 1e-46 if dtype != torch.float64 else 1e-324
    param = torch.nn.Parameter(torch.tensor([0.0, 0.5, -0.5], dtype=dtype))
    optimizer = rewa.ReWASGD([param], lr=0.1, K=3, M=2, eps=eps, **IMPLEMENTATIONS[implementation])
    param.grad = torch.ones(3, dtype=dtype)
    optimizer.step()
    assert param[0] == 0
    assert (param[1:] < torch.tensor([0.5, -0.5], dtype=dtype)).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"lr": -0.1}, "Invalid learning rate: -0.1"),
        ({"lr": float("nan")}, "Invalid learning rate: nan"),
        ({"lr": torch.ones(2)}, "Tensor lr must be 1-element"),
        ({"K": 0.5}, r"Invalid K value: 0.5 \(allowed: a finite number >= 1"),
        ({"M": -1}, r"Invalid M value: -1 \(allowed: a finite number >= 0"),
        ({"eps": -1e-3}, r"Invalid eps value: -0.001"),
        ({"weight_decay": -1}, "Invalid weight_decay value: -1"),
        ({"weight_decay": float("nan")}, "Invalid weight_decay value: nan"),
        ({"momentum": -0.1}, "Invalid momentum value: -0.1"),
        ({"nesterov": True}, "Nesterov momentum requires a momentum"),
    ],
)
def test_bad_values_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        rewa.ReWASGD([torch.nn.Parameter(torch.ones(2))], **{"lr": 0.1, **bad})
