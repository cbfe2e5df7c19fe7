"""The calls of the README in a loop of one's own, on a small CNN and a small GPT, beside gradual pruning written by hand."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import rewa
from rewa.experiments.result import How, Result
from rewa.files import write_atomically
from rewa.record import provenance
from rewa.train import datasets
from rewa.train.data import Data
from rewa.train.models import gpt

__all__ = ["README_ROWS", "ROWS", "Row", "Rows", "Trial", "train"]

HAND = "pruning by hand"  # the row that the others must not lose to
WARMUP = 0.05  # share of the run in which the learning rate rises


def pruning_by_hand(model: nn.Module, *, steps: int, sparsity: float) -> Callable[[], None]:
    """Gradual magnitude pruning as anyone would write it; to be called after each step of the optimizer."""
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    weights = [layer.weight for layer in layers]
    masks = [torch.ones_like(weight) for weight in weights]
    done, first, last = 0, steps // 4, steps * 3 // 4

    @torch.no_grad()
    def after_step() -> None:
        nonlocal done, masks
        done += 1
        if first <= done <= last and ((done - first) % max(1, steps // 100) == 0 or done == last):
            share = sparsity * (1 - (1 - (done - first) / (last - first)) ** 3)
            sizes = torch.cat([weight.abs().flatten() for weight in weights])
            if cut := round(share * len(sizes)):
                threshold = sizes.kthvalue(cut).values
                masks = [(weight.abs() > threshold).to(weight) for weight in weights]
        for weight, mask in zip(weights, masks, strict=True):
            weight.mul_(mask)

    return after_step


@dataclass(frozen=True)
class Running:
    """A row in the middle of a loop."""

    optimizer: Optimizer
    after_step: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Row:
    """A way to a sparse model.

    Args:
        start: Takes the model, the number of steps, the learning rate and the share of zeros.
        rates: Learning rates that are tried, by task.
        masked: Whether it trains for one share of zeros; the others are trained once and cut at the end.
    """

    start: Callable[[nn.Module, int, float, float], Running]
    rates: Mapping[str, tuple[float, ...]]
    masked: bool = True


def _sgd_by_hand(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
    optimizer = _plain_sgd(model, lr)
    return Running(optimizer, pruning_by_hand(model, steps=steps, sparsity=sparsity))


def _sgd(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
    groups = rewa.param_groups(model, K=2, M=1, weight_decay=5e-4, match=True)
    optimizer = rewa.ReWASGD(groups, lr=lr, momentum=0.9)
    return Running(optimizer, rewa.Annealing(optimizer, steps=steps, sparsity=sparsity).step)


def _sparsifier(make: Callable[[nn.Module, float], Optimizer]) -> Callable[[nn.Module, int, float, float], Running]:
    """The Sparsifier on an optimizer: the loop has nothing to do."""

    def start(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
        optimizer = make(model, lr)
        rewa.Sparsifier(model, optimizer, sparsity=sparsity, steps=steps)
        return Running(optimizer)

    return start


def _plain_sgd(model: nn.Module, lr: float) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)


def _plain_adamw(model: nn.Module, lr: float) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def _plain_nadam(model: nn.Module, lr: float) -> Optimizer:
    return torch.optim.NAdam(model.parameters(), lr=lr)


def _papers_sgd(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
    # A weight without gradient ends at exp(-10) of its start.
    decay = 10 * (1 - 0.9) / (9 * lr * _full_steps(steps))
    return Running(rewa.ReWASGD(rewa.param_groups(model, K=9, M=2, weight_decay=decay), lr=lr, momentum=0.9))


def _adamw_by_hand(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
    optimizer = _plain_adamw(model, lr)
    return Running(optimizer, pruning_by_hand(model, steps=steps, sparsity=sparsity))


def _adamw(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
    groups = rewa.param_groups(model, K=2, M=1, weight_decay=1e-2, match=True)
    optimizer = rewa.ReWAAdamW(groups, lr=lr)
    return Running(optimizer, rewa.Annealing(optimizer, steps=steps, sparsity=sparsity).step)


def _attached(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
    groups = rewa.param_groups(model, K=2, M=1, weight_decay=1e-2, match=True)
    optimizer = rewa.attach(torch.optim.NAdam(groups, lr=lr))
    return Running(optimizer, rewa.Annealing(optimizer, steps=steps, sparsity=sparsity).step)


def _papers_adamw(model: nn.Module, steps: int, lr: float, sparsity: float) -> Running:
    advised = rewa.theory.adamw_advice(K=9, full_steps=_full_steps(steps))
    decay = advised.weight_decay * advised.lr / lr  # the same shrinkage at another rate
    return Running(rewa.ReWAAdamW(rewa.param_groups(model, K=9, M=2, weight_decay=decay), lr=lr))


SGD = {"cnn": (0.05, 0.1), "gpt": (0.1, 0.3)}
ADAM = {"cnn": (3e-3, 1e-2), "gpt": (4e-3, 8e-3)}
ALGORITHM2 = {"cnn": (1e-2, 2e-2), "gpt": (1e-2, 2e-2)}
ROWS: dict[str, dict[str, Row]] = {
    "SGD": {
        HAND: Row(_sgd_by_hand, SGD),
        "Sparsifier": Row(_sparsifier(_plain_sgd), SGD),
        "ReWASGD, annealed, with cuts": Row(_sgd, SGD),
        "ReWASGD, the paper's K=9, M=2": Row(_papers_sgd, {"cnn": SGD["cnn"]}, masked=False),
    },
    "AdamW": {
        HAND: Row(_adamw_by_hand, ADAM),
        "Sparsifier": Row(_sparsifier(_plain_adamw), ADAM),
        "Sparsifier on NAdam": Row(_sparsifier(_plain_nadam), ADAM),
        "ReWAAdamW, annealed, with cuts": Row(_adamw, ADAM),
        "attach(NAdam), annealed, with cuts": Row(_attached, ADAM),
        "ReWAAdamW, the paper's K=9, M=2": Row(_papers_adamw, ALGORITHM2, masked=False),
    },
}


# ------------------------------------------------------------------------------------------------------ one run


def _cnn(data: Data) -> nn.Module:
    channels, side, _ = data.example_shape
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, data.classes)),
    )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run."""

    task: str
    base: str
    row: str
    lr: float
    seed: int
    shares: tuple[float, ...]  # of zeros, at which the model is measured; a masked row has one
    data: str
    batch_size: int
    steps: int
    layers: int = 4
    width: int = 64
    context: int = 64


def _rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step: a warm-up, then half a cosine."""
    return min(1.0, (step + 1) / (WARMUP * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _full_steps(steps: int) -> float:
    """The length of a run in steps at the full rate."""
    return sum(_rate(step, steps) for step in range(steps))


def train(trial: Trial, root: Path | None) -> dict[str, Any]:
    """Train a model as a user would, cut it, and measure it.

    Args:
        trial: What to train.
        root: Where data is; None for where ``REWA_DATA`` says.

    Returns:
        For each share of zeros the value on validation and on test data: accuracy in percent, or minus the loss. None if the
        run diverged.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # runs at the same time must not fight for cores, and one thread always adds in the same order
    try:
        return _train(trial, root)
    finally:
        torch.set_num_threads(threads)


def _train(trial: Trial, root: Path | None) -> dict[str, Any]:
    torch.manual_seed(trial.seed)
    text = trial.task == "gpt"
    options: dict[str, Any] = {"context": trial.context} if text else {}
    data = datasets.load(trial.data, root=root, **options)
    model: nn.Module = gpt(data.classes, layers=trial.layers, width=trial.width, context=trial.context) if text else _cnn(data)
    running = ROWS[trial.base][trial.row].start(model, trial.steps, trial.lr, trial.shares[0])
    schedule = LambdaLR(running.optimizer, lambda step: _rate(step, trial.steps))
    for inputs, targets in _batches(data, trial):
        running.optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        running.optimizer.step()
        schedule.step()
        running.after_step()
    found = []
    finite = all(bool(param.isfinite().all()) for param in model.parameters())
    for share in sorted(trial.shares) if finite else ():  # what a smaller share keeps, a larger one cuts further
        rewa.finalize(model, sparsity=share)
        found.append({"share": share, **{split: _value(model, data, split, text) for split in ("validation", "test")}})
    return {**asdict(trial), "values": found, "diverged": not finite}


def _batches(data: Data, trial: Trial) -> Iterator[tuple[Tensor, Tensor]]:
    left, epoch = trial.steps, 0
    while left:
        for batch in data.batches(epoch, seed=trial.seed, batch_size=trial.batch_size):
            yield batch
            left -= 1
            if not left:
                return
        epoch += 1


@torch.no_grad()
def _value(model: nn.Module, data: Data, split: str, text: bool) -> float:
    model.eval()
    right = total = 0.0
    for inputs, targets in data.evaluation(split, batch_size=500, limit=1000 if text else None):
        logits, labels = model(inputs).flatten(0, -2), targets.flatten()
        right += float(-F.cross_entropy(logits, labels, reduction="sum") if text else (logits.argmax(1) == labels).sum())
        total += len(labels)
    return right / total if text else 100 * right / total


# --------------------------------------------------------------------------------------------------- the result


@dataclass(frozen=True, kw_only=True)
class Rows(Result):
    """The rows of the README beside gradual pruning by hand.

    Args:
        shares: Shares of zeros.
        seeds: Runs of each.
        epochs: Length of a run of the CNN, on Fashion-MNIST.
        steps: Length of a run of the GPT, on tiny Shakespeare.
    """

    trains_networks: ClassVar[bool] = True
    line: str = "the README's calls in a loop of one's own, a CNN and a GPT, SGD and AdamW, beside gradual pruning by hand"
    quick: bool = True
    shares: tuple[float, ...] = (0.9, 0.95, 0.98)
    seeds: int = 2
    epochs: int = 4
    steps: int = 600

    def trials(self, *, quick: bool = False) -> list[Trial]:
        """Every run, in the order of their seeds."""
        tasks: dict[str, dict[str, Any]] = {
            "cnn": {"data": "fashion-mnist", "batch_size": 128, "steps": self.epochs * (55_000 // 128)},
            "gpt": {"data": "shakespeare", "batch_size": 16, "steps": self.steps},
        }
        if quick:
            tasks = {"cnn": {"data": "digits", "batch_size": 64, "steps": 12}}
        return [
            Trial(task=task, base=base, row=name, lr=lr, seed=seed, shares=shares, **settings)
            for seed in range(self.seeds)
            for task, settings in tasks.items()
            for base, rows in ROWS.items()
            for name, row in rows.items()
            for lr in row.rates.get(task, ())[: 1 if quick else None]
            for shares in (((share,) for share in self.shares) if row.masked else (self.shares,))
        ]

    def run(self, out: Path, how: How) -> list[Path]:
        """Train what is not recorded yet, and write the table.

        Args:
            out: The folder of the result; its record is also what a later call resumes from.
            how: ``workers`` are the processes, one thread each.
        """
        from rewa.report.files import publish

        study = replace(self, shares=(0.5,), seeds=1) if how.quick else self
        record, trials = out / "rows.json", study.trials(quick=how.quick)
        done: list[dict[str, Any]] = json.loads(record.read_text())["runs"] if record.exists() else []
        keys = {_key(run) for run in done}
        missing = [trial for trial in trials if _key(asdict(trial)) not in keys]
        origin = provenance()
        if missing and not how.trained:
            how.progress.stage(f"training {len(missing)} networks", len(missing))
            for run in _trained(missing, how):
                done.append({**run, "commit": origin["commit"]})
                write_atomically(record, json.dumps({**origin, "runs": done}, indent=1))
                how.progress.advance()
        if not done:
            raise ValueError(f"{record} holds no run yet: leave out --trained")
        written = publish(
            out,
            "rows",
            title="The README's calls in a loop of one's own",
            lead=(
                "Small networks of one's own, trained by an ordinary loop; each row with the best of its learning rates on "
                "validation data, test data read for that one only. Mean and spread over the seeds."
            ),
            panels=study.tables(done),
            provenance=origin,
        )
        return [*written, record]

    def tables(self, runs: list[dict[str, Any]]) -> list[Any]:
        """One table per task and base optimizer.

        Args:
            runs: What was trained.
        """
        from rewa.report.panel import Table

        shown = []
        for task, base in dict.fromkeys((run["task"], run["base"]) for run in runs):
            unit = "test loss (lower is better)" if task == "gpt" else "test accuracy, %"
            rows = []
            for name in ROWS[base]:
                chosen = [_best(runs, task, base, name, share) for share in self.shares]
                if all(chosen):
                    rows.append((name, *(_cell(one, task) for one in chosen if one)))
            title = f"{'GPT' if task == 'gpt' else 'CNN'} with {base}"
            header = ("row", *(f"{share:.0%} zeros" for share in self.shares))
            shown.append(Table(title=title, caption=f"{unit}; in brackets the learning rate.", header=header, rows=rows))
        return shown


def _trained(trials: list[Trial], how: How) -> Iterator[dict[str, Any]]:
    """The runs as they are done: in this process one by one, or in others at the same time."""
    workers = min(how.workers or os.cpu_count() or 1, len(trials))
    if workers == 1:
        yield from (train(trial, how.root) for trial in trials)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(train, trial, how.root) for trial in trials]):
            yield future.result()


def _key(run: dict[str, Any]) -> str:
    return json.dumps([run[key] for key in ("task", "base", "row", "lr", "seed", "shares", "data", "steps")])


def _best(runs: list[dict[str, Any]], task: str, base: str, row: str, share: float) -> tuple[float, list[float]] | None:
    """The learning rate with the best mean on validation data, and the test values of its seeds."""
    values: dict[float, list[tuple[float, float]]] = {}
    for run in runs:
        if (run["task"], run["base"], run["row"]) == (task, base, row):
            for value in run["values"]:
                if value["share"] == share:
                    values.setdefault(run["lr"], []).append((value["validation"], value["test"]))
    if not values:
        return None
    most = max(map(len, values.values()))  # a rate that has not all seeds yet is not judged
    whole = {lr: pairs for lr, pairs in values.items() if len(pairs) == most}
    lr = max(whole, key=lambda lr: statistics.mean(validation for validation, _ in whole[lr]))
    return lr, [test for _, test in whole[lr]]


def _cell(chosen: tuple[float, list[float]], task: str) -> str:
    lr, tests = chosen
    values, digits = ([-test for test in tests], 3) if task == "gpt" else (tests, 1)
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread} ({lr:g})"


README_ROWS = Rows()
