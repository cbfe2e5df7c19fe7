"""The tables as text: CSV files, GitHub markdown, and the numbers as they are printed everywhere."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rewa.record import Run, read
from rewa.report.tables import Cell, Comparison, Entry, compare, ranking

__all__ = [
    "csv_text",
    "drop",
    "finding",
    "front",
    "headline",
    "markdown_line",
    "markdown_table",
    "points_csv",
    "ratio",
    "score",
    "size",
    "spread",
    "table_csv",
    "to_markdown",
    "to_plain",
    "unit",
]


def unit(metric: str) -> str:
    """What a metric is called on an axis.

    Args:
        metric: ``"accuracy"`` or ``"loss"``.
    """
    return "test accuracy, %" if metric == "accuracy" else "test loss"


def score(value: float, metric: str) -> str:
    """A metric's value in the digits that matter.

    Args:
        value: The value.
        metric: Its metric.
    """
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.2f}" if metric == "accuracy" else f"{value:.4g}"


def spread(cell: Cell, metric: str) -> str:
    """Mean and standard deviation of a cell; the mean alone for one seed.

    Args:
        cell: The cell.
        metric: Its metric.
    """
    if cell.sd is None or not math.isfinite(cell.mean):
        return score(cell.mean, metric)
    return (
        f"{score(cell.mean, metric)} ± {cell.sd:.2f}" if metric == "accuracy" else f"{score(cell.mean, metric)} ± {cell.sd:.2g}"
    )


def ratio(value: float) -> str:
    """A compression, three digits.

    Args:
        value: All weights over those that are not zero.

    Example:
        >>> ratio(12.345), ratio(1234.5), ratio(float("inf"))
        ('12.3x', '1,234x', 'infinite')
    """
    if math.isinf(value):
        return "infinite"
    return f"{value:.3g}x" if value < 1000 else f"{value:,.0f}x"


def size(count: float) -> str:
    """A number of bytes.

    Args:
        count: The bytes.

    Example:
        >>> size(9354), size(104_832_000)
        ('9.35 kB', '105 MB')
    """
    if count < 999.5:
        return f"{count:.0f} bytes"
    for name in ("kB", "MB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {name}"
    return f"{count / 1000:.3g} GB"


def headline(comparison: Comparison) -> str:
    """What a comparison shows, in one line.

    Args:
        comparison: The comparison.
    """
    count = len(comparison.entries)
    if not count:
        return f"{comparison.title}: no run is finished yet"
    return f"{count} method{'s' * (count > 1)} on {comparison.title}: test {comparison.metric} against compression"


def front(comparison: Comparison) -> tuple[float, list[tuple[Entry, Cell]]] | None:
    """Where it matters: the largest compression whose best mean lies within ``max_drop`` of the best of all, and who is there.

    Args:
        comparison: The comparison.

    Returns:
        The compression, and the methods that reach it with their cells, best first; None as long as no cell is there.
    """
    leaders = {each: best for each in comparison.compressions if (best := comparison.best(each))}
    if not leaders:
        return None
    sign = comparison.sign
    mark = max(sign * best[0][1].mean for best in leaders.values())
    compression = max(each for each, best in leaders.items() if mark - sign * best[0][1].mean <= comparison.max_drop + 1e-9)
    return compression, leaders[compression]


def finding(comparison: Comparison) -> str:
    """Who is best where it matters, see :func:`front`.

    Args:
        comparison: The comparison. The sentence is empty as long as no cell is there.
    """
    found = front(comparison)
    if found is None:
        return ""
    compression, ((entry, cell), *others) = found
    metric, percent = comparison.metric, " %" if comparison.metric == "accuracy" else ""
    sentence = (
        f"At {ratio(compression)}, the furthest that any method stays within {drop(comparison)} of the best {metric}, "
        f"{entry.label} has {spread(cell, metric)}{percent} ({cell.n} seed{'s' * (cell.n > 1)})"
    )
    if len(comparison.entries) == 1:
        return f"{sentence}."
    if not others:
        return f"{sentence}; no other method gets there."
    second, behind = others[0]
    return f"{sentence}; the next, {second.label}, has {spread(behind, metric)}{percent}."


def drop(comparison: Comparison) -> str:
    """The allowed fall of the metric, in words.

    Args:
        comparison: The comparison.
    """
    value = comparison.max_drop
    return f"{value:g} point{'s' * (value != 1)}" if comparison.metric == "accuracy" else f"{value:g}"


def points_csv(comparisons: Sequence[Comparison]) -> str:
    """Every point of the curve of every finished run.

    Args:
        comparisons: The comparisons that hold the runs.
    """
    header = (
        "run recipe comparison method settings strength seed epochs threshold prunable_total prunable_nonzero "
        "prunable_compression model_total model_nonzero model_compression validation_loss validation_accuracy "
        "test_loss test_accuracy"
    )
    rows: list[Sequence[object]] = [header.split()]
    for comparison in comparisons:
        for run in comparison.runs:
            start = [
                run.name,
                comparison.recipe,
                comparison.title,
                comparison.labels[str(run.folder)],
                json.dumps(run.settings),
            ]
            start += ["" if run.strength is None else repr(run.strength), str(run.seed), str(len(run.epochs))]
            for point in run.curve:
                counts = [
                    value
                    for count in (point.prunable, point.model)
                    for value in (count.total, count.nonzero, count.compression_ratio)
                ]
                scores = [point.validation_loss, point.validation_accuracy, point.test_loss, point.test_accuracy]
                rows.append([*start, point.threshold, *counts, *("" if math.isnan(value) else value for value in scores)])
    return csv_text(rows)


def table_csv(comparisons: Sequence[Comparison]) -> str:
    """Every cell of every table, with what was chosen for each seed.

    Args:
        comparisons: The comparisons.
    """
    header = "comparison metric method compression mean sd n prunable_compression model_compression strengths chosen"
    rows: list[Sequence[object]] = [header.split()]
    for comparison in comparisons:
        for entry in comparison.entries:
            for cell in entry.table.values():
                chosen = "; ".join(
                    f"seed {choice.run.seed}: {choice.run.name} at {choice.point.threshold:g}" for choice in cell.choices
                )
                sd = "" if cell.sd is None else cell.sd
                where = [comparison.title, comparison.metric, entry.label, cell.compression]
                rows.append([*where, cell.mean, sd, cell.n, cell.prunable, cell.model, len(entry.strengths), chosen])
    return csv_text(rows)


def to_markdown(paths: Sequence[Path] | Path | Sequence[Run]) -> str:
    """The tables as GitHub markdown, with the warnings that belong to them.

    Args:
        paths: Folders of runs, as of :func:`rewa.report.read`; or the runs.
    """
    runs = [paths] if isinstance(paths, Path) else list(paths)
    given = [run for run in runs if isinstance(run, Run)]
    comparisons = compare(given if given else read([path for path in runs if isinstance(path, Path)]))
    return "\n".join(part for comparison in comparisons for part in _markdown(comparison))


def _markdown(comparison: Comparison) -> list[str]:
    lines = [f"### {markdown_line(headline(comparison))}", ""]
    lines += [line for warning in comparison.warnings for line in (f"> **Warning:** {markdown_line(warning)}", "")]
    if not comparison.entries:
        return lines
    if sentence := finding(comparison):
        lines += [markdown_line(sentence), ""]
    metric = comparison.metric
    cells = [
        [
            entry.label,
            str(len(entry.seeds)),
            str(len(entry.strengths)),
            *(
                f"{spread(cell, metric)} ({ratio(cell.prunable)} / {ratio(cell.model)})"
                if (cell := entry.table.get(each))
                else ""
                for each in comparison.compressions
            ),
        ]
        for entry in comparison.entries
    ]
    sizes = []
    for entry in comparison.entries:
        made = entry.deployed
        label, seeds = entry.label, f"{len(made.choices)} of {made.seeds}"
        if not made.choices:
            sizes.append([label, seeds, "none", "", "", ""])
            continue
        smaller = ratio(made.dense_bytes / made.file_bytes) if made.file_bytes else ""
        sizes.append([label, seeds, size(made.file_bytes), size(made.dense_bytes), smaller, spread(made.cell, metric)])
    return [
        *lines,
        f"{unit(metric).capitalize()} at a compression of the prunable weights of at least; mean ± standard deviation over the "
        "seeds. Strength and threshold were chosen on validation data. In brackets: mean compression of the prunable "
        "weights / of the whole model at the chosen points.",
        "",
        *markdown_table(["method", "seeds", "strengths", *(ratio(each) for each in comparison.compressions)], cells),
        "",
        "Smallest files within the allowed drop of the best final model of any method, on validation data; mean over seeds:",
        "",
        *markdown_table(["method", "seeds", "file", "dense file", "smaller", unit(metric)], sizes),
        "",
    ]


PLAIN = (5.0, 20.0, 50.0, 100.0)  # compressions that a terminal has room for


def to_plain(comparison: Comparison) -> str:
    """The table for a terminal: each method's test metric by compression, the strengths chosen for it, and its smallest file.

    Args:
        comparison: The comparison.
    """
    metric, entries = comparison.metric, {entry.label: entry for entry in comparison.entries}
    columns = [each for each in PLAIN if each in comparison.compressions] or list(comparison.compressions[:4])
    rows = [["method", "seeds", *(ratio(each) for each in columns), "smallest file"]]
    for label in ranking(comparison):
        made = entries[label].deployed
        whole = made.choices and len(made.choices) == made.seeds
        smallest = f"{made.file_bytes:,.0f} bytes, {score(made.cell.mean, metric)}" if whole else "none"
        cells = [entries[label].table.get(each) for each in columns]
        shown = [spread(cell, metric) if cell else "-" for cell in cells]
        rows.append([label, str(len(entries[label].seeds)), *shown, smallest])
        if any(cells):
            rows.append(["", "", *(_strengths(cell) if cell else "" for cell in cells), ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    caption = (
        f"{comparison.title}: {unit(metric)} at a compression of at least, mean ± standard deviation over the seeds; below it "
        f"the strengths that validation data chose. Last, the smallest file within {drop(comparison)} of the best {metric}"
    )
    return "\n".join([*textwrap.wrap(caption, 100), *lines])


def _strengths(cell: Cell) -> str:
    """The strengths chosen for a cell, from the least to the most."""
    chosen = sorted({choice.run.strength for choice in cell.choices if choice.run.strength is not None})
    return " to ".join(f"{strength:.2g}" for strength in dict.fromkeys((chosen[0], chosen[-1]))) if chosen else "-"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a markdown table, all columns but the first aligned to the right.

    Args:
        header: The cells of the first row.
        rows: The cells of the others.

    Example:
        >>> markdown_table(["K", "loss"], [["3", "1.2"]])
        ['| K | loss |', '| --- | ---: |', '| 3 | 1.2 |']
    """
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in ([markdown_line(each) for each in row] for row in (header, ruler, *rows))]


def markdown_line(text: str) -> str:
    """Text in one line that markdown must not take for a table's border.

    Args:
        text: The text.
    """
    return text.replace("|", "\\|").replace("\n", " ")


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    """The text of a CSV file.

    Args:
        rows: Its rows, the header first.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
