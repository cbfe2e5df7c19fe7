"""Data: the same batches on one process or many and after a resume, augmentation against loops, text in windows."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rewa.train.data import Images, Shard, Text, fixed_order, mix
from rewa.train.image_folder import ImageFolder
from tiny_data import same, write_images


def some_images(count=50, channels=3, side=8, **options):
    generator = torch.Generator().manual_seed(1)

    def part(n):
        images = torch.randint(256, (n, channels, side, side), generator=generator).to(torch.uint8)
        return images, torch.randint(4, (n,), generator=generator)

    return Images("made-up", train=part(count), validation=part(11), test=part(13), classes=4, **options)


def some_text(context=5):
    letters = np.random.RandomState(0).choice(list("abcdef \n"), 1000)
    return Text("made-up", text="".join(letters), context=context)


@pytest.fixture(params=["images", "alternating", "plain", "resized", "text", "folder"])
def any_data(request, folder):
    return {
        "images": lambda: some_images(augment=True),
        "alternating": lambda: some_images(augment=True, shift=2, flips="alternating"),
        "plain": lambda: some_images(channels=1),
        "resized": lambda: some_images(augment=True, resize=12),
        "text": some_text,
        "folder": lambda: ImageFolder(folder, image_size=16, evaluation_size=20, workers=0),
    }[request.param]()


# -------------------------------------------------------------------------------------------------- the contract


def test_seeds_are_the_same_everywhere():
    # Numbers of NumPy's documented hash: on another machine or version a resumed run would else see other data.
    assert (mix(0, 0, 1), mix(7, 3, 2), mix(1, 2, 3, 4)) == (
        8649202198168436674,
        16069830194632189251,
        15323499849503866763,
    )
    assert fixed_order(10).tolist() == [2, 8, 4, 9, 1, 6, 7, 3, 0, 5]


@pytest.mark.parametrize("numbers", [(), (-1, 1), (2**32, 1), (1, 0)])
def test_seeds_that_could_collide_are_refused(numbers):
    with pytest.raises(ValueError, match="Invalid numbers to make a seed from"):
        mix(*numbers)


def test_batches_are_a_function_of_seed_and_epoch(any_data):
    def epoch(number, seed):
        return list(any_data.batches(number, seed=seed, batch_size=6))

    first = epoch(2, seed=5)
    assert len(first) == any_data.steps_per_epoch(6) == any_data.sizes["train"] // 6
    torch.manual_seed(123)  # the global generator plays no part
    state = torch.get_rng_state()
    assert same(first, epoch(2, seed=5))
    assert torch.equal(state, torch.get_rng_state())
    assert not same(first, epoch(3, seed=5))
    assert not same(first, epoch(2, seed=6))


def test_start_resumes_exactly(any_data):
    whole = list(any_data.batches(1, seed=3, batch_size=4))
    for start in (0, 1, 3, len(whole)):
        assert same(whole[start:], any_data.batches(1, seed=3, batch_size=4, start=start))


def test_ranks_share_the_batches_of_one_process(any_data):
    whole = list(any_data.batches(0, seed=3, batch_size=6))
    parts = [list(any_data.batches(0, seed=3, batch_size=6, shard=Shard(rank, 3))) for rank in range(3)]
    assert all(len(x) == 2 for part in parts for x, _ in part)
    joined = [tuple(torch.cat(tensors) for tensors in zip(*batches, strict=True)) for batches in zip(*parts, strict=True)]
    assert same(whole, joined)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_ranks_share_the_evaluation(any_data, split):
    whole = list(any_data.evaluation(split, batch_size=4))
    assert len(whole) == math.ceil(any_data.sizes[split] / 4)
    assert sum(len(y) for _, y in whole) == any_data.sizes[split]
    parts = [list(any_data.evaluation(split, batch_size=4, shard=Shard(rank, 3))) for rank in range(3)]
    joined = [tuple(torch.cat(tensors) for tensors in zip(*batches, strict=True)) for batches in zip(*parts, strict=True)]
    assert same(whole, joined)  # also where a rank's part is empty


def test_evaluation_limit_takes_the_first(any_data):
    whole = torch.cat([x for x, _ in any_data.evaluation("test", batch_size=3)])
    some = torch.cat([x for x, _ in any_data.evaluation("test", batch_size=3, limit=2)])
    assert torch.equal(whole[:2], some)
    assert len(some) == 2


def test_kinds_and_shapes(any_data):
    evaluated = (3, 20, 20) if isinstance(any_data, ImageFolder) else any_data.example_shape
    for x, y, shape in (
        (*next(any_data.batches(0, seed=0, batch_size=4)), any_data.example_shape),
        (*next(any_data.evaluation("validation", batch_size=2)), evaluated),
    ):
        assert x.dtype == (torch.int64 if isinstance(any_data, Text) else torch.float32)
        assert y.dtype == torch.int64
        assert x.shape[1:] == shape
        assert y.shape == (x.shape if isinstance(any_data, Text) else x.shape[:1])
        assert x.is_contiguous()
        assert int(y.max()) < any_data.classes


def test_evaluation_of_training_data_mixes_the_classes():
    labels = torch.arange(4).repeat_interleave(25)
    images = torch.zeros(100, 1, 8, 8, dtype=torch.uint8)
    sorted_ = Images("sorted", train=(images, labels), validation=(images, labels), test=(images, labels), classes=4)
    _, y = next(sorted_.evaluation("train", batch_size=20))
    assert set(y.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 51}, r"Invalid batch_size: 51 \(allowed: 1 to 50"),
        ({"batch_size": 0}, "Invalid batch_size: 0"),
        ({"batch_size": 5, "shard": Shard(0, 2)}, "batch_size=5 cannot be shared evenly by 2 processes"),
        ({"batch_size": 5, "start": 11}, r"Invalid start: 11 \(allowed: 0 to 10"),
        ({"batch_size": 5, "image_size": 0}, "Invalid image_size: 0"),
        ({"batch_size": 5, "seed": -1}, "Invalid numbers to make a seed from"),
    ],
)
def test_wrong_batches_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        some_images().batches(0, **{"seed": 0, **arguments})


def test_other_wrong_arguments():
    with pytest.raises(ValueError, match="Invalid split: 'val'"):
        some_images().evaluation("val", batch_size=3)
    with pytest.raises(ValueError, match="Invalid batch_size or limit: 3, 0"):
        some_images().evaluation("test", batch_size=3, limit=0)
    with pytest.raises(ValueError, match="Invalid rank: 2"):
        Shard(2, 2)
    with pytest.raises(ValueError, match="Invalid image_size: 8"):
        some_text().batches(0, seed=0, batch_size=2, image_size=8)
    with pytest.raises(ValueError, match="Invalid resize: 0"):
        some_images(resize=0)


# -------------------------------------------------------------------------------------------------- the fingerprint


def changed(made, split, index):
    """The same images but for one pixel or label."""
    splits = {name: tuple(tensor.clone() for tensor in tensors) for name, tensors in made.splits.items()}
    splits[split][index].view(-1)[-1] ^= 1
    return Images("made-up", **splits, classes=4)


def test_fingerprint_of_images():
    made = some_images()
    assert made.fingerprint == some_images(augment=True, resize=12).fingerprint  # what is done to them is no part of it
    assert re.fullmatch("[0-9a-f]{16}", made.fingerprint)
    found = {made.fingerprint, some_images(count=49).fingerprint, some_images(channels=1).fingerprint}
    found |= {changed(made, split, index).fingerprint for split in made.splits for index in (0, 1)}
    found.add(Images("swapped", **made.splits | {"test": made.splits["validation"]}, classes=4).fingerprint)
    tall = {split: (images.view(-1, 3, 4, 16), labels) for split, (images, labels) in made.splits.items()}
    found.add(Images("made-up", **tall, classes=4).fingerprint)
    assert len(found) == 11


def test_fingerprint_does_not_depend_on_how_images_lie_in_memory():
    made = some_images()
    strided = {split: (x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), y) for split, (x, y) in made.splits.items()}
    assert not strided["train"][0].is_contiguous()
    assert Images("made-up", **strided, classes=4).fingerprint == made.fingerprint


def test_fingerprint_is_that_of_other_machines():
    images = torch.zeros(600, 1, 28, 28, dtype=torch.uint8), torch.zeros(600, dtype=torch.long)
    tiny = images[0][:2], images[1][:2]
    made = Images("zeros", train=images, validation=tiny, test=tiny, classes=1, scaling=(0, 1))
    digest = hashlib.sha256()
    for split, count in (("train", 600), ("validation", 2), ("test", 2)):
        for part in (split.encode(), f"({count}, 1, 28, 28)".encode(), bytes(count * 784), bytes(count * 8)):
            digest.update(len(part).to_bytes(8, "little") + part)
    assert made.fingerprint == digest.hexdigest()[:16]


def test_fingerprint_of_text():
    text = "to be or not to be\n" * 50
    found = Text("made-up", text=text, context=5).fingerprint
    assert found == Text("made-up", text=text, context=8).fingerprint
    others = (text[:-1] + "t", text[:-2], "b" + text[1:], text.replace("t", "s"))  # the last has the same numbers
    assert len({found, *(Text("made-up", text=other, context=5).fingerprint for other in others)}) == 5


def test_fingerprint_of_a_folder(tmp_path):
    write_images(tmp_path / "here")
    first = ImageFolder(tmp_path / "here", workers=0)
    found = [first.fingerprint, ImageFolder(tmp_path / "here", workers=0, validation=4).fingerprint]
    moved = tmp_path / "there"
    (tmp_path / "here").rename(moved)
    assert ImageFolder(moved, workers=2, image_size=16, augment=False).fingerprint == found[0]
    for number, path in enumerate((moved / "train" / "ant" / "ant03.JPEG", moved / "val" / "bee" / "bee00.JPEG")):
        path.rename(path.with_name(f"{number}.jpg"))
        found.append(ImageFolder(moved, workers=0).fingerprint)
        path.with_name(f"{number}.jpg").unlink()
        found.append(ImageFolder(moved, workers=0).fingerprint)
    assert len(set(found)) == 6
    assert first.fingerprint == found[0]  # of what was found then


def test_fingerprint_of_a_folder_that_is_the_current_one(folder, monkeypatch):
    wanted = ImageFolder(folder, workers=0).fingerprint
    monkeypatch.chdir(folder)
    assert ImageFolder(Path(), workers=0).fingerprint == wanted


# -------------------------------------------------------------------------------------------------------- images


def test_images_are_normalised_by_the_training_images():
    made = some_images()
    pixels = made.splits["train"][0].double()
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0)
    assert len(set(mean.tolist())) == 3
    found = torch.cat([x for x, _ in made.evaluation("test", batch_size=5)])
    wanted = (made.splits["test"][0].double() - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


def test_a_constant_channel_does_not_divide_by_zero():
    images = torch.full((4, 1, 8, 8), 7, dtype=torch.uint8), torch.zeros(4, dtype=torch.long)
    constant = Images("constant", train=images, validation=images, test=images, classes=1)
    x, _ = next(constant.evaluation("test", batch_size=4))
    assert torch.equal(x, torch.zeros_like(x))


def test_every_image_comes_once_in_an_epoch():
    made = some_images(count=48)
    seen = torch.cat([x for x, _ in made.batches(0, seed=0, batch_size=6)]).flatten(1)
    wanted = torch.cat([x for x, _ in made.evaluation("train", batch_size=6)]).flatten(1)
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, wanted.tolist()))


def test_augmentation_against_loops():
    made = some_images(augment=True)
    pixels, labels = made.splits["train"]
    seed, epoch, batch_size = 4, 2, 10
    order = torch.randperm(50, generator=torch.Generator().manual_seed(mix(seed, epoch, 1)))
    moved = set()
    for step, (x, y) in enumerate(made.batches(epoch, seed=seed, batch_size=batch_size)):
        generator = torch.Generator().manual_seed(mix(seed, epoch, step, 2))
        corners = torch.randint(9, (batch_size, 2), generator=generator).tolist()
        mirrored = torch.randint(2, (batch_size,), generator=generator).tolist()
        for i in range(batch_size):
            index = int(order[step * batch_size + i])
            assert y[i] == labels[index]
            (top, left), flip = corners[i], mirrored[i]
            moved.add((top, left, flip))
            wanted = torch.zeros(3, 8, 8)  # black where the frame is
            for row in range(8):
                for column in range(8):
                    source = row + top - 4, (7 - column if flip else column) + left - 4
                    if 0 <= source[0] < 8 and 0 <= source[1] < 8:
                        wanted[:, row, column] = pixels[index][:, source[0], source[1]]
            wanted = (wanted - made.mean) / made.std
            torch.testing.assert_close(x[i].double(), wanted.double(), atol=1e-5, rtol=1e-5)
    assert len(moved) > 30


def test_alternating_flips_mirror_one_half_and_then_the_other():
    made = some_images(augment=True, shift=1, flips="alternating")
    pixels, _ = made.splits["train"]
    normal = (pixels.float() - made.mean) / made.std
    mirrored = []
    for epoch in range(3):
        order = torch.randperm(50, generator=torch.Generator().manual_seed(mix(3, epoch, 1)))
        seen = torch.zeros(50, dtype=torch.bool)
        images = torch.cat([x for x, _ in made.batches(epoch, seed=3, batch_size=10)])
        for index, image in zip(order.tolist(), images, strict=True):
            inner = image[:, 1:-1, 1:-1]  # whatever the crop, this is of the image
            views = {flip: (normal[index].flip(-1) if flip else normal[index]) for flip in (False, True)}
            found = [
                flip
                for flip, view in views.items()
                for top in range(3)
                for left in range(3)
                if torch.allclose(inner, view[:, top : top + 6, left : left + 6])
            ]
            assert len(found) == 1
            seen[index] = found[0]
        mirrored.append(seen)
    assert 10 < int(mirrored[0].sum()) < 40
    assert torch.equal(mirrored[1], ~mirrored[0])
    assert torch.equal(mirrored[2], mirrored[0])


@pytest.mark.parametrize("options", [{"shift": 0}, {"flips": "never"}])
def test_wrong_augmentation(options):
    with pytest.raises(ValueError, match="Invalid shift or flips"):
        some_images(augment=True, **options)


def test_evaluation_is_not_augmented():
    plain, augmented = some_images(), some_images(augment=True)
    assert same(plain.evaluation("train", batch_size=7), augmented.evaluation("train", batch_size=7))


def test_resizing_is_bilinear():
    images = torch.tensor([[0, 100], [200, 40]], dtype=torch.uint8).view(1, 1, 2, 2), torch.zeros(1, dtype=torch.long)
    made = Images("tiny", train=images, validation=images, test=images, classes=1, resize=4, scaling=(0, 1))
    x, _ = next(made.evaluation("test", batch_size=1))
    assert made.example_shape == (1, 4, 4)
    # Pixel centres of the result lie at -1/4, 1/4, 3/4, 5/4 of the original's, and beyond its edge it is constant.
    line = torch.tensor([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])
    torch.testing.assert_close(x[0, 0].double(), line @ images[0][0, 0].double() @ line.T)


def test_smaller_images_see_all_pixels():
    pixels = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4) ** 2
    images = pixels, torch.zeros(1, dtype=torch.long)
    made = Images("tiny", train=images, validation=images, test=images, classes=1, scaling=(0, 1))
    x, _ = next(made.batches(0, seed=0, batch_size=1, image_size=1))
    # A triangle as wide as the image: its pixels lie at 3/8, 1/8, 1/8, 3/8 from the middle.
    line = torch.tensor([5, 7, 7, 5]) / 24
    torch.testing.assert_close(x.double().squeeze(), line @ pixels[0, 0].double() @ line)


# ---------------------------------------------------------------------------------------------------------- text


def test_text_is_cut_into_parts_and_windows():
    made = some_text(context=5)
    assert {split: len(tokens) for split, tokens in made.splits.items()} == {"train": 900, "validation": 50, "test": 50}
    assert made.sizes == {"train": 179, "validation": 9, "test": 9}  # the last target must exist too
    tokens = made.splits["test"]
    batches = list(made.evaluation("test", batch_size=4))
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.stack([tokens[5 * i : 5 * i + 5] for i in range(9)]))
    assert torch.equal(torch.cat([y for _, y in batches]), torch.stack([tokens[5 * i + 1 : 5 * i + 6] for i in range(9)]))
    assert made.vocabulary == sorted("abcdef \n")
    assert made.classes == 8


def test_training_windows_start_anywhere_in_the_training_text():
    made = Text("letters", text="".join(map(chr, range(1000, 2000))), context=5)  # each letter tells its place
    starts = set()
    for epoch in range(3):
        for x, y in made.batches(epoch, seed=0, batch_size=16):
            assert torch.equal(x, x[:, :1] + torch.arange(5))
            assert torch.equal(y, x + 1)
            starts |= set(x[:, 0].tolist())
    assert min(starts) >= 0
    assert max(starts) + 5 < 900
    assert {start % 5 for start in starts} == set(range(5))
    assert max(starts) > 880


def test_text_shorter_than_a_window():
    with pytest.raises(ValueError, match="context=50 does not fit the text of 1000 characters"):
        some_text(context=50)
    with pytest.raises(ValueError, match="context=0 does not fit"):
        some_text(context=0)
