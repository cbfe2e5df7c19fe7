from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from rewa.methods import make
from rewa.train.job import Job
from rewa.train.numeric import choose
from rewa.train.recipes import RECIPES
from rewa.train.run import train

CPU = torch.device("cpu")


def test_the_machine_decides(monkeypatch):
    """bfloat16 where the processor multiplies it: emulated it is slower than float32."""
    for able, expected in (({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"avx2": True}, "float32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able, raising=False)
        chosen = choose(CPU)
        assert (chosen.precision, chosen.channels_last) == (expected, expected == "bfloat16")


def test_what_is_asked_for_wins():
    chosen = choose(CPU, "bfloat16", channels_last=False)
    assert (chosen.precision, chosen.channels_last) == ("bfloat16", False)
    with pytest.raises(ValueError, match="precision=float16 is for GPUs"):
        choose(CPU, "float16")


def test_layout_and_precision_of_the_forward_pass():
    numeric = choose(CPU, "bfloat16")
    model = numeric.place_model(nn.Conv2d(3, 4, 3))
    images = numeric.place(torch.randn(2, 3, 8, 8))
    assert model.weight.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    with numeric.autocast():
        assert model(images.float()).dtype == torch.bfloat16
    with choose(CPU, "float32").autocast():
        assert model(images.float()).dtype == torch.float32


def test_bfloat16_trains_about_as_well_and_resumes(tmp_path):
    torch.set_default_dtype(torch.float32)
    base = replace(RECIPES["digits"], epochs=6, compressions=(1, 5), recalibrate=300)
    accuracies = []
    for precision in ("float32", "bfloat16"):
        recipe = replace(base, precision=precision)
        record = train(Job(recipe=recipe, method=make("rewa", strength=0.005), name=precision), tmp_path)
        assert record.numeric["precision"] == precision
        assert record.numeric["channels_last"] == (precision == "bfloat16")
        accuracies.append(record.final.validation_accuracy)
    assert accuracies[1] > accuracies[0] - 5
    assert accuracies[0] > 85
