"""Where the time of a recipe's training step goes: matrix work, other operations, images, Python; and how near the limit it is.

The limit is what a large matrix product reaches on the same threads in the same precision.

    python benchmarks/training_step.py cifar10-fast --data FOLDER
    python benchmarks/training_step.py digits --steps 20 --json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from rewa.record import provenance
from rewa.train.job import job, load_data
from rewa.train.memory import keep_freed_memory
from rewa.train.numeric import DTYPES
from rewa.train.processes import World
from rewa.train.trainer import Trainer
from rewa.train.watch import Watch

MATRIX = ("conv", "addmm", "aten::mm", "bmm", "linear", "flash_attention")  # parts of the names of matrix products
CPU = torch.device("cpu")


def limit(precision: str, size: int = 2048) -> float:
    """Operations a second of a matrix product, the best of some."""
    a, b = (torch.randn(size, size).to(DTYPES[precision]) for _ in range(2))
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The shares of a recipe's step."""
    run = job(name, options.method, strength=options.strength, changes=options.set, root=options.data)
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.default_memory:
        keep_freed_memory()
    data = load_data(run.recipe, options.data)
    trainer = Trainer(run, data, World(device=CPU), Watch())
    trainer.begin()
    trainer.model.train()

    stream = data.batches(0, seed=0, batch_size=run.recipe.batch_size)
    for _ in range(options.warmup):
        trainer._step(next(stream))
    images, began = 0.0, time.perf_counter()
    for _ in range(options.steps):  # without a profiler, which costs time itself
        asked = time.perf_counter()
        batch = next(stream)
        images += time.perf_counter() - asked
        trainer._step(batch)
    wall = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(options.steps):
            trainer._step(batch)
    matrix = other = 0.0
    for event in profiler.key_averages():
        if any(part in event.key for part in MATRIX):
            matrix += event.self_cpu_time_total / 1e6
        elif event.key.startswith(("aten::", "rewa::", "_NormGelu")):
            other += event.self_cpu_time_total / 1e6
    with FlopCounterMode(display=False) as counter:
        trainer._step(batch)
    operations, precision = counter.get_total_flops(), trainer.numeric.precision
    return {
        "recipe": name,
        "method": run.method.label,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "batch_size": run.recipe.batch_size,
        "ms_per_step": 1000 * wall / options.steps,
        "seconds_per_epoch": wall / options.steps * trainer.epoch_steps,
        "share_matrix": matrix / wall,
        "share_other_operations": other / wall,
        "share_images": images / wall,
        "share_rest": 1 - (matrix + other + images) / wall,
        "operations_per_step": operations,
        "operations_per_second": operations * options.steps / wall,
        "limit_per_second": limit(precision),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each recipe, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--method", default="dense")
    parser.add_argument("--strength", type=float, default=5e-4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--default-memory", action="store_true", help="give freed buffers back, as no training run does")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [measure(name, options) for name in options.recipes]
    if options.json:
        print(json.dumps({**provenance(), "rows": rows}, indent=1))
        return 0
    for row in rows:
        near = row["operations_per_second"] / row["limit_per_second"]
        print(f"{row['recipe']}, {row['method']}, {row['threads']} threads, {row['precision']}:")
        print(f"  {row['ms_per_step']:.1f} ms a step, {row['seconds_per_epoch']:.0f} s an epoch")
        print(f"  matrix work {row['share_matrix']:.0%}, other operations {row['share_other_operations']:.0%}")
        print(f"  images {row['share_images']:.0%}, Python and waiting {row['share_rest']:.0%}")
        print(f"  {row['operations_per_second']:.2g} operations a second, {near:.0%} of a matrix product's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
