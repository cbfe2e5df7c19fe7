"""The pool, norm and GELU in one operation: equal to torch's own in float64, and left to torch where it does not fit."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rewa.deploy.zeros import recalibrate_norms
from rewa.train import norm_gelu as module
from rewa.train.fast_net import fastnet
from rewa.train.norm_gelu import norm_gelu


@pytest.fixture(autouse=True)
def float32():
    """As networks are trained; other tests compare in float64."""
    torch.set_default_dtype(torch.float32)


def images(*shape, dtype=torch.float32, seed=0):
    x = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 1.3
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def some_norm(channels):
    norm = nn.BatchNorm2d(channels)
    generator = torch.Generator().manual_seed(3)
    nn.init.normal_(norm.weight, generator=generator)
    nn.init.normal_(norm.bias, generator=generator)
    return norm


def slow(x, norm, *, pool, residual):
    out = F.gelu(norm(F.max_pool2d(x, 2) if pool else x))
    return out if residual is None else residual + out


def is_kernel(out):
    return out.grad_fn is not None and "_NormGelu" in type(out.grad_fn).__name__


def apart(a, b):
    """The largest difference, as a share of the largest number."""
    return float((a.double() - b).detach().abs().max() / b.detach().abs().max())


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("shape", [(6, 5, 7, 6), (8, 48, 15, 15), (3, 17, 4, 4), (20, 16, 3, 2)])
def test_it_is_what_torch_makes_in_float64(dtype, near, pool, adding, shape):
    out_shape = (*shape[:2], shape[2] // 2, shape[3] // 2) if pool else shape
    x, norm = images(*shape, dtype=dtype).requires_grad_(), some_norm(shape[1])
    residual = images(*out_shape, dtype=dtype, seed=1).requires_grad_() if adding else None
    exact_norm = copy.deepcopy(norm).double()
    exact_x = x.detach().double().requires_grad_()
    exact_residual = None if residual is None else residual.detach().double().requires_grad_()

    out = norm_gelu(x, norm, pool=pool, residual=residual)
    exact = slow(exact_x, exact_norm, pool=pool, residual=exact_residual)
    assert is_kernel(out)
    assert out.dtype is dtype
    assert out.shape == out_shape
    grad = images(*out_shape, dtype=dtype, seed=2)
    out.backward(grad)
    exact.backward(grad.double())

    assert apart(out, exact) < near
    assert apart(x.grad, exact_x.grad) < near
    if adding:
        assert torch.equal(residual.grad, grad)
    # Sums over the batch are of numbers that were not rounded to bfloat16.
    for mine, its in ((norm.weight.grad, exact_norm.weight.grad), (norm.bias.grad, exact_norm.bias.grad)):
        assert apart(mine, its) < 2e-6
    assert apart(norm.running_mean, exact_norm.running_mean) < 1e-6
    assert apart(norm.running_var, exact_norm.running_var) < 1e-6
    assert int(norm.num_batches_tracked) == 1


def test_far_tails_and_a_large_mean_are_exact():
    x = torch.linspace(-40, 40, 16 * 64).view(4, 16, 4, 4).contiguous(memory_format=torch.channels_last)
    norm, exact = some_norm(16), some_norm(16).double()
    with torch.no_grad():
        norm.weight.fill_(30), exact.weight.fill_(30)
    torch.testing.assert_close(norm_gelu(x, norm).double(), F.gelu(exact(x.double())), atol=2e-4, rtol=1e-5)
    far = 1000 + images(8, 16, 4, 4)
    torch.testing.assert_close(
        norm_gelu(far, some_norm(16)).double(), F.gelu(some_norm(16).double()(far.double())), atol=1e-3, rtol=1e-3
    )


def test_equal_neighbours_give_their_gradient_to_the_first():
    x = torch.zeros(2, 16, 4, 4).contiguous(memory_format=torch.channels_last)
    x[1] = 1.0
    x.requires_grad_()
    grad = images(2, 16, 2, 2)
    norm_gelu(x, some_norm(16), pool=True).backward(grad)
    mine, x.grad = x.grad, None
    slow(x, some_norm(16), pool=True, residual=None).backward(grad)
    assert torch.equal(mine != 0, x.grad != 0)


def test_a_nan_is_not_lost():
    x = images(4, 16, 4, 4, dtype=torch.bfloat16)
    x[1, 2, 3, 3] = float("nan")
    out = norm_gelu(x, some_norm(16), pool=True)
    assert out[:, 2].isnan().all()
    assert not out[:, 3].isnan().any()


def test_threads_do_not_change_a_bit():
    def run(threads):
        torch.set_num_threads(threads)
        x, norm = images(9, 32, 6, 6).requires_grad_(), some_norm(32)
        out = norm_gelu(x, norm, pool=True)
        out.square().sum().backward()
        return out.detach(), x.grad, norm.weight.grad, norm.running_var

    before = torch.get_num_threads()
    try:
        one, three = run(1), run(3)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, one, three))


def test_what_the_kernel_cannot_do_is_torchs():
    x, norm = images(4, 16, 4, 4), some_norm(16)
    assert is_kernel(norm_gelu(x, norm))
    assert not is_kernel(norm_gelu(x.contiguous(), norm))
    assert not is_kernel(norm_gelu(x.double(), copy.deepcopy(norm).double()))
    assert not is_kernel(norm_gelu(x, copy.deepcopy(norm).eval()))
    assert not is_kernel(norm_gelu(x, nn.SyncBatchNorm(16).eval()))
    seen = []
    hooked = some_norm(16)
    hooked.register_forward_hook(lambda *call: seen.append(call))
    assert not is_kernel(norm_gelu(x, hooked))
    assert len(seen) == 1
    with pytest.raises(RuntimeError, match="must match the size"):  # by torch, not by reading what is not there
        norm_gelu(x, norm, residual=images(4, 16, 2, 4))
    with pytest.raises(RuntimeError, match="should contain 8 elements"):
        norm_gelu(images(4, 8, 4, 4), norm)
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        norm_gelu(images(1, 16, 1, 1), norm)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("adding", [False, True])
def test_evaluation_is_by_running_statistics(monkeypatch, pool, adding):
    norm = some_norm(16)
    norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
    norm.eval().requires_grad_(False)
    x, residual = images(4, 16, 6, 6), images(4, 16, 3, 3) if pool else images(4, 16, 6, 6)
    residual = residual if adding else None
    exact = slow(x, norm, pool=pool, residual=residual)
    calls = []
    kernel = module._apply
    monkeypatch.setattr(module, "_apply", lambda *args: (calls.append(1), kernel(*args)))
    with torch.no_grad():
        torch.testing.assert_close(norm_gelu(x, norm, pool=pool, residual=residual), exact)
    assert calls == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # but still used
        traced = torch.jit.trace(lambda x: norm_gelu(x, norm, pool=pool, residual=residual), x, check_trace=False)
    torch.testing.assert_close(traced(x), exact)
    assert calls == [1]


def test_norms_are_estimated_as_by_torch():
    torch.manual_seed(0)
    model = fastnet(4, width=16).to(memory_format=torch.channels_last)
    batches = [images(16, 3, 16, 16, seed=seed) for seed in range(3)]
    exact = copy.deepcopy(model).double().to(memory_format=torch.contiguous_format)
    recalibrate_norms(model, batches)
    recalibrate_norms(exact, [batch.double() for batch in batches])
    for (name, mine), its in zip(model.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(mine.double(), its.double(), atol=1e-5, rtol=1e-5, msg=name)
