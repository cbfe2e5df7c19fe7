from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import rewa
from rewa.sparsity import Count, count, prunable, thresholded


def test_at_the_threshold_is_zero_by_modulus():
    weights = [torch.tensor([-0.5, 0.5, 0.25]), torch.tensor([[0.0, -1.0]])]
    assert count(weights) == Count(5, 4)
    assert count(weights, 0.25) == Count(5, 3)
    assert count(weights, 0.5) == Count(5, 1)
    assert count(weights, 0.5).compression_ratio == 5
    assert count(weights, 1.0).compression_ratio == math.inf
    assert Count(5, 1) + Count(3, 2) == Count(8, 3)
    for bad in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="Invalid threshold"):
            count(weights, bad)


def test_prunable_are_the_weights():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Embedding(3, 2), nn.Linear(2, 2))
    assert list(prunable(model)) == ["0.weight", "3.weight"]


def test_prunable_follows_rules_and_sees_through_nothing():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    assert list(prunable(rewa.param_groups(model, rules={r"0\.weight": None}))) == ["1.weight"]
    with pytest.raises(ValueError, match="remove_reparametrization"):
        prunable(rewa.reparametrize(model, form="pair"))
    with pytest.raises(TypeError, match=r"prunable\(model\).values\(\)"):
        count(model)


def test_weights_come_back_bit_for_bit_also_after_an_error():
    weight = nn.Parameter(torch.tensor([1e-40, -0.0, 0.3, float("nan")], dtype=torch.float32))
    before = weight.detach().clone().view(torch.int32)

    def look_and_fail():
        with thresholded([weight], 0.1) as left:
            assert left == Count(4, 1)
            assert (weight.detach()[:2] == 0).all()
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        look_and_fail()
    assert torch.equal(weight.detach().view(torch.int32), before)
