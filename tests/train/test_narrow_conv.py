"""A convolution of narrow images: its gradients are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rewa.train import narrow_conv as module
from rewa.train.narrow_conv import narrow_conv


@pytest.fixture(autouse=True)
def float32():
    """As networks are trained; other tests compare in float64."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def everywhere(monkeypatch):
    """As on a processor with matrix units: without them the product is right, too, only not faster."""
    monkeypatch.setattr(module, "_matrix_units", lambda: True)


@pytest.mark.parametrize("side", [(3, 3), (2, 4), (1, 1), (4, 4)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_its_gradients_are_those_of_a_convolution(everywhere, side, layout):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, *side, generator=generator).bfloat16().contiguous(memory_format=layout).requires_grad_()
    weight = torch.randn(8, 6, 3, 3, generator=generator).bfloat16().contiguous(memory_format=layout).requires_grad_()
    out = narrow_conv(x, weight)
    assert "_NarrowConv" in type(out.grad_fn).__name__
    grad = torch.randn(out.shape, generator=generator).bfloat16()
    of_x, of_weight = torch.autograd.grad(out, (x, weight), grad)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    wanted = torch.autograd.grad(F.conv2d(*exact, padding=1), exact, grad.double())
    for mine, its in zip((of_x, of_weight), wanted, strict=True):
        assert mine.shape == its.shape
        torch.testing.assert_close(mine.double(), its, atol=4e-3 * float(its.abs().max()), rtol=1e-2)


def test_images_without_gradient_get_none(everywhere):
    x, weight = torch.randn(2, 4, 3, 3).bfloat16(), torch.randn(4, 4, 3, 3).bfloat16().requires_grad_()
    narrow_conv(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_under_autocast_the_weight_stays_float32(everywhere):
    x, weight = torch.randn(2, 4, 3, 3), torch.randn(4, 4, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = narrow_conv(x, weight)
        plain = F.conv2d(x, weight, padding=1)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, plain)
    out.float().sum().backward()
    assert weight.grad.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_and_wide_images_are_torchs(everywhere, dtype):
    x, weight = torch.randn(2, 4, 3, 3, dtype=dtype), torch.randn(4, 4, 3, 3, dtype=dtype, requires_grad=True)
    assert torch.equal(narrow_conv(x, weight), F.conv2d(x, weight, padding=1))
    assert "_NarrowConv" not in type(narrow_conv(x, weight).grad_fn).__name__
    wide = torch.randn(2, 4, 3, 5).bfloat16()
    assert "_NarrowConv" not in type(narrow_conv(wide, weight.bfloat16()).grad_fn).__name__
