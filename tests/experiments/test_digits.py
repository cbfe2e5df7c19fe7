from __future__ import annotations

import json

import pytest
import torch
from sklearn.datasets import load_digits

import rewa
from rewa.experiments import digits
from rewa.sparsity import Count, count, prunable

TINY = digits.Config(epochs=1, seeds=1, dense=(5e-4,), l1=(1e-2,), rewa=(1e-3,), compressions=(1, 5), table=(1, 5))


@pytest.fixture
def float32():
    torch.set_default_dtype(torch.float32)


def test_splits_are_disjoint_and_in_proportion():
    data = digits.load()
    sizes = [len(labels) for _, labels in (data.train, data.validation, data.test)]
    assert sizes == [1077, 360, 360]
    # Every picture lands in one split: together they are the data, picture by picture.
    together = torch.cat([images.flatten(1) for images, _ in (data.train, data.validation, data.test)])
    every = torch.tensor(load_digits().data / 8 - 1, dtype=together.dtype)
    assert torch.equal(torch.tensor(sorted(together.tolist())), torch.tensor(sorted(every.tolist())))
    for _, labels in (data.train, data.validation, data.test):
        shares = labels.bincount() / len(labels)
        assert (shares - 0.1).abs().max() < 0.01


def test_the_curve_reaches_each_compression_and_restores_the_weights(float32):
    data, model = digits.load(), digits.network().eval()
    before = [weight.detach().clone() for weight in prunable(model).values()]
    config = digits.Config()
    points = list(digits.curve(config, model, "dense", 0.0, 0, data))
    total = count(before).total
    for point, compression in zip(points, config.compressions, strict=True):
        assert point.prunable == Count(total, int(total / compression))  # untrained weights have no ties
    assert all(torch.equal(a, b) for a, b in zip(before, prunable(model).values(), strict=True))


def test_choice_is_by_validation_then_compression():
    def point(ratio, validation):
        return digits.Point("l1", 0.1, 0, 0.0, Count(100, 100 // ratio), Count(100, 100 // ratio), validation)

    points = [point(1, 99.0), point(2, 98.0), point(5, 98.0), point(10, 90.0)]
    assert digits.choose(points, 1) == points[0]
    assert digits.choose(points, 2) == points[2]
    assert digits.choose(points, 6) == points[3]
    assert digits.choose(points, 11) is None


def test_proximal_step_of_l1():
    weights = [torch.tensor([0.5, -0.5, 0.05])]
    digits.soft_threshold(weights, 0.1)
    torch.testing.assert_close(weights[0], torch.tensor([0.4, -0.4, 0.0]))


def test_the_whole_experiment_in_small(float32, tmp_path, capsys):
    ticks = []
    record = digits.run(TINY, tmp_path, lambda: ticks.append(1))
    assert len(ticks) == 3
    assert {(row["method"], row["compression"]) for row in record["results"]} == {
        (method, compression) for method in ("dense", "l1", "ReWA") for compression in (1, 5)
    }
    assert json.loads(json.dumps(record)) is not None
    digits.draw(record, tmp_path / "digits.png")
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    digits.show(record)
    digits.show_deployed(record)
    assert "ReWA" in capsys.readouterr().out
    assert [row["method"] for row in record["deployed"]] == ["dense", "l1", "ReWA"]
    shipped = [row for row in record["deployed"] if "test" in row]
    assert shipped[0]["method"] == "dense"  # the dense network is always within a point of itself
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["digits.png", *(f"digits-{row['method'].lower()}.safetensors" for row in shipped)]
    )
    for row in shipped:
        file = rewa.packed.read_packed(tmp_path / f"digits-{row['method'].lower()}.safetensors")
        assert file.size == row["packed_bytes"] < row["dense_bytes"]
        assert file.report["summary"]["prunable"]["nonzero"] == row["nonzero"]
        assert sum(entry.numel for entry in file.entries) >= row["parameters"]
        assert row["dense_ms"] > 0


def test_bad_arguments_are_refused(capsys):
    with pytest.raises(SystemExit):
        digits.main(["--epochs", "0"])
    assert "must be at least 1" in capsys.readouterr().err
