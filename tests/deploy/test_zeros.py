from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import rewa
from rewa.deploy.zeros import recalibrate_norms
from rewa.sparsity import Count, count, prunable


def network():
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5))


def bits(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def kept(model):
    return count(prunable(model).values()).nonzero


@pytest.mark.filterwarnings("ignore:finalize left a single weight")
@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.2, 0.5, 0.9, 0.987])
def test_sparsity_is_met_and_not_overshot(sparsity):
    model = network()
    report = rewa.finalize(model, sparsity=sparsity)
    total = 6 * 18 + 5 * 96
    assert kept(model) == total - math.ceil(sparsity * total)
    assert report.summary.prunable == Count(total, kept(model))
    assert report.value is report.value_before is None


def test_threshold_is_written_by_magnitude_and_nothing_else_changes():
    model = network()
    before = bits(model)
    rewa.finalize(model, threshold=0.05)
    for name, tensor in model.state_dict().items():
        old = before[name]
        expected = torch.where(old.abs() <= 0.05, 0, old) if name in ("0.weight", "4.weight") else old
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("sparsity", [0.1, 0.3, 0.5, 0.7])
def test_equal_magnitudes_are_cut_in_order_until_the_count_is_met(sparsity):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(-0.5)
        model[1].weight[1, 2] = 1.0
    zeros = math.ceil(sparsity * 15)
    with pytest.warns(match=r"a single weight in 0\.weight:") if zeros > 8 else nullcontext():
        report = rewa.finalize(model, sparsity=sparsity)
    flat = torch.cat([layer.weight.detach().flatten() for layer in model])
    # The last of the first layer is spared, if it comes to that; the second pays for it.
    expected = [index for index in range(15) if index != 8][:zeros]
    assert (flat == 0).nonzero().flatten().tolist() == expected
    assert (report.threshold, report.summary.prunable) == (0.5, Count(15, 15 - zeros))
    assert report.spared == (("0.weight",) if zeros > 8 else ())
    assert report.ties == 15 - zeros - 1 - len(report.spared)
    assert f"{report.ties} more weights have exactly that magnitude" in str(report)


def test_no_layer_is_emptied_by_a_count():
    """The small layer would lose everything; it keeps its largest weight, and the count is met all the same."""
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 2, bias=False))
    with torch.no_grad():
        model[1].weight.mul_(1e-3)
    largest, before = model[1].weight.abs().argmax(), bits(model)
    with pytest.warns(UserWarning, match=r"left a single weight in 1\.weight: a lower sparsity"):
        report = rewa.finalize(model, sparsity=0.9)
    assert report.summary.prunable == Count(440, 44)
    assert report.spared == ("1.weight",)
    assert "kept their largest weight, although it is not above the threshold: 1.weight" in str(report)
    assert model[1].weight.flatten().nonzero().flatten().tolist() == [int(largest)]
    sizes = before["0.weight"].abs().flatten().sort().values
    assert report.threshold == sizes[-44]  # one more than the 43 weights that stay of the first layer
    model.load_state_dict(before)
    report = rewa.finalize(model, evaluate=lambda model: 0.0, max_drop=1.0)
    assert report.summary.prunable == Count(440, 2)
    assert [layer.count.nonzero for layer in report.summary.layers] == [1, 1]


def test_an_emptied_layer_is_named():
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 2, bias=False))
    with torch.no_grad():
        model[1].weight.mul_(1e-3)
    before = bits(model)
    with pytest.warns(UserWarning, match=r"left no weight in 1\.weight"):
        report = rewa.finalize(model, threshold=0.01)
    assert (report.threshold, report.emptied, report.spared, report.ties) == (0.01, ("1.weight",), (), 0)
    assert rewa.finalize(model, threshold=0.01).emptied == ()  # it was empty before
    model.load_state_dict(before)
    with pytest.warns(UserWarning, match=r"left no weight in 0\.weight, 1\.weight"):
        report = rewa.finalize(model, sparsity=1.0)
    assert report.summary.prunable == Count(440, 0)
    model.load_state_dict(before)
    with pytest.warns(UserWarning, match=r"left no weight in 1\.weight"):
        report = rewa.finalize(model, sparsity=1 - 1 / 440)
    assert model[0].weight.abs().max() == before["0.weight"].abs().max()


@pytest.mark.parametrize("frozen", [slice(0, 1), slice(0, 5)], ids=["half", "fully"])
def test_frozen_layers_are_cut_like_the_others(frozen):
    model = network()
    expected = bits(model)
    rewa.finalize(model, sparsity=0.8)
    once = bits(model)
    model.load_state_dict(expected)
    model[frozen].requires_grad_(False)
    report = rewa.finalize(model, sparsity=0.8)
    assert report.summary.prunable.sparsity == pytest.approx(0.8, abs=2e-3)
    assert unchanged(model, once)


def test_layer_scales_are_left_alone():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.layer_scale = nn.Parameter(1e-6 * torch.ones(8, 1, 1))

    model = Scaled()
    rewa.finalize(model, sparsity=0.5)
    assert (model.layer_scale == 1e-6).all()
    assert (model.conv.weight == 0).sum() == 108


def test_a_pruning_mask_must_be_made_permanent_first():
    model = network()
    prune.l1_unstructured(model[4], "weight", amount=0.5)
    before = bits(model)
    for change in (lambda: rewa.finalize(model, sparsity=0.8), lambda: rewa.freeze_zeros(model)):
        with pytest.raises(ValueError, match=r"torch\.nn\.utils\.prune\.remove\(model\.get_submodule\('4'\), 'weight'\)"):
            change()
        assert unchanged(model, before)
    prune.remove(model[4], "weight")
    assert rewa.freeze_zeros(model).count.nonzero == 6 * 18 + 5 * 96 // 2


@pytest.mark.parametrize("max_drop", [0.0, 0.1, 1.0, 7.0, 1000.0])
def test_max_drop_keeps_as_few_weights_as_it_allows(max_drop):
    """The value is the sum of the magnitudes: the fewest weights that may be kept are known."""
    model = nn.Linear(100, 10, bias=False)

    def value(model):
        return model.weight.abs().sum().item()

    sizes = model.weight.detach().abs().flatten().sort().values
    before = bits(model)
    report = rewa.finalize(model, evaluate=value, max_drop=max_drop, precision=1e-6)
    allowed = int((sizes.cumsum(0) <= max_drop + 1e-12).sum())
    assert kept(model) == max(1000 - allowed, 1)
    assert report.value_before - report.value <= max_drop
    assert report.value == value(model)
    assert len(report.evaluations) <= 30
    coarse = nn.Linear(100, 10, bias=False)
    coarse.load_state_dict(before)
    report = rewa.finalize(coarse, evaluate=value, max_drop=max_drop)
    assert kept(model) <= kept(coarse) <= max(1.011 * kept(model), kept(model) + 1)
    assert len(report.evaluations) <= 13


def test_a_jagged_value_is_still_kept():
    """Bisection may miss the best point of a value that is not monotone; what it takes meets the target."""
    model = nn.Linear(100, 10, bias=False)

    def value(model):
        return math.sin(kept(model))

    report = rewa.finalize(model, evaluate=value, max_drop=0.3)
    assert value(model) == report.value >= report.value_before - 0.3


@pytest.mark.parametrize("call", ["evaluate", "loader"])
def test_an_error_leaves_the_model_untouched(call):
    model = network()
    before = bits(model)
    calls = []

    def value(model):
        calls.append(1)
        if len(calls) == 4 and call == "evaluate":
            raise KeyboardInterrupt
        return float(kept(model))

    def loader():
        yield torch.randn(4, 2, 6, 6)
        if call == "loader":
            yield torch.randn(4, 3, 6, 6)  # a wrong number of channels

    error = KeyboardInterrupt if call == "evaluate" else RuntimeError
    with pytest.raises(error):
        rewa.finalize(model, evaluate=value, max_drop=100.0, recalibrate=loader())
    assert unchanged(model, before)


def test_a_target_that_cannot_be_met_says_how_close_it_came():
    model = network()
    before = bits(model)
    values = iter([1.0, 0.8])
    with pytest.raises(ValueError, match=r"max_drop=0.1 cannot be met: .* from 1 to 0.8 already"):
        rewa.finalize(model, evaluate=lambda model: next(values), max_drop=0.1, recalibrate=[torch.randn(8, 2, 6, 6)])
    assert unchanged(model, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of max_drop, sparsity and threshold; got none"),
        ({"sparsity": 0.5, "threshold": 0.1}, "got sparsity, threshold"),
        ({"sparsity": 1.5}, "Invalid sparsity: 1.5"),
        ({"threshold": -1.0}, "Invalid threshold: -1.0"),
        ({"threshold": math.nan}, "Invalid threshold: nan"),
        ({"max_drop": 0.1}, "max_drop needs evaluate"),
        ({"max_drop": 0.1, "evaluate": lambda model: math.nan}, "evaluate returned NaN"),
    ],
)
def test_bad_targets_are_named(arguments, message):
    model = network()
    before = bits(model)
    with pytest.raises(ValueError, match=message):
        rewa.finalize(model, **arguments)
    assert unchanged(model, before)


def test_models_without_a_threshold():
    with pytest.raises(ValueError, match="no weight that can become sparse"):
        rewa.finalize(nn.LayerNorm(3), sparsity=0.5)
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, math.nan)
    with pytest.raises(ValueError, match="NaN or infinite weights"):
        rewa.finalize(model, sparsity=0.5)


def test_recalibration_estimates_the_norms_of_the_sparse_model():
    """The statistics are those of all inputs through the cut weights; the mode and the momentum come back."""
    model = network().train()
    data = torch.randn(64, 2, 6, 6)
    rewa.finalize(model, sparsity=0.8, recalibrate=[(data[i : i + 16], "label") for i in range(0, 64, 16)])
    out = model[0](data)
    torch.testing.assert_close(model[1].running_mean, out.mean((0, 2, 3)))
    variances = torch.stack([out[i : i + 16].var((0, 2, 3)) for i in range(0, 64, 16)]).mean(0)
    torch.testing.assert_close(model[1].running_var, variances)
    assert model.training
    assert model[1].training
    assert model[1].momentum == 0.1


def test_recalibration_takes_as_many_batches_as_told_and_leaves_dropout_off():
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    recalibrate_norms(model, [torch.ones(4, 3)])
    torch.testing.assert_close(model[1].running_mean, torch.ones(3))
    taken = []

    def loader():
        for index in range(1000):
            taken.append(index)
            yield torch.randn(4, 2, 6, 6)

    rewa.finalize(network(), sparsity=0.5, recalibrate=loader(), recalibrate_batches=7)
    assert len(taken) == 7


def test_report_reads_well_and_is_json(tmp_path):
    model = network()
    report = rewa.finalize(model, evaluate=lambda model: 0.75, max_drop=0.5)
    text = str(report)
    assert "0.weight" in text
    assert "value 0.75 before and 0.75 after (+0)" in text
    path = rewa.save_packed(model, tmp_path / "x.safetensors", report=report.to_dict()).path
    kept_report = rewa.deploy.packed.read_packed(path).report
    assert kept_report["threshold"] == report.threshold
    assert kept_report["summary"]["prunable"]["nonzero"] == kept(model)


def test_round_shares_of_round_numbers():
    for sparsity in (0.1, 0.2, 0.3, 0.6):
        assert rewa.finalize(nn.Linear(100, 100), sparsity=sparsity).summary.prunable.nonzero == 10_000 - math.ceil(
            sparsity * 10_000
        )


@pytest.mark.filterwarnings("ignore:finalize left a single weight")
def test_a_report_without_evaluations_can_be_saved(tmp_path):
    model = network()
    report = rewa.finalize(model, sparsity=0.9)
    assert report.evaluations[0].value is None
    rewa.save_packed(model, tmp_path / "x.safetensors", report=report.to_dict())


def test_modes_of_single_modules_come_back():
    model = network().train()
    model[1].eval()
    rewa.finalize(model, evaluate=lambda model: float(model.eval().training), max_drop=1.0)
    rewa.sparsity.summary(model, example_input=torch.zeros(2, 2, 6, 6))
    assert [module.training for module in model] == [True, False, True, True, True]


def test_an_empty_loader_is_an_error():
    model = network()
    before = bits(model)
    with pytest.raises(ValueError, match="the loader is empty, or used up"):
        rewa.finalize(model, sparsity=0.5, recalibrate=iter(()))
    assert unchanged(model, before)
