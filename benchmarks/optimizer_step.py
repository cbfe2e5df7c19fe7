"""Time of one optimizer step, as a ratio to torch's own fused optimizers.

11 million float32 weights in the shapes of ResNet-18, and a model of 100 small layers where the work in Python counts. All
contenders run interleaved in one process and the medians count: machines are noisy, ratios are not. ReWA runs with its
default arguments unless the name says otherwise, makes the weights sparse and trains batch norm and biases plainly, as
rewa.param_groups does; "all sparse" reparameterizes those, too, and "match" has one group for each weight. "SGD, Sparsifier" is
torch's fused SGD with a rewa.Sparsifier on it, before its first cut and with 95 % zeros; on NAdam, which no kernel of ours
knows, it copies the weights. Until the last cut every fourth step of SGD notes its gradients, so four steps are timed together.

    python benchmarks/optimizer_step.py
    python benchmarks/optimizer_step.py --repeats 50 --threads 2 --json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import rewa
from eager import eager_step
from rewa.optim.worth import EVERY as NOTED
from rewa.record import provenance
from rewa.train.models import resnet18

Shapes = Sequence[tuple[int, ...]]
MODERATE = {"K": 9, "M": 2}
LARGE = {"K": 3, "M": 2, "eps": 1e-3}


def resnet18_shapes(classes: int = 10) -> list[tuple[int, ...]]:
    """Shapes of the parameters of ResNet-18 for small images: 11.2 million."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    width_in = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            first = width_in if block == 0 else width
            shapes += [(width, first, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if first != width:
                shapes += [(width, first, 1, 1), (width,), (width,)]
        width_in = width
    return [*shapes, (classes, 512), (classes,)]


SMALL_SHAPES = [(8, 8), (8,)] * 100


def parameters(shapes: Shapes) -> list[nn.Parameter]:
    """Random weights of a trained network's size, with gradients."""
    generator = torch.Generator().manual_seed(0)
    params = []
    for shape in shapes:
        param = nn.Parameter(torch.randn(shape, generator=generator) * 0.05)
        param.grad = torch.randn(shape, generator=generator) * 1e-3
        params.append(param)
    return params


def groups(setting: dict[str, Any], shapes: Shapes, match: bool = False) -> list[dict[str, Any]]:
    """The weights with the setting, the rest plain; with match a group for each weight, as rewa.param_groups makes them."""
    params = parameters(shapes)
    weights = [p for p in params if p.dim() >= 2]
    sparse = [{"params": [p], "match": float(p.detach().square().mean().sqrt()), **setting} for p in weights]
    return [
        *(sparse if match else [{"params": weights, **setting}]),
        {"params": [p for p in params if p.dim() < 2], "K": 1, "M": 0, "eps": 0.0},
    ]


def sparsified(optimizer: torch.optim.Optimizer, *, cut: bool) -> torch.optim.Optimizer:
    """The optimizer with a sparsifier on it that has made its zeros at the first step, or makes none while it is timed."""
    model = nn.ParameterList([param for group in optimizer.param_groups for param in group["params"]])
    at = 0.0 if cut else 1.0
    rewa.Sparsifier(model, optimizer, sparsity=0.95, steps=10**6, begin=at, end=at)
    return optimizer


def contenders(shapes: Shapes) -> dict[str, tuple[Callable[[], Any], torch.optim.Optimizer | None]]:
    """Name, step and optimizer of each; the eager transcription and the triad have no optimizer."""
    sgd = {"lr": 1e-4, "momentum": 0.9, "weight_decay": 1e-4}
    adamw = {"lr": 1e-5, "weight_decay": 1e-4}
    small = SMALL_SHAPES
    optimizers: dict[str, torch.optim.Optimizer] = {
        "torch SGD fused": torch.optim.SGD(parameters(shapes), **sgd, fused=True),
        "torch SGD": torch.optim.SGD(parameters(shapes), **sgd),
        "ReWASGD K=9 M=2": rewa.ReWASGD(groups(MODERATE, shapes), **sgd),
        "ReWASGD K=9 M=2 match": rewa.ReWASGD(groups(MODERATE, shapes, match=True), **sgd),
        "ReWASGD K=3 M=2 eps=1e-3": rewa.ReWASGD(groups(LARGE, shapes), **sgd),
        "ReWASGD K=9 M=2, all sparse": rewa.ReWASGD(parameters(shapes), **sgd, **MODERATE),
        "ReWASGD foreach K=9 M=2": rewa.ReWASGD(groups(MODERATE, shapes), **sgd, foreach=True),
        "ReWASGD loop K=9 M=2": rewa.ReWASGD(groups(MODERATE, shapes), **sgd, fused=False),
        "SGD, Sparsifier": sparsified(torch.optim.SGD(parameters(shapes), **sgd, fused=True), cut=False),
        "SGD, Sparsifier, 95 % zeros": sparsified(torch.optim.SGD(parameters(shapes), **sgd, fused=True), cut=True),
        "torch AdamW fused": torch.optim.AdamW(parameters(shapes), **adamw, fused=True),
        "AdamW, Sparsifier": sparsified(torch.optim.AdamW(parameters(shapes), **adamw, fused=True), cut=False),
        "AdamW, Sparsifier, 95 % zeros": sparsified(torch.optim.AdamW(parameters(shapes), **adamw, fused=True), cut=True),
        "torch NAdam": torch.optim.NAdam(parameters(shapes), lr=1e-5),
        "NAdam, Sparsifier, 95 % zeros": sparsified(torch.optim.NAdam(parameters(shapes), lr=1e-5), cut=True),
        "ReWAAdamW K=9 M=2": rewa.ReWAAdamW(groups(MODERATE, shapes), **adamw),
        "ReWAAdamW K=3 M=2 eps=1e-3": rewa.ReWAAdamW(groups(LARGE, shapes), **adamw),
        "small: torch SGD fused": torch.optim.SGD(parameters(small), **sgd, fused=True),
        "small: torch SGD": torch.optim.SGD(parameters(small), **sgd),
        "small: SGD, Sparsifier": sparsified(torch.optim.SGD(parameters(small), **sgd, fused=True), cut=True),
        "small: ReWASGD K=9 M=2": rewa.ReWASGD(groups(MODERATE, small), **sgd),
        "small: ReWASGD K=9 M=2 match": rewa.ReWASGD(groups(MODERATE, small, match=True), **sgd),
        "small: ReWASGD loop K=9 M=2": rewa.ReWASGD(groups(MODERATE, small), **sgd, fused=False),
        "small: torch AdamW fused": torch.optim.AdamW(parameters(small), **adamw, fused=True),
        "small: ReWAAdamW K=9 M=2": rewa.ReWAAdamW(groups(MODERATE, small), **adamw),
    }
    steps: dict[str, tuple[Callable[[], Any], torch.optim.Optimizer | None]] = {
        name: (optimizer.step, optimizer) for name, optimizer in optimizers.items()
    }
    params = parameters(shapes)
    buffers = [torch.zeros_like(param) for param in params]
    grads = [param.grad for param in params]
    ys = [param.detach().sign() * param.detach().abs() ** (1 / 9) for param in params]
    steps["eager Algorithm 1 K=9 M=2"] = (lambda: eager_step(params, ys, grads, buffers, **sgd, **MODERATE, eps=0.0), None)
    count = sum(param.numel() for param in params)
    a, b, c = (torch.rand(count) for _ in range(3))
    steps["triad a = b + s c"] = (lambda: torch.add(b, c, alpha=2.0, out=a), None)
    return steps


def state_bytes(optimizer: torch.optim.Optimizer) -> float:
    """Bytes of tensors in the state for each parameter."""
    count = sum(param.numel() for group in optimizer.param_groups for param in group["params"])
    tensors = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor) and v.dim() > 0]
    return sum(v.numel() * v.element_size() for v in tensors) / count


# Bytes a step must move for each weight: reads and writes of weight, gradient and state, four bytes each.
TRAFFIC = {"SGD": 20, "AdamW": 28}


def measure(repeats: int, shapes: Shapes) -> list[dict[str, Any]]:
    """One row for each contender; the slow ones are timed on a third of the rounds."""
    steps = contenders(shapes)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step, _ in steps.values():
        step()  # creates the state, compiles the kernels
    for round_ in range(repeats):
        for name, (step, _) in steps.items():
            if round_ % 3 == 0 or not any(word in name for word in ("eager", "loop", "foreach")):
                together = NOTED if name == "SGD, Sparsifier" else 1
                begin = time.perf_counter()
                for _ in range(together):
                    step()
                seconds[name].append((time.perf_counter() - begin) / together)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    count = sum(map(math.prod, shapes))
    triad_bandwidth = 12 * count / median["triad a = b + s c"]
    rows = []
    for name, (_, optimizer) in steps.items():
        small = name.startswith("small: ")
        kind = next((kind for kind in ("torch AdamW fused", "torch NAdam") if kind.split()[1] in name), "torch SGD fused")
        base = "small: " * small + kind
        row: dict[str, Any] = {"name": name, "ms": 1e3 * median[name], "base": base, "ratio": median[name] / median[base]}
        row["quartiles"] = [1e3 * q for q in statistics.quantiles(seconds[name], n=4)[::2]]
        if optimizer is not None:
            row["state_bytes_per_parameter"] = state_bytes(optimizer)
        if optimizer is not None and not small:
            row["bandwidth_share"] = TRAFFIC["SGD" if "SGD" in name else "AdamW"] * count / median[name] / triad_bandwidth
        rows.append(row)
    return rows


def training_step(repeats: int, *, small: bool) -> dict[str, float]:
    """A whole training step of ResNet-18 on 32 images, with a sparsifier and without, interleaved."""
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    models, optimizers = {}, {}
    for sparse in seconds:
        models[sparse] = model = resnet18(10, width=8 if small else 64, stem="small")
        optimizers[sparse] = optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
        if sparse:
            rewa.Sparsifier(model, optimizer, sparsity=0.95, steps=10**6, begin=1, end=1)
    for _ in range(repeats):
        for sparse, times in seconds.items():
            begin = time.perf_counter()
            optimizers[sparse].zero_grad()
            nn.functional.cross_entropy(models[sparse](images), labels).backward()
            optimizers[sparse].step()
            times.append(time.perf_counter() - begin)
    # The mean over a step that notes its gradients and three that do not, each with its median; the first four are left out.
    plain, hooked = (
        statistics.mean(statistics.median(times[start::NOTED]) for start in range(NOTED, 2 * NOTED))
        for times in seconds.values()
    )
    return {"ms": 1e3 * plain, "ms_with_sparsifier": 1e3 * hooked, "ratio": hooked / plain}


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60, help="rounds; each times every contender once (default 60)")
    parser.add_argument("--threads", type=int, default=2, help="threads torch may use (default 2)")
    parser.add_argument("--small", action="store_true", help="small layers only: to try the command, not to measure")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of the table")
    arguments = parser.parse_args(words)
    if arguments.repeats < 4 or arguments.threads < 1:
        parser.error("--repeats must be at least 4 and --threads at least 1")
    torch.set_num_threads(arguments.threads)
    shapes: Shapes = SMALL_SHAPES if arguments.small else resnet18_shapes()
    rows = measure(arguments.repeats, shapes)
    speedup = next(r["ms"] for r in rows if "eager" in r["name"]) / next(
        r["ms"] for r in rows if r["name"] == "ReWASGD K=9 M=2"
    )
    count = sum(map(math.prod, shapes))
    whole = training_step(max(2 * NOTED, arguments.repeats), small=arguments.small)
    header = {
        "parameters": count,
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "speedup_over_eager": speedup,
        "resnet18_training_step": whole,
        **provenance(),
    }
    if arguments.json:
        print(json.dumps({**header, "rows": rows}, indent=2))
        return
    print(f"{count:,} parameters, {arguments.threads} threads, medians of {arguments.repeats} interleaved rounds, "
          f"torch {torch.__version__}, {header['hardware']['cpu']}")  # fmt: skip
    print(f"{'':36} {'ms':>7} {'quartiles':>15} {'ratio':>6}  {'state B/param':>13} {'of triad bandwidth':>19}")
    for row in rows:
        state = f"{row['state_bytes_per_parameter']:.1f}" if "state_bytes_per_parameter" in row else "-"
        share = f"{row['bandwidth_share']:.0%}" if "bandwidth_share" in row else "-"
        low, high = row["quartiles"]
        print(f"{row['name']:36} {row['ms']:7.2f} {low:6.2f} to {high:5.2f} {row['ratio']:6.2f}  {state:>13} {share:>19}")
    print(f"ratio: to torch's fused optimizer of the same kind. ReWASGD: {speedup:.1f}x faster than eager Algorithm 1.")
    print(
        f"A training step of ResNet-18 on 32 images: {whole['ms']:.0f} ms, with the Sparsifier {whole['ratio']:.3f} times that."
    )
    print("bandwidth above 100 %: the triad fetches the lines it overwrites, uncounted, which a step reads anyway.")


if __name__ == "__main__":
    main()
