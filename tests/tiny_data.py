"""Tiny data sets, with the files that the real ones have."""

from __future__ import annotations

import gzip

import numpy as np
import torch
from PIL import Image

from rewa.train import datasets


def same(first, second):
    first, second = list(first), list(second)
    return len(first) == len(second) and all(
        torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)
    )


def write_images(root, classes=("ant", "bee"), train=15, val=4):
    """A folder of images for each class, of several sizes."""
    generator = np.random.RandomState(0)
    for split, count in (("train", train), ("val", val)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                coarse = generator.randint(256, size=(4, 5, 3)).astype(np.uint8)
                image = Image.fromarray(coarse).resize((30 + i, 24 + 2 * i), Image.Resampling.BILINEAR)
                image.save(root / split / name / f"{name}{i:02}.JPEG")


def idx(array):
    """A gzipped idx file of bytes."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(header + array.tobytes())


def write_fashion(place, train=30, test=6):
    generator = np.random.RandomState(0)
    place.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for prefix, count in (("train", train), ("t10k", test)):
        arrays[f"{prefix}-images-idx3-ubyte.gz"] = generator.randint(256, size=(count, 28, 28)).astype(np.uint8)
        arrays[f"{prefix}-labels-idx1-ubyte.gz"] = generator.randint(10, size=count).astype(np.uint8)
    for name, array in arrays.items():
        (place / name).write_bytes(idx(array))
    return list(arrays.values())


def write_cifar10(place, monkeypatch, count=4):
    monkeypatch.setattr(datasets, "CIFAR10_IMAGES", count)
    generator = np.random.RandomState(0)
    place.mkdir(parents=True, exist_ok=True)
    records = generator.randint(256, size=(6, count, 3073)).astype(np.uint8)
    records[:, :, 0] %= 10
    for name, part in zip([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], records, strict=True):
        (place / name).write_bytes(part.tobytes())
    return records
