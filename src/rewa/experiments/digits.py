"""Comparisons of methods on a training recipe: the sweeps behind the README's table and the table of all methods."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rewa import report
from rewa.baselines import names
from rewa.experiments.result import How, Result
from rewa.files import write_atomically
from rewa.record import provenance
from rewa.report import Comparison
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Sweep, run_sweep

__all__ = ["DIGITS", "DIGITS_METHODS", "SweepResult"]


@dataclass(frozen=True, kw_only=True)
class SweepResult(Result):
    """A sweep and what is published of it.

    Args:
        sweep: What is trained.
    """

    trains_networks: ClassVar[bool] = True

    sweep: Sweep

    def run(self, out: Path, how: How) -> list[Path]:
        """Train what is not trained yet, in ``out/runs``, and write the report.

        Args:
            out: The folder of the result.
            how: On what, and who is told.

        Raises:
            RunsFailed: When the other runs are done.
            Stopped: After SIGTERM or SIGINT, when every run has saved itself.
        """
        run_sweep(
            self.sweep,
            out / "runs",
            show=how.progress.sweep,
            root=how.root,
            download=how.download,
            device=how.device,
            workers=how.workers,
        )
        return self.write(out)

    def write(self, out: Path) -> list[Path]:
        """Write the report of the runs in ``out/runs``, and the numbers behind every cell of its tables.

        Args:
            out: The folder of the result.
        """
        runs = out / "runs"
        paths = report.write([runs], out / "report.html")
        numbers = {
            **provenance(),
            "recipe": self.sweep.recipe.settings(),
            "methods": self.sweep.methods,
            "seeds": self.sweep.seeds,
            "commits_of_runs": sorted({run.commit for run in report.read([runs])}),
            "comparisons": [_numbers(comparison) for comparison in report.compare(report.read([runs]))],
        }
        write_atomically(out / "numbers.json", json.dumps(numbers, indent=1, allow_nan=False))
        write_atomically(out / "table.md", report.to_markdown([runs]))
        return [*paths, out / "numbers.json", out / "table.md"]


def _numbers(comparison: Comparison) -> dict[str, Any]:
    """Each cell with the runs and thresholds that were chosen for it, seed by seed."""
    rows = []
    for entry in comparison.entries:
        for compression, cell in entry.table.items():
            chosen = [
                {
                    "seed": choice.run.seed,
                    "strength": choice.run.strength,
                    "threshold": choice.point.threshold,
                    "validation": choice.point.validation(comparison.metric),
                    "test": choice.test,
                }
                for choice in cell.choices
            ]
            rows.append(
                {"method": entry.label, "compression": compression, "mean": cell.mean, "sd": cell.sd, "n": cell.n}
                | {"prunable_ratio": cell.prunable, "model_ratio": cell.model, "chosen": chosen}
            )
    deployed = [
        {
            "method": entry.label,
            "seeds": len(entry.deployed.choices),
            "of": entry.deployed.seeds,
            "file_bytes": entry.deployed.file_bytes if entry.deployed.choices else None,
            "dense_bytes": entry.deployed.dense_bytes if entry.deployed.choices else None,
            "test": entry.deployed.cell.mean if entry.deployed.choices else None,
        }
        for entry in comparison.entries
    ]
    weights = asdict(comparison.runs[0].curve[0].prunable)["total"] if comparison.runs[0].curve else None
    return {"title": comparison.title, "metric": comparison.metric, "weights": weights, "cells": rows, "deployed": deployed}


DIGITS = SweepResult(
    line="dense, l1 and ReWA on digits: the README's table and curve, in a minute or two",
    sweep=Sweep(recipe=RECIPES["digits"], methods=("dense", "l1", "rewa"), seeds=3),
)
DIGITS_METHODS = SweepResult(
    line="every method on digits, four strengths and three seeds each: the table in docs/methods.md",
    sweep=Sweep(recipe=RECIPES["digits"], methods=tuple(names()), seeds=3),
)
