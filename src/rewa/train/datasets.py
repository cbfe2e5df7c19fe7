"""Data sets by name: what their files hold, and how each is split."""

from __future__ import annotations

import gzip
import inspect
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewa.names import nearest
from rewa.train.data import Batch, Data, Images, Text, fixed_order, split_off
from rewa.train.image_folder import ImageFolder
from rewa.train.sources import SOURCES, find

__all__ = ["DATASETS", "load"]

CIFAR10_IMAGES = 10_000  # in each file


def _held_out(images: Tensor, labels: Tensor, count: int, name: str) -> tuple[Batch, Batch]:
    """Training and validation part: the last ones of a fixed permutation."""
    first, second = split_off(fixed_order(len(labels)), count, name)
    return (images[first], labels[first]), (images[second], labels[second])


IMAGE_OPTIONS = ("augment", "shift", "flips", "resize")  # of Images, for data that are passed on to it as they are


def _fixed_split(name: str, validation: int | None, augment: bool) -> None:
    if validation is not None:
        raise ValueError(f"Invalid validation: {validation} ({name} has a fixed split: leave it out)")
    if augment:
        raise ValueError(f"Invalid augment: True ({name} is not augmented: leave it out)")


def _digits(
    root: Path | None, fetch: bool, validation: int | None, *, augment: bool = False, resize: int | None = None
) -> Data:
    """scikit-learn's 1797 digits, 60 % to train, 20 % to choose, 20 % to test, classes in proportion; pixels 0 to 16."""
    _fixed_split("digits", validation, augment)
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, classes = load_digits(return_X_y=True)
    rest, test = train_test_split(np.arange(len(classes)), test_size=0.2, random_state=0, stratify=classes)
    train, held = train_test_split(rest, test_size=0.25, random_state=0, stratify=classes[rest])
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8).astype(np.uint8))
    labels = torch.from_numpy(classes.astype(np.int64))
    parts = [(images[rows], labels[rows]) for rows in (train, held, test)]
    scaling = (8, 8)  # x / 8 - 1
    return Images("digits", train=parts[0], validation=parts[1], test=parts[2], classes=10, resize=resize, scaling=scaling)


def _fashion_mnist(root: Path | None, fetch: bool, validation: int | None, **options: Any) -> Data:
    source = SOURCES["fashion-mnist"]
    folder = find("fashion-mnist", root, source.files, source.folder, fetch)
    images, labels, test_images, test_labels = (_read_idx(folder / file) for file in source.files)
    for file, (x, y) in zip(source.files[::2], ((images, labels), (test_images, test_labels)), strict=True):
        if x.dim() != 3 or y.dim() != 1 or len(x) != len(y) or (len(y) and int(y.max()) > 9):
            raise ValueError(f"{folder / file} and its labels do not belong together: {tuple(x.shape)}, {tuple(y.shape)}")
    train, held = _held_out(images[:, None], labels.long(), 5000 if validation is None else validation, "fashion-mnist")
    test = test_images[:, None], test_labels.long()
    return Images("fashion-mnist", train=train, validation=held, test=test, classes=10, **options)


def _read_idx(path: Path) -> Tensor:
    """A gzipped file of bytes in LeCun's idx format."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}; download it again") from error
    dims = content[3] if len(content) >= 4 and content[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * dims
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if not dims or not math.prod(shape) or len(content) != start + math.prod(shape):
        raise ValueError(f"{path} is not a whole idx file of bytes: {len(content)} bytes for shape {shape}; download it again")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def _cifar10(root: Path | None, fetch: bool, validation: int | None, **options: Any) -> Data:
    source = SOURCES["cifar10"]
    folder = find("cifar10", root, source.files, source.folder, fetch)
    *parts, test = (_read_cifar10(folder / file) for file in source.files)
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    train, held = _held_out(images, labels, 5000 if validation is None else validation, "cifar10")
    return Images("cifar10", train=train, validation=held, test=test, classes=10, **options)


def _read_cifar10(path: Path) -> Batch:
    """Images and labels of a file: a byte for the label and 3 x 32 x 32 for the image, again and again."""
    content = torch.from_numpy(np.fromfile(path, np.uint8))
    record = 1 + 3 * 32 * 32
    if len(content) != CIFAR10_IMAGES * record:
        wanted = CIFAR10_IMAGES * record
        raise ValueError(f"{path} has {len(content):,} bytes, not {wanted:,}: it is damaged; download it again")
    rows = content.view(-1, record)
    if int(rows[:, 0].max()) > 9:
        raise ValueError(f"{path} holds the label {int(rows[:, 0].max())}, more than 9: it is damaged; download it again")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def _shakespeare(root: Path | None, fetch: bool, validation: int | None, *, augment: bool = False, context: int = 128) -> Data:
    _fixed_split("shakespeare", validation, augment)
    source = SOURCES["shakespeare"]
    path = find("shakespeare", root, source.files, source.folder, fetch) / source.files[0]
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: {error}; download it again") from error
    try:
        return Text("shakespeare", text=text, context=context)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _imagenet(
    root: Path | None,
    fetch: bool,
    validation: int | None,
    *,
    augment: bool = True,
    image_size: int = 224,
    evaluation_size: int = 256,
    workers: int | None = None,
) -> Data:
    if fetch:
        raise ValueError("imagenet cannot be downloaded without an account: get it from https://image-net.org")
    folder = find("imagenet", root, ("train", "val"), "imagenet", fetch)
    sizes = {"image_size": image_size, "evaluation_size": evaluation_size}
    return ImageFolder(folder, name="imagenet", validation=validation, augment=augment, workers=workers, **sizes)


DATASETS: dict[str, Callable[..., Data]] = {
    "cifar10": _cifar10,
    "digits": _digits,
    "fashion-mnist": _fashion_mnist,
    "imagenet": _imagenet,
    "shakespeare": _shakespeare,
}


def load(name: str, *, root: Path | None = None, validation: int | None = None, download: bool = False, **options: Any) -> Data:
    """Data by its name.

    Args:
        name: ``"digits"`` (in scikit-learn), ``"fashion-mnist"``, ``"cifar10"``, ``"imagenet"`` (a folder with ``train`` and
            ``val``) or ``"shakespeare"``.
        root: Folder with the data, or with a folder of it; None for the environment variable ``REWA_DATA``.
        validation: Examples held out of the training data; None for 5,000, for imagenet 10,000. Digits (20 %) and
            shakespeare (5 %) are fixed.
        download: Whether to fetch what is missing into ``root``.
        options: ``augment`` and ``resize`` of :class:`rewa.train.data.Images`, ``context`` of :class:`rewa.train.data.Text`, or
            those of :class:`rewa.train.image_folder.ImageFolder`.

    Raises:
        FileNotFoundError: If the data is not there.
        ValueError: If it is damaged.

    Example:
        >>> load("digits").sizes
        {'train': 1077, 'validation': 360, 'test': 360}
    """
    if name not in DATASETS:
        raise ValueError(nearest("data", name, DATASETS))
    parameters = inspect.signature(DATASETS[name]).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        known += IMAGE_OPTIONS
    for option in options:
        if option not in known:
            raise ValueError(nearest(f"option of {name}", option, known))
    return DATASETS[name](root, download, validation, **options)
