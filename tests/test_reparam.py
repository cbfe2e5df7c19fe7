from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reference
import rewa
from rewa.optim import foreach as lists
from rewa.reparam import adaptive_scale, check_exponents, flush_subnormal, grown, power, to_x, to_y

orders = st.one_of(st.integers(1, 15), st.floats(1, 15))
exponents = st.one_of(st.integers(0, 12), st.floats(0, 12))
stabilizers = st.one_of(st.just(0.0), st.floats(1e-8, 10))
# Moduli whose powers stay in float64's normal range, as any network's weights do.
moduli = st.one_of(st.just(0.0), st.floats(1e-12, 1e6))
signed = st.builds(math.copysign, moduli, st.sampled_from([-1.0, 1.0]))
weights = hnp.arrays(np.float64, st.integers(1, 20), elements=signed)


@given(x=weights, K=orders)
@settings(deadline=None)
def test_to_y_and_to_x_are_inverse(x, K):
    np.testing.assert_allclose(to_x(to_y(torch.tensor(x), K), K).numpy(), x, rtol=1e-13)


@given(y=hnp.arrays(np.float64, 5, elements=st.floats(-20, 20).filter(lambda v: v == 0 or abs(v) > 1e-6)), K=orders)
@settings(deadline=None)
def test_to_x_and_to_y_are_inverse(y, K):
    np.testing.assert_allclose(to_y(to_x(torch.tensor(y), K), K).numpy(), y, rtol=1e-13)


@given(y=weights, K=orders, M=exponents, eps=stabilizers)
@settings(deadline=None)
def test_formulas_match_the_numpy_reference(y, K, M, eps):
    tensor = torch.tensor(y)
    np.testing.assert_allclose(to_x(tensor, K).numpy(), reference.to_x(y, K), rtol=1e-13)
    np.testing.assert_allclose(to_y(tensor, K).numpy(), reference.to_y(y, K), rtol=1e-13)
    np.testing.assert_allclose(adaptive_scale(tensor, K, M, eps).numpy(), reference.scale(y, K, M, eps), rtol=1e-12)


@given(y=weights, K=orders, M=exponents, eps=stabilizers)
@settings(deadline=None)
def test_scale_lies_between_zero_and_its_limit_for_no_eps(y, K, M, eps):
    tensor = torch.tensor(y)
    scale = adaptive_scale(tensor, K, M, eps)
    assert (scale >= 0).all()
    assert (scale <= adaptive_scale(tensor, K, M, 0.0)).all()


@given(y=weights, K=orders, M=exponents, eps=stabilizers)
@settings(deadline=None)
def test_sign_symmetry(y, K, M, eps):
    tensor = torch.tensor(y)
    assert torch.equal(to_x(-tensor, K), -to_x(tensor, K))
    assert torch.equal(to_y(-tensor, K), -to_y(tensor, K))
    assert torch.equal(adaptive_scale(-tensor, K, M, eps), adaptive_scale(tensor, K, M, eps))


@given(y=weights, K=orders, M=exponents, eps=stabilizers)
@settings(deadline=None)
def test_lists_of_tensors_give_the_same(y, K, M, eps):
    tensors = [torch.tensor(y), torch.tensor(y[:1])]
    for one, many in ((to_x, lists.to_x), (to_y, lists.to_y)):
        for tensor, result in zip(tensors, many(tensors, K), strict=True):
            torch.testing.assert_close(result, one(tensor, K), rtol=1e-14, atol=0)
    for tensor, result in zip(tensors, lists.adaptive_scale(tensors, K, M, eps), strict=True):
        torch.testing.assert_close(result, adaptive_scale(tensor, K, M, eps), rtol=1e-14, atol=0)


@pytest.mark.parametrize("n", [0, 0.5, 1, 2, 3, 7, 8, 63, 64, 65, 2.5])
def test_power(n):
    a = torch.tensor([0.0, 0.5, 1.0, 1.7])
    result = power(a, n)
    torch.testing.assert_close(result, a**n, rtol=1e-13, atol=0)
    for tensor in lists.power([a], n):
        torch.testing.assert_close(tensor, a**n, rtol=1e-13, atol=0)
        assert tensor.data_ptr() != a.data_ptr()


@pytest.mark.parametrize("n", [-1, -0.5])
def test_negative_powers_are_refused(n):
    with pytest.raises(ValueError, match=rf"^Invalid n: {n} \(allowed: a number >= 0\)$"):
        power(torch.ones(2), n)


def test_scale_at_zero():
    zero = torch.zeros(1)
    assert adaptive_scale(zero, K=9, M=0, eps=0.0) == 1
    assert adaptive_scale(zero, K=9, M=2, eps=0.0) == 0
    assert adaptive_scale(zero, K=9, M=0, eps=1e-3) == 0
    assert adaptive_scale(zero, K=1, M=0, eps=1.0) == 0.5


def test_product_rule_is_the_scale_for_M_of_K_less_1():
    y = torch.tensor([-1.3, 0.2, 0.9], requires_grad=True)
    (derivative,) = torch.autograd.grad(to_x(y, 5).sum(), y)
    torch.testing.assert_close(derivative, 5 * adaptive_scale(y, K=5, M=4))  # true derivative, with its factor K


def test_maps_are_differentiable():
    x = torch.tensor([-1.3, 0.2, 0.9], requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: to_y(t, 9), x)
    assert torch.autograd.gradcheck(lambda t: to_x(t, 2.5), x)
    assert torch.autograd.gradcheck(lambda t: adaptive_scale(t, 3, 2, 1e-2), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flush_leaves_no_subnormal(dtype):
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([tiny / 2, -tiny / 4, 2 * tiny, -1.0, float("nan"), float("inf")], dtype=dtype)
    expected = torch.tensor([0, 0, 2 * tiny, -1.0, float("nan"), float("inf")], dtype=dtype)
    torch.testing.assert_close(flush_subnormal(x), expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(lists.to_x([x], 1)[0][:4], expected[:4], rtol=0, atol=0)


@pytest.mark.parametrize(
    "bad", [{"K": 0.99}, {"K": math.inf}, {"K": math.nan}, {"M": -1}, {"eps": -1e-9}, {"K": "9"}, {"eps": math.nan}]
)
def test_bad_exponents_name_value_and_range(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=rf"Invalid {name} value: {value!r} \(allowed: a finite number >= [01]"):
        check_exponents(**{"K": 9, "M": 2, "eps": 0.0, **bad})


@pytest.mark.parametrize("M", [0.5, 1.0, 1.5])
def test_grown_without_a_floor_is_algorithm_1_exactly(M):
    """ReWA with K = 1, matched to the optimizer at one size: the same numbers, bit for bit, for the optimizer SGD."""
    weight = nn.Parameter(torch.randn(7, 5))
    x, size, lr = weight.detach().clone(), 0.3, 0.05
    optimizer = rewa.ReWASGD([weight], lr=lr, K=1, M=M, weight_decay=0.0, match=size, fused=False, foreach=False)
    for _ in range(20):
        weight.grad = torch.randn(7, 5)
        optimizer.step()
        x = grown(x, -lr * weight.grad, size=size, M=M, floor=0.0)
        torch.testing.assert_close(x, weight.detach(), rtol=1e-14, atol=0)


def test_grown_is_the_formula():
    x, move = np.random.default_rng(0).standard_normal((2, 50))
    for size, growth, M, most, floor in ((0.5, 1.0, 1.0, np.inf, 1.0), (0.1, 0.3, 0.75, 2.0, 1.0), (2.0, 3.0, 1.5, 0.5, 0.2)):
        expected = [a + (floor + min(growth * (abs(a) / size) ** M, most)) * d for a, d in zip(x, move, strict=True)]
        got = grown(torch.tensor(x), torch.tensor(move), size=size, growth=growth, M=M, most=most, floor=floor)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13)
