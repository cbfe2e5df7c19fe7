"""The demo: one small network on scikit-learn's digits, trained dense, with l1 and with ReWA, accuracy against compression.

Every method gets the same epochs, the same number of strengths and the same seeds. The strength and the threshold for each
compression are chosen on validation images; the test images are read once, for what was chosen. In the end each method's
smallest network within a point of the dense one is finalized, shrunk and packed: bytes and milliseconds beside accuracy.

    python -m rewa.experiments.digits
    python -m rewa.experiments.digits --out demo --seeds 1 --epochs 10
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import rewa
from rewa.experiments.record import provenance
from rewa.figures import save
from rewa.files import write_atomically
from rewa.inference import median_ms
from rewa.sparsity import Count, count, prunable, thresholded


@dataclass(frozen=True, kw_only=True)
class Config:
    """All that decides the outcome."""

    epochs: int = 20
    batch_size: int = 64
    seeds: int = 3
    lr: float = 0.1
    momentum: float = 0.9
    # Strengths, a geometric grid for each: weight decay of x, l1 penalty, weight decay of y.
    dense: tuple[float, ...] = (1e-4, 5e-4, 2e-3, 1e-2)
    l1: tuple[float, ...] = (5e-2, 1.2e-1, 3e-1, 7e-1)
    rewa: tuple[float, ...] = (4e-3, 7.5e-3, 1.3e-2, 2e-2)
    K: float = 9
    M: float = 2
    compressions: tuple[float, ...] = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 150)
    table: tuple[float, ...] = (1, 5, 10, 20, 50, 100)
    max_drop: float = 1.0  # points of validation accuracy that the networks to ship may fall behind the dense one

    @property
    def strengths(self) -> dict[str, tuple[float, ...]]:
        """The grid of each method."""
        return {"dense": self.dense, "l1": self.l1, "ReWA": self.rewa}


@dataclass(frozen=True)
class Data:
    """Images and labels of the three splits."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load(seed: int = 0) -> Data:
    """scikit-learn's 1797 digits, 60 % to train, 20 % to choose, 20 % to test, classes in proportion."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
    rest, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=seed, stratify=labels)
    train, validation = train_test_split(rest, test_size=0.25, random_state=seed, stratify=labels[rest])
    return Data(*((torch.tensor(images[part]), torch.tensor(labels[part])) for part in (train, validation, test)))


def network() -> nn.Module:
    """Three convolutions with batch norm and a linear layer: 25,744 weights."""

    def block(channels_in: int, channels: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]

    layers = [*block(1, 16, stride=1), *block(16, 32, stride=2), *block(32, 64, stride=2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 10))


def train(config: Config, method: str, strength: float, seed: int, data: Data, tick: Callable[[], None]) -> nn.Module:
    """One training run; ``tick`` is called after each epoch."""
    torch.manual_seed(seed)
    model = network()
    weights = list(prunable(model).values())
    optimizer: torch.optim.Optimizer
    if method == "ReWA":
        groups = rewa.param_groups(model, K=config.K, M=config.M, weight_decay=strength)
        optimizer = rewa.ReWASGD(groups, config.lr, momentum=config.momentum, fused=True)
    else:
        decay = strength if method == "dense" else 0.0
        rest = [param for param in model.parameters() if param.dim() < 2]
        plain_groups: list[Any] = [{"params": weights, "weight_decay": decay}, {"params": rest}]
        optimizer = torch.optim.SGD(plain_groups, config.lr, momentum=config.momentum)
    images, labels = data.train
    steps = -(-len(labels) // config.batch_size)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.lr, total_steps=config.epochs * steps, pct_start=0.1, cycle_momentum=False
    )
    for _ in range(config.epochs):
        model.train()
        for batch in torch.split(torch.randperm(len(labels)), config.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            if method == "l1":
                soft_threshold(weights, float(optimizer.param_groups[0]["lr"]) * strength)
            scheduler.step()
        tick()
    return model.eval()


@torch.no_grad()
def soft_threshold(params: Sequence[Tensor], amount: float) -> None:
    """Proximal step of the l1 penalty, in place: every weight moves towards zero by the amount, and stops there."""
    for param in params:
        param.copy_(nn.functional.softshrink(param, amount))


@torch.no_grad()
def accuracy(model: nn.Module, split: tuple[Tensor, Tensor]) -> float:
    """Share of the images that are classified correctly, in per cent."""
    images, labels = split
    return 100 * float((model(images).argmax(1) == labels).double().mean())


@dataclass(frozen=True)
class Point:
    """One trained model at one threshold."""

    method: str
    strength: float
    seed: int
    threshold: float
    prunable: Count
    whole: Count
    validation: float


def curve(config: Config, model: nn.Module, method: str, strength: float, seed: int, data: Data) -> Iterator[Point]:
    """Validation accuracy of a model at the smallest threshold that reaches each compression."""
    weights = list(prunable(model).values())
    rest = [param for param in model.parameters() if param.dim() < 2]
    moduli = torch.cat([weight.detach().abs().flatten() for weight in weights]).sort().values
    for compression in config.compressions:
        zeros = len(moduli) - int(len(moduli) / compression)
        threshold = moduli[zeros - 1].item() if zeros else 0.0
        with thresholded(weights, threshold) as left:
            yield Point(method, strength, seed, threshold, left, left + count(rest), accuracy(model, data.validation))


def choose(points: list[Point], compression: float) -> Point | None:
    """The point with the best validation accuracy among those at least this compressed; of equals the most compressed."""
    allowed = [point for point in points if point.prunable.compression_ratio >= compression and point.prunable.nonzero]
    return max(allowed, key=lambda point: (point.validation, point.prunable.compression_ratio), default=None)


def deploy(config: Config, models: dict[tuple[str, float, int], nn.Module], data: Data, out: Path) -> list[dict[str, Any]]:
    """Each method's smallest network whose validation accuracy is within ``max_drop`` of the best dense one, as it would ship.

    Exact zeros are written and batch-norm statistics estimated again (``finalize``), dead channels removed (``shrink``), the
    file packed, sparse kernels used where they are faster (``accelerate``). Of the first seed's networks, all on validation
    images; the test images are read for the result.
    """

    def evaluate(model: nn.Module) -> float:
        return accuracy(model.eval(), data.validation)

    first = {key: model for key, model in models.items() if key[2] == 0}
    floor = max(evaluate(model) for (method, _, _), model in first.items() if method == "dense") - config.max_drop
    loader = torch.split(data.train[0], config.batch_size)
    example = data.validation[0][:1]
    rows: list[dict[str, Any]] = []
    ways: list[nn.Module] = []
    for method in config.strengths:
        found = []
        for (name, strength, _), model in first.items():
            if name != method or evaluate(model) < floor:
                continue
            candidate = copy.deepcopy(model)
            try:
                drop = evaluate(candidate) - floor
                report = rewa.finalize(candidate, evaluate=evaluate, max_drop=drop, recalibrate=loader)
            except ValueError:  # the new statistics alone cost more than that
                continue
            found.append((report.summary.prunable.nonzero, strength, candidate, report))
        if not found:
            rows.append({"method": method})
            continue
        nonzero, strength, final, report = min(found, key=lambda entry: entry[0])
        small = rewa.shrink(final.eval(), example)
        packed = rewa.save_packed(small, out / f"digits-{method.lower()}.safetensors", report=report.to_dict())
        plain = sum(tensor.nbytes for tensor in final.state_dict().values())
        test = accuracy(small.eval(), data.test)
        rewa.accelerate(small, example, verbose=False)
        ways += [first[method, strength, 0].eval(), small]
        parameters = sum(param.numel() for param in small.parameters())
        rows.append(
            {"method": method, "strength": strength, "test": test, "nonzero": nonzero, "parameters": parameters}
            | {"dense_bytes": plain, "packed_bytes": packed.size}
        )
    with torch.inference_mode():
        times = iter(median_ms([functools.partial(way, example) for way in ways], rounds=200))
    for row in rows:
        if "test" in row:
            row["dense_ms"], row["ms"] = next(times), next(times)
    return rows


def run(config: Config, out: Path, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Train everything, choose on validation images, read the test images once; returns the record, leaves packed files."""
    started = time.time()
    data = load()
    models: dict[tuple[str, float, int], nn.Module] = {}
    points: list[Point] = []
    for seed in range(config.seeds):
        for method, grid in config.strengths.items():
            for strength in grid:
                model = models[method, strength, seed] = train(config, method, strength, seed, data, tick)
                points.extend(curve(config, model, method, strength, seed, data))
    results = []
    for method in config.strengths:
        for compression in config.compressions:
            chosen = [
                choose([point for point in points if (point.method, point.seed) == (method, seed)], compression)
                for seed in range(config.seeds)
            ]
            found = [point for point in chosen if point is not None]
            if len(found) < config.seeds:
                continue
            tests = []
            for point in found:
                model = models[method, point.strength, point.seed]
                with thresholded(prunable(model).values(), point.threshold):
                    tests.append(accuracy(model, data.test))
            results.append(
                {
                    "method": method,
                    "compression": compression,
                    "test": statistics.mean(tests),
                    "spread": statistics.stdev(tests) if len(tests) > 1 else None,
                    "prunable_ratio": statistics.mean(point.prunable.compression_ratio for point in found),
                    "whole_ratio": statistics.mean(point.whole.compression_ratio for point in found),
                    "chosen": [(point.strength, point.threshold) for point in found],
                }
            )
    deployed = deploy(config, models, data, out)
    return {
        "config": dataclasses.asdict(config),
        **provenance(),
        "deployed": deployed,
        "seconds": time.time() - started,
        "weights": points[0].prunable.total,
        "results": results,
        "validation": [dataclasses.asdict(point) for point in points],
    }


def draw(record: dict[str, Any], path: Path) -> None:
    """Test accuracy against compression, mean and standard deviation over the seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    styles = {
        "dense": ("#666666", "s", "dense, cut by magnitude"),
        "l1": ("#0072B2", "o", "l1"),
        "ReWA": ("#D55E00", "D", "ReWA"),
    }
    with mpl.rc_context({"font.size": 11}):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        for method, (color, marker, label) in styles.items():
            rows = [row for row in record["results"] if row["method"] == method]
            x = [row["compression"] for row in rows]
            y, spread = [row["test"] for row in rows], [row["spread"] or 0 for row in rows]
            axes.plot(x, y, color=color, marker=marker, label=label, linewidth=1.8, markersize=5)
            low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set(
            xscale="log",
            xlabel="compression of the weights (all / nonzero), at least",
            ylabel="test accuracy, % (axis from 50)",
        )
        axes.set_xticks([1, 2, 5, 10, 20, 50, 100], [f"{value}x" for value in (1, 2, 5, 10, 20, 50, 100)])
        axes.minorticks_off()
        axes.set_ylim(50, 101)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left")
        config = record["config"]
        axes.set_title(f"Digits, {record['weights']:,} weights, {config['epochs']} epochs, {config['seeds']} seeds", loc="left")
        save(figure, path)


def show(record: dict[str, Any]) -> None:
    """The table, in the terminal."""
    from rich.console import Console
    from rich.table import Table

    config = record["config"]
    table = Table(title=f"Test accuracy (%) of {record['weights']:,} weights at a compression of at least")
    table.add_column("method")
    for compression in config["table"]:
        table.add_column(f"{compression:g}x", justify="right", no_wrap=True)
    for method in ("dense", "l1", "ReWA"):
        cells = []
        for compression in config["table"]:
            rows = [r for r in record["results"] if (r["method"], r["compression"]) == (method, compression)]
            spread = f"±{rows[0]['spread']:.1f}" if rows and rows[0]["spread"] is not None else ""
            cells.append(f"{rows[0]['test']:.1f}{spread}" if rows else "-")
        table.add_row(method, *cells)
    console = Console()
    console.print(table)
    console.print(
        f"Mean ± standard deviation of {config['seeds']} seeds, {config['epochs']} epochs each; strength and threshold chosen "
        f"on validation images, test images read once. '-': not reached. {record['seconds']:.0f} s.",
        highlight=False,
    )


def show_deployed(record: dict[str, Any]) -> None:
    """Bytes and milliseconds, in the terminal."""
    from rich.console import Console
    from rich.table import Table

    drop = record["config"]["max_drop"]
    table = Table(title=f"To ship: smallest within {drop:g} point of the dense network's validation accuracy")
    columns = ("method", "test %", "nonzero", "bytes", "packed", "ms", "now")
    for column in columns:
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for row in record["deployed"]:
        if "test" not in row:
            table.add_row(row["method"], *["-"] * (len(columns) - 1))
            continue
        table.add_row(
            row["method"],
            f"{row['test']:.1f}",
            f"{row['nonzero']:,}",
            f"{row['dense_bytes']:,}",
            f"{row['packed_bytes']:,} ({row['dense_bytes'] / row['packed_bytes']:.1f}x)",
            f"{row['dense_ms']:.3f}",
            f"{row['ms']:.3f} ({row['dense_ms'] / row['ms']:.2f}x)",
        )
    console = Console()
    console.print(table)
    console.print(
        "finalize, shrink, save_packed, accelerate. bytes and ms: of the network as trained; one image at a time, one thread.",
        highlight=False,
    )


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m rewa.experiments.digits", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for digits.png and digits.json (default demo)")
    parser.add_argument("--epochs", type=int, default=Config.epochs, help=f"epochs of every run (default {Config.epochs})")
    parser.add_argument("--seeds", type=int, default=Config.seeds, help=f"seeds of every setting (default {Config.seeds})")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.seeds < 1:
        parser.error("--epochs and --seeds must be at least 1")
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    torch.set_num_threads(1)  # the network is so small that threads would only wait for each other
    config = Config(epochs=options.epochs, seeds=options.seeds)
    options.out.mkdir(parents=True, exist_ok=True)
    total = sum(map(len, config.strengths.values())) * config.seeds * config.epochs
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} epochs")
    with Progress(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()) as progress:
        task = progress.add_task("training dense, l1 and ReWA", total=total)
        record = run(config, options.out, lambda: progress.advance(task))
    write_atomically(options.out / "digits.json", json.dumps(record, indent=1))
    draw(record, options.out / "digits.png")
    show(record)
    show_deployed(record)
    from rich import print as rich_print

    rich_print(f"curve: {options.out / 'digits.png'}   record: {options.out / 'digits.json'}")


if __name__ == "__main__":
    main()
