"""Panels as a page: one HTML file with its styles, its script and its data inside, so that it needs no network."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from rewa.palette import COLORS, DARK, DARK_GREY, GREY, MARKERS, Look
from rewa.report.look import Extent, band, cell_lines, color, extents, ink, looks, over_text, stops
from rewa.report.markdown import mark_text, numbers
from rewa.report.panel import Bars, Heat, Histogram, Lines, Panel, Pick, Series, Table, Text, Words, tick

__all__ = ["Page", "Section", "to_html"]

WIDE = 9  # columns of a heat map that have no place for their text in half of the page
DIGITS = 8  # of a coordinate: enough for a pixel wherever an axis begins


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page.

    Args:
        panels: What it shows.
        title: Its heading.
        lead: What was found, in a sentence or two.
        notes: Warnings.
        repeats: Whether the title of the page says what the heading says; then only screen readers get it.
    """

    panels: Sequence[Panel]
    title: str
    lead: str = ""
    notes: Sequence[str] = ()
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page.

    Args:
        brand: The small line above the title.
        title: What was found or what it shows, in one line.
        lead: The sentence or two below.
        counts: A small line below that.
        notes: Warnings.
        sections: Its parts.
    """

    brand: str
    title: str
    lead: str
    counts: str
    notes: Sequence[str] = ()
    sections: Sequence[Section]


def to_html(page: Page) -> str:
    """The page as text; the same panels give the same text.

    Args:
        page: What is on it.
    """
    payload = _Payload()
    main = "\n".join(_section(section, index, page, payload) for index, section in enumerate(page.sections))
    parts = {
        "brand": html.escape(page.brand),
        "title": html.escape(page.title),
        "lead": html.escape(page.lead),
        "counts": html.escape(page.counts),
        "notes": _notes(page.notes),
        "main": main,
        # No "<", and so no "</script>" in it.
        "data": json.dumps(payload.data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "style": _palette() + _asset("page.css"),
        "script": _asset("charts.js") + _asset("page.js"),
    }
    # In one pass, so that nothing which is put in is looked through again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files("rewa.report") / name).read_text(encoding="utf-8")


def _palette() -> str:
    """The colours of lines: for light, for dark, and for paper whatever the screen has."""
    light, dark = (
        " ".join([*(f"--c{number}: {each};" for number, each in enumerate(colors)), f"--other: {grey};"])
        for colors, grey in ((COLORS, GREY), (DARK, DARK_GREY))
    )
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"@media print {{ :root {{ {light} }} }}\n"
    )


# --------------------------------------------------------------------------------------------------------------- HTML


def _section(section: Section, index: int, page: Page, payload: _Payload) -> str:
    look = ' class="unseen"' if section.repeats else ""
    parts = [f'<section aria-labelledby="s{index}"><h2 id="s{index}"{look}>{html.escape(section.title)}</h2>']
    if section.lead:
        parts.append(f'<p class="lead">{html.escape(section.lead)}</p>')
    parts.append(_notes(section.notes))
    if section.panels:
        parts.append(f'<div class="panels">{"".join(_article(panel, page, payload) for panel in section.panels)}</div>')
    return "\n".join(part for part in parts if part) + "</section>"


def _article(panel: Panel, page: Page, payload: _Payload) -> str:
    if isinstance(panel, Table):
        return _table_article(panel)
    if isinstance(panel, Text):
        return _text_article(panel)
    if isinstance(panel, Pick):
        return _pick_article(panel, payload)
    header, rows, said = numbers(panel)
    grid = _grid(header, rows, panel.title)
    note = f'<p class="note">{html.escape(" ".join(said))}</p>' if said else ""
    wide = isinstance(panel, Heat) and len(panel.x.values) > WIDE
    message = panel.message if isinstance(panel, Lines) else ""
    # What the title of the page says is not said again.
    above = f"<h3>{html.escape(message)}</h3>" if message and message != page.title else ""
    title = f"{above}<p class='subject'>{html.escape(panel.title)}</p>" if message else f"<h3>{html.escape(panel.title)}</h3>"
    wide = wide or (isinstance(panel, Lines) and panel.wide)
    # The caption of a chart with a message comes with a table of its own.
    below = "" if message else f"<details><summary>The numbers</summary>{grid}{note}</details>"
    return (
        f'<figure class="chart{" wide" * wide}" data-panel="{payload.add(panel)}">{title}<div class="plot"></div>'
        f'<div class="legend"></div>{_caption(panel.caption)}{below}</figure>'
    )


def _caption(caption: str) -> str:
    """The paragraphs of a caption; one alone is no paragraph."""
    lines = [_inline(line) for line in caption.split("\n") if line]
    inside = lines[0] if len(lines) == 1 else "".join(f"<p>{line}</p>" for line in lines)
    return f"<figcaption>{inside}</figcaption>" if inside else ""


def _inline(text: str) -> str:
    """Words as HTML, with what stands between two asterisks on either side in bold."""
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text))


def _table_article(panel: Table) -> str:
    below = f'<p class="note">{html.escape(panel.caption)}</p>' if panel.caption else ""
    grid = _grid(panel.header, panel.rows, panel.title)
    look = "wide tall" if panel.tall else "wide"
    return f'<div class="{look}"><h3>{html.escape(panel.title)}</h3>{grid}{below}</div>'


def _text_article(panel: Text) -> str:
    facts = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{_code(each)}</dd></div>" for name, each in panel.facts.items())
    lines = "".join(f"<li><code>{html.escape(command)}</code></li>" for command in panel.commands)
    inside = f"<p>{html.escape(panel.caption)}</p>" if panel.caption else ""
    inside += f"<dl>{facts}</dl>" * bool(facts) + f'<ol class="commands">{lines}</ol>' * bool(lines)
    if panel.folded:
        return f'<details class="wide"><summary>{html.escape(panel.title)}</summary>{inside}</details>'
    heading = f"<h3>{html.escape(panel.title)}</h3>" if panel.title else ""
    return f'<div class="wide">{heading}{inside}</div>'


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def _pick_article(panel: Pick, payload: _Payload) -> str:
    places = "".join(
        f'<figure class="chart{" wide" * (not index)}" id="{html.escape(name)}"><h3></h3><div class="plot"></div>'
        '<div class="legend"></div><figcaption></figcaption></figure>'
        for index, name in enumerate(panel.places)
    )
    label = html.escape(panel.label)
    return (
        f'<div class="pick wide" data-pick="{payload.pick(panel)}"><div class="controls"><label>{label} '
        f'<select id="{label.lower()}"></select></label></div><div class="panels">{places}</div>{_caption(panel.caption)}</div>'
    )


def _grid(header: Sequence[str], rows: Iterable[Sequence[str | Words]], label: str) -> str:
    """A table in a box of its own that scrolls; header cells and first cells are headers."""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{_words(first)}</th>{"".join(f"<td>{_words(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _words(cell: str | Words) -> str:
    if isinstance(cell, str):
        return html.escape(cell)
    if not cell.text:
        return '<span class="none">&ndash;</span>'
    tag = "strong" if cell.strong else "span"
    state = f' class="status {html.escape(cell.state)}"' if cell.state else ""
    below = "".join(f"<small>{html.escape(each)}</small>" for each in (cell.small, cell.aside) if each)
    meter = ""
    if cell.share is not None:
        meter = f'<span class="meter" aria-hidden="true"><i style="width:{max(100 * cell.share, 0.5):.1f}%"></i></span>'
    return f"<{tag}{state}>{html.escape(cell.text)}</{tag}>{below}{meter}"


def _notes(sentences: Iterable[str]) -> str:
    """Warnings as a list; nothing if there are none."""
    each = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="warnings" role="note" aria-label="Warnings">{each}</ul>' if each else ""


# --------------------------------------------------------------------------------------------------------------- data


class _Payload:
    """What the script draws: the charts of a page, what can be picked, and once each what many share."""

    def __init__(self) -> None:
        self.panels: list[dict[str, Any]] = []
        self.picks: list[dict[str, Any]] = []
        self.shared: dict[str, int] = {}

    @property
    def data(self) -> dict[str, Any]:
        """As JSON, without NaN or infinity."""
        return {"markers": MARKERS, "panels": self.panels, "picks": self.picks, "shared": list(map(json.loads, self.shared))}

    def add(self, panel: Heat | Lines | Bars | Histogram) -> int:
        """The number of a chart."""
        self.panels.append(self.chart(panel))
        return len(self.panels) - 1

    def pick(self, panel: Pick) -> int:
        """The number of a list of options."""
        options = [
            {
                "name": option.name,
                "group": option.group,
                "among": option.among,
                "panels": [self.chart(each) for each in option.panels],
            }
            for option in panel.options
        ]
        self.picks.append({"options": options, "start": panel.start, "label": panel.label.lower()})
        return len(self.picks) - 1

    def chart(self, panel: Heat | Lines | Bars | Histogram | Text) -> dict[str, Any]:
        """One chart."""
        common = {"kind": type(panel).__name__.lower(), "title": panel.title, "caption": panel.caption}
        if isinstance(panel, Heat):
            return common | _heat(panel)
        if isinstance(panel, Lines):
            return common | self.lines(panel)
        if isinstance(panel, Bars):
            return common | {"bars": [asdict(each) for each in panel.bars]}
        if isinstance(panel, Histogram):
            edges = self.share([_number(edge, 4) for edge in panel.edges])
            cut = None if panel.cut is None else {"at": _number(panel.cut[0]), "label": panel.cut[1]}
            return common | {"x": panel.x, "y": panel.y, "edges": edges, "counts": panel.counts, "cut": cut}
        return common

    def lines(self, lines: Lines) -> dict[str, Any]:
        """A chart of lines."""
        x, _ = extents(lines)
        views = [
            {"name": view.name, "series": view.series, "y": {"label": view.y, **_axis(extents(lines, view)[1])}}
            for view in lines.ways
        ]
        return {
            "x": self.share({"label": lines.x, "unit": lines.x_unit, **_axis(x)}),
            "views": self.share(views),
            "viewsLabel": lines.views_label,
            "shade": None if lines.shade is None else {"from": lines.shade[0], "label": lines.shade[1]},
            "references": [{"y": _number(level), "label": label} for level, label in lines.reference],
            "series": [
                {"look": self.share(_line(series, look)), **self.marks(lines, series)}
                for series, look in zip(lines.series, looks(lines), strict=True)
            ],
        }

    def marks(self, lines: Lines, series: Series) -> dict[str, Any]:
        """The marks of a line; if none of them has more than its place, as two lists."""
        marks = [mark for mark in series.marks if math.isfinite(mark.x)]
        if not series.markers and not any(mark.says or band(mark) for mark in marks):
            return {"xs": self.share([_number(mark.x) for mark in marks]), "ys": [_number(mark.y, 4) for mark in marks]}
        return {
            "points": [
                {
                    "x": _number(mark.x),
                    "y": _number(mark.y),
                    **dict(zip(("low", "high"), (_number(end) for end in band(mark) or ()), strict=False)),
                    "says": [series.label, *(mark.says or (f"{lines.x}: {tick(mark.x)}", f"{lines.y}: {mark_text(mark)}"))],
                }
                for mark in marks
            ]
        }

    def share(self, value: Any) -> int:
        """The number of a value that may be there already."""
        return self.shared.setdefault(json.dumps(value, allow_nan=False), len(self.shared))


def _line(series: Series, look: Look) -> dict[str, Any]:
    return {
        "label": series.label,
        "color": look.color,
        "marker": look.marker,
        "full": look.full,
        "muted": series.muted,
        "dash": " ".join(f"{length:g}" for length in look.dash) or None,
        "markers": series.markers,
        "bars": series.bars,
    }


def _heat(heat: Heat) -> dict[str, Any]:
    middle = (heat.low * heat.high) ** 0.5 if heat.log else (heat.low + heat.high) / 2
    return {
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


def _axis(extent: Extent) -> dict[str, Any]:
    domain = [_number(extent.low), _number(extent.high)]
    return {"log": extent.log, "domain": domain, "zero": extent.zero}


def _number(given: float | None, digits: int = DIGITS) -> float | None:
    """A number in so many digits, None for what JSON cannot write.

    Example:
        >>> _number(0.123456, 4), _number(float("inf")), _number(None)
        (0.1235, None, None)
    """
    exact = math.nan if given is None else float(given)
    return float(f"{exact:.{digits}g}") if math.isfinite(exact) else None
