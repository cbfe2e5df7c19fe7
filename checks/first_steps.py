"""Whether the full-size recipes start as they should, on a machine that cannot finish them: their first steps, checked.

The steps are those of `rewa train`, with the recipe's data order, augmentation, model and learning rates, on the first --batch
images of each batch, as the first of several processes has them. Where there is no ImageNet, images are random. Checked are
the losses, ReWA's last step against Algorithm 1 in float64, and the first gradient in bfloat16 against float32; beside it is
float32 from weights and images that were rounded to bfloat16, since new networks magnify any rounding. Bytes at the recipe's
batch are an estimate: weights, gradients, optimizer state, and what autograd keeps at the largest images, on a line through
two small batches. Each row is made by a process of its own, so that its peak memory is its own.

    python checks/first_steps.py --data ~/data
    python checks/first_steps.py --recipes imagenet-resnet50 --steps 2 --batch 4 --json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from rewa.methods.method import Bound
from rewa.record import provenance
from rewa.sparsity import prunable
from rewa.train.cost import kept_bytes, loss_of
from rewa.train.data import AUGMENTATION, Batch, Data, Shard, mix, seeded
from rewa.train.job import Job, job, load_data, new_model
from rewa.train.numeric import choose
from rewa.train.recipes import RECIPES, Recipe
from rewa.train.trainer import NOISE

# The paper's strength and settings for each method, but l1 by its proximal map.
RUNS: dict[str, dict[str, tuple[float, list[str]]]] = {
    "cifar10-resnet18": {"dense": (1e-4, []), "l1": (1e-5, []), "rewa": (1e-4, ["K=9", "M=2", "eps=0"])},
    "imagenet-resnet50": {"dense": (1e-4, ["lr=1.7"]), "l1": (2e-6, ["lr=1.7"]), "rewa": (5e-5, ["K=3", "M=2", "eps=1e-3"])},
}
BATCH = {"cifar10-resnet18": 32, "imagenet-resnet50": 8}
TOLERANCE = 1e-5  # of a weight after a float32 step: some roundings, times K
CPU = torch.device("cpu")


class Noise(Data):
    """Normal numbers in the place of ImageNet, in as many images and classes."""

    def __init__(self) -> None:
        self.name, self.classes, self.example_shape = "random images", 1000, (3, 224, 224)
        self.sizes = {"train": 1_271_167, "validation": 10_000, "test": 50_000}

    def _training(
        self, plan: list[tuple[int, Tensor]], epoch: int, seed: int, shard: Shard, image_size: int | None
    ) -> Iterator[Batch]:
        shape = 3, image_size or 224, image_size or 224
        for step, rows in plan:
            mine = rows[shard.rows(len(rows))]
            yield torch.randn(len(mine), *shape, generator=seeded(seed, epoch, step, AUGMENTATION)), mine % self.classes

    def _evaluating(self, split: str, plan: list[Tensor]) -> Iterator[Batch]:
        raise NotImplementedError

    def _content(self) -> Iterator[bytes | memoryview]:
        raise NotImplementedError


def batches(recipe: Recipe, data: Data, count: int, epoch: int = 0) -> Iterator[Batch]:
    """The first images of each batch of the run, as large as in the given epoch."""
    shard, size = Shard(0, recipe.batch_size // count), recipe.image_size_at(epoch)
    return data.batches(0, seed=0, batch_size=recipe.batch_size, shard=shard, image_size=size)


def bound(run: Job, data: Data) -> Bound[Any]:
    """The method bound to the model with the run's first weights."""
    recipe, method = run.recipe, run.method
    plan = method.planned(recipe.plan(data.steps_per_epoch(recipe.batch_size), finetune=recipe.finetuned(method)))
    return method.bind(new_model(recipe, data, run.seed), plan)


def algorithm_1(x: Any, grad: Any, buffer: Any, group: dict[str, Any]) -> Any:
    """One step with momentum and coupled decay, slow and obvious."""
    K, M, eps = group["K"], group["M"], group["eps"]
    y = np.sign(x) * np.abs(x) ** (1 / K)
    scale = np.abs(y) ** M * (np.abs(y) ** (K - 1) / (np.abs(y) ** (K - 1) + eps) if eps else 1.0)
    y = y - group["lr"] * (group["momentum"] * buffer + scale * grad + group["weight_decay"] * y)
    return np.sign(y) * np.abs(y) ** K


def checked_step(optimizer: Optimizer) -> float | None:
    """Step, and return the largest error of a ReWA weight, relative to the larger of its old and new magnitude."""
    wanted = []
    for group in optimizer.param_groups:
        for param in group["params"] if group.get("K", 1) > 1 else []:
            tensors = param, param.grad, optimizer.state[param].get("momentum_buffer", torch.zeros_like(param))
            x, grad, buffer = (tensor.detach().numpy().astype(np.float64) for tensor in tensors)
            new = algorithm_1(x, grad, buffer, group)
            wanted.append((param, new, np.maximum(np.abs(x), np.abs(new)).clip(min=1e-30)))
    optimizer.step()
    errors = [np.max(np.abs(param.detach().numpy() - new) / size) for param, new, size in wanted]
    return float(np.max(errors)) if errors else None  # numpy's max, which does not overlook what is not a number


def first_steps(run: Job, data: Data, steps: int, batch: int) -> dict[str, Any]:
    """The beginning of a run, as rewa.train.run has it on one process."""
    recipe, method, numeric = run.recipe, bound(run, data), choose(CPU, run.recipe.precision, run.recipe.channels_last)
    rates, seconds = method.plan.learning_rates[:steps], []
    model = numeric.place_model(method.model).train()
    optimizer = method.start()
    row: dict[str, Any] = {"precision": numeric.precision, "lr": rates, "loss": []}
    for step, (lr, inputs) in enumerate(zip(rates, batches(recipe, data, batch), strict=False)):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        torch.manual_seed(mix(run.seed, step, 0, NOISE))
        method.before_forward(step)
        optimizer.zero_grad()
        loss = loss_of(model, inputs, recipe, numeric)
        penalty = method.penalty()
        torch.autograd.backward(loss if penalty is None else loss + penalty)
        method.before_step(step)
        row["reference_error"] = checked_step(optimizer) if step == steps - 1 else optimizer.step()
        method.after_step(step, lr)
        seconds.append(time.perf_counter() - began)
        row["loss"].append(float(loss.detach()))
    state = [value for held in optimizer.state.values() for value in held.values() if isinstance(value, Tensor)]
    row["seconds_per_step"] = statistics.median(seconds[:-1] or seconds)  # the last one waits for the reference
    weights = sum(param.nbytes for param in model.parameters())
    return row | {"weight_bytes": weights, "gradient_bytes": weights, "state_bytes": sum(value.nbytes for value in state)}


def gradient(run: Job, data: Data, batch: int, kind: str) -> tuple[dict[str, Tensor], int]:
    """The first gradient of each layer, and the bytes of activations at the recipe's batch."""
    recipe, numeric = run.recipe, choose(CPU, "bfloat16" if kind == "bfloat16" else "float32")
    model, (inputs, targets) = numeric.place_model(bound(run, data).model).train(), next(batches(recipe, data, batch))
    if kind == "rounded":
        model, inputs = model.bfloat16().float(), inputs.bfloat16().float()
    weights = prunable(model)
    grads = torch.autograd.grad(loss_of(model, (inputs, targets), recipe, numeric), [*weights.values()])
    last = (next(batches(recipe, data, count, recipe.epochs - 1)) for count in (batch // 2, batch))
    small, large = (kept_bytes(model, inputs, recipe, numeric) for inputs in last)
    kept = large + (large - small) / (batch - batch // 2) * (recipe.batch_size - batch)
    return dict(zip(weights, (grad.flatten() for grad in grads), strict=True)), round(kept)


def gradients(run: Job, data: Data, batch: int) -> dict[str, Any]:
    """How far the first gradient is from float32's in its worst layer, and the bytes of activations."""
    found, kept = {}, {}
    exact, kept["float32"] = gradient(run, data, batch, "float32")
    for kind in ("bfloat16", "rounded"):
        low, kept[kind] = gradient(run, data, batch, kind)
        cosines = {name: float(torch.cosine_similarity(low[name], exact[name], 0)) for name in exact}
        worst = min(cosines, key=cosines.__getitem__)
        difference = max(float((low[name] - exact[name]).norm() / exact[name].norm()) for name in exact)
        found[kind] = {"smallest_cosine": cosines[worst], "layer": worst, "largest_relative_difference": difference}
    del kept["rounded"]
    return {"against_float32": found, "activation_bytes": kept, "batch_size": run.recipe.batch_size}


def measure(task: tuple[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """One row: a recipe's gradients, or its first steps by a method."""
    recipe, method = task
    torch.set_num_threads(options.threads)
    strength, changes = RUNS[recipe][method or "dense"]
    run, batch = job(recipe, method or "dense", strength=strength, changes=changes), options.batch or BATCH[recipe]
    try:
        data = load_data(run.recipe, options.data)
    except FileNotFoundError:
        if run.recipe.data != "imagenet":
            raise
        data = Noise()
    row = first_steps(run, data, options.steps, batch) if method else gradients(run, data, batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"recipe": recipe, "method": method or None, "data": data.name, "batch": batch, **row, "peak_resident_bytes": peak}


def to_text(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    row = row | {key: value / 1e9 for key, value in row.items() if key.endswith("_bytes") and isinstance(value, int)}
    head = f"{row['recipe']} {row['method'] or 'gradients'}, {row['data']}, peak {row['peak_resident_bytes']:.2f} GB:"
    if row["method"] is None:
        kept = ", ".join(f"{size / 1e9:.1f} GB in {precision}" for precision, size in row["activation_bytes"].items())
        far = ", ".join(f"{kind} {one['smallest_cosine']:.4f} ({one['layer']})" for kind, one in row["against_float32"].items())
        return f"{head} smallest cosine with float32: {far}; activations at batch {row['batch_size']}: {kept}"
    error = "" if row["reference_error"] is None else f", error of the last step {row['reference_error']:.1e}"
    size = f"weights, gradients and state {row['weight_bytes'] + row['gradient_bytes'] + row['state_bytes']:.2f} GB"
    return f"{head} loss {' '.join(f'{x:.4f}' for x in row['loss'])}{error}; {row['seconds_per_step']:.2f} s a step; {size}"


def right(rows: list[dict[str, Any]]) -> bool:
    """Whether every loss is finite and every step is the reference's."""
    finite = all(map(math.isfinite, (loss for row in rows for loss in row.get("loss", []))))
    return finite and all((row.get("reference_error") or 0.0) < TOLERANCE for row in rows)


def main() -> int:
    """The command line; returns 1 if a loss is not finite or a step is not the reference's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--steps", type=int, default=6, metavar="N", help="(default 6)")
    parser.add_argument("--batch", type=int, metavar="N", help="images a step (default 32 for cifar10-resnet18, else 8)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where data is (default: the variable REWA_DATA)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args()
    sizes = [RECIPES[name].batch_size for name in RUNS]
    if options.steps < 1 or (options.batch is not None and (options.batch < 2 or any(size % options.batch for size in sizes))):
        parser.error("--steps must be at least 1, and --batch a power of two from 2 to 256")
    tasks = [(recipe, method) for recipe in options.recipes for method in ("", *RUNS[recipe])]
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        try:
            for row in pool.imap(partial(measure, options=options), tasks):
                rows.append(row)
                print(f"[{len(rows)}/{len(tasks)}] {to_text(row)}", file=sys.stderr)
        except FileNotFoundError as error:
            parser.error(str(error))
    if options.json:
        print(json.dumps({**provenance(), "steps": options.steps, "rows": rows}, indent=1))
    return 0 if right(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
