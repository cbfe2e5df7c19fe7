"""The comparison of runs: its numbers as panels, and the page, the figure and the tables made of them."""

from __future__ import annotations

import json
import math
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from rewa.files import write_atomically
from rewa.record import Run, read, scan
from rewa.report import detail
from rewa.report.figure import draw
from rewa.report.findings import (
    drop,
    finding,
    headline,
    level,
    message,
    prominent,
    ranking,
    ratio,
    score,
    size,
    spread,
    top_range,
    unit,
)
from rewa.report.markdown import csv_text, markdown_line, markdown_table, numbers, plain_table
from rewa.report.page import Page, Section, to_html
from rewa.report.panel import Lines, Mark, Panel, Series, Table, View, Words
from rewa.report.tables import Cell, Comparison, Entry, compare

__all__ = ["lines", "page", "points_csv", "sizes", "standings", "table_csv", "to_markdown", "to_plain", "write"]

PLAIN = (5.0, 20.0, 50.0, 100.0)  # compressions that a terminal has room for
SEEDS_SAID = 8  # in a tooltip, at most


def write(paths: Sequence[Path] | Path, out: Path, *, figures: bool = True) -> list[Path]:
    """Write the report of runs: ``out``, and beside it the points and the table as CSV and the figure as PNG and SVG.

    Args:
        paths: Folders of runs, as of :func:`rewa.report.read`.
        out: The page, a name that ends in ``.html``. For ``report.html`` the files beside it are ``report.csv``,
            ``report-table.csv``, ``report.png`` and ``report.svg``.
        figures: Whether to draw the figure files, which needs matplotlib. There are none as long as no run is finished.

    Returns:
        The files that were written, the page first.
    """
    if out.suffix.lower() != ".html":
        raise ValueError(f"the name of a report must end in .html, got {str(out)!r}")
    runs, problems = scan(paths)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    comparisons = compare(runs)
    charts = [lines(comparison) for comparison in comparisons if comparison.entries]
    figure = draw(charts, columns=1) if figures and charts else None
    contents = {
        out: to_html(page(comparisons, problems)),
        out.with_suffix(".csv"): points_csv(comparisons),
        out.with_name(f"{out.stem}-table.csv"): table_csv(comparisons),
    }
    for path, content in contents.items():
        write_atomically(path, content)
    written = list(contents)
    if figure is not None:
        from rewa.figures import save

        for suffix in (".png", ".svg"):
            save(figure, out.with_suffix(suffix))
            written.append(out.with_suffix(suffix))
    return written


def page(comparisons: Sequence[Comparison], problems: Sequence[str] = ()) -> Page:
    """The page of the comparisons.

    Args:
        comparisons: What to show.
        problems: Sentences about records that could not be read, to be shown as warnings.
    """
    runs = [run for comparison in comparisons for run in comparison.runs]
    single = len(comparisons) == 1
    methods = len({label for comparison in comparisons for label in comparison.labels.values()})
    seeds = len({run.seed for run in runs})
    counts = [
        f"{len(runs)} run{'s' * (len(runs) != 1)}",
        f"{sum(run.finished for run in runs)} finished",
        f"{methods} method{'s' * (methods != 1)}",
        f"{seeds} seed{'s' * (seeds != 1)}",
    ]
    recipes = ", ".join(comparison.title for comparison in comparisons)
    return Page(
        brand="rewa report",
        title=message(comparisons[0]) if single else f"{len(comparisons)} comparisons of test metric against compression",
        lead=finding(comparisons[0]) if single else f"One after the other: {recipes}.",
        counts=" · ".join(counts),
        notes=problems,
        sections=[*(_section(comparison, single) for comparison in comparisons), *detail.sections(comparisons)],
    )


def _section(comparison: Comparison, single: bool) -> Section:
    if not comparison.entries:
        said = "No run is finished yet: there is nothing to compare. The training curves are below."
        return Section(title=headline(comparison), lead=said, panels=[], notes=comparison.warnings, repeats=single)
    panels: list[Panel] = [
        lines(comparison),
        standings(comparison, _ranked(comparison), strengths=False),
        sizes(comparison, _ranked(comparison)),
    ]
    title = f"{comparison.metric.capitalize()} against compression" if single else message(comparison)
    lead = "" if single else finding(comparison)
    return Section(title=title, lead=lead, panels=panels, notes=comparison.warnings, repeats=single)


def lines(comparison: Comparison) -> Lines:
    """Test metric against compression: the best ReWA and the strongest of the others in colour, the rest thin and grey.

    Args:
        comparison: The comparison, with an entry.
    """
    bright = prominent(comparison)
    shown = [entry for entry in _ranked(comparison) if any(math.isfinite(cell.mean) for cell in entry.line)]
    cells = [cell for entry in comparison.entries for cell in entry.line if math.isfinite(cell.mean)]
    ends = [cell.mean + sign * (cell.sd or 0) for cell in cells for sign in (-1, 1)] or [0.0, 1.0]
    y = unit(comparison.metric)
    count = len(comparison.entries)
    return Lines(
        title=f"{comparison.title}: test {comparison.metric} against compression, {count} method{'s' * (count > 1)}",
        message=message(comparison),
        caption=_how_to_read(comparison),
        x="compression of the prunable weights (all / nonzero), at least",
        y=y,
        x_log=True,
        x_unit="x",
        x_ticks=comparison.compressions,
        views=(View(name="top", y=y, y_range=top_range(comparison)), View(name="all", y=y, y_range=(min(ends), max(ends)))),
        views_label="Vertical range",
        wide=True,
        series=[
            Series(
                label=entry.label,
                method=entry.label,
                muted=entry.label not in bright,
                marks=[_mark(cell, comparison.metric) for cell in entry.line if math.isfinite(cell.mean)],
            )
            for entry in shown
        ],
    )


def _mark(cell: Cell, metric: str) -> Mark:
    sd = cell.sd or 0.0
    chosen = [
        f"{'no' if each.run.strength is None else f'{each.run.strength:.4g}'} (seed {each.run.seed})" for each in cell.chosen
    ]
    says = (
        f"test {metric} {spread(cell, metric)}{' %' if metric == 'accuracy' else ''}",
        f"compressed at least {ratio(cell.compression)}",
        f"chosen: {ratio(cell.prunable)} of prunable weights, {ratio(cell.model)} of the model",
        f"n = {cell.n} seed{'s' * (cell.n > 1)}",
        f"strength: {', '.join(chosen[:SEEDS_SAID])}{', …' * (len(chosen) > SEEDS_SAID)}",
    )
    return Mark(x=cell.compression, y=cell.mean, low=cell.mean - sd, high=cell.mean + sd, says=says)


def _how_to_read(comparison: Comparison) -> str:
    band = "The band is one standard deviation over the seeds. "
    if len(prominent(comparison)) < len(comparison.entries):
        band = (
            "The best ReWA and the strongest of the others are in colour, with a band of one standard deviation over the "
            "seeds; the rest is grey. Point at a method below to bring it out. "
        )
    if max(len(entry.seeds) for entry in comparison.entries) == 1:
        band = "There is one seed, and so no band. "
    return (
        "**How points are chosen.** For each method, seed and compression, all strengths, rates and thresholds that compress "
        "the prunable weights at least that much are candidates. The one with the best validation metric is taken (of "
        "equals the most compressed), and its test metric is shown. The test data decide nothing.\n"
        f"**How to read it.** {band}Point at the plot, or focus it and use the arrow keys, for the numbers. A click on a "
        "method hides or shows its line. “Top” is the range near the best, “all” has the collapsed points too."
    )


def _ranked(comparison: Comparison) -> list[Entry]:
    """The methods, best first."""
    entries = {entry.label: entry for entry in comparison.entries}
    return [entries[label] for label in ranking(comparison)]


def standings(comparison: Comparison, entries: Sequence[Entry], *, strengths: bool) -> Table:
    """The test metric of every method at every compression.

    Args:
        comparison: The comparison.
        entries: Its methods, in the order of the rows.
        strengths: Whether the number of strengths has a column; on the page it is below the name.
    """
    metric = comparison.metric
    bold = {each: _bold(comparison, each) for each in comparison.compressions}
    rows: list[list[str | Words]] = []
    for entry in entries:
        budget = f"{_several(entry.strengths_by_seed.values(), 'strength')} · {_several(entry.epochs, 'epoch')}"
        row: list[str | Words] = [Words(text=entry.label, aside=budget), str(len(entry.seeds))]
        row += [str(len(entry.strengths))] * strengths
        for each in comparison.compressions:
            cell = entry.table.get(each)
            strong = entry.label in bold[each]
            row.append(Words(text=spread(cell, metric), small=_ratios(cell), strong=strong) if cell else Words(text=""))
        rows.append(row)
    return Table(
        title=f"{unit(metric).capitalize()} at a compression of at least …",
        caption="Best method first. Mean ± standard deviation (n - 1) over the seeds; bold: the best mean of its column and "
        "those within the standard error of the difference, among methods with two seeds or more. Small: mean compression of "
        "the prunable weights / of the whole model at the chosen points. A cell is there only if every seed of the method "
        "reaches the compression.",
        header=["method", "seeds", *["strengths"] * strengths, *(ratio(each) for each in comparison.compressions)],
        rows=rows,
    )


def _ratios(cell: Cell) -> str:
    return f"{ratio(cell.prunable)} / {ratio(cell.model)}"


def _bold(comparison: Comparison, compression: float) -> set[str]:
    """The methods that no other beats at a compression by more than the standard error of the difference, or as printed.

    A single seed has no standard error, and is no evidence.
    """
    repeated = [(entry, cell) for entry, cell in comparison.best(compression) if cell.n > 1]
    return {entry.label for entry, cell in repeated if level(repeated[0][1], cell, comparison.metric)}


def _several(values: Iterable[int], name: str) -> str:
    """A count with its noun; from the least to the most where there is more than one."""
    distinct = sorted(set(values))
    count = str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
    return f"{count} {name}{'' if distinct == [1] else 's'}"


def sizes(comparison: Comparison, entries: Sequence[Entry]) -> Table:
    """The smallest file of every method that keeps the metric.

    Args:
        comparison: The comparison.
        entries: Its methods, in the order of the rows.
    """
    metric = comparison.metric
    largest = max((entry.deployed.dense_bytes for entry in entries if entry.deployed.chosen), default=1.0)
    rows: list[list[str | Words]] = []
    for entry in entries:
        made = entry.deployed
        start = [entry.label, f"{len(made.chosen)} of {made.seeds}"]
        if not made.chosen:
            rows.append([*start, "none", "", "", ""])
            continue
        smaller = ratio(made.dense_bytes / made.file_bytes) if made.file_bytes else ""
        file = Words(text=size(made.file_bytes), share=made.file_bytes / largest)
        weights = f"{_ratios(made.cell)} of the weights"
        rows.append([*start, file, size(made.dense_bytes), smaller, Words(text=spread(made.cell, metric), aside=weights)])
    return Table(
        title="Deployed sizes",
        caption=f"For each seed the method's smallest file whose validation {metric} is at most {drop(comparison)} worse than "
        "that of the best final model of any method; mean over the seeds that have one. Small: compression of the prunable "
        "weights / of the whole model.",
        header=["method", "seeds", "file", "dense file", "smaller", unit(metric)],
        rows=rows,
    )


# --------------------------------------------------------------------------------------------------------------- text


def to_markdown(paths: Sequence[Path] | Path | Sequence[Run]) -> str:
    """The tables as GitHub Markdown, with the warnings that belong to them.

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
    captions = (
        f"{unit(comparison.metric).capitalize()} at a compression of the prunable weights of at least; mean ± standard "
        "deviation over the seeds. Strength and threshold were chosen on validation data. In brackets: mean compression of the "
        "prunable weights / of the whole model at the chosen points.",
        "Smallest files within the allowed drop of the best final model of any method, on validation data; mean over seeds:",
    )
    tables = (standings(comparison, comparison.entries, strengths=True), sizes(comparison, comparison.entries))
    for caption, table in zip(captions, tables, strict=True):
        lines += [caption, "", *markdown_table(*numbers(table)[:2]), ""]
    return lines


def to_plain(comparison: Comparison) -> str:
    """The table for a terminal: each method's test metric by compression, the strengths chosen for it, and its smallest file.

    Args:
        comparison: The comparison.
    """
    metric = comparison.metric
    columns = [each for each in PLAIN if each in comparison.compressions] or list(comparison.compressions[:4])
    rows = []
    for entry in _ranked(comparison):
        made = entry.deployed
        whole = made.chosen and len(made.chosen) == made.seeds
        smallest = f"{made.file_bytes:,.0f} bytes, {score(made.cell.mean, metric)}" if whole else "none"
        cells = [entry.table.get(each) for each in columns]
        shown = [spread(cell, metric) if cell else "-" for cell in cells]
        rows.append([entry.label, str(len(entry.seeds)), *shown, smallest])
        if any(cells):
            rows.append(["", "", *(_strengths(cell) if cell else "" for cell in cells), ""])
    caption = (
        f"{comparison.title}: {unit(metric)} at a compression of at least, mean ± standard deviation over the seeds; below it "
        f"the strengths that validation data chose. Last, the smallest file within {drop(comparison)} of the best {metric}"
    )
    header = ["method", "seeds", *(ratio(each) for each in columns), "smallest file"]
    return "\n".join([*textwrap.wrap(caption, 100), *plain_table(header, rows)])


def _strengths(cell: Cell) -> str:
    """The strengths chosen for a cell, from the least to the most."""
    chosen = sorted({each.run.strength for each in cell.chosen if each.run.strength is not None})
    return " to ".join(f"{strength:.2g}" for strength in dict.fromkeys((chosen[0], chosen[-1]))) if chosen else "-"


def points_csv(comparisons: Sequence[Comparison]) -> str:
    """Every point of the curve of every finished run.

    Args:
        comparisons: The comparisons that hold the runs.
    """
    header = (
        "run recipe comparison method settings strength lr seed epochs threshold prunable_total prunable_nonzero "
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
            strength = "" if run.strength is None else repr(run.strength)
            start += [strength, repr(run.lr), str(run.seed), str(len(run.epochs))]
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
                chosen = "; ".join(f"seed {each.run.seed}: {each.run.name} at {each.point.threshold:g}" for each in cell.chosen)
                sd = "" if cell.sd is None else cell.sd
                where = [comparison.title, comparison.metric, entry.label, cell.compression]
                rows.append([*where, cell.mean, sd, cell.n, cell.prunable, cell.model, len(entry.strengths), chosen])
    return csv_text(rows)
