"""A convolution of narrow images: its gradients are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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


def convolution(inputs, outputs, dtype=torch.bfloat16, **settings):
    generator = torch.Generator().manual_seed(1)
    conv = nn.Conv2d(inputs, outputs, **{"kernel_size": 3, "padding": 1, "bias": False} | settings)
    nn.init.normal_(conv.weight, generator=generator)
    return conv.to(dtype).to(memory_format=torch.channels_last)


class Louder(nn.Conv2d):
    def forward(self, x):
        return 3 * super().forward(x)


def is_product(out):
    return "_NarrowConv" in type(out.grad_fn).__name__


@pytest.mark.parametrize("side", [(3, 3), (2, 4), (1, 1), (4, 4)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_its_gradients_are_those_of_a_convolution(everywhere, side, layout):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, *side, generator=generator).bfloat16().contiguous(memory_format=layout).requires_grad_()
    conv = convolution(6, 8)
    out = narrow_conv(conv, x)
    assert is_product(out)
    grad = torch.randn(out.shape, generator=generator).bfloat16()
    found = torch.autograd.grad(out, (x, conv.weight), grad)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, conv.weight)]
    wanted = torch.autograd.grad(F.conv2d(*exact, padding=1), exact, grad.double())
    for mine, its in zip(found, wanted, strict=True):
        assert mine.shape == its.shape
        torch.testing.assert_close(mine.double(), its, atol=4e-3 * float(its.abs().max()), rtol=1e-2)


def test_images_without_gradient_get_none(everywhere):
    x, conv = torch.randn(2, 4, 3, 3).bfloat16(), convolution(4, 4)
    narrow_conv(conv, x).sum().backward()
    assert x.grad is None
    assert conv.weight.grad is not None


def test_under_autocast_the_weight_stays_float32(everywhere):
    x, conv = torch.randn(2, 4, 3, 3), convolution(4, 4, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, plain = narrow_conv(conv, x), conv(x)
    assert is_product(out)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, plain)
    out.float().sum().backward()
    assert conv.weight.grad.dtype is torch.float32


def test_what_it_is_not_made_for_is_the_convolutions(everywhere):
    x, conv = torch.randn(2, 4, 3, 3).bfloat16(), convolution(4, 4)
    assert is_product(narrow_conv(conv, x))
    others = [
        (convolution(4, 4, torch.float32), x.float()),
        (convolution(4, 4, torch.float64), x.double()),
        (conv, torch.randn(2, 4, 3, 5).bfloat16()),
        (convolution(4, 4).eval(), x),
        (convolution(4, 4, bias=True), x),
        (convolution(4, 4, groups=2), x),
        (convolution(4, 4, stride=2), x),
        (convolution(4, 4, padding_mode="reflect"), x),
        (convolution(4, 4, padding=0), x),
        (convolution(4, 4, padding=2, dilation=2), x),
        (convolution(4, 4, kernel_size=1, padding=1), x),
        (convolution(4, 4, kernel_size=5, padding=1), x),
        (conv, x[0]),  # one image, without a batch
        (Louder(4, 4, 3, padding=1, bias=False).bfloat16(), x),
        (nn.Identity(), x),
    ]
    for other, images in others:
        out = narrow_conv(other, images)
        assert not is_product(out)
        assert torch.equal(out, other(images))
    with torch.autocast("cpu", torch.float16):  # which is not what the product is in
        assert not is_product(narrow_conv(convolution(4, 4, torch.float32), x.float()))


def test_second_derivatives_are_a_convolutions(everywhere):
    x, conv = torch.randn(2, 4, 3, 3).bfloat16().requires_grad_(), convolution(4, 4)

    def penalty(out):
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), conv.weight)[0]

    out = narrow_conv(conv, x)
    assert is_product(out)
    assert torch.equal(penalty(out), penalty(conv(x)))
