"""Folders of images: crops against the paper and against a resize, workers that change nothing, broken files by name."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rewa.train.image_folder import ImageFolder, _random_box
from tiny_data import same, write_images

# Python 3.12 and later warn when a process with threads forks, as torch's loader does.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_folder_is_split_for_good(folder):
    made = ImageFolder(folder, workers=0)
    assert (made.classes, made.class_names, made.sizes) == (2, ["ant", "bee"], {"train": 27, "validation": 3, "test": 8})
    paths = {split: {os.fsdecode(path) for path in files["path"]} for split, files in made.splits.items()}
    assert paths["train"] | paths["validation"] == {str(path) for path in (folder / "train").rglob("*.JPEG")}
    assert not paths["train"] & paths["validation"]
    assert paths["test"] == {str(path) for path in (folder / "val").rglob("*.JPEG")}
    for files in made.splits.values():
        assert all(made.class_names[label] in os.fsdecode(path) for path, label in files)
    assert ImageFolder(folder, workers=0, validation=5).sizes["validation"] == 5


def test_workers_do_not_change_the_data(folder):
    alone, helped = (ImageFolder(folder, image_size=16, evaluation_size=20, workers=workers) for workers in (0, 2))
    assert same(alone.batches(1, seed=2, batch_size=5, start=2), helped.batches(1, seed=2, batch_size=5, start=2))
    assert same(alone.evaluation("test", batch_size=3), helped.evaluation("test", batch_size=3))


def test_image_size_may_grow(folder):
    made = ImageFolder(folder, image_size=16, workers=0)
    assert next(made.batches(0, seed=0, batch_size=2, image_size=24))[0].shape == (2, 3, 24, 24)


def one_image(root, image, extension="png", **options):
    """A folder whose only test image is the one given."""
    for split in ("train", "val"):
        (root / split / "a").mkdir(parents=True)
    for i in range(2):
        image.save(root / "train" / "a" / f"{i}.{extension}")
    image.save(root / "val" / "a" / f"0.{extension}")
    return ImageFolder(root, validation=1, workers=0, **options)


def bytes_of(x):
    """Pixels before the normalisation."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return 255 * (x.double() * std + mean)


def test_evaluation_is_a_resize_and_a_center_crop(tmp_path):
    image = Image.fromarray(np.random.RandomState(0).randint(256, size=(64, 80, 3)).astype(np.uint8))
    made = one_image(tmp_path, image, evaluation_size=28)
    x, _ = next(made.evaluation("test", batch_size=1))
    # Shorter side to 28 * 256 / 224 = 32, then the middle 28 x 28.
    wanted = image.resize((40, 32), Image.Resampling.BILINEAR).crop((6, 2, 34, 30))
    torch.testing.assert_close(bytes_of(x[0]), torch.tensor(np.asarray(wanted)).permute(2, 0, 1).double(), atol=1e-3, rtol=0)


def test_training_crops_have_the_area_and_ratio_of_the_paper(tmp_path):
    # Red tells the column and green the row, so the crop can be read from the result.
    rows, columns = np.mgrid[:180, :240]
    ramp = np.stack([columns, rows, 0 * rows], -1).astype(np.uint8)
    made = one_image(tmp_path, Image.fromarray(ramp), image_size=20)
    areas, ratios, mirrored = [], [], 0
    for epoch in range(120):
        x, _ = next(made.batches(epoch, seed=0, batch_size=1))
        red, green = bytes_of(x[0])[0, 10], bytes_of(x[0])[1, :, 10]
        mirrored += bool(red[0] > red[-1])
        # Pixels 3 and 16 lie 13 steps of a twentieth apart; those at the edge feel it.
        width, height = abs(red[16] - red[3]) / 13 * 20, (green[16] - green[3]) / 13 * 20
        areas.append(float(width * height / (180 * 240)))
        ratios.append(float(width / height))
    assert 0.07 < min(areas) < 0.2
    assert 0.8 < max(areas) < 1.05
    assert 0.72 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.38
    assert 40 <= mirrored <= 80


def test_a_crop_that_never_fits_is_the_largest_in_the_middle():
    generator = torch.Generator().manual_seed(0)
    assert _random_box(1000, 10, generator) == (493, 0, 506, 10)
    assert _random_box(10, 1000, generator) == (0, 493, 10, 506)


def test_without_augmentation_training_sees_the_center(tmp_path):
    image = Image.fromarray(np.random.RandomState(0).randint(256, size=(64, 64, 3)).astype(np.uint8))
    made = one_image(tmp_path, image, image_size=28, evaluation_size=28, augment=False)
    assert torch.equal(next(made.batches(0, seed=0, batch_size=1))[0], next(made.evaluation("test", batch_size=1))[0])


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_gray_and_cmyk_become_rgb(tmp_path, mode):
    made = one_image(tmp_path, Image.new("RGB", (32, 32), (90, 90, 90)).convert(mode), "jpg", evaluation_size=8)
    x, _ = next(made.evaluation("test", batch_size=1))
    torch.testing.assert_close(bytes_of(x[0]), torch.full((3, 8, 8), 90.0), atol=2, rtol=0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_broken_image_is_named(tmp_path, folder, workers, damage):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "ant").symlink_to(folder / split / "ant")
    (tmp_path / "val" / "ant").unlink()
    (tmp_path / "val" / "ant").mkdir()
    whole = (folder / "val" / "ant" / "ant03.JPEG").read_bytes()
    (tmp_path / "val" / "ant" / "bad.JPEG").write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"not an image")
    made = ImageFolder(tmp_path, workers=workers)
    with pytest.raises(ValueError, match=r"^cannot read the image .*ant.bad\.JPEG: .*; replace or remove it$") as error:
        next(made.evaluation("test", batch_size=1))
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_too_large_to_decode_is_named(tmp_path, monkeypatch, workers):
    made = one_image(tmp_path, Image.new("RGB", (32, 32)))
    made.workers = workers
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # an error from twice as many
    with pytest.raises(ValueError, match=r"^cannot read the image .*0\.png: Image size \(1024 pixels\) exceeds.*remove it$"):
        next(made.evaluation("test", batch_size=1))


def test_images_before_the_broken_one_are_seen(tmp_path):
    write_images(tmp_path, classes=("ant",))
    made = ImageFolder(tmp_path, workers=2, evaluation_size=8)
    bad = Path(os.fsdecode(made.splits["test"]["path"][2]))
    bad.write_bytes(b"")
    batches = made.evaluation("test", batch_size=1)
    assert [len(next(batches)[0]) for _ in range(2)] == [1, 1]
    with pytest.raises(ValueError, match=re.escape(f"cannot read the image {bad}")):
        next(batches)


# -------------------------------------------------------------------------------------------------------- signals

SCRIPT = """
import multiprocessing, signal, sys, time
from pathlib import Path
from rewa.train.image_folder import ImageFolder

asked = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: asked.append(number))
made = ImageFolder(Path(sys.argv[1]), image_size=16, workers=2)
batches = made.batches(0, seed=0, batch_size=1)
next(batches), next(batches)  # one of each worker: both have begun
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
"""
READ_ON = """
while len(asked) < 2:
    time.sleep(0.01)
time.sleep(0.2)
print(2 + len(list(batches)), *asked, flush=True)
"""


@pytest.fixture
def start(folder):
    """Starts a process in a group of its own that has read two batches; returns it and the numbers of its two workers."""
    processes = []

    def start(script):
        command = [sys.executable, "-c", SCRIPT + script, str(folder)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, start_new_session=True, **pipes))
        workers = [int(pid) for pid in processes[-1].stdout.readline().split()]
        assert len(workers) == 2
        return processes[-1], workers

    yield start
    for process in processes:
        if process.poll() is None:  # a test that failed
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(workers, seconds):
    end = time.monotonic() + seconds
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, workers))


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@linux
def test_signals_to_the_whole_group_leave_the_workers_at_work(start):
    process, workers = start(READ_ON)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(process.pid, number)
        time.sleep(0.1)  # so that the first one is seen first
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out.split()) == (0, ["27", "15", "2"]), err
    assert ended(workers, 5)


@linux
@pytest.mark.parametrize("end", ["", "raise ArithmeticError"])
def test_workers_end_with_a_process_that_has_not_read_all(start, end):
    process, workers = start(end)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (1 if end else 0), err
    assert ("ArithmeticError" in err) == bool(end)
    assert ended(workers, 5)


@linux
def test_workers_end_when_the_process_is_killed(start):
    process, workers = start("time.sleep(100)")
    process.kill()
    process.communicate(timeout=30)
    assert ended(workers, 20)  # torch's look for their parent every 5 seconds


def test_folders_without_images(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match=r"train holds no folders: one for each class"):
        ImageFolder(tmp_path)
    (tmp_path / "train" / "a").mkdir()
    (tmp_path / "train" / "a" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"train.a holds no images"):
        ImageFolder(tmp_path)


def test_classes_must_be_the_same(tmp_path):
    for path in ("train/a/0.png", "train/b/0.png", "val/a/0.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    with pytest.raises(ValueError, match="the class 'b' is not in both train and val"):
        ImageFolder(tmp_path)


def test_wrong_folder_arguments(folder):
    with pytest.raises(ValueError, match=r"Invalid validation: 30 \(allowed for .*: 1 to 29"):
        ImageFolder(folder, validation=30)
    with pytest.raises(ValueError, match="Invalid image_size, evaluation_size or workers: 0, 256, None"):
        ImageFolder(folder, image_size=0)


def test_without_pillow_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image")
    with pytest.raises(ModuleNotFoundError, match=r"image folders need Pillow: pip install 'rewa\[train\]'"):
        ImageFolder(folder)
