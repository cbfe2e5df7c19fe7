"""Panels as text: Markdown for reading, CSV for counting on, columns for a terminal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from rewa.report.look import band, finite, over_text
from rewa.report.panel import Bars, Heat, Histogram, Lines, Mark, Panel, Pick, Table, Text, Words, tick

__all__ = ["csv_text", "mark_text", "markdown_line", "markdown_table", "numbers", "plain_table", "to_csv", "to_markdown"]


def to_markdown(panels: Sequence[Panel]) -> str:
    """Every panel as a Markdown table under its title: a heat map as it stands, lines with a column for each x.

    Args:
        panels: The panels; what the reader picks on the page is left out.
    """
    return "\n".join(line for panel in panels if not isinstance(panel, Pick) for line in _markdown(panel))


def _markdown(panel: Panel) -> list[str]:
    header, rows, notes = numbers(panel)
    lines = [f"### {markdown_line(panel.title)}", ""]
    if header:
        lines += [*markdown_table(header, rows), ""]
    lines += [line for note in (panel.caption, *notes) if note for line in (markdown_line(note), "")]
    if isinstance(panel, Text):
        lines += [f"- {markdown_line(name)}: {markdown_line(value)}" for name, value in panel.facts.items()]
        lines += [f"    {markdown_line(command)}" for command in panel.commands]
        lines += [""] * bool(panel.facts or panel.commands)
    return lines


def numbers(panel: Panel) -> tuple[list[str], list[list[str]], list[str]]:
    """Header and rows of a panel as a table, and sentences on what they leave unsaid.

    Args:
        panel: The panel. Words have no table: their header is empty.
    """
    if isinstance(panel, Table):
        return list(panel.header), [[_cell_text(cell) for cell in row] for row in panel.rows], []
    if isinstance(panel, Heat):
        return _heat(panel)
    if isinstance(panel, Lines):
        return _lines(panel)
    if isinstance(panel, Bars):
        return ["", ""], [[bar.label, bar.text] for bar in panel.bars], []
    if isinstance(panel, Histogram):
        rows = [
            [f"{tick(10**low)} to {tick(10**high)}", f"{count:,}"]
            for low, high, count in zip(panel.edges, panel.edges[1:], panel.counts, strict=False)
        ]
        return [panel.x, panel.y], rows, [f"{panel.cut[1]}."] if panel.cut else []
    return [], [], []


def _cell_text(cell: str | Words) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell.text} ({cell.small})" if cell.small else cell.text


def _heat(heat: Heat) -> tuple[list[str], list[list[str]], list[str]]:
    rows = []
    for row, (name, cells) in enumerate(zip(heat.y.ticks, heat.cells, strict=True)):
        line = [name]
        for column, cell in enumerate(cells):
            over = None if heat.overlay is None else heat.overlay[row][column]
            parts = [cell.text.replace("\n", " "), cell.mark, None if over is None else f"({over_text(over, heat)})"]
            line.append(" ".join(part for part in parts if part))
        rows.append(line)
    notes = [f"In brackets: {heat.overlay_label}."] if heat.overlay is not None and heat.overlay_label else []
    return [f"{heat.y.label} ↓ {heat.x.label} →", *heat.x.ticks], rows, [f"Numbers: {heat.label}.", *notes]


def _lines(lines: Lines) -> tuple[list[str], list[list[str]], list[str]]:
    measured = [series for series in lines.series if not series.dashed] or lines.series
    columns = sorted({mark.x for series in measured for mark in series.marks if math.isfinite(mark.x)})
    rows = []
    for series in lines.series:
        found = {mark.x: mark for mark in series.marks}
        rows.append([series.label, *(mark_text(found[x]) if x in found else "" for x in columns)])
    rows += [[label, *[tick(level)] * len(columns)] for level, label in lines.reference]
    spread = any(band(mark) for series in lines.series for mark in series.marks)
    notes = ["In brackets: lower and upper end of the band or error bar."] if spread else []
    if any(mark.x not in columns for series in lines.series for mark in series.marks if math.isfinite(mark.x)):
        notes.append("Dashed lines are shown at the places of the others; the CSV file has all of their points.")
    return [f"{lines.y} ↓ {lines.x} →", *(tick(x) for x in columns)], rows, notes


def mark_text(mark: Mark) -> str:
    """The height of a mark with the ends of its band.

    Args:
        mark: The mark.

    Example:
        >>> mark_text(Mark(x=1, y=12.345, low=10, high=15))
        '12.35 [10, 15]'
    """
    if finite(mark.y) is None:
        return "not finite"
    ends = band(mark)
    return tick(mark.y) + (f" [{tick(ends[0])}, {tick(ends[1])}]" if ends else "")


def to_csv(panels: Sequence[Panel]) -> str:
    """Every number in a row of its own: panel, series, x, y, value, low, high, overlay and text.

    A heat map has the value and the overlay of x and y. A line has no y: its height is the value. A table has only text.

    Args:
        panels: The panels; words, and what the reader picks on the page, are left out.
    """
    rows: list[list[object]] = [["panel", "series", "x", "y", "value", "low", "high", "overlay", "text"]]
    for panel in panels:
        if isinstance(panel, Heat):
            overlay = panel.overlay or [[None] * len(panel.x.values)] * len(panel.y.values)
            rows += [
                [panel.title, "", x, y, cell.value, "", "", over, cell.text]
                for y, cells, overs in zip(panel.y.values, panel.cells, overlay, strict=True)
                for x, cell, over in zip(panel.x.values, cells, overs, strict=True)
            ]
        elif isinstance(panel, Lines):
            rows += [
                [panel.title, series.label, mark.x, "", mark.y, mark.low, mark.high, "", ""]
                for series in panel.series
                for mark in series.marks
            ]
            rows += [[panel.title, label, "", "", level, "", "", "", "level line"] for level, label in panel.reference]
        elif isinstance(panel, Bars):
            rows += [[panel.title, bar.label, "", "", bar.value, "", "", "", bar.text] for bar in panel.bars]
        elif isinstance(panel, Table | Histogram):
            header, cells, _ = numbers(panel)
            rows += [
                [panel.title, row[0], name, "", "", "", "", "", text]
                for row in cells
                for name, text in zip(header[1:], row[1:], strict=True)
            ]
    return csv_text(rows)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table for a terminal, its columns below each other.

    Args:
        header: The cells of the first row.
        rows: The cells of the others.

    Example:
        >>> plain_table(["K", "loss"], [["3", "1.2"], ["11", "1.5"]])
        ['K   loss', '3   1.2', '11  1.5']
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, all columns but the first aligned to the right.

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
    """Text in one line that Markdown must not take for a table's border.

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
