"""Panels as tables: markdown for reading, CSV for counting on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rewa.report.panels.look import band, finite, over_text
from rewa.report.panels.panel import Heat, Lines, Panel, Point, Table, tick
from rewa.report.text import csv_text, markdown_line, markdown_table

__all__ = ["numbers", "point_text", "to_csv", "to_markdown"]


def to_markdown(panels: Sequence[Panel]) -> str:
    """Every panel as a markdown table under its title: a heat map as it stands, lines with a column for each x.

    Args:
        panels: The panels.
    """
    return "\n".join(line for panel in panels for line in _markdown(panel))


def _markdown(panel: Panel) -> list[str]:
    header, rows, notes = numbers(panel)
    lines = [f"### {markdown_line(panel.title)}", "", *markdown_table(header, rows), ""]
    return lines + [line for note in (panel.caption, *notes) if note for line in (markdown_line(note), "")]


def numbers(panel: Panel) -> tuple[list[str], list[list[str]], list[str]]:
    """Header and rows of a panel as a table, and sentences on what they leave unsaid.

    Args:
        panel: The panel.
    """
    if isinstance(panel, Table):
        return list(panel.header), [list(row) for row in panel.rows], []
    if isinstance(panel, Heat):
        return _heat(panel)
    return _lines(panel)


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
    columns = sorted({point.x for series in measured for point in series.points if math.isfinite(point.x)})
    rows = []
    for series in lines.series:
        found = {point.x: point for point in series.points}
        rows.append([series.label, *(point_text(found[x]) if x in found else "" for x in columns)])
    rows += [[label, *[tick(level)] * len(columns)] for level, label in lines.reference]
    spread = any(band(point) for series in lines.series for point in series.points)
    notes = ["In brackets: lower and upper end of the band or error bar."] if spread else []
    if any(point.x not in columns for series in lines.series for point in series.points if math.isfinite(point.x)):
        notes.append("Dashed lines are shown at the places of the others; the CSV file has all of their points.")
    return [f"{lines.y} ↓ {lines.x} →", *(tick(x) for x in columns)], rows, notes


def point_text(point: Point) -> str:
    """The height of a point with the ends of its band.

    Args:
        point: The point.

    Example:
        >>> point_text(Point(x=1, y=12.345, low=10, high=15))
        '12.35 [10, 15]'
    """
    if finite(point.y) is None:
        return "not finite"
    ends = band(point)
    return tick(point.y) + (f" [{tick(ends[0])}, {tick(ends[1])}]" if ends else "")


def to_csv(panels: Sequence[Panel]) -> str:
    """Every number in a row of its own: panel, series, x, y, value, low, high, overlay and text.

    A heat map has the value and the overlay of x and y. A line has no y: its height is the value. A table has only text.

    Args:
        panels: The panels.
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
                [panel.title, series.label, point.x, "", point.y, point.low, point.high, "", ""]
                for series in panel.series
                for point in series.points
            ]
            rows += [[panel.title, label, "", "", level, "", "", "", "level line"] for level, label in panel.reference]
        else:
            rows += [
                [panel.title, row[0], name, "", "", "", "", "", text]
                for row in panel.rows
                for name, text in zip(panel.header[1:], row[1:], strict=True)
            ]
    return csv_text(rows)
