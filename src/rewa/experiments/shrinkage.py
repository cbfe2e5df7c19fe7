"""What weight decay alone makes of a weight: predicted by the decay budget, and measured on trained networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rewa.experiments.deployed import TRAINED
from rewa.report import Run
from rewa.report.markdown import markdown_table
from rewa.sparsity import prunable
from rewa.theory import decay_budget
from rewa.train.data import Data
from rewa.train.job import new_model
from rewa.train.recipes import Recipe

__all__ = ["Shrinkage", "shrinkage", "to_markdown"]


@dataclass(frozen=True, kw_only=True)
class Shrinkage:
    """How many times, as a natural logarithm, the weights of a run shrank; the prediction is for one without gradient."""

    run: str
    commit: str  # of the run
    weight_decay: float
    predicted: float
    lower: float  # a tenth of the weights shrank less
    median: float
    upper: float  # a tenth shrank more


def shrinkage(run: Run, recipe: Recipe, data: Data) -> Shrinkage:
    """Compare the last weights of a run of ReWA, which its folder holds, with its first ones.

    Args:
        run: The run.
        recipe: Its recipe.
        data: Its data.
    """
    from safetensors.torch import load_file

    assert run.strength is not None
    first = prunable(new_model(recipe, data, run.seed))
    last = load_file(run.folder / TRAINED)
    ratios = torch.cat([(x.detach().abs() / last[name].abs()).log().flatten() for name, x in first.items()])
    known = ratios[~ratios.isnan()].numpy()  # zero over zero is not
    lower, median, upper = (float(value) for value in np.quantile(known, (0.1, 0.5, 0.9)))
    rates = recipe.plan(data.steps_per_epoch(recipe.batch_size)).learning_rates
    budget = decay_budget(rates, K=float(run.settings["K"]), weight_decay=run.strength, momentum=recipe.momentum)
    quantiles = {"lower": lower, "median": median, "upper": upper}
    return Shrinkage(run=run.name, commit=run.commit, weight_decay=run.strength, predicted=budget, **quantiles)


def to_markdown(rows: Sequence[Shrinkage]) -> list[str]:
    """The lines of a table.

    Args:
        rows: One for each run.
    """
    header = ["run", "weight decay", "predicted", "median", "10 % to 90 %"]
    body = [
        [row.run, f"{row.weight_decay:.3g}", f"{row.predicted:.2f}", f"{row.median:.2f}", f"{row.lower:.2f} to {row.upper:.2f}"]
        for row in rows
    ]
    return markdown_table(header, body)
