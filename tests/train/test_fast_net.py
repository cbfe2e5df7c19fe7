"""The fast network: filters that whiten, against a slow reference, and runs that carry them along."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from rewa.sparsity import prunable
from rewa.train.data import Images
from rewa.train.fast_net import Stage, Whitening, fastnet
from rewa.train.job import build_model, new_model
from rewa.train.recipes import RECIPES


def smooth_images(count=200, side=12):
    """Noise that is blurred, so that neighbours are alike, as in photographs."""
    noise = torch.randn(count, 3, side + 4, side + 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return F.avg_pool2d(noise, 5, 1) + 0.5 * noise[:, :, 2:-2, 2:-2].mean(1, keepdim=True)


def test_patches_are_white():
    images = smooth_images()
    layer = Whitening(3).double()
    layer.fit(images)
    out = layer(images)
    assert out.shape == (200, 24, 11, 11)
    assert torch.equal(out[:, 12:], -out[:, :12])
    rows = out[:, :12].transpose(0, 1).flatten(1)
    moments = rows @ rows.T / rows.shape[1]
    # Each direction ends with lambda / (lambda + 5e-4) of unit variance, and none with a part of another.
    patches = torch.stack([images[:, c, y : y + 11, x : x + 11].flatten() for c in range(3) for y in (0, 1) for x in (0, 1)])
    variances = torch.linalg.eigvalsh(patches @ patches.T / patches.shape[1]).flip(0)
    torch.testing.assert_close(moments, torch.diag(variances / (variances + 5e-4)), atol=1e-9, rtol=1e-9)


def test_filters_are_not_trained_and_not_pruned():
    model = fastnet(10)
    assert not any("whitening" in name for name, _ in model.named_parameters())
    assert not any("whitening" in name for name in prunable(model))
    assert sum(weight.numel() for weight in prunable(model).values()) == 1_121_152
    assert "whitening.filters" in model.state_dict()


def test_a_stage_adds_its_second_half_to_its_first():
    torch.manual_seed(0)
    stage = Stage(3, 5).double().eval()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    first = F.gelu(stage.bn1(F.max_pool2d(F.conv2d(x, stage.conv1.weight, padding=1), 2)))
    second = F.gelu(stage.bn2(F.conv2d(first, stage.conv2.weight, padding=1)))
    torch.testing.assert_close(stage(x), first + second)


@pytest.fixture
def cifar():
    generator = torch.Generator().manual_seed(1)

    def part(n):
        images = torch.randint(256, (n, 3, 16, 16), generator=generator).to(torch.uint8)
        return images, torch.randint(4, (n,), generator=generator)

    return Images("made-up", train=part(60), validation=part(11), test=part(13), classes=4)


def test_a_run_begins_with_the_filters_of_its_data(cifar):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["cifar10-fast"], width=4)
    model, other = new_model(recipe, cifar, seed=0), new_model(recipe, cifar, seed=1)
    wanted = Whitening(3)
    wanted.fit((cifar.splits["train"][0].float() - cifar.mean) / cifar.std)
    torch.testing.assert_close(model.whitening.filters.abs(), wanted.filters.abs())  # an eigenvector has no sign
    assert torch.equal(model.whitening.filters, other.whitening.filters)
    assert not torch.equal(model.fc.weight, other.fc.weight)
    plain = build_model(recipe, cifar)
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(plain.eval()(x), model.eval()(x))
