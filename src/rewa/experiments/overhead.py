"""What a step of ReWA costs: time and memory of an ordinary training loop on the paper's synthetic data, beside SGD with l1.

This times, and is a result all the same: it makes the table of overhead in the paper's appendix again, beside the paper's
numbers, and is a part of ``rewa reproduce synthetic``. Timings that the paper does not have are in ``benchmarks/``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

import rewa
from rewa.experiments import designs
from rewa.experiments.result import How, Result
from rewa.files import write_atomically
from rewa.record import provenance

__all__ = ["OVERHEAD", "VARIANTS", "Loop", "Overhead", "peak_memory"]

# As the paper has them, in seconds and MB.
PUBLISHED = {"SGD-l1": (202.1, 307.6), "ReWA": (200.1, 307.8)}
PEAK = "from rewa.experiments import overhead; overhead._print_peak()"


def _sgd(model: nn.Module, lr: float, lam: float) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def _rewa(model: nn.Module, lr: float, lam: float) -> Optimizer:
    return rewa.ReWASGD(rewa.param_groups(model, K=9, M=5, weight_decay=lam), lr=lr, fused=False)


def _rewa_fused(model: nn.Module, lr: float, lam: float) -> Optimizer:
    return rewa.ReWASGD(rewa.param_groups(model, K=9, M=5, weight_decay=lam), lr=lr, fused=True)


@dataclass(frozen=True)
class Variant:
    """A way to train: the optimizer, and whether the loss has the penalty lam * sum |weight|."""

    make: Callable[[nn.Module, float, float], Optimizer]
    penalty: bool = False


VARIANTS = {
    "SGD-l1": Variant(_sgd, penalty=True),
    "ReWA": Variant(_rewa),
    "ReWA, fused": Variant(_rewa_fused),
    "SGD, no penalty": Variant(_sgd),
}


class Loop:
    """One run as anyone would write it: linear model, shuffled batches of single samples, cosine schedule.

    Args:
        variant: A name of :data:`VARIANTS`.
        X: Features.
        y: Targets, one for each row.
        batch_size: Samples in a step.
        epochs: Length of the schedule.
        lr: Learning rate at its start.
        lam: Weight of the penalty, or decay of ReWA's y.
    """

    def __init__(self, variant: str, X: Tensor, y: Tensor, *, batch_size: int, epochs: int, lr: float, lam: float) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(X.shape[1], 1, dtype=X.dtype)
        data = TensorDataset(X, y.unsqueeze(1))
        self.loader = DataLoader(data, batch_size=batch_size, shuffle=True, generator=torch.Generator().manual_seed(0))
        self.criterion = nn.MSELoss()
        self.optimizer = VARIANTS[variant].make(self.model, lr, lam)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=epochs * len(self.loader))
        self.penalty = lam if VARIANTS[variant].penalty else None

    def epoch(self) -> None:
        """Train for one."""
        for inputs, targets in self.loader:
            loss = self.criterion(self.model(inputs), targets)
            if self.penalty is not None:
                loss = loss + self.penalty * self.model.weight.abs().sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()


@dataclass(frozen=True, kw_only=True)
class Overhead(Result):
    """The paper's table of overhead.

    Args:
        n: Samples.
        d: Features.
        batch_size: Samples in a step.
        epochs: Length of the run to which the time of an epoch is extrapolated.
        lr: Learning rate.
        lam: Weight of the penalty, or decay of ReWA's y.
        rounds: Epochs timed of every variant, in turns.
        variants: Names of :data:`VARIANTS`; the first is what the others are compared with.
    """

    line: str = "time and memory of ReWA beside SGD with l1, on the paper's synthetic data: the table in its appendix"
    quick: bool = True
    n: int = 2000
    d: int = 10_000
    batch_size: int = 25
    epochs: int = 800
    lr: float = 2e-4
    lam: float = 0.25
    rounds: int = 60
    variants: tuple[str, ...] = tuple(VARIANTS)

    def run(self, out: Path, how: How) -> list[Path]:
        """Measure, and write the table with the numbers behind it.

        Args:
            out: The folder of the result.
            how: ``workers`` are the threads of torch; timings want the machine to themselves.
        """
        from rewa.report.files import publish

        study = replace(self, n=100, d=200, rounds=3) if how.quick else self
        threads = torch.get_num_threads()
        torch.set_num_threads(how.workers or threads)
        try:
            numbers = study.measure(how)
        finally:
            torch.set_num_threads(threads)
        origin, record = provenance(), out / "overhead.json"
        write_atomically(record, json.dumps({**origin, **numbers}, indent=1, allow_nan=False))
        written = publish(
            out,
            "overhead",
            title="What a step of ReWA costs",
            lead=(
                f"An ordinary training loop on the paper's synthetic data ({study.n} samples of {study.d} features, batches of "
                f"{study.batch_size}), eager, on the CPU. Epochs of all variants are timed in turns in one process; memory is "
                "the peak of a fresh process each."
            ),
            panels=[study.table(numbers)],
            provenance=origin,
        )
        return [*written, record]

    def measure(self, how: How) -> dict[str, Any]:
        """Seconds an epoch, their ratios to SGD-l1 round by round, and peaks of memory.

        Args:
            how: Its ``progress`` is called after each round.
        """
        how.progress.stage("timing epochs", self.rounds + 1)
        seconds = self._seconds(how.progress.advance)
        how.progress.stage("measuring memory", len(self.variants))

        def peak(name: str) -> dict[str, float]:
            found = peak_memory(name, n=self.n, d=self.d, batch_size=self.batch_size)
            how.progress.advance()
            return found

        with ThreadPoolExecutor(2) as pool:
            peaks = dict(zip(self.variants, pool.map(peak, self.variants), strict=True))
        found: dict[str, Any] = {}
        for name, times in seconds.items():
            ratios = [mine / other for mine, other in zip(times, seconds[self.variants[0]], strict=True)]
            median = statistics.median(times)
            found[name] = {
                "seconds_per_epoch": {"median": median, "quartiles": _quartiles(times)},
                "ratio_to_sgd_l1": {"median": statistics.median(ratios), "quartiles": _quartiles(ratios)},
                "extrapolated_seconds": self.epochs * median,
                "memory": peaks[name],
            }
        settings = {key: value for key, value in asdict(self).items() if key not in ("line", "quick", "variants")}
        published = {name: {"seconds": total, "peak_mb": peak} for name, (total, peak) in PUBLISHED.items()}
        return {"setting": settings, "variants": found, "paper": published}

    def _seconds(self, tell: Callable[[], None]) -> dict[str, list[float]]:
        design = designs.paper(n=self.n, d=self.d, n_test=1)
        settings: dict[str, Any] = {"batch_size": self.batch_size, "epochs": self.epochs, "lr": self.lr, "lam": self.lam}
        runs = {name: Loop(name, design.X, design.y, **settings) for name in self.variants}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        order = list(runs)
        for turn in range(self.rounds + 1):
            for name in order:
                begin = time.perf_counter()
                runs[name].epoch()
                if turn:  # the first warms up, and compiles
                    seconds[name].append(time.perf_counter() - begin)
            order.append(order.pop(0))  # nobody always runs after the same
            tell()
        return seconds

    def table(self, numbers: dict[str, Any]) -> Any:
        """The table, beside the paper's.

        Args:
            numbers: What was measured.
        """
        from rewa.report.panel import Table

        rows = []
        for name, row in numbers["variants"].items():
            published = [f"{number:.1f}" for number in PUBLISHED[name]] if name in PUBLISHED else ["-", "-"]
            each, ratio, peak = row["seconds_per_epoch"], row["ratio_to_sgd_l1"], row["memory"]
            rows.append(
                (
                    name,
                    f"{1e3 * each['median']:.1f}",
                    f"{ratio['median']:.3f} ({ratio['quartiles'][0]:.3f} to {ratio['quartiles'][1]:.3f})",
                    f"{row['extrapolated_seconds']:.1f}",
                    f"{peak['peak_mb']:.1f}",
                    f"{peak['peak_mb'] - peak['before_mb']:.1f}",
                    *published,
                )
            )
        return Table(
            title="Time and peak memory",
            caption=(
                f"Median of {self.rounds} epochs; ratios are taken round by round, with their quartiles. {self.epochs} epochs "
                "are extrapolated from that median, not run. The peak is that of a process with its libraries and the data; "
                "beside it what training added to it."
            ),
            header=(
                "variant",
                "ms an epoch",
                "ratio to SGD-l1 (quartiles)",
                f"s for {self.epochs} epochs, extrapolated",
                "peak MB",
                "of it training",
                "paper: s",
                "paper: MB",
            ),
            rows=rows,
        )


OVERHEAD = Overhead()


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive")[::2]


def peak_memory(variant: str, *, n: int, d: int, batch_size: int) -> dict[str, float]:
    """Peak resident memory of a fresh process that trains for an epoch, in MB; ``before_mb`` is the peak before the first step.

    Args:
        variant: A name of :data:`VARIANTS`.
        n: Samples.
        d: Features.
        batch_size: Samples in a step.
    """
    words = json.dumps({"variant": variant, "n": n, "d": d, "batch_size": batch_size, "threads": torch.get_num_threads()})
    done = subprocess.run([sys.executable, "-c", PEAK, words], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {variant} failed: {(done.stderr.splitlines() or ['no words'])[-1]}")
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def _print_peak() -> None:
    """The life of that process. The data is drawn in float32 at once: a wider draw would be the peak, whatever comes after."""
    wish = json.loads(sys.argv[1])
    torch.set_num_threads(wish["threads"])
    settings: dict[str, Any] = {"batch_size": wish["batch_size"], "epochs": 1, "lr": 2e-4, "lam": 0.25}
    Loop(wish["variant"], torch.ones(1, 1), torch.ones(1), **settings).epoch()  # what torch loads at its first step
    X, y = torch.randn(wish["n"], wish["d"]), torch.randn(wish["n"])
    run = Loop(wish["variant"], X, y, **settings)
    before = _peak_bytes()
    run.epoch()
    os.write(1, json.dumps({"peak_mb": _peak_bytes() / 1e6, "before_mb": before / 1e6}).encode() + b"\n")


def _peak_bytes() -> int:
    """Of this process since its program began."""
    # On Linux ru_maxrss also counts the process that started this one, which holds the data of the timings.
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
