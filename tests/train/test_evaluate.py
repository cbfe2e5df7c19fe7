from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rewa.deploy.zeros import recalibrate_norms
from rewa.record import Point
from rewa.sparsity import Count, count, prunable
from rewa.train.data import Images
from rewa.train.evaluate import Score, calibration, losses, measure, score, thresholds
from rewa.train.numeric import choose
from rewa.train.processes import World
from rewa.train.recipes import RECIPES

NUMERIC = choose(torch.device("cpu"), "float32")
WORLD = World()


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)


def model():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def data(size=50):
    inputs = torch.randn(size, 1, 4, 4)
    return inputs, (inputs.mean((1, 2, 3)) * 4).long().clamp(-1, 1) + 1


def batches(inputs, targets, size=8):
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def test_score_is_the_mean_over_examples_not_over_batches():
    net, (inputs, targets) = model(), data()
    net.train()
    found = score(net, batches(inputs, targets), NUMERIC, WORLD)
    assert net.training, "the mode comes back"
    net.eval()
    logits = net(inputs)
    assert found.loss == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-6)
    assert found.accuracy == pytest.approx(100 * (logits.argmax(1) == targets).double().mean().item())


@pytest.mark.parametrize("augment", [False, True])
def test_norms_are_estimated_from_images_as_they_were_trained(augment):
    """Augmented where training was: crops of a white picture with their black frames, not the whole picture."""
    white = torch.full((40, 1, 8, 8), 255, dtype=torch.uint8), torch.arange(40) % 3
    parts = dict.fromkeys(("train", "validation", "test"), white)
    images = Images("white", **parts, classes=3, augment=augment, scaling=(0, 255))
    recipe = replace(RECIPES["digits"], augment=augment, recalibrate=20, epochs=7)
    found = [inputs for inputs, _ in calibration(images, recipe, seed=3, batch_size=8)]
    assert [len(inputs) for inputs in found] == ([8, 8, 8] if augment else [8, 8, 4])
    black = [float((inputs == 0).double().mean()) for inputs in found]
    assert all(share > 0.1 for share in black) if augment else black == [0, 0, 0]
    if augment:
        first = next(images.batches(7, seed=3, batch_size=8))[0]  # of an epoch that was not trained
        assert torch.equal(found[0], first)


def test_an_empty_part_counts_nothing():
    net, (inputs, targets) = model(), data()
    whole = batches(inputs, targets)
    assert score(net, [*whole, (inputs[:0], targets[:0])], NUMERIC, WORLD) == score(net, whole, NUMERIC, WORLD)


def test_losses_of_sequences_are_of_every_position():
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    loss, right = losses(logits, targets, 0.1)
    expected = F.cross_entropy(logits.reshape(10, 7), targets.reshape(10), label_smoothing=0.1)
    assert loss == pytest.approx(expected.item())
    assert right == (logits.argmax(-1) == targets).sum()


def test_value_is_larger_when_better():
    assert Score(0.5, 90.0).value("accuracy") == 90
    assert Score(0.5, 90.0).value("loss") == -0.5


def test_thresholds_are_the_smallest_that_reach_each_compression():
    net = model()
    weights = list(prunable(net).values())
    cuts = thresholds(net, (1, 2, 5, 21))
    for cut, compression in zip(cuts, (1, 2, 5, 21), strict=True):
        assert count(weights, cut).compression_ratio >= compression
        if compression > 1:
            assert count(weights, cut * (1 - 1e-6)).compression_ratio < compression
    assert thresholds(net, (1, 1, 2)) == thresholds(net, (1, 2))


def test_measure_cuts_estimates_the_norms_again_and_leaves_the_model_alone():
    net, train, validation, test = model(), data(64), data(), data()
    before = copy.deepcopy(net.state_dict())
    splits = {"train": train, "validation": validation, "test": test}
    seen = []

    def of(split):
        seen.append(split)
        return batches(*splits[split])

    curve, final, small = measure(net, compressions=(1, 4), max_drop=10.0, metric="accuracy", batches=of, numeric=NUMERIC)
    assert all(torch.equal(net.state_dict()[name], before[name]) for name in before)
    for point in curve:
        slow = copy.deepcopy(net)
        with torch.no_grad():
            for weight in prunable(slow).values():
                weight[weight.abs() <= point.threshold] = 0
        recalibrate_norms(slow, list(train[0].split(8)))
        for split, (inputs, targets) in (("validation", validation), ("test", test)):
            with torch.no_grad():
                right = (slow.eval()(inputs).argmax(1) == targets).double().mean().item()
            assert getattr(point, f"{split}_accuracy") == pytest.approx(100 * right)
    assert final.validation_accuracy >= curve[0].validation_accuracy - 10
    assert count(prunable(small).values()).nonzero == final.prunable.nonzero
    assert seen.index("test") > max(index for index, split in enumerate(seen[: -2 * 3]) if split == "validation")


def test_a_model_that_has_its_zeros_is_measured_as_it_is():
    net, splits = model(), {split: data(64) for split in ("train", "validation", "test")}
    for weight in prunable(net).values():
        nn.init.zeros_(weight[: len(weight) // 2])
    left = count(prunable(net).values())
    curve, final, small = measure(
        net,
        compressions=(1, left.compression_ratio),
        max_drop=None,
        metric="accuracy",
        batches=lambda split: batches(*splits[split]),
        numeric=NUMERIC,
    )
    assert [final] == curve
    assert (final.threshold, final.prunable) == (0.0, left)
    weights = zip(prunable(small).values(), prunable(net).values(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert not torch.equal(small[1].running_mean, net[1].running_mean), "norms are estimated again, as after every cut"


def test_cuts_are_seen_in_bfloat16_too():
    """Autocast keeps copies of weights: a cut that it does not notice would be measured as no cut at all."""
    net, splits = model(), {split: data(64) for split in ("train", "validation", "test")}
    numeric = choose(torch.device("cpu"), "bfloat16")
    curve, final, small = measure(
        net,
        compressions=(1, 50),
        max_drop=0.0,
        metric="loss",
        batches=lambda split: batches(*splits[split]),
        numeric=numeric,
    )
    assert curve[1].validation_loss != curve[0].validation_loss
    again = score(small, batches(*splits["validation"]), numeric, WORLD)
    assert again.loss == pytest.approx(final.validation_loss, rel=1e-6)
    # What was chosen meets its own condition when it is measured afresh.
    assert again.loss <= curve[0].validation_loss + 1e-9


def test_a_loss_that_is_not_finite_is_no_number_of_json():
    worst = Score(float("nan"), 10.0)
    point = Point(0.0, Count(4, 0), Count(5, 1), *worst, *worst).to_json()
    assert (point["test_loss"], point["test_accuracy"]) == (None, 10.0)
    assert worst.value("loss") == -float("inf")
