"""What a run takes, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rewa.train.cost import kept_bytes, run_cost
from rewa.train.job import build_model, load_data
from rewa.train.numeric import choose
from rewa.train.recipes import RECIPES

CPU = torch.device("cpu")


def test_operations_and_memory_of_a_small_network():
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=3, batch_size=64, compressions=(1, 2))
    data = load_data(recipe)
    cost = run_cost(recipe, data, CPU)
    first, second = 2 * 64 * 20, 2 * 20 * 10  # a multiply-add is two
    forward, backward = first + second, first + 2 * second  # nobody asks for the gradient of the images
    images = 3 * (1077 // 64) * 64  # whole batches
    measured = 3 * 360 + 2 * (360 + 360 + recipe.recalibrate)
    assert cost.operations == pytest.approx(images * (forward + backward) + measured * (forward + backward) / 3)
    weights = 64 * 20 + 20 + 20 * 10 + 10
    model = build_model(recipe, data)
    kept = [kept_bytes(model, next(data.batches(0, seed=0, batch_size=n)), recipe, choose(CPU, "float32")) for n in (8, 64)]
    assert kept[1] > 7 * kept[0]
    assert cost.memory == pytest.approx(3 * 4 * weights + kept[1], rel=1e-3)


def test_half_the_batch_at_a_time_keeps_less():
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], epochs=1)
    data = load_data(recipe)
    whole, half = (run_cost(replace(recipe, accumulate=n), data, CPU) for n in (1, 2))
    assert half.operations == whole.operations
    assert half.memory < 0.7 * whole.memory
