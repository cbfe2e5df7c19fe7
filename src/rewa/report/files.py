"""Panels as files: a page, tables and a figure beside each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewa.files import write_atomically
from rewa.report.figure import draw
from rewa.report.markdown import to_csv, to_markdown
from rewa.report.page import Page, Section, to_html
from rewa.report.panel import Bars, Heat, Histogram, Lines, Panel, Table, Text
from rewa.report.tables import flat

__all__ = ["publish", "study_page"]


def publish(
    out: Path,
    name: str,
    *,
    title: str,
    lead: str,
    panels: Sequence[Panel],
    provenance: Mapping[str, Any],
    message: str = "",
    columns: int | None = None,
) -> list[Path]:
    """Write panels as a page, a figure and tables: ``name.html``, ``.md``, ``.csv``, ``.png`` and ``.svg``.

    Args:
        out: The folder, made if it is missing.
        name: The name of every file but for its suffix.
        title: What is studied.
        lead: What was done, in a sentence or two.
        panels: The panels. The figure is left out if none of them is a chart, and needs matplotlib.
        provenance: What made the numbers, as of :func:`rewa.record.provenance`.
        message: What was found, in a sentence: the title of the page and of the figure.
        columns: How many charts of the figure stand side by side, as for :func:`rewa.report.figure.draw`.

    Returns:
        The files that were written, the page first.
    """
    charts = [panel for panel in panels if isinstance(panel, Heat | Lines | Bars | Histogram)]
    contents = {
        out / f"{name}.html": to_html(study_page(title, lead, panels, provenance=provenance, message=message)),
        out / f"{name}.md": f"# {title}\n\n{lead}\n\n{to_markdown(panels)}",
        out / f"{name}.csv": to_csv(panels),
    }
    figure = draw(charts, columns=columns, message=message) if charts else None
    out.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_atomically(path, content)
    written = list(contents)
    if figure is not None:
        from rewa.figures import save

        for suffix in (".png", ".svg"):
            save(figure, out / f"{name}{suffix}")
            written.append(out / f"{name}{suffix}")
    return written


def study_page(title: str, lead: str, panels: Sequence[Panel], *, provenance: Mapping[str, Any], message: str = "") -> Page:
    """The page of a study.

    Args:
        title: What is studied.
        lead: What was done, in a sentence or two.
        panels: The panels.
        provenance: What made the numbers.
        message: What was found, in a sentence: the title of the page.
    """
    tables = sum(isinstance(panel, Table) for panel in panels)
    charts = sum(isinstance(panel, Heat | Lines | Bars | Histogram) for panel in panels)
    counts = [f"{count} {word}{'s' * (count > 1)}" for count, word in ((charts, "chart"), (tables, "table")) if count]
    hint = "Point at a chart, or focus it and use the arrow keys, for the numbers." if charts else ""
    made = {name: value if isinstance(value, str) else json.dumps(value) for name, value in flat(provenance).items()}
    known = {name: value for name, value in made.items() if value != "null"}
    sections = [Section(title="Results", panels=panels, repeats=True)]
    if known:
        sections.append(Section(title="Provenance", panels=[Text(title="", facts=known)]))
    return Page(
        brand=f"rewa reproduce · {title}" if message else "rewa reproduce",
        title=message or title,
        lead=lead,
        counts=f"{' · '.join(counts)}. {hint}",
        sections=sections,
    )
