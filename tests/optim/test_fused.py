"""The compiled step beyond what the common tests show: its root, its many tensors, its cache and its absence."""

from __future__ import annotations

import stat
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import rewa
from rewa import native
from rewa.optim import fused


@pytest.mark.parametrize("K", [2, 3, 4, 5, 7, 8, 9, 13, 31, 64])
@pytest.mark.parametrize(("dtype", "low", "tolerance"), [(torch.float32, -37, 4e-7), (torch.float64, -300, 1e-14)])
def test_root_is_accurate_over_the_whole_range(K, dtype, low, tolerance):
    # With coupled decay 1, no gradient and lr 0 the momentum buffer holds y itself.
    tiny = torch.finfo(dtype).tiny
    x = torch.cat([torch.logspace(low, 4, 20_001).to(dtype), torch.tensor([tiny], dtype=dtype)])
    param = nn.Parameter(torch.cat([x, -x, torch.zeros(1, dtype=dtype)]))
    optimizer = rewa.ReWASGD([param], lr=0.0, K=K, M=0, weight_decay=1.0, momentum=0.5, fused=True)
    param.grad = torch.zeros_like(param)
    before = param.detach().clone()
    optimizer.step()
    y = optimizer.state[param]["momentum_buffer"].numpy()
    exact = np.sign(before.numpy()) * np.abs(before.numpy().astype(np.longdouble)) ** (np.longdouble(1) / K)
    np.testing.assert_allclose(y, exact.astype(np.float64), rtol=tolerance)
    assert torch.equal(param, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_subnormal_weights_are_flushed_by_the_first_decay(dtype):
    tiny = torch.finfo(dtype).tiny
    param = nn.Parameter(torch.tensor([tiny / 2, -tiny / 1000, tiny * torch.finfo(dtype).eps, 0.5], dtype=dtype))
    optimizer = rewa.ReWASGD([param], lr=0.1, weight_decay=0.1, fused=True)
    param.grad = torch.zeros_like(param)
    optimizer.step()
    assert torch.equal(param[:3] != 0, torch.tensor([False] * 3))
    assert param[3] != 0


@pytest.mark.parametrize("threads", [1, 2])
def test_many_tensors_of_all_sizes_at_once(threads):
    torch.set_num_threads(threads)
    sizes = [1, 2, 15, 16, 17, 8191, 8192, 8193, 30_000, 3]
    loop, kernel = ([nn.Parameter(torch.linspace(-1, 1, size + 1)[:-1].clone()) for size in sizes] for _ in range(2))
    optimizers = rewa.ReWASGD(loop, lr=0.1, momentum=0.9, fused=False), rewa.ReWASGD(kernel, lr=0.1, momentum=0.9, fused=True)
    for _ in range(3):
        for a, b in zip(loop, kernel, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.set_num_threads(1)
    for a, b in zip(loop, kernel, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-15)


def test_nan_and_infinity_pass_through():
    param = nn.Parameter(torch.tensor([1.0, float("nan"), 1.0]))
    optimizer = rewa.ReWASGD([param], lr=0.1, fused=True)
    param.grad = torch.tensor([float("inf"), 1.0, 0.0])
    optimizer.step()
    assert param.detach()[0].isinf()
    assert param.detach()[1].isnan()
    assert param.detach()[2].isfinite()


def test_state_in_another_dtype_or_layout_is_left_to_the_loop():
    """The kernel is handed addresses: whatever it would misread must not reach it."""
    weights = torch.linspace(-1, 1, 48).reshape(2, 3, 4, 2)
    for change in (
        lambda state: {"momentum_buffer": state["momentum_buffer"].to(torch.float32)},
        lambda state: {"momentum_buffer": state["momentum_buffer"].to(memory_format=torch.channels_last)},
    ):
        params = [nn.Parameter(weights.clone()) for _ in range(2)]
        optimizers = [rewa.ReWASGD([p], lr=0.1, momentum=0.9, fused=f) for p, f in zip(params, (True, False), strict=True)]
        for _ in range(3):
            for param, optimizer in zip(params, optimizers, strict=True):
                param.grad = torch.ones_like(param)
                optimizer.step()
                optimizer.state[param].update(change(optimizer.state[param]))
        torch.testing.assert_close(params[0], params[1], rtol=1e-6, atol=0)


def test_low_precision_needs_its_float32_copy():
    param = nn.Parameter(torch.linspace(-1, 1, 10, dtype=torch.bfloat16))
    optimizer = rewa.ReWASGD([param], lr=0.1, K=1, M=0, momentum=0.9, decoupled=True, fused=True)
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert optimizer.state[param]["y"].dtype == torch.float32
    assert (param < torch.linspace(-1, 1, 10)).all()
    del optimizer.state[param]["y"]
    kept = {"x": [param.detach()], "grad": [param.grad], "buffer": [optimizer.state[param]["momentum_buffer"]]}
    pending = {}
    assert fused.take(optimizer.param_groups[0], kept, 1.0, pending) == kept
    assert not pending


def test_a_replaced_weight_is_not_stepped_with_the_old_state():
    """Another dtype or length through .data: the loop or an error, never memory that is not ours."""
    for data in (torch.ones(100, dtype=torch.float64), torch.ones(100, dtype=torch.bfloat16)):
        param = nn.Parameter(torch.ones(100, dtype=torch.float32))
        optimizer = rewa.ReWASGD([param], lr=0.1, momentum=0.9, fused=True)
        param.grad = torch.ones_like(param)
        optimizer.step()
        param.grad = None
        param.data = data
        param.grad = torch.ones_like(param)
        optimizer.step()
        assert (param.detach() < 1).all()
    param.grad = None
    param.data = torch.ones(200, dtype=torch.bfloat16)
    param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match="size of tensor"):
        optimizer.step()


def test_gradients_whose_memory_is_not_their_value():
    """A negative view and a tensor subclass must not be read through their address."""
    results = []
    for kernel in (True, False):
        param = nn.Parameter(torch.ones(3))
        param.grad = torch._neg_view(torch.ones(3))
        rewa.ReWASGD([param], lr=0.1, fused=kernel).step()
        results.append(param.detach())
    torch.testing.assert_close(*results)
    assert (results[0] > 1).all()

    class Wrapped(torch.Tensor):
        pass

    x, coarse = torch.ones(3), torch.ones(3).to(torch.float8_e4m3fn)
    assert fused.fits(["x", "grad"], [x, x])
    assert not fused.fits(["x", "grad"], [x, torch.ones(3).as_subclass(Wrapped)])
    assert not fused.fits(["x", "grad"], [coarse, coarse])


def test_a_compiler_with_arguments(no_kernels, monkeypatch):
    monkeypatch.setenv("CXX", "g++ -Wall")
    step_once()
    assert list(no_kernels.glob("*.so"))


def test_a_second_backward_after_the_step_is_refused():
    param = nn.Parameter(torch.ones(3))
    optimizer = rewa.ReWASGD([param], lr=0.1, fused=True)
    loss = param.square().sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.fixture
def no_kernels(monkeypatch, tmp_path):
    """A process that has compiled nothing yet, with a cache of its own."""
    monkeypatch.setenv("REWA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_warned", set())
    for function in (fused._kernel, native._cache):
        function.cache_clear()
    yield tmp_path / "cache"
    for function in (fused._kernel, native._cache):
        function.cache_clear()


def step_once(**kwargs):
    param = nn.Parameter(torch.linspace(0.1, 1, 10))
    optimizer = rewa.ReWASGD([param], **{"lr": 0.1, "fused": True, **kwargs})
    param.grad = torch.ones(10)
    optimizer.step()
    return param.detach()


def test_without_a_compiler_one_warning_and_the_loop(no_kernels, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.warns(RuntimeWarning, match=r"could not be compiled.*no C\+\+ compiler was found"):
        result = step_once(fused=None)
    step_once(K=3)  # another setting, no second warning (it would be an error here)
    assert torch.equal(result, step_once(fused=False))


def test_a_compiler_that_fails_is_quoted(no_kernels, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.warns(RuntimeWarning, match="no such option"):
        step_once()


def test_kernels_are_kept_on_disk_in_a_private_directory(no_kernels):
    step_once()
    (library,) = no_kernels.glob("*.so")
    assert stat.S_IMODE(no_kernels.stat().st_mode) == 0o700
    written = library.stat().st_mtime_ns
    fused._kernel.cache_clear()
    step_once()
    assert library.stat().st_mtime_ns == written
    assert list(no_kernels.iterdir()) == [library]  # no scratch left behind


def test_a_cache_that_others_can_write_to_is_not_used(no_kernels):
    no_kernels.mkdir()
    no_kernels.chmod(0o777)
    step_once()
    assert list(no_kernels.iterdir()) == []


def test_an_unwritable_place_for_the_cache_does_not_matter(no_kernels, monkeypatch):
    no_kernels.write_text("a file, not a directory")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_once()
    assert Path(no_kernels).is_file()


def test_the_kernel_is_the_default(no_kernels):
    assert torch.equal(step_once(fused=None), step_once(fused=True))
    assert len(list(no_kernels.glob("*.so"))) == 1


def test_a_grad_scaler_unscales_for_the_default_itself():
    """It hands its scale over only to those who asked for fused=True, as with torch's optimizers."""
    results = []
    for flags in ({}, {"fused": True}, {"fused": False}):
        param = nn.Parameter(torch.linspace(0.1, 1, 10))
        optimizer = rewa.ReWASGD([param], lr=0.1, **flags)
        assert optimizer._step_supports_amp_scaling is bool(flags.get("fused"))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(param.square().sum()).backward()
        scaler.step(optimizer)
        results.append(param.detach())
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])
    assert not torch.equal(results[0], torch.linspace(0.1, 1, 10))


def test_no_compiler_runs_where_no_kernel_is_used(no_kernels):
    step_once(fused=False)
    step_once(foreach=True, fused=None)
    step_once(foreach=False, fused=None)
    weight = torch.ones(3, requires_grad=True)
    copied = weight.clone()
    copied.grad = torch.ones(3)
    rewa.ReWASGD([copied], differentiable=True).step()
    assert torch.autograd.grad(copied.sum(), weight)[0].isfinite().all()
    param = nn.Parameter(torch.ones(3, device="meta"))
    param.grad = torch.ones(3, device="meta")
    for K, M in ((9, 2), (1, 0)):
        rewa.ReWASGD([param], K=K, M=M).step()
        rewa.ReWAAdamW([param], K=K, M=M).step()
    assert not no_kernels.exists()


@pytest.mark.parametrize("make", [rewa.ReWASGD, rewa.ReWAAdamW])
def test_one_launch_steps_all_groups_that_share_a_kernel(make, monkeypatch):
    """Groups that differ in numbers only, each as if it were alone."""
    numbers = [{"lr": 0.1 * index, "weight_decay": 0.01 * index, "K": 2.5 + index} for index in range(1, 5)]
    if make is rewa.ReWASGD:
        numbers = [{**number, "match": 0.1 * index} for index, number in enumerate(numbers, 1)]
    together, alone = ([nn.Parameter(torch.linspace(-1, 1, 10)) for _ in numbers] for _ in range(2))
    optimizer = make([{"params": [param], **number} for param, number in zip(together, numbers, strict=True)])
    singles = [make([param], **number) for param, number in zip(alone, numbers, strict=True)]
    launched = []
    launch = fused.launch
    monkeypatch.setattr(
        sys.modules[make.__module__], "launch", lambda pending: (launched.append(len(pending)), launch(pending))
    )
    for _ in range(3):
        for param in (*together, *alone):
            param.grad = torch.linspace(1, 2, 10)
        optimizer.step()
    assert launched == [1] * 3
    for _ in range(3):
        for single in singles:
            single.step()
    for a, b in zip(together, alone, strict=True):
        assert torch.equal(a, b)


def test_other_devices_are_refused():
    param = nn.Parameter(torch.ones(3, device="meta"))
    param.grad = torch.ones(3, device="meta")
    optimizer = rewa.ReWASGD([param], fused=True)
    with pytest.raises(RuntimeError, match=r"supported devices: \['cpu'\], got torch.float64 on meta.*torch.compile"):
        optimizer.step()
