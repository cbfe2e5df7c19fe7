from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import rewa
from rewa.sparsity import Count, count, curve, histogram, prunable, summary, thresholded, whole


def test_at_the_threshold_is_zero_by_magnitude():
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
    with pytest.raises(TypeError, match=r"needs a model, .* not generator"):
        prunable(nn.Linear(2, 2).parameters())


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


def small():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 16, 3))


def test_curve_evaluates_once_a_threshold_and_restores_every_bit():
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen = []

    def value(model):
        seen.append(count(prunable(model).values()))
        if len(seen) == 5:
            raise RuntimeError("inside")
        return float(seen[-1].nonzero)

    points = curve(model, value, [0.0, 0.05, 0.1, 0.3])
    assert [point.prunable for point in points] == seen
    assert [point.value for point in points] == [left.nonzero for left in seen]
    assert [point.model.nonzero - point.prunable.nonzero for point in points] == [
        9 - 2
    ] * 4  # biases and gains; zero norm biases
    assert seen[0].nonzero > seen[1].nonzero > seen[2].nonzero > seen[3].nonzero
    with pytest.raises(RuntimeError, match="inside"):
        curve(model, value, [0.3])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_summary_counts_layers_and_multiply_adds():
    model = small()
    with torch.no_grad():
        model[0].weight[0] = 0
    result = summary(model, example_input=torch.zeros(5, 1, 6, 6))
    conv, linear = result.layers
    assert (conv.name, conv.shape, conv.count) == ("0.weight", (2, 1, 3, 3), Count(18, 9))
    assert (conv.multiply_adds, conv.multiply_adds_left) == (18 * 16, 9 * 16)
    assert (linear.multiply_adds, linear.multiply_adds_left) == (96, 96)
    assert result.prunable == Count(114, 105)
    assert result.model == whole(model) == Count(114 + 2 + 4 + 3, 105 + 2 + 2 + 3)
    assert summary(model).layers[0].multiply_adds is None
    assert "mult-adds" not in str(summary(model))
    assert result.to_dict()["layers"][0]["count"] == {"total": 18, "nonzero": 9}
    assert Count(4, 1).sparsity == 0.75


def test_summary_leaves_the_model_as_it_was():
    model = small().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RuntimeError):
        summary(model, example_input=torch.zeros(5, 2, 6, 6))
    summary(model, example_input=(torch.randn(5, 1, 6, 6),))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_weight_used_twice_counts_twice():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, layer)
    assert summary(model, example_input=torch.zeros(2, 3)).layers[0].multiply_adds == 18


def test_histogram_holds_every_weight():
    model = small()
    with torch.no_grad():
        model[4].weight[0] = 0
    counts, edges, zeros = histogram(model)
    assert zeros == 32
    assert counts.sum() + zeros == 114
    assert len(edges) == len(counts) + 1
    assert 10 ** edges[-1] == pytest.approx(max(weight.abs().max().item() for weight in prunable(model).values()))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[4].weight)
    counts, _, zeros = histogram(model)
    assert (counts.sum(), zeros) == (0, 114)


def test_frozen_parameters_are_counted_and_cut():
    """A model that is deployed is often frozen: the counts are those of the same model with gradients."""
    model = small()
    with torch.no_grad():
        model[4].weight[0] = 0
    expected = [str(summary(model, 0.1)), whole(model), curve(model, lambda model: 0.0, [0.1]), histogram(model)[0].tolist()]
    for part in (model[4], model):
        part.requires_grad_(False)
        assert list(prunable(model)) == ["0.weight", "4.weight"]
        found = [str(summary(model, 0.1)), whole(model), curve(model, lambda model: 0.0, [0.1]), histogram(model)[0].tolist()]
        assert found == expected


def test_weights_under_a_pruning_mask_are_counted_as_the_layer_uses_them():
    model = small()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[4], "weight", amount=0.25)
    prune.l1_unstructured(model[4], "weight", amount=8)  # a second round, on top of the first
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = summary(model, example_input=torch.zeros(5, 1, 6, 6))
    assert [(layer.name, layer.count) for layer in result.layers] == [
        ("0.weight", Count(18, 9)), ("4.weight", Count(96, 64)),
    ]  # fmt: skip
    assert result.layers[0].multiply_adds_left == 9 * 16
    assert result.model == whole(model) == Count(114 + 2 + 4 + 3, 73 + 2 + 2 + 3)
    counts, _, zeros = histogram(model)
    assert (counts.sum(), zeros) == (73, 114 - 73)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for asked in (model, rewa.param_groups(model)):
        with pytest.raises(ValueError, match=r"torch\.nn\.utils\.prune\.remove"):
            prunable(asked)
    prune.remove(model[0], "weight")
    prune.remove(model[4], "weight")
    assert count(prunable(model).values()) == result.prunable


def test_computed_weights_are_counted_and_the_error_names_the_remedy():
    plain = nn.Linear(4, 3)
    with torch.no_grad():
        plain.weight[0] = 0
        plain.weight[0, 0] = 1.0
    model = nn.Sequential(parametrizations.weight_norm(plain))
    assert summary(model).prunable == Count(12, 9)
    with pytest.raises(ValueError, match="remove_parametrizations") as error:
        prunable(model)
    exec(str(error.value).partition("call ")[2].partition(" first")[0])  # the remedy works as it is printed
    assert list(prunable(model)) == ["0.weight"]
    form = rewa.reparametrize(nn.Sequential(nn.Linear(4, 3)), form="pair")
    assert whole(form).total == 15
