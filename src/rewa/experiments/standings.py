"""Who leads a comparison: every method at the compressions that count, and how far ReWA is ahead of the others there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rewa.palette import is_rewa
from rewa.report import Comparison
from rewa.report.findings import ratio
from rewa.report.markdown import markdown_table
from rewa.report.tables import Cell

__all__ = ["leads", "standings"]


def standings(comparison: Comparison, compressions: Sequence[float], split: str = "test") -> list[str]:
    """The lines of a table: mean and standard deviation over the seeds, for each method and compression.

    Args:
        comparison: The comparison.
        compressions: The columns.
        split: ``"test"``, or ``"validation"`` for what is itself a choice.
    """
    digits, rows = _digits(comparison), []
    for entry in comparison.entries:
        cells = [entry.table.get(each) for each in compressions]
        shown = [_spread(_scores(cell, split), digits) if cell else "" for cell in cells]
        rows.append([entry.label, str(len(entry.seeds)), *shown])
    return markdown_table(["method", "seeds", *map(ratio, compressions)], rows)


def leads(comparison: Comparison, compressions: Sequence[float]) -> list[str]:
    """The lines of a table: the best ReWA and the best of the others at each compression, and their difference.

    Both are the best by their mean on validation data, so that the difference on test data is not that of two maxima. It is
    taken seed by seed: the seed decides the first weights and the order of the data. Methods with fewer seeds than
    others do not take part.

    Args:
        comparison: The comparison.
        compressions: The rows.
    """
    most = max((len(entry.seeds) for entry in comparison.entries), default=0)
    repeated = [entry for entry in comparison.entries if len(entry.seeds) == most]
    digits, rows = _digits(comparison), []
    for each in compressions:
        there = [(entry, entry.table[each]) for entry in repeated if each in entry.table]
        ours, others = (
            max(
                (pair for pair in there if is_rewa(pair[0].method) is rewa),
                key=lambda pair: comparison.sign * statistics.fmean(_scores(pair[1], "validation").values()),
                default=None,
            )
            for rewa in (True, False)
        )
        if ours is None or others is None:
            continue
        (our_entry, our_cell), (other_entry, other_cell) = ours, others
        our_scores, other_scores = _scores(our_cell, "test"), _scores(other_cell, "test")
        shared = sorted(our_scores.keys() & other_scores.keys())
        lead = {seed: comparison.sign * (our_scores[seed] - other_scores[seed]) for seed in shared}
        ahead = sum(value > 0 for value in lead.values())
        rows.append([ratio(each), our_entry.label, _spread(our_scores, digits), other_entry.label])
        rows[-1] += [_spread(other_scores, digits), _spread(lead, digits, signed=True), f"{ahead} of {len(lead)}"]
    header = ["", "best ReWA", "test", "best other", "test", "lead, seed by seed", "seeds ahead"]
    return markdown_table(header, rows)


def _scores(cell: Cell, split: str) -> dict[int, float]:
    """The metric of a cell's choices, by seed."""
    if split == "test":
        return {choice.run.seed: choice.test for choice in cell.chosen}
    return {choice.run.seed: choice.point.validation(choice.run.metric) for choice in cell.chosen}


def _digits(comparison: Comparison) -> int:
    """After the point: a loss has a unit a hundred times that of a percentage."""
    return 2 if comparison.metric == "accuracy" else 3


def _spread(scores: dict[int, float], digits: int, signed: bool = False) -> str:
    values = list(scores.values())
    mean = f"{statistics.fmean(values):{'+' if signed else ''}.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
