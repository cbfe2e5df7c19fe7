from __future__ import annotations

import pytest
from torch import nn

from rewa import presets


@pytest.mark.parametrize("preset", presets.PRESETS.values(), ids=lambda preset: preset.name)
def test_a_preset_builds_its_optimizer(preset):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    optimizer = preset.optimizer(model, fused=True)
    sparse, plain = optimizer.param_groups
    for key in ("K", "M", "eps", "lr", "weight_decay", "momentum", "decoupled"):
        assert sparse[key] == getattr(preset, key)
    assert (plain["K"], plain["M"], plain["weight_decay"]) == (1, 0, 0.0)
    assert sparse["fused"] is True


def test_the_papers_numbers():
    settings = {name: (p.K, p.M, p.eps, p.lr, p.momentum) for name, p in presets.PRESETS.items()}
    assert settings["synthetic"] == (9, 4, 0.0, 2e-4, 0.0)
    assert settings["cifar10"] == (9, 2, 0.0, 0.256, 0.875)
    assert settings["imagenet"] == (3, 2, 1e-3, 1.0, 0.9)
    # The printed 5e-5 is the shrink a step at full rate.
    assert presets.SYNTHETIC.lr * presets.SYNTHETIC.weight_decay == pytest.approx(5e-5)


def test_overrides_and_unknown_arguments():
    optimizer = presets.CIFAR10.optimizer(nn.Linear(3, 2), K=3, weight_decay=0.5)
    assert (optimizer.param_groups[0]["K"], optimizer.param_groups[0]["weight_decay"]) == (3, 0.5)
    with pytest.raises(TypeError, match="wieght_decay"):
        presets.CIFAR10.optimizer(nn.Linear(3, 2), wieght_decay=0.5)


def test_match_goes_to_the_groups():
    model = nn.Linear(3, 2)
    optimizer = presets.CIFAR10.optimizer(model, match=True)
    size = float(model.weight.detach().square().mean().sqrt())
    assert [group["match"] for group in optimizer.param_groups] == [pytest.approx(size), 0.0]
