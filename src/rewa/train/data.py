r"""Data for training that is the same on one process or many, and can be resumed at any step.

A global training batch is a pure function of (seed, epoch, step): the order of an epoch comes from one random generator, the
augmentation of a batch from another, each seeded by :func:`mix`. A process takes its rows of the batch (:class:`Shard`). The
split into training, validation and test data never depends on the seed.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["AUGMENTATION", "WHOLE", "Batch", "Data", "Images", "Shard", "Text", "fixed_order", "mix", "seeded", "split_off"]

Batch = tuple[Tensor, Tensor]

SPLITS = ("train", "validation", "test")
ORDER, AUGMENTATION, MIRRORED = 1, 2, 5  # what a seed is for; never 0, since SeedSequence does not tell (1,) from (1, 0)
SHIFT = 4  # of random crops, He et al. (CVPR 2016)
FLIPS = ("random", "alternating")


def mix(*numbers: int) -> int:
    """One seed from several numbers: 64 bits of the hash in NumPy's ``SeedSequence``, which is the same on all machines.

    Args:
        numbers: Each from 0 to 2**32 - 1, the last one not 0.

    Example:
        >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 1)
        (True, False)
    """
    if not numbers or not all(0 <= number < 2**32 for number in numbers) or not numbers[-1]:
        raise ValueError(f"Invalid numbers to make a seed from: {numbers} (allowed: 0 to 2**32 - 1, the last one not 0)")
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def seeded(*numbers: int) -> torch.Generator:
    """A random generator seeded by :func:`mix`.

    Args:
        numbers: As for :func:`mix`.
    """
    return torch.Generator().manual_seed(mix(*numbers))


def fixed_order(count: int) -> Tensor:
    """The one permutation of so many things; NumPy promises that this generator never changes.

    Args:
        count: How many.
    """
    return torch.from_numpy(np.random.RandomState(0).permutation(count))


def split_off(items: Any, count: int, name: str) -> tuple[Any, Any]:
    """Training examples without the last ones, and those, for validation.

    Args:
        items: The training examples, or their numbers.
        count: How many are held out.
        name: Name of the data.
    """
    if not 1 <= count < len(items):
        raise ValueError(f"Invalid validation: {count} (allowed for {name}: 1 to {len(items) - 1}, of the training examples)")
    return items[:-count], items[-count:]


@dataclass(frozen=True)
class Shard:
    """The rows of each batch that belong to one of several processes.

    Args:
        rank: Number of the process, from 0.
        world: How many there are.

    Example:
        >>> [Shard(rank, 2).rows(5) for rank in range(2)]
        [slice(0, 2, None), slice(2, 5, None)]
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"Invalid rank: {self.rank} (allowed: 0 to {self.world - 1}, less than world={self.world})")

    def rows(self, count: int) -> slice:
        """This process's part of so many rows, as even as possible.

        Args:
            count: Rows of all processes together.
        """
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)


WHOLE = Shard()


class Data(ABC):
    """Examples and targets to train on, to choose on and to test on.

    Attributes:
        name: As given to :func:`rewa.train.datasets.load`.
        classes: Number of classes, or of tokens.
        example_shape: (channels, height, width), or (time,).
        sizes: Number of examples in ``"train"``, ``"validation"`` and ``"test"``.
    """

    name: str
    classes: int
    example_shape: tuple[int, ...]
    sizes: dict[str, int]

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits, the beginning of a SHA-256, that are others for other examples or another split of them.

        What is done to the examples, such as ``augment`` or ``resize``, is no part of it, nor is the place they are stored at.
        """
        found = hashlib.sha256()
        for part in self._content():
            found.update(len(part).to_bytes(8, "little"))  # so that no two lists of parts run together to the same bytes
            found.update(part)
        return found.hexdigest()[:16]

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches in an epoch; what does not fill the last one is left out.

        Args:
            batch_size: Examples in a batch of all processes together.
        """
        if not 1 <= batch_size <= self.sizes["train"]:
            raise ValueError(f"Invalid batch_size: {batch_size} (allowed: 1 to {self.sizes['train']}, the training examples)")
        return self.sizes["train"] // batch_size

    def batches(
        self, epoch: int, *, seed: int, batch_size: int, start: int = 0, shard: Shard = WHOLE, image_size: int | None = None
    ) -> Iterator[Batch]:
        """Training batches of an epoch, augmented.

        Args:
            epoch: Counted from 0.
            seed: Seed of the run.
            batch_size: Examples in a batch of all processes together.
            start: The first step that is wanted.
            shard: Which rows of each batch.
            image_size: Side of the images; None for that of ``example_shape``.
        """
        steps = self.steps_per_epoch(batch_size)
        if batch_size % shard.world:
            raise ValueError(f"batch_size={batch_size} cannot be shared evenly by {shard.world} processes: choose a multiple")
        if not 0 <= start <= steps:
            raise ValueError(f"Invalid start: {start} (allowed: 0 to {steps}, the steps of an epoch)")
        if image_size is not None and (image_size < 1 or len(self.example_shape) != 3):
            raise ValueError(f"Invalid image_size: {image_size} (allowed: 1 and more for images, None for other data)")
        order = torch.randperm(self.sizes["train"], generator=seeded(seed, epoch, ORDER))
        plan = [(step, order[step * batch_size : (step + 1) * batch_size]) for step in range(start, steps)]
        return self._training(plan, epoch, seed, shard, image_size)

    def evaluation(self, split: str, *, batch_size: int, shard: Shard = WHOLE, limit: int | None = None) -> Iterator[Batch]:
        """Batches of a split, not augmented, in an order that is always the same and mixes the classes.

        Every process gets the same number of batches; its part of the last one may be empty.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            batch_size: Examples in a batch of all processes together.
            shard: Which rows of each batch.
            limit: Only so many examples, the first ones.
        """
        if split not in SPLITS:
            raise ValueError(f"Invalid split: {split!r} (allowed: {', '.join(SPLITS)})")
        if batch_size < 1 or (limit is not None and limit < 1):
            raise ValueError(f"Invalid batch_size or limit: {batch_size}, {limit} (allowed: 1 and more)")
        size = self.sizes[split]
        order = fixed_order(size) if split == "train" else torch.arange(size)
        plan = [rows[shard.rows(len(rows))] for rows in torch.split(order[:limit], batch_size)]
        return self._evaluating(split, plan)

    @abstractmethod
    def _training(
        self, plan: list[tuple[int, Tensor]], epoch: int, seed: int, shard: Shard, image_size: int | None
    ) -> Iterator[Batch]:
        """The batches for a list of steps and the examples of all processes in each."""

    @abstractmethod
    def _evaluating(self, split: str, plan: list[Tensor]) -> Iterator[Batch]:
        """The batches for a list of this process's examples in each."""

    @abstractmethod
    def _content(self) -> Iterator[bytes | memoryview]:
        """All there is, in bytes, each split after its name."""


# -------------------------------------------------------------------------------------------- images in memory


class Images(Data):
    r"""Images held in memory as bytes, and normalised, :math:`(x - \mu_c) / \sigma_c` in each channel c, when they are used.

    Args:
        name: Name of the data.
        train: Images, uint8 of shape (count, channels, height, width), and labels, int64.
        validation: The same.
        test: The same.
        classes: Number of classes.
        augment: Whether training images are cropped at random from a frame of black pixels, and half of them mirrored.
        shift: Width of that frame.
        flips: ``"random"``, or ``"alternating"``: the half that is mirrored in an epoch is the one that was not in the last
            (Jordan, 2024, arXiv:2404.00498).
        resize: Side that images are resized to, bilinearly; None leaves them.
        scaling: Mean and standard deviation of a pixel, 0 to 255; None for each channel's over the training images.
    """

    def __init__(
        self,
        name: str,
        *,
        train: Batch,
        validation: Batch,
        test: Batch,
        classes: int,
        augment: bool = False,
        shift: int = SHIFT,
        flips: str = "random",
        resize: int | None = None,
        scaling: tuple[float, float] | None = None,
    ) -> None:
        if resize is not None and resize < 1:
            raise ValueError(f"Invalid resize: {resize} (allowed: 1 and more, or None)")
        if shift < 1 or flips not in FLIPS:
            raise ValueError(f"Invalid shift or flips: {shift}, {flips!r} (allowed: 1 and more; {', '.join(FLIPS)})")
        self.name, self.classes, self.augment, self.resize = name, classes, augment, resize
        self.shift, self.flips = shift, flips
        self.splits = {"train": train, "validation": validation, "test": test}
        self.sizes = {split: len(labels) for split, (_, labels) in self.splits.items()}
        channels, height, width = train[0].shape[1:]
        self.example_shape = (channels, resize or height, resize or width)
        mean, std = _moments(train[0]) if scaling is None else (torch.tensor([value]) for value in scaling)
        self.mean, self.std = mean.float().view(-1, 1, 1), std.float().view(-1, 1, 1)

    def _training(
        self, plan: list[tuple[int, Tensor]], epoch: int, seed: int, shard: Shard, image_size: int | None
    ) -> Iterator[Batch]:
        images, labels = self.splits["train"]
        half = None
        if self.flips == "alternating":
            half = torch.randint(2, (len(labels),), generator=seeded(seed, MIRRORED)).bool() ^ bool(epoch % 2)
        for step, rows in plan:
            mine = shard.rows(len(rows))
            batch = images[rows[mine]]
            if self.augment:
                # Drawn for the whole batch, so that it does not matter how many processes share it.
                generator = seeded(seed, epoch, step, AUGMENTATION)
                corners = torch.randint(2 * self.shift + 1, (len(rows), 2), generator=generator)
                mirrored = torch.randint(2, (len(rows),), generator=generator).bool()
                if half is not None:
                    mirrored = half[rows]
                batch = _augmented(batch, corners[mine], mirrored[mine], self.shift)
            yield self._normalised(batch, image_size or self.resize), labels[rows[mine]]

    def _evaluating(self, split: str, plan: list[Tensor]) -> Iterator[Batch]:
        images, labels = self.splits[split]
        for rows in plan:
            yield self._normalised(images[rows], self.resize), labels[rows]

    def _content(self) -> Iterator[bytes | memoryview]:
        for split, (images, labels) in self.splits.items():
            yield from (split.encode(), str(tuple(images.shape)).encode(), _bytes(images), _bytes(labels))

    def _normalised(self, batch: Tensor, size: int | None) -> Tensor:
        out = batch.float().sub_(self.mean).div_(self.std)
        if size is None or out.shape[-2:] == (size, size):
            return out
        if not len(out):  # interpolate refuses it
            return out.new_empty(0, out.shape[1], size, size)
        return F.interpolate(out, (size, size), mode="bilinear", align_corners=False, antialias=size < min(out.shape[-2:]))


def _bytes(tensor: Tensor) -> memoryview:
    """Those that a tensor holds, in its order."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, exactly, from its histogram."""
    values = torch.arange(256, dtype=torch.float64)
    shares = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]).double()
    shares /= shares.sum(1, keepdim=True)
    mean = shares @ values
    std = (shares * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return mean, torch.where(std > 0, std, 1.0)


def _augmented(images: Tensor, corners: Tensor, mirrored: Tensor, shift: int) -> Tensor:
    """Each image at its corner of the padded one, from right to left where mirrored."""
    height, width = images.shape[-2:]
    windows = F.pad(images, (shift,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    cropped = windows[torch.arange(len(images)), :, corners[:, 0], corners[:, 1]]
    return torch.where(mirrored.view(-1, 1, 1, 1), cropped.flip(-1), cropped)


# -------------------------------------------------------------------------------------------------------- text


class Text(Data):
    """Characters: inputs are windows of the text, targets the next character at each position.

    The first 90 % are to train, 5 % to choose, 5 % to test. Training windows start anywhere; an epoch has as many as fit
    side by side. For evaluation they lie side by side, and what does not fill the last one is left out.

    Args:
        name: Name of the data.
        text: All of it.
        context: Characters in a window.
    """

    def __init__(self, name: str, *, text: str, context: int = 128) -> None:
        self.name = name
        self.vocabulary = sorted(set(text))
        self.classes = len(self.vocabulary)
        self.example_shape = (context,)
        number = {character: index for index, character in enumerate(self.vocabulary)}
        tokens = torch.tensor([number[character] for character in text])
        cuts = [0, len(text) * 90 // 100, len(text) * 95 // 100, len(text)]
        self.splits = {split: tokens[cuts[i] : cuts[i + 1]] for i, split in enumerate(SPLITS)}
        self.sizes = {split: (len(tokens) - 1) // context if context > 0 else 0 for split, tokens in self.splits.items()}
        if min(self.sizes.values()) < 1:
            raise ValueError(f"context={context} does not fit the text of {len(text)} characters: its test part is a twentieth")

    def _training(
        self, plan: list[tuple[int, Tensor]], epoch: int, seed: int, shard: Shard, image_size: int | None
    ) -> Iterator[Batch]:
        context = self.example_shape[0]
        for step, rows in plan:
            generator = seeded(seed, epoch, step, AUGMENTATION)
            starts = torch.randint(len(self.splits["train"]) - context, (len(rows),), generator=generator)
            yield self._windows("train", starts[shard.rows(len(rows))])

    def _evaluating(self, split: str, plan: list[Tensor]) -> Iterator[Batch]:
        for rows in plan:
            yield self._windows(split, rows * self.example_shape[0])

    def _content(self) -> Iterator[bytes | memoryview]:
        yield "".join(self.vocabulary).encode("utf-8", "surrogatepass")
        for split, tokens in self.splits.items():
            yield from (split.encode(), _bytes(tokens))

    def _windows(self, split: str, starts: Tensor) -> Batch:
        windows = self.splits[split][starts[:, None] + torch.arange(self.example_shape[0] + 1)]
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
