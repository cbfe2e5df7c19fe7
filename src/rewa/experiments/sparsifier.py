"""What the step inside the Sparsifier should be, and what it should cut: variants on three tasks, on validation data."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from rewa.experiments.result import How, Result
from rewa.methods.method import Bound
from rewa.methods.sparsifier import BoundSparsifying, Sparsifying
from rewa.optim.cuts import Cuts
from rewa.optim.growth import Grown, Growth, bounds
from rewa.record import Run, provenance, read
from rewa.reparam import grown, grown_gradient
from rewa.sparsifier import Sparsifier
from rewa.train.attempts import Failure
from rewa.train.job import Job
from rewa.train.local_workers import run_local
from rewa.train.recipes import RECIPES, Recipe
from rewa.train.sweep import diverged

__all__ = ["SPARSIFIER", "Ablation", "Task", "Varied"]


@dataclass(frozen=True, kw_only=True)
class Varied(Sparsifying):
    """The Sparsifier with its inner parts exchanged.

    Args:
        strength: Share of zeros in the end.
        begin: Where the first cut is made, as a share of the run.
        end: Where the last cut is made.
        law: How the share of zeros rises in between.
        growth: What a weight of the usual size adds to its step, as a multiple.
        worth: What is cut last, as of the Sparsifier.
        M: Adaptivity exponent of what is added; the penalty has p = 2 - M.
        floor: Share of the optimizer's step that every weight makes.
        floor_until: Share of the run at which the floor has fallen to zero, from a tenth of the run on; None: it stays.
        reach: The bound of what is added to a step, as a multiple of the Sparsifier's.
        decay: Under SGD, what the optimizer's decay is multiplied by; None: the Sparsifier's.
        after_step: Whether the whole step is lengthened, and decay with it: that of SGD, and of AdamW.
        unit: ``"layer"``: the size s is each layer's; ``"model"``: one for all.
        scale: What the worth of a tensor's weights is changed by: ``"size"``, division by s; ``"lamp"``, the share in the
            squares of all that are worth more; ``""``, nothing.
        average: Whether the model in the end is the average of the last tenth of the run.
    """

    name: ClassVar[str] = "sparsifier-varied"

    M: float = 1.0
    floor: float = 1.0
    floor_until: float | None = None
    reach: float = 1.0
    decay: float | None = None
    after_step: bool = False
    unit: str = "layer"
    scale: str = ""
    average: bool = False

    def _bound(self) -> type[Bound[Any]]:
        return BoundVaried


class _VariedGrowth(Growth):
    """Steps that are lengthened by another formula."""

    def __init__(self, optimizer: Optimizer, owner: _VariedSparsifier) -> None:
        super().__init__(optimizer)
        self.owner = owner

    @property
    def _takes_gradients(self) -> bool:
        return super()._takes_gradients and not self.owner.method.after_step

    def _how(self, one: Grown) -> dict[str, float]:
        method, floor = self.owner.method, self.owner.method.floor
        if method.floor_until is not None:
            time = (self.owner.done / self.owner.steps - 0.1) / (method.floor_until - 0.1)
            floor *= 1 - min(1.0, max(0.0, time))
        return {"size": one.size, "growth": one.growth, "M": method.M, "most": one.most, "floor": floor}

    def _decay(self, group: dict[str, Any]) -> float:
        return 0.0 if self.owner.method.after_step else super()._decay(group)

    def _lengthened(self, one: Grown, old: Tensor, move: Tensor) -> Tensor:
        return grown(old, move, **self._how(one))

    def _longer(self, one: Grown, x: Tensor, grad: Tensor, decay: float) -> Tensor:
        if self.owner.method.decay is not None:
            decay *= (self.owner.method.decay - 1) / one.growth
        return grown_gradient(x, grad, weight_decay=decay, **self._how(one))

    def _kernel_for(self, group: dict[str, Any], param: Tensor) -> bool:
        return False


class _VariedSparsifier(Sparsifier):
    """The Sparsifier with its inner parts exchanged."""

    method: Varied

    def vary(self, method: Varied) -> None:
        """Exchange the parts, before the first step."""
        self.method, self._growth = method, _VariedGrowth(self.optimizer, self)
        self._cuts = _VariedCuts(self)
        state = self._state()
        if method.unit == "model":
            squares = sum(float(weight.detach().square().sum()) for weight in self.weights.values())
            size = (squares / sum(weight.numel() for weight in self.weights.values())) ** 0.5
            state["sizes"] = dict.fromkeys(state["sizes"], size)

    def _bounds(self, size: float, lr: float, highest: float) -> tuple[float, float]:
        times = self.method.reach
        return bounds(self.optimizer, growth=self.growth, size=size, lr=lr, highest=highest, times=times)


class _VariedCuts(Cuts):
    """Cuts by another worth of weights."""

    def __init__(self, owner: _VariedSparsifier) -> None:
        super().__init__(owner.model, owner.weights, owner.pools, owner._square)
        self.owner = owner

    def worth(self, name: str, graded: bool) -> Tensor:
        found, scale = super().worth(name, graded), self.owner.method.scale
        if scale == "size":
            return found / float(self.owner._state()["sizes"][name])
        if scale == "lamp":
            squares, order = found.flatten().double().square().sort()
            rest = squares.flip(0).cumsum(0).flip(0)  # of this and of all larger ones
            scores = torch.empty_like(squares)
            scores[order] = squares / rest.clamp_min(math.ulp(0.0))
            return scores.view_as(found)
        return found


class BoundVaried(BoundSparsifying):
    """A varied Sparsifier at work."""

    def _make_sparsifier(self, optimizer: Optimizer, kind: type[Sparsifier] = _VariedSparsifier) -> Sparsifier:
        made = super()._make_sparsifier(optimizer, kind)
        assert isinstance(made, _VariedSparsifier)
        assert isinstance(self.method, Varied)
        made.vary(self.method)
        return made

    @torch.no_grad()
    def after_step(self, step: int, lr: float) -> None:
        """Average the last tenth of the run, if that is asked for."""
        first = round(0.9 * self.plan.steps)
        if not getattr(self.method, "average", False) or step < first:
            return
        params = list(self.model.parameters())
        if step == first:
            self.mean = [param.detach().clone() for param in params]
        else:
            for mean, param in zip(self.mean, params, strict=True):
                mean.lerp_(param.detach(), 1 / (step - first + 1))
        if step == self.plan.steps - 1:
            for mean, param in zip(self.mean, params, strict=True):
                param.copy_(mean)


@dataclass(frozen=True)
class Task:
    """A recipe, a share of zeros, and the learning rates that every variant may choose from."""

    name: str
    recipe: Recipe
    zeros: float
    rates: tuple[float, ...]
    seeds: int


TASKS = (
    Task("Fashion-MNIST", RECIPES["fashion-mnist"], 0.99, (0.05, 0.1), 2),
    Task("CIFAR-10", replace(RECIPES["cifar10-cpu"], epochs=3), 0.98, (0.256, 0.512), 1),
    Task("GPT", replace(RECIPES["shakespeare-gpt"], epochs=1), 0.95, (4e-3, 8e-3), 1),
)
USUAL = {"sgd": 1.0, "adamw": 3.0}  # growth of the Sparsifier
VARIANTS: dict[str, dict[str, Any]] = {
    "the Sparsifier": {},
    "no growth, cut by magnitude: GMP": {"growth": 0.0, "worth": "magnitude"},
    "cut by magnitude": {"worth": "magnitude"},
    "no growth": {"growth": 0.0},
    "SGD: steps lengthened, decay with them": {"after_step": True},
    "AdamW: decay lengthened too": {"after_step": True},
    "SGD: decay as it is": {"decay": 1.0},
    "SGD: four times the decay": {"decay": 4.0},
    "growth 0.3": {"growth": 0.3},
    "growth 1": {"growth": 1.0},
    "growth 3": {"growth": 3.0},
    "growth 10": {"growth": 10.0},
    "half the bound": {"reach": 0.5},
    "twice the bound": {"reach": 2.0},
    "four times the bound": {"reach": 4.0},
    "no bound": {"reach": 1e6},
    "p = 1.5": {"M": 0.5},
    "p = 1.25": {"M": 0.75},
    "p = 0.75": {"M": 1.25},
    "p = 0.5": {"M": 1.5},
    "no floor": {"floor": 0.0},
    "a floor that falls to zero": {"floor_until": 0.5},
    "one size for the model": {"unit": "model"},
    "cut by worth / s": {"scale": "size"},
    "cut by LAMP": {"worth": "magnitude", "scale": "lamp"},
    "cuts from 0.2 to 0.8": {"begin": 0.2, "end": 0.8},
    "cuts from 0.4 to 0.8": {"begin": 0.4, "end": 0.8},
    "average of the last tenth": {"average": True},
}


@dataclass(frozen=True, kw_only=True)
class Ablation(Result):
    """Variants of the Sparsifier on several tasks.

    Args:
        tasks: The tasks.
        variants: By name, the settings of :class:`Varied` that differ.
    """

    trains_networks: ClassVar[bool] = True
    redraws: ClassVar[bool] = True
    line: str = "what the Sparsifier's step and cuts are worth, exchanged one by one on three tasks, in some two hours"
    quick: bool = True
    tasks: tuple[Task, ...] = TASKS
    variants: tuple[str, ...] = tuple(VARIANTS)

    def jobs(self) -> Iterator[tuple[Task, str, float, Job]]:
        """Every run, the first seeds first."""
        for seed in range(max(task.seeds for task in self.tasks)):
            for task in self.tasks:
                for name in self.variants if seed < task.seeds else ():
                    optimizer, only = task.recipe.optimizer, name.partition(":")[0].lower()
                    if only in {*USUAL} - {optimizer} or VARIANTS[name].get("growth") == USUAL[optimizer]:
                        continue
                    for lr in task.rates:
                        method = Varied(strength=task.zeros, **VARIANTS[name])
                        folder = f"{task.recipe.name}-{re.sub('[^a-zA-Z0-9.]+', '-', name)}-{lr:g}-s{seed}"
                        recipe = replace(task.recipe, lr=lr, compressions=(1,))
                        yield task, name, lr, Job(recipe=recipe, method=method, seed=seed, name=folder)

    def run(self, out: Path, how: How) -> list[Path]:
        """Train what is not recorded yet, and write the table.

        Args:
            out: The folder of the result; a later call resumes from its runs.
            how: ``workers`` are the processes.
        """
        from rewa.report.files import publish

        study = self._small() if how.quick else self
        jobs, failures = list(study.jobs()), list[Failure]()
        if not how.trained:
            how.progress.stage(f"training {len(jobs)} networks", 1)
            before = diverged([job for *_, job in jobs], out / "runs")
            left = [job for *_, job in jobs if job.folder_name not in before]
            failures = run_local(left, out / "runs", workers=how.workers or 2, root=how.root)
            how.progress.advance()
        found = {run.name: run for run in read(out / "runs")}
        outcomes = diverged([job for *_, job in jobs], out / "runs")
        if broken := [failure for failure in failures if failure.name not in outcomes]:
            raise RuntimeError(f"{len(broken)} runs failed, first {broken[0]}")
        return publish(
            out,
            "sparsifier",
            title="What the Sparsifier is made of",
            lead=(
                "Each row changes one thing. Each cell has the best of its learning rates, by the mean over the seeds. "
                "Everything is judged on validation data."
            ),
            panels=[study.table(found)],
            provenance=provenance(),
        )

    def _small(self) -> Ablation:
        digits = replace(RECIPES["digits"], epochs=1)
        return replace(
            self,
            tasks=(Task("digits", digits, 0.9, (0.1,), 1),),
            variants=("the Sparsifier", "SGD: decay as it is", "cut by LAMP"),
        )

    def table(self, found: dict[str, Run]) -> Any:
        """The table.

        Args:
            found: The finished runs by name.
        """
        from rewa.report.panel import Table

        values: dict[tuple[str, str], dict[float, list[float]]] = {}
        for task, name, lr, job in self.jobs():
            if (run := found.get(job.folder_name)) is not None and run.status != "running":
                value = math.nan if run.final is None else run.final.validation(task.recipe.metric)  # nan: it diverged
                values.setdefault((task.name, name), {}).setdefault(lr, []).append(value)
        header = ["", *(f"{task.name}, {task.zeros:.0%}" for task in self.tasks)]
        rows = []
        for name in self.variants:
            rows.append((name, *(_cell(values.get((task.name, name), {}), task) for task in self.tasks)))
        units = "validation accuracy, %; of the GPT validation loss, lower is better. In brackets the learning rate"
        return Table(title="Variants of the Sparsifier", caption=units, header=tuple(header), rows=rows)


def _cell(by_rate: dict[float, list[float]], task: Task) -> str:
    """Mean and deviation at the best rate, of those at which no run diverges."""
    if not by_rate:
        return "-"
    by_rate = {rate: values for rate, values in by_rate.items() if all(map(math.isfinite, values))}
    if not by_rate:
        return "diverges"
    sign, digits = (1, 2) if task.recipe.metric == "accuracy" else (-1, 3)
    lr = max(by_rate, key=lambda rate: sign * statistics.mean(by_rate[rate]))
    spread = f" ± {statistics.stdev(by_rate[lr]):.{digits}f}" if len(by_rate[lr]) > 1 else ""
    return f"{statistics.mean(by_rate[lr]):.{digits}f}{spread} ({lr:g})"


SPARSIFIER = Ablation()
