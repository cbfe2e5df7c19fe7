"""Speed of the synthetic study: one run of the paper, all of its figures, and the distance to the memory's bandwidth.

(a) One run (10,000 features, 2,000 samples, 800 epochs, K=9, M=4) by rewa.lockstep against a plain eager loop over a DataLoader
    of single samples with the same arithmetic, which is extrapolated from 10 epochs. In turns, in one process.
(b) rewa reproduce synthetic, every figure with three seeds, as a command of its own.
(c) Bytes that a step must move (its batch of rows, and the state back and forth) a second, as a share of the triad's bandwidth;
    and operations a second of a wide step as a share of torch's matrix product.

    python benchmarks/synthetic.py
    python benchmarks/synthetic.py --parts a,c --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from eager import eager_step
from rewa.experiments import designs
from rewa.experiments.designs import Design
from rewa.lockstep import Column, fit
from rewa.presets import SYNTHETIC
from rewa.record import provenance
from rewa.schedules import learning_rates

SETTING = {"K": SYNTHETIC.K, "M": SYNTHETIC.M, "eps": 0.0, "weight_decay": SYNTHETIC.weight_decay}
BATCH, EPOCHS = SYNTHETIC.batch_size or 25, SYNTHETIC.epochs or 800
EAGER_EPOCHS = 10
WIDE = 32


def seconds(run: Callable[[], Any]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def eager(design: Design, epochs: int) -> Callable[[], None]:
    """An epoch of the loop that anyone would write first; each call continues."""
    torch.manual_seed(0)
    model = nn.Linear(design.X.shape[1], 1)
    loader = DataLoader(TensorDataset(design.X, design.y[:, None]), batch_size=BATCH, shuffle=True)
    y = model.weight.detach().sign() * model.weight.detach().abs() ** (1 / SYNTHETIC.K)
    buffer = torch.zeros_like(y)
    rates = iter(learning_rates(SYNTHETIC.lr, epochs * len(loader)))
    criterion = nn.MSELoss()

    def epoch() -> None:
        for inputs, targets in loader:
            model.zero_grad()
            criterion(model(inputs), targets).backward()
            lr = next(rates)
            eager_step([model.weight], [y], [model.weight.grad], [buffer], lr=lr, momentum=0.0, **SETTING)
            with torch.no_grad():
                model.bias -= lr * model.bias.grad

    return epoch


def one_run(design: Design, rounds: int, threads: int, epochs: int) -> dict[str, Any]:
    """Part a."""
    epoch = eager(design, epochs)
    column = Column(lr=SYNTHETIC.lr, K=SYNTHETIC.K, M=SYNTHETIC.M, weight_decay=SYNTHETIC.weight_decay, seed=1)
    times: dict[str, list[float]] = {"eager epoch": [], "lockstep": [], "lockstep, nothing dropped": []}
    epoch()  # warm-up, and below the kernel's compilation
    fit(design.X, design.y, [column], epochs=1, threads=threads)
    for turn in range(rounds):
        for _ in range(EAGER_EPOCHS // rounds + (turn < EAGER_EPOCHS % rounds)):
            times["eager epoch"].append(seconds(epoch))
        for name, drop in (("lockstep", 1e-8), ("lockstep, nothing dropped", None)):
            run = lambda drop=drop: fit(design.X, design.y, [column], epochs=epochs, drop=drop, threads=threads)  # noqa: E731
            times[name].append(seconds(run))
    median = {name: statistics.median(values) for name, values in times.items()}
    extrapolated = epochs * median["eager epoch"]
    return {
        "epochs": epochs,
        "seconds": {"eager, extrapolated": extrapolated, **{name: median[name] for name in list(times)[1:]}},
        "speedup": {name: extrapolated / median[name] for name in list(times)[1:]},
        "all_seconds": times,
    }


def all_figures(small: bool, result: str = "synthetic") -> dict[str, Any]:
    """Part b."""
    words = ["reproduce", result, *["--quick"] * small]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rewa", *words, "--out", folder, "--quiet"]
        taken = seconds(lambda: subprocess.run(command, check=True, timeout=3600))
    return {"command": " ".join(["rewa", *words]), "seconds": taken}


def bandwidth(design: Design, rounds: int, threads: int) -> dict[str, Any]:
    """Part c."""
    n, d = design.X.shape
    epochs = 10
    a, b, c = (torch.rand(2000 * d) for _ in range(3))
    left, right = torch.rand(1024, 1024), torch.rand(1024, 1024)
    columns = [Column(seed=seed) for seed in range(WIDE)]
    runs: dict[str, Callable[[], Any]] = {
        "triad": lambda: torch.add(a, b, alpha=2.0, out=c),
        "product": lambda: [left @ right for _ in range(10)],
        "one": lambda: fit(design.X, design.y, columns[:1], epochs=epochs, drop=None, threads=threads),
        "wide": lambda: fit(design.X, design.y, columns, epochs=epochs, drop=None, threads=threads),
        # What a call costs before and after its steps, to be taken off.
        "one, short": lambda: fit(design.X, design.y, columns[:1], epochs=1, drop=None, threads=threads),
        "wide, short": lambda: fit(design.X, design.y, columns, epochs=1, drop=None, threads=threads),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(2 * rounds + 1):
        for name, run in runs.items():
            taken = seconds(run)
            if turn:
                times[name].append(taken)
    median = {name: statistics.median(values) for name, values in times.items()}
    steps = (epochs - 1) * -(-n // BATCH)
    step = {name: (median[name] - median[f"{name}, short"]) / steps for name in ("one", "wide")}
    moved = 4 * BATCH * d + 8 * d
    operations = 4 * BATCH * d * WIDE
    rates = {"triad": 12 * len(a) / median["triad"], "product": 10 * 2 * 1024**3 / median["product"]}
    return {
        "bytes_per_step": moved,
        "microseconds_per_step": {name: 1e6 * value for name, value in step.items()},
        "gigabytes_per_second": {"step of one column": moved / step["one"] / 1e9, "triad": rates["triad"] / 1e9},
        "share_of_triad": moved / step["one"] / rates["triad"],
        "gigaflops": {f"step of {WIDE} columns": operations / step["wide"] / 1e9, "torch's product": rates["product"] / 1e9},
        "share_of_product": operations / step["wide"] / rates["product"],
    }


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="a,b,c", help="which (default a,b,c)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contender (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--small", action="store_true", help="small data and few epochs: to try the command, not to measure")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead")
    arguments = parser.parse_args(words)
    parts = arguments.parts.split(",")
    if set(parts) - {"a", "b", "c"} or not 1 <= arguments.rounds <= EAGER_EPOCHS or arguments.threads < 1:
        parser.error(f"--parts are a, b and c, --rounds from 1 to {EAGER_EPOCHS}, --threads at least 1")
    torch.set_num_threads(arguments.threads)
    design = designs.paper(n=200, d=500, n_test=10) if arguments.small else designs.paper(n_test=10)
    n, d = design.X.shape
    result: dict[str, Any] = {"samples": n, "features": d, "threads": arguments.threads, **provenance()}
    if "a" in parts:
        result["one_run"] = one_run(design, arguments.rounds, arguments.threads, 20 if arguments.small else EPOCHS)
    if "c" in parts:
        result["step"] = bandwidth(design, arguments.rounds, arguments.threads)
    if "b" in parts:
        result["all_figures"] = all_figures(arguments.small)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{n:,} samples of {d:,} features, {arguments.threads} threads, medians of {arguments.rounds} turns")
    if "a" in parts:
        one = result["one_run"]
        for name, value in one["seconds"].items():
            faster = f", {one['speedup'][name]:.0f}x as fast" if name in one["speedup"] else ""
            print(f"(a) one run of {one['epochs']} epochs, {name}: {value:.2f} s{faster}")
    if "b" in parts:
        print(f"(b) {result['all_figures']['command']}: {result['all_figures']['seconds']:.0f} s")
    if "c" in parts:
        step = result["step"]
        rates = ", ".join(f"{name} {value:.1f} GB/s" for name, value in step["gigabytes_per_second"].items())
        print(f"(c) {step['bytes_per_step']:,} bytes a step: {rates}; {step['share_of_triad']:.0%} of the triad")
        rates = ", ".join(f"{name} {value:.0f} GF/s" for name, value in step["gigaflops"].items())
        print(f"    {rates}; {step['share_of_product']:.0%} of the product")


if __name__ == "__main__":
    main()
