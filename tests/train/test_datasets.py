"""Data sets by name: files read back number by number, splits that never change, damage that is named."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from rewa.train.datasets import load
from tiny_data import idx, same, write_cifar10, write_fashion


def test_digits_are_split_in_proportion():
    made = load("digits")
    assert made.sizes == {"train": 1077, "validation": 360, "test": 360}
    pixels, labels = load_digits(return_X_y=True)
    splits = {}
    rest, splits["test"] = train_test_split(np.arange(1797), test_size=0.2, random_state=0, stratify=labels)
    splits["train"], splits["validation"] = train_test_split(rest, test_size=0.25, random_state=0, stratify=labels[rest])
    for split, rows in splits.items():
        share = np.bincount(labels[rows]) / np.bincount(labels)
        assert abs(share - len(rows) / 1797).max() < 0.01
        wanted = torch.tensor(pixels[rows].reshape(-1, 1, 8, 8) / 8 - 1).float(), torch.tensor(labels[rows])
        if split == "train":
            x, y = next(made.batches(0, seed=0, batch_size=1077))
            shuffled = {(*image.flatten().tolist(), int(label)) for image, label in zip(x, y, strict=True)}
            assert shuffled == {(*image.flatten().tolist(), int(label)) for image, label in zip(*wanted, strict=True)}
        else:
            (found,) = made.evaluation(split, batch_size=1000)
            assert same([found], [wanted])


@pytest.mark.parametrize("inside", ["", "fashion-mnist"])
def test_fashion_mnist_from_idx_files(tmp_path, inside):
    images, labels, test_images, test_labels = write_fashion(tmp_path / inside)
    made = load("fashion-mnist", root=tmp_path, validation=5)
    assert made.sizes == {"train": 25, "validation": 5, "test": 6}
    assert made.example_shape == (1, 28, 28)
    order = np.random.RandomState(0).permutation(30)  # the last of a fixed permutation are held out
    for split, wanted, names in (
        ("train", images[order[:25]], labels[order[:25]]),
        ("validation", images[order[25:]], labels[order[25:]]),
        ("test", test_images, test_labels),
    ):
        assert np.array_equal(made.splits[split][0][:, 0].numpy(), wanted)
        assert np.array_equal(made.splits[split][1].numpy(), names)


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar10_from_binary_files(tmp_path, monkeypatch, inside):
    records = write_cifar10(tmp_path / inside, monkeypatch)
    monkeypatch.setenv("REWA_DATA", str(tmp_path))
    made = load("cifar10", validation=3, augment=True, resize=16)
    assert made.sizes == {"train": 17, "validation": 3, "test": 4}
    assert made.example_shape == (3, 16, 16)
    assert made.augment
    train = records[:5].reshape(20, 3073)[np.random.RandomState(0).permutation(20)]
    for split, wanted in (("train", train[:17]), ("validation", train[17:]), ("test", records[5])):
        images, labels = made.splits[split]
        assert np.array_equal(labels.numpy(), wanted[:, 0])
        # Red, green, blue, each row by row.
        assert np.array_equal(images[:, 1, 2, 3].numpy(), wanted[:, 1 + 1024 + 2 * 32 + 3])
        assert np.array_equal(images.flatten(1).numpy(), wanted[:, 1:])


@pytest.mark.parametrize("inside", ["", "tinyshakespeare"])
def test_shakespeare_from_a_text(tmp_path, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    (tmp_path / inside / "input.txt").write_text("to be or not to be\n" * 50)
    made = load("shakespeare", root=tmp_path, context=8)
    assert made.example_shape == (8,)
    x, _ = next(made.evaluation("validation", batch_size=1))
    assert "".join(made.vocabulary[i] for i in x[0]) == ("to be or not to be\n" * 50)[855:863]


def test_imagenet_is_a_folder(folder, tmp_path, monkeypatch):
    made = load("imagenet", root=folder, image_size=16, evaluation_size=20, workers=0)
    assert made.name == "imagenet"
    assert made.example_shape == (3, 16, 16)
    (tmp_path / "imagenet").symlink_to(folder)
    monkeypatch.setenv("REWA_DATA", str(tmp_path))
    assert load("imagenet", validation=4).sizes == {"train": 26, "validation": 4, "test": 8}
    with pytest.raises(ValueError, match="imagenet cannot be downloaded"):
        load("imagenet", root=folder, download=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: len(content) // 2], "is damaged"),
        (lambda content: b"no gzip", "is damaged"),
        (lambda content: content[:40] + bytes([content[40] ^ 255]) + content[41:], "is damaged|is not a whole idx file"),
        (lambda content: gzip.compress(gzip.decompress(content)[:-1]), "is not a whole idx file"),
        (lambda content: gzip.compress(b"\0\0\x0d\3" + gzip.decompress(content)[4:]), "is not a whole idx file"),
        (lambda content: gzip.compress(b""), "is not a whole idx file"),
        (lambda content: idx(np.zeros((29, 28, 28), np.uint8)), "do not belong together"),
        (lambda content: idx(np.zeros((0, 28, 28), np.uint8)), "is not a whole idx file"),
    ],
)
def test_damaged_idx_files(tmp_path, damage, message):
    write_fashion(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"train-images-idx3-ubyte\.gz.*({message})"):
        load("fashion-mnist", root=tmp_path, validation=5)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "has 12,291 bytes, not 12,292"),
        (lambda content: content[:-3073], "has 9,219 bytes"),
        (lambda content: b"", "has 0 bytes"),
        (lambda content: b"\x0b" + content[1:], "holds the label 11"),
    ],
)
def test_damaged_cifar10_files(tmp_path, monkeypatch, damage, message):
    write_cifar10(tmp_path, monkeypatch)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"data_batch_2\.bin {message}"):
        load("cifar10", root=tmp_path, validation=3)


@pytest.mark.parametrize(("content", "message"), [(b"", "does not fit the text of 0"), (b"\xff\xfe\x00", "is not text")])
def test_damaged_text(tmp_path, content, message):
    (tmp_path / "input.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"input\.txt.* {message}"):
        load("shakespeare", root=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar"}, "there is no data 'cifar'; did you mean 'cifar10'"),
        ({"name": "digits", "augmented": True}, "no option of digits 'augmented'; did you mean 'augment'"),
        ({"name": "digits", "augment": True}, "digits is not augmented"),
        ({"name": "digits", "validation": 3}, "digits has a fixed split"),
        ({"name": "shakespeare", "validation": 3}, "shakespeare has a fixed split"),
    ],
)
def test_load_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        load(**arguments)


@pytest.mark.parametrize("validation", [0, 30, 5000])
def test_validation_must_leave_something_to_train_on(tmp_path, validation):
    write_fashion(tmp_path)
    with pytest.raises(ValueError, match=rf"Invalid validation: {validation} \(allowed for fashion-mnist: 1 to 29"):
        load("fashion-mnist", root=tmp_path, validation=validation)


# ------------------------------------------------------------------------------------------------------ real data

real = pytest.mark.skipif("REWA_DATA" not in os.environ, reason="REWA_DATA is not set: no real data")


def found(name, **options):
    try:
        return load(name, **options)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@real
def test_the_real_cifar10():
    made = found("cifar10")
    assert made.sizes == {"train": 45_000, "validation": 5_000, "test": 10_000}
    both = torch.cat([made.splits[split][1] for split in ("train", "validation")])
    assert torch.bincount(both).tolist() == [5000] * 10
    assert torch.bincount(made.splits["test"][1]).tolist() == [1000] * 10
    assert made.splits["test"][1][:4].tolist() == [3, 8, 8, 0]  # a cat, two ships, an airplane
    torch.testing.assert_close(made.mean.flatten() / 255, torch.tensor([0.4914, 0.4822, 0.4465]).float(), atol=1e-3, rtol=0)


@real
def test_the_real_fashion_mnist():
    made = found("fashion-mnist")
    assert made.sizes == {"train": 55_000, "validation": 5_000, "test": 10_000}
    assert torch.bincount(made.splits["test"][1]).tolist() == [1000] * 10
    assert float(made.mean) / 255 == pytest.approx(0.2860, abs=1e-3)
    assert float(made.std) / 255 == pytest.approx(0.3530, abs=1e-3)


@real
def test_the_real_shakespeare():
    made = found("shakespeare")
    assert made.classes == 65
    assert sum(map(len, made.splits.values())) == 1_115_394
    assert "".join(made.vocabulary[i] for i in made.splits["train"][:13]) == "First Citizen"
