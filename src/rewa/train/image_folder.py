"""Folders of images, one for each class: decoded as they are needed, cropped as for ImageNet."""

from __future__ import annotations

import atexit
import math
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rewa.train.data import AUGMENTATION, Batch, Data, Shard, fixed_order, seeded, split_off

__all__ = ["ImageFolder"]

CROP_AREA, CROP_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of random resized crops: Szegedy et al. (CVPR 2015), FFCV's default
CENTER_CROP = 224 / 256  # share of the shorter side that evaluation sees, in FFCV's recipe too
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EXTENSIONS = (".jpeg", ".jpg", ".png")


class ImageFolder(Data):
    """A folder ``train/<class>/`` and a folder ``val/<class>/`` of images, decoded by worker processes as they are needed.

    Training: a random part of the image, of 8 to 100 % of its area and with sides from 3:4 to 4:3, resized to
    ``image_size``, and half of them mirrored (Szegedy et al., CVPR 2015; the default of FFCV, Leclerc et al., CVPR 2023).
    Evaluation: the middle 224/256 of the shorter side, resized to ``evaluation_size``: the same as resizing to 256/224 of it
    and cropping. Validation images are held out of ``train``; ``val`` is the test.

    Args:
        root: The folder that holds both.
        name: The name of the data.
        validation: Images held out; None for 10,000, or a tenth where there are fewer than 100,000.
        augment: If not, training images are cropped as for evaluation.
        image_size: Side of training images where :meth:`batches` is given none.
        evaluation_size: Side of images for evaluation.
        workers: Processes that decode; 0 for none; None for one on each CPU, at most 4.
    """

    def __init__(
        self,
        root: Path,
        *,
        name: str = "folder",
        validation: int | None = None,
        augment: bool = True,
        image_size: int = 224,
        evaluation_size: int = 256,
        workers: int | None = None,
    ) -> None:
        try:
            import PIL.Image  # noqa: F401
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("image folders need Pillow: pip install 'rewa[train]'") from error
        if min(image_size, evaluation_size) < 1 or (workers is not None and workers < 0):
            raise ValueError(
                f"Invalid image_size, evaluation_size or workers: {image_size}, {evaluation_size}, {workers} "
                "(allowed: sizes of 1 and more, workers of 0 and more)"
            )
        self.name, self.augment, self.evaluation_size = name, augment, evaluation_size
        self.workers = min(4, _cpus()) if workers is None else workers
        self.example_shape = (3, image_size, image_size)
        self.class_names, train = _scan(root / "train")
        others, test = _scan(root / "val")
        if different := set(self.class_names) ^ set(others):
            raise ValueError(f"{root}: the class {min(different)!r} is not in both train and val")
        self.classes = len(self.class_names)
        # Shuffled once and for all: so the share held out is random, and a limit does not cut off whole classes.
        train, test = (files[fixed_order(len(files)).numpy()] for files in (train, test))
        train, held = split_off(train, validation if validation is not None else min(10_000, len(train) // 10), str(root))
        self.splits: dict[str, np.ndarray[Any, Any]] = {"train": train, "validation": held, "test": test}
        self.sizes = {split: len(files) for split, files in self.splits.items()}

    def _training(
        self, plan: list[tuple[int, Tensor]], epoch: int, seed: int, shard: Shard, image_size: int | None
    ) -> Iterator[Batch]:
        size = image_size or self.example_shape[1]
        decoded = _Decoded(self.splits["train"], size, (seed, epoch) if self.augment else None)
        return self._decode(decoded, [rows[shard.rows(len(rows))].tolist() for _, rows in plan])

    def _evaluating(self, split: str, plan: list[Tensor]) -> Iterator[Batch]:
        return self._decode(_Decoded(self.splits[split], self.evaluation_size, None), [rows.tolist() for rows in plan])

    def _content(self) -> Iterator[bytes | memoryview]:
        for split, files in self.splits.items():
            yield split.encode()
            # The last three parts, train/<class>/<file> or val/<class>/<file>: the folder may move.
            paths = (path.split(os.fsencode(os.sep))[-3:] for path in files["path"].tolist())
            yield b"\0".join(sorted(b"/".join(parts) for parts in paths))

    def _decode(self, decoded: _Decoded, plan: list[list[int]]) -> Iterator[Batch]:
        batches = self._batches(decoded, plan)
        _RUNNING.add(batches)
        atexit.unregister(_end_workers)  # to be there once, and before what torch and multiprocessing do at exit
        atexit.register(_end_workers)
        return batches

    def _batches(self, decoded: _Decoded, plan: list[list[int]]) -> Generator[Batch, None, None]:
        mean, std = (255 * torch.tensor(x, dtype=torch.float32).view(3, 1, 1) for x in (IMAGENET_MEAN, IMAGENET_STD))
        # Its own generator: the loader would else draw from the global one, which dropout uses.
        loader: DataLoader[_Result] = DataLoader(
            decoded,
            None,
            sampler=plan,
            num_workers=self.workers,
            collate_fn=tuple,
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),
        )
        for images, labels, problem in loader:
            if problem:
                raise ValueError(problem)
            yield images.float().sub_(mean).div_(std), labels


_RUNNING: WeakSet[Generator[Batch, None, None]] = WeakSet()


def _ignore_signals(worker: int) -> None:
    """Leave it to the training process to stop: who asks it to often asks its group, and it still needs batches to save."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _end_workers() -> None:
    """End the workers of what is still being read; else multiprocessing would send them SIGTERM and wait for ever."""
    for batches in list(_RUNNING):
        batches.close()


_Result = tuple[Tensor, Tensor, str]  # images, labels, and what is wrong with them: an error would come with its traceback


class _Unreadable(Exception):
    """An image that cannot be decoded."""


class _Decoded(Dataset[_Result]):
    """Lists of files decoded to batches; bytes, since that is what goes from process to process."""

    def __init__(self, files: np.ndarray[Any, Any], size: int, seeds: tuple[int, int] | None) -> None:
        self.files, self.size, self.seeds = files, size, seeds

    def __getitem__(self, rows: list[int]) -> _Result:
        images = torch.empty(len(rows), 3, self.size, self.size, dtype=torch.uint8)
        labels = torch.from_numpy(self.files["label"][rows])
        for image, row in zip(images, rows, strict=True):
            try:
                image.copy_(self.decode(row))
            except _Unreadable as error:
                return images, labels, str(error)
        return images, labels, ""

    def decode(self, row: int) -> Tensor:
        from PIL import Image

        path = os.fsdecode(self.files["path"][row])
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:  # as Pillow finds it broken
            raise _Unreadable(f"cannot read the image {path}: {error}; replace or remove it") from error
        mirrored = False
        if self.seeds is None:
            box = _center_box(image.width, image.height)
        else:
            generator = seeded(*self.seeds, row, AUGMENTATION)
            box = _random_box(image.width, image.height, generator)
            mirrored = bool(torch.randint(2, (), generator=generator))
        pixels = np.asarray(image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box))
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        return tensor.flip(-1) if mirrored else tensor


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _center_box(width: int, height: int) -> Box:
    side = CENTER_CROP * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random_box(width: int, height: int, generator: torch.Generator) -> Box:
    """A part of the image whose area and ratio are drawn; the largest of an allowed ratio after ten that do not fit."""
    low, high = map(math.log, CROP_RATIO)
    for area, ratio, left, top in torch.rand(10, 4, generator=generator, dtype=torch.float64).tolist():
        pixels = width * height * (CROP_AREA[0] + area * (CROP_AREA[1] - CROP_AREA[0]))
        shape = math.exp(low + ratio * (high - low))
        w, h = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 1 <= w <= width and 1 <= h <= height:
            x, y = int(left * (width - w + 1)), int(top * (height - h + 1))
            return x, y, x + w, y + h
    w, h = min(width, round(height * CROP_RATIO[1])), min(height, round(width / CROP_RATIO[0]))
    x, y = (width - w) // 2, (height - h) // 2
    return x, y, x + w, y + h


def _scan(folder: Path) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The classes of a folder, sorted, and its images with the numbers of their classes.

    One array of bytes, not a million strings: a worker that only reads those comes to copy them all.
    """
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not names:
        raise ValueError(f"{folder} holds no folders: one for each class is needed")
    files: list[tuple[bytes, int]] = []
    for number, name in enumerate(names):
        found = sorted(entry.path for entry in os.scandir(folder / name) if entry.name.lower().endswith(EXTENSIONS))
        if not found:
            raise ValueError(f"{folder / name} holds no images ({', '.join(EXTENSIONS)}): fill or remove it")
        files += [(os.fsencode(path), number) for path in found]
    longest = max(len(path) for path, _ in files)
    return names, np.array(files, [("path", f"S{longest}"), ("label", np.int64)])


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
