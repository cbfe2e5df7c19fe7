"""The frame of a page: one HTML file with its styles, its script and its data inside, so that it needs no network."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

__all__ = ["asset", "fill", "frame", "items", "listed", "notes", "number", "table", "value"]


def frame(
    *, brand: str, title: str, lead: str, counts: str, notes: str, main: str, data: Mapping[str, Any], script: str
) -> str:
    """A whole page.

    Args:
        brand: The small line above the title.
        title: Its title.
        lead: What it shows, in a sentence or two.
        counts: A small line below.
        notes: Warnings, as HTML of :func:`notes`.
        main: The page itself, as HTML.
        data: What the script draws; JSON without NaN or infinity.
        script: The name of the page's own script, which finds the tools of ``charts.js`` before it.
    """
    return fill(
        "frame.html",
        brand=html.escape(brand),
        title=html.escape(title),
        lead=html.escape(lead),
        counts=html.escape(counts),
        notes=notes,
        main=main,
        # No "<", and so no "</script>" in it.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        style=asset("page.css"),
        script=asset("charts.js") + asset(script),
    )


def fill(template: str, **parts: str) -> str:
    """A template with its ``{{names}}`` filled in.

    Args:
        template: Its file.
        parts: HTML by name.
    """
    # In one pass, so that nothing which is put in is looked through again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset(template))


def asset(name: str) -> str:
    """The text of a file beside this one.

    Args:
        name: The file.
    """
    return (files("rewa.report") / name).read_text(encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], label: str) -> str:
    """A table in a box of its own that scrolls; header cells and first cells are headers.

    Args:
        header: The cells of the first row, as HTML.
        rows: The cells of the others, as HTML.
        label: What it holds, for those who do not see it.
    """
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def notes(sentences: Iterable[str]) -> str:
    """Warnings as a list; nothing if there are none.

    Args:
        sentences: The warnings.
    """
    each = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="warnings" role="note" aria-label="Warnings">{each}</ul>' if each else ""


def value(setting: Any) -> str:
    """A setting as HTML.

    Args:
        setting: A number, a text, or anything else that JSON has a word for.
    """
    if isinstance(setting, float):
        return f"{setting:g}"
    return html.escape(setting if isinstance(setting, str) else json.dumps(setting, default=str))


def listed(values: Sequence[Any], most: int = 12) -> str:
    """Several settings as HTML, separated by commas.

    Args:
        values: The settings.
        most: How many are shown.
    """
    rest = f", and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(f"<code>{value(each)}</code>" for each in values[:most]) + rest


def items(values: Mapping[str, str]) -> str:
    """A list of names and what each stands for.

    Args:
        values: HTML by name.
    """
    return f"<dl>{''.join(f'<div><dt>{html.escape(name)}</dt><dd>{each}</dd></div>' for name, each in values.items())}</dl>"


def number(given: Any, digits: int = 4) -> float | None:
    """A number in so many digits, None for what JSON cannot write.

    Args:
        given: A number or None.
        digits: How many.

    Example:
        >>> number(0.123456), number(float("inf")), number(None)
        (0.1235, None, None)
    """
    exact = math.nan if given is None else float(given)
    return float(f"{exact:.{digits}g}") if math.isfinite(exact) else None
