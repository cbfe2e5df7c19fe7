"""Panels as a page: one HTML file with everything inside, and the files beside it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewa.files import write_atomically
from rewa.report.frame import frame, items, listed, number, table
from rewa.report.panels.figure import draw
from rewa.report.panels.look import Extent, band, cell_lines, color, extents, ink, looks, over_text, stops
from rewa.report.panels.panel import Heat, Lines, Panel, Table, tick
from rewa.report.panels.text import numbers, point_text, to_csv, to_markdown
from rewa.report.tables import flat

__all__ = ["to_html", "write"]

WIDE = 9  # columns of a heat map that have no place for their text in half of the page
DIGITS = 8  # of a coordinate: enough for a pixel wherever an axis begins


def write(
    out: Path,
    name: str,
    *,
    title: str,
    lead: str,
    panels: Sequence[Panel],
    provenance: Mapping[str, Any],
    columns: int | None = None,
) -> list[Path]:
    """Write panels as a page, a figure and tables: ``name.html``, ``.md``, ``.csv``, ``.png`` and ``.svg``.

    Args:
        out: The folder, made if it is missing.
        name: The name of every file but for its suffix.
        title: What the page shows.
        lead: What was found, in a sentence or two.
        panels: The panels. The figure is left out if all of them are tables, and needs matplotlib.
        provenance: What made the numbers, as of :func:`rewa.record.provenance`.
        columns: Of the figure, as for :func:`rewa.report.panels.draw`.

    Returns:
        The files that were written, the page first.
    """
    from rewa.figures import save

    charts = [panel for panel in panels if not isinstance(panel, Table)]
    figure = draw(charts, columns=columns) if charts else None
    contents = {
        out / f"{name}.html": to_html(title, lead, panels, provenance=provenance),
        out / f"{name}.md": f"# {title}\n\n{lead}\n\n{to_markdown(panels)}",
        out / f"{name}.csv": to_csv(panels),
    }
    out.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_atomically(path, content)
    written = list(contents)
    if figure is not None:
        for suffix in (".png", ".svg"):
            save(figure, out / f"{name}{suffix}")
            written.append(out / f"{name}{suffix}")
    return written


def to_html(title: str, lead: str, panels: Sequence[Panel], *, provenance: Mapping[str, Any]) -> str:
    """The page as text; the same panels give the same text.

    Args:
        title: What it shows.
        lead: What was found, in a sentence or two.
        panels: The panels.
        provenance: What made the numbers.
    """
    charts = sum(not isinstance(panel, Table) for panel in panels)
    tables = len(panels) - charts
    counts = [f"{count} {word}{'s' * (count > 1)}" for count, word in ((charts, "chart"), (tables, "table")) if count]
    hint = "Point at a chart, or focus it and use the arrow keys, for the numbers." if charts else ""
    made = {name: listed([value]) for name, value in flat(provenance).items() if value is not None}
    main = f'<section class="panels" aria-label="Results">{"".join(_article(*each) for each in enumerate(panels))}</section>\n'
    if made:
        main += f'<section aria-labelledby="provenance"><h2 id="provenance">Provenance</h2>{items(made)}</section>\n'
    return frame(
        brand="rewa reproduce",
        title=title,
        lead=lead,
        counts=f"{' · '.join(counts)}. {hint}",
        notes="",
        main=main,
        data={"panels": [_payload(panel) for panel in panels]},
        script="panels.js",
    )


def _article(index: int, panel: Panel) -> str:
    title, caption = html.escape(panel.title), html.escape(panel.caption)
    header, rows, notes = numbers(panel)
    grid = table([html.escape(cell) for cell in header], [[html.escape(cell) for cell in row] for row in rows], panel.title)
    note = f'<p class="note">{html.escape(" ".join(notes))}</p>' if notes else ""
    if isinstance(panel, Table):
        below = f'<p class="note">{caption}</p>' if caption else ""
        return f'<div class="wide"><h2>{title}</h2>{grid}{below}</div>'
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    wide = " wide" * (isinstance(panel, Heat) and len(panel.x.values) > WIDE)
    return (
        f'<figure class="chart{wide}" data-panel="{index}"><h2>{title}</h2><div class="plot"></div><div class="legend"></div>'
        f"{below}<details><summary>The numbers</summary>{grid}{note}</details></figure>"
    )


def _payload(panel: Panel) -> dict[str, Any] | None:
    """What the script draws of a panel; nothing of a table."""
    if isinstance(panel, Heat):
        return _heat(panel)
    return _lines(panel) if isinstance(panel, Lines) else None


def _heat(heat: Heat) -> dict[str, Any]:
    middle = (heat.low * heat.high) ** 0.5 if heat.log else (heat.low + heat.high) / 2
    return {
        "kind": "heat",
        "title": heat.title,
        "x": {"label": heat.x.label, "ticks": heat.x.ticks, "words": any(isinstance(each, str) for each in heat.x.values)},
        "y": {"label": heat.y.label, "ticks": heat.y.ticks},
        "label": heat.label,
        "stops": stops(heat),
        "ends": [tick(value, heat.log) for value in (heat.low, middle, heat.high)],
        "overlay": heat.overlay_label if heat.overlay is not None else None,
        "cells": [[_cell(heat, row, column) for column in range(len(heat.x.values))] for row in range(len(heat.y.values))],
    }


def _cell(heat: Heat, row: int, column: int) -> dict[str, Any]:
    cell, over = heat.cells[row][column], None if heat.overlay is None else heat.overlay[row][column]
    filled, below = color(cell.value, heat), color(over, heat)
    known = []
    if cell.text:
        known.append(f"{heat.label}: {' '.join(cell_lines(cell.text))}")
    if over is not None:
        known.append(f"{heat.overlay_label or 'overlay'}: {over_text(over, heat)}")
    if known:  # a blank cell has nothing to say
        known.insert(0, f"{heat.y.label} = {heat.y.ticks[row]}, {heat.x.label} = {heat.x.ticks[column]}")
    return {
        "fill": filled,
        "ink": None if filled is None else ink(filled),
        "lines": cell_lines(cell.text),
        "mark": cell.mark,
        "over": None if below is None or over is None else {"fill": below, "ink": ink(below), "text": over_text(over, heat)},
        "says": cell.says or known,
    }


def _lines(lines: Lines) -> dict[str, Any]:
    x, y = extents(lines)
    return {
        "kind": "lines",
        "title": lines.title,
        "x": {"label": lines.x, **_axis(x)},
        "y": {"label": lines.y, **_axis(y)},
        "references": [{"y": number(level, DIGITS), "label": label} for level, label in lines.reference],
        "series": [
            {
                "label": series.label,
                "style": style,
                "dash": " ".join(f"{length:g}" for length in dash) or None,
                "markers": series.markers,
                "bars": series.bars,
                "band": not series.bars,
                "points": [
                    {
                        "x": number(point.x, DIGITS),
                        "y": number(point.y, DIGITS),
                        **dict(zip(("low", "high"), (number(end, DIGITS) for end in band(point) or ()), strict=False)),
                        "says": [
                            series.label,
                            *(point.says or (f"{lines.x}: {tick(point.x)}", f"{lines.y}: {point_text(point)}")),
                        ],
                    }
                    for point in series.points
                    if number(point.x) is not None
                ],
            }
            for series, (style, dash) in zip(lines.series, looks(lines), strict=True)
        ],
    }


def _axis(extent: Extent) -> dict[str, Any]:
    domain = [number(extent.low, DIGITS), number(extent.high, DIGITS)]
    return {"log": extent.log, "domain": domain, "zero": extent.zero}
