"""The pool, norm and GELU in one operation: equal to torch's own in float64, and left to torch where it does not fit."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rewa import native
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


@pytest.fixture
def calls(monkeypatch):
    """One entry for each time that the kernel made an output."""
    made, apply = [], module._apply
    monkeypatch.setattr(module, "_apply", lambda *args: (made.append(args), apply(*args)))
    return made


@pytest.fixture(autouse=True)
def compiled():
    """Most of these compare the kernel with torch."""
    if module._kernel(torch.float32) is None:
        pytest.skip("there is no C++ compiler")


def apart(a, b):
    """The largest difference, as a share of the largest number."""
    return float((a.double() - b).detach().abs().max() / b.detach().abs().max())


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("shape", [(6, 5, 7, 6), (8, 48, 15, 15), (3, 17, 4, 4), (20, 16, 3, 2)])
def test_it_is_what_torch_makes_in_float64(calls, dtype, near, pool, adding, shape):
    out_shape = (*shape[:2], shape[2] // 2, shape[3] // 2) if pool else shape
    x, norm = images(*shape, dtype=dtype).requires_grad_(), some_norm(shape[1])
    residual = images(*out_shape, dtype=dtype, seed=1).requires_grad_() if adding else None
    exact_norm = copy.deepcopy(norm).double()
    exact_x = x.detach().double().requires_grad_()
    exact_residual = None if residual is None else residual.detach().double().requires_grad_()

    out = norm_gelu(x, norm, pool=pool, residual=residual)
    exact = slow(exact_x, exact_norm, pool=pool, residual=exact_residual)
    assert len(calls) == 1
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


@pytest.mark.parametrize("one", ["grad", "residual"])
@pytest.mark.parametrize("layout", ["rows", "permuted", "expanded"])
def test_other_layouts_of_what_is_added_and_of_gradients(calls, one, layout):
    x, norm = images(4, 16, 5, 5).requires_grad_(), some_norm(16)
    other = {
        "rows": images(4, 16, 5, 5, seed=1).contiguous(),
        "permuted": torch.randn(16, 5, 4, 5, generator=torch.Generator().manual_seed(1)).permute(2, 0, 1, 3),
        "expanded": images(4, 1, 5, 5, seed=1).expand(4, 16, 5, 5),
    }[layout]
    grad, residual = (other, None) if one == "grad" else (images(4, 16, 5, 5), other)
    out, exact = norm_gelu(x, norm, residual=residual), slow(x, copy.deepcopy(norm), pool=False, residual=residual)
    assert len(calls) == 1
    torch.testing.assert_close(out, exact)
    found, wanted = (torch.autograd.grad(one, x, grad)[0] for one in (out, exact))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_tensors_that_were_saved_elsewhere_may_come_back_in_another_layout():
    x, norm, grad = images(4, 16, 6, 6).requires_grad_(), some_norm(16), images(4, 16, 3, 3, seed=2)
    (wanted,) = torch.autograd.grad(norm_gelu(x, norm, pool=True), x, grad)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach().contiguous().clone(), lambda kept: kept):
        out = norm_gelu(x, norm, pool=True)
    assert torch.equal(torch.autograd.grad(out, x, grad)[0], wanted)


@pytest.mark.parametrize(
    ("low", "high", "near"), [(-12, -6, 0.05), (-6, -4, 5e-3), (-4, -1, 5e-4), (-1, -0.01, 1.5e-6), (0.01, 12, 1.5e-6)]
)
def test_each_value_of_gelu_is_near_that_of_float64(low, high, near):
    x = torch.linspace(low, high, 2 * 16 * 64).view(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    norm = nn.BatchNorm2d(16, eps=0).eval()  # which changes nothing
    with torch.no_grad():
        found = norm_gelu(x, norm)
    exact = x.double() * torch.special.log_ndtr(x.double()).exp()  # F.gelu ends at zero from -8.3 on
    assert float(((found - exact) / exact).abs().max()) < near


def test_a_mean_far_from_zero_costs_no_digits():
    far = 1000 + images(8, 16, 4, 4)
    torch.testing.assert_close(
        norm_gelu(far, some_norm(16)).double(), F.gelu(some_norm(16).double()(far.double())), atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("values", [[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0], [-0.0, 0.0], [0.0, -0.0]])
def test_equal_neighbours_give_their_gradient_to_the_first(dtype, values):
    x = images(2, 16, 4, 4, dtype=dtype)
    x[1, :, :2, :2] = torch.tensor(values).view(2, 1).to(dtype)
    x[0, :, :2, :2] = torch.tensor(values).to(dtype)
    x.requires_grad_()
    grad = images(2, 16, 2, 2, dtype=dtype, seed=1)
    norm_gelu(x, some_norm(16), pool=True).backward(grad)
    mine, x.grad = x.grad, None
    slow(x, some_norm(16).to(dtype), pool=True, residual=None).backward(grad)
    assert torch.equal(mine != 0, x.grad != 0)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("bits", [0x7FC00000, -0x400000, 0x7FC0, -1], ids=["float32+", "float32-", "bfloat16+", "bfloat16-"])
def test_a_nan_is_not_lost(place, bits):
    dtype, whole = (torch.float32, torch.int32) if abs(bits) > 0xFFFF else (torch.bfloat16, torch.int16)
    x = images(4, 16, 4, 4, dtype=dtype)
    x.view(whole)[1, 2, place[0], place[1]] = bits
    assert int(x.isnan().sum()) == 1
    norm = some_norm(16)
    out = norm_gelu(x, norm, pool=True)
    assert out[:, 2].isnan().all()
    assert not out[:, 3].isnan().any()
    assert norm.running_mean[2].isnan()
    with torch.no_grad():
        assert int(norm_gelu(x, some_norm(16).eval(), pool=True).isnan().sum()) == 1


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


class Louder(nn.BatchNorm2d):
    def forward(self, x):
        return 3 * super().forward(x)


def no_counter(norm):
    norm.num_batches_tracked = None


def no_averages(norm):
    norm.running_mean = norm.running_var = None


def strided(norm):
    norm.weight = nn.Parameter(torch.randn(32)[::2])


@pytest.mark.parametrize("change", [no_counter, no_averages, strided])
def test_norms_of_another_kind_are_torchs(calls, change):
    x, norm = images(4, 16, 4, 4), some_norm(16)
    change(norm)
    exact = copy.deepcopy(norm)
    torch.testing.assert_close(norm_gelu(x, norm), slow(x, exact, pool=False, residual=None))
    assert not calls
    assert all(map(torch.equal, norm.buffers(), exact.buffers()))


def test_what_the_kernel_cannot_do_is_torchs(calls):
    x = images(4, 16, 4, 4)
    others = [
        (x.contiguous(), some_norm(16), None),
        (x.double(), some_norm(16).double(), None),
        (x, nn.BatchNorm2d(16, affine=False), None),
        (x, nn.BatchNorm2d(16, track_running_stats=False), None),
        (x, Louder(16), None),
        (x, nn.Identity(), None),  # as after its norm went into a convolution
        (x.bfloat16(), some_norm(16).bfloat16(), None),
        (x.bfloat16(), some_norm(16), x),  # a residual of another type
    ]
    for images_, norm, residual in others:
        exact = slow(images_, copy.deepcopy(norm), pool=False, residual=residual)
        torch.testing.assert_close(norm_gelu(images_, norm, residual=residual), exact, rtol=0, atol=0)
    assert not calls
    with pytest.raises(RuntimeError, match="must match the size"):  # by torch, not by reading what is not there
        norm_gelu(x, some_norm(16), residual=images(4, 16, 2, 4))
    with pytest.raises(RuntimeError, match="should contain 8 elements"):
        norm_gelu(images(4, 8, 4, 4), some_norm(16))
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        norm_gelu(images(1, 16, 1, 1), some_norm(16))
    short = some_norm(16).eval()
    short.running_mean = torch.zeros(8)
    with torch.no_grad(), pytest.raises(RuntimeError, match="should contain 16 elements"):
        norm_gelu(x, short)
    assert not calls


def test_evaluation_keeps_gradients(calls):
    x, norm = images(4, 16, 4, 4).requires_grad_(), some_norm(16).eval()
    out = norm_gelu(x, norm)
    exact = slow(x, norm, pool=False, residual=None)
    assert torch.equal(out, exact)
    assert torch.equal(*(torch.autograd.grad(one.sum(), x)[0] for one in (out, exact)))
    assert not calls


def test_memory_is_the_cpus_whatever_the_default_device_is():
    x, norm = images(4, 16, 4, 4).requires_grad_(), some_norm(16)
    wanted = norm_gelu(x, copy.deepcopy(norm), pool=True)
    with torch.device("meta"):
        out = norm_gelu(x, norm, pool=True)
        out.backward(wanted.detach())
    assert torch.equal(out, wanted)
    assert x.grad.is_cpu


def test_a_second_derivative_is_an_error():
    x = images(4, 16, 4, 4).requires_grad_()
    with pytest.raises(RuntimeError, match="to float64, where torch's own"):
        torch.autograd.grad(norm_gelu(x, some_norm(16)).sum(), x, create_graph=True)


def test_without_a_compiler_torch_does_it_and_says_so(monkeypatch):
    monkeypatch.setattr(native, "load", lambda *_: (_ for _ in ()).throw(FileNotFoundError("no C++ compiler was found.")))
    monkeypatch.setattr(native, "_warned", set())
    x, norm, exact = images(4, 16, 4, 4), some_norm(16), some_norm(16)
    module._kernel.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler was found"):
            out = norm_gelu(x, norm, pool=True)
    finally:
        module._kernel.cache_clear()
    assert torch.equal(out, slow(x, exact, pool=True, residual=None))


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("number", [1, 4])
def test_evaluation_is_by_running_statistics(calls, pool, adding, dtype, near, number):
    norm = some_norm(16)
    norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
    norm.eval().requires_grad_(False)
    side = 3 if pool else 6
    x, residual = images(number, 16, 6, 6, dtype=dtype), images(number, 16, side, side, dtype=dtype, seed=1) if adding else None
    exact = slow(x.double(), copy.deepcopy(norm).double(), pool=pool, residual=None if residual is None else residual.double())
    with torch.no_grad():
        assert apart(norm_gelu(x, norm, pool=pool, residual=residual), exact) < near
    assert len(calls) == 1


def test_norms_are_estimated_as_by_torch():
    torch.manual_seed(0)
    model = fastnet(4, width=16).to(memory_format=torch.channels_last)
    batches = [images(16, 3, 16, 16, seed=seed) for seed in range(3)]
    exact = copy.deepcopy(model).double().to(memory_format=torch.contiguous_format)
    recalibrate_norms(model, batches)
    recalibrate_norms(exact, [batch.double() for batch in batches])
    for (name, mine), its in zip(model.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(mine.double(), its.double(), atol=1e-5, rtol=1e-5, msg=name)
