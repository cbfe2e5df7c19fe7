"""What the models of a table's cells are worth outside of training: bytes on disk and milliseconds on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rewa.deploy.inference import accelerate, median_ms
from rewa.deploy.packed import save_packed
from rewa.deploy.surgery import shrink
from rewa.report import Comparison, Run
from rewa.report.findings import ratio, size
from rewa.report.markdown import markdown_table
from rewa.report.tables import Chosen
from rewa.train.data import Data
from rewa.train.evaluate import calibration, cut_at
from rewa.train.job import build_model
from rewa.train.numeric import choose
from rewa.train.recipes import Recipe

__all__ = ["Deployed", "deploy", "deploy_cells", "has_weights", "to_markdown"]

TRAINED = "trained.safetensors"
BATCH = 1  # inputs at a time: latency, not throughput


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """One model as it would ship: cut, shrunk, packed, and its layers swapped for sparse ones where that is faster."""

    method: str
    compression: float
    run: str
    commit: str  # of the run
    threshold: float
    file_bytes: int
    dense_bytes: int
    ms: float
    dense_ms: float


def deploy(choice: Chosen, recipe: Recipe, data: Data, *, rounds: int = 25) -> dict[str, Any]:
    """Bytes and milliseconds of one model, beside those of the same network before the cut.

    Args:
        choice: The run, whose folder holds the weights, and the point.
        recipe: Its recipe.
        data: Its data.
        rounds: Timings of each, in turns; the median counts.
    """
    from safetensors.torch import load_file

    dense = build_model(recipe, data)
    dense.load_state_dict(load_file(choice.run.folder / TRAINED))
    inputs = [images for images, _ in calibration(data, recipe, choice.run.seed, recipe.batch_size)]
    numeric = choose(torch.device("cpu"), recipe.precision, recipe.channels_last)
    model = cut_at(dense, choice.point.threshold, inputs, numeric).eval()
    x, _ = next(data.evaluation("validation", batch_size=BATCH, limit=BATCH))
    small = shrink(model, x, report=None)
    with tempfile.TemporaryDirectory() as folder:
        file_bytes = save_packed(small, Path(folder, "model.rewa")).size
    accelerate(small, x, rounds=rounds, verbose=False)
    dense.eval()
    with torch.inference_mode():
        dense_ms, ms = median_ms([lambda: dense(x), lambda: small(x)], rounds)
    dense_bytes = sum(tensor.nbytes for tensor in dense.state_dict().values())
    return {"file_bytes": file_bytes, "dense_bytes": dense_bytes, "ms": ms, "dense_ms": dense_ms}


def has_weights(run: Run) -> bool:
    """Whether the folder of a run still holds what was trained; the records of a result are kept longer.

    Args:
        run: The run.
    """
    return (run.folder / TRAINED).exists()


def deploy_cells(
    comparison: Comparison,
    compressions: Sequence[float],
    recipe: Recipe,
    data: Data,
    before: Sequence[Deployed] = (),
    tick: Callable[[], None] = lambda: None,
) -> list[Deployed]:
    """The first seed's model of every cell; what stands in several cells is measured once.

    Args:
        comparison: The comparison.
        compressions: Columns of its table.
        recipe: The recipe of its runs.
        data: Their data.
        before: What was measured earlier, and is not measured again. A model that is not there, and has no weights any more,
            is left out.
        tick: Called after each cell.
    """
    known = {(row.run, row.commit, row.threshold): row for row in before}
    rows = []
    for entry in comparison.entries:
        for compression in compressions:
            if cell := entry.table.get(compression):
                choice = cell.chosen[0]
                key = choice.run.name, choice.run.commit, choice.point.threshold
                if key not in known and has_weights(choice.run):
                    named = {"run": key[0], "commit": key[1], "threshold": key[2], **deploy(choice, recipe, data)}
                    known[key] = Deployed(method=entry.label, compression=compression, **named)
                if key in known:
                    rows.append(replace(known[key], method=entry.label, compression=compression))
            tick()
    return rows


def to_markdown(rows: Sequence[Deployed]) -> list[str]:
    """The lines of a table: bytes, and how many times faster than the dense network, for each method and compression.

    Args:
        rows: From :func:`deploy_cells`.
    """
    columns = sorted({row.compression for row in rows})
    cells = {(row.method, row.compression): f"{size(row.file_bytes)}, {row.dense_ms / row.ms:.2f}x" for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    body = [[method, *(cells.get((method, column), "") for column in columns)] for method in methods]
    return markdown_table(["method", *map(ratio, columns)], body)
