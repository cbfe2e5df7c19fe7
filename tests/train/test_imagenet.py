"""The ImageNet recipe from end to end, on a tiny folder of the same form."""

from __future__ import annotations

import json
import math
import multiprocessing
import subprocess
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_pre_hook

from rewa.train.job import job
from rewa.train.models import ResNet
from rewa.train.run import train
from rewa.train.run_folder import TrainingError
from rewa.train.watch import Watch
from tiny_data import write_images

# Python 3.12 and later warn when a process with threads forks, as torch's loader does.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SETTINGS = (
    "width=4 epochs=4 batch_size=8 lr=0.02 image_size=32 last_image_size=64 resize_from=0.5 resize_to=0.75 evaluation_size=64 "
    "validation=6 compressions=1,5 recalibrate=12 precision=float32 threads=1 workers="
)


def changes(workers):
    return f"{SETTINGS}{workers}".split()


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """Three classes, 12 images to train and 4 to test in each; one is gray, one is for print."""
    root = tmp_path_factory.mktemp("imagenet")
    write_images(root, classes=("n01", "n02", "n03"), train=12)
    for path, mode in ((root / "train/n01/n0103.JPEG", "L"), (root / "val/n02/n0201.JPEG", "CMYK")):
        with Image.open(path) as image:
            other = image.convert(mode)
        other.save(path)
    return root


class Sizes(Watch):
    """The batches that the model is trained on: their shape in each step, and those of evaluations."""

    def __init__(self):
        self.last, self.trained, self.evaluated = None, [], set()

    def see(self, module, inputs):
        if isinstance(module, ResNet):
            self.last = tuple(inputs[0].shape)
            if not module.training:
                self.evaluated.add(self.last[1:])

    def step(self, done, loss):
        self.trained.append(self.last)


def check(record):
    assert record["status"] == "finished"
    assert record["data"].pop("fingerprint")
    assert record["data"] == {"name": "imagenet", "train": 30, "validation": 6, "test": 12}
    assert [row["epoch"] for row in record["epochs"]] == [1, 2, 3, 4]
    kept = [point["prunable"]["total"] / point["prunable"]["nonzero"] for point in record["curve"]]
    assert kept == pytest.approx([1, 5], rel=1e-3)
    assert all(0 <= point["test_accuracy"] <= 100 for point in record["curve"])


@pytest.fixture(autouse=True)
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


def test_the_recipe_runs_from_end_to_end(imagenet, tmp_path):
    chosen = job("imagenet-resnet50", "rewa", changes=changes(workers=1), root=imagenet)
    sizes = Sizes()
    hook = register_module_forward_pre_hook(sizes.see)
    try:
        record = train(chosen, tmp_path / "here", root=imagenet, device="cpu", watch=sizes)
    finally:
        hook.remove()
    check(record.to_json())
    assert not multiprocessing.active_children()  # the workers are gone
    # 30 images are 3 batches of 8 in each epoch; they grow for the last one.
    assert sizes.trained == [(8, 3, side, side) for side in (32, 32, 32, 64) for _ in range(3)]
    assert sizes.evaluated == {(3, 64, 64)}

    # The command line trains the same network, whoever decodes the images; its workers end without a word.
    sets = [word for change in changes(workers=2) for word in ("--set", change)]
    command = [sys.executable, "-m", "rewa", "train", "imagenet-resnet50", "--data", imagenet, "--out", tmp_path / "there"]
    done = subprocess.run(
        [*map(str, command), "--device", "cpu", "--quiet", *sets], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    check(json.loads((tmp_path / "there" / chosen.folder_name / "record.json").read_text()))
    here, there = (load_file(tmp_path / place / chosen.folder_name / "trained.safetensors") for place in ("here", "there"))
    assert set(here) == set(there)
    assert all(torch.equal(tensor, there[name]) for name, tensor in here.items())


def test_a_validation_loss_that_is_not_finite_ends_the_run(imagenet, tmp_path):
    """As in a deep network whose batch norms have seen few batches at a high rate: the training loss is finite."""
    chosen = job("imagenet-resnet50", "rewa", changes=changes(workers=0), root=imagenet)

    def overflow(module, inputs):
        return (inputs[0] * math.nan,) if isinstance(module, ResNet) and not module.training else None

    hook = register_module_forward_pre_hook(overflow)
    try:
        with pytest.raises(TrainingError, match=r"the validation loss is nan in epoch 1, step 3: lower lr=0\.02"):
            train(chosen, tmp_path, root=imagenet, device="cpu")
    finally:
        hook.remove()
    assert json.loads((tmp_path / chosen.folder_name / "record.json").read_text())["status"] == "failed"
