"""What is shown: panels of numbers and words, whoever made them.

A study or a comparison of runs hands over :class:`Lines`, :class:`Heat`, :class:`Bars`, :class:`Histogram`, :class:`Table`,
:class:`Text` and :class:`Pick`. Colours, markers and axes are decided by :mod:`rewa.report.look`, once for
:mod:`rewa.report.page`, :mod:`rewa.report.figure` and :mod:`rewa.report.markdown`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "Axis",
    "Bar",
    "Bars",
    "Cell",
    "Heat",
    "Histogram",
    "Lines",
    "Mark",
    "Option",
    "Panel",
    "Pick",
    "Series",
    "Table",
    "Text",
    "View",
    "Words",
    "tick",
]


def tick(value: float, log: bool = False) -> str:
    """A number on an axis.

    Args:
        value: The number.
        log: Whether powers of ten are written as such.

    Example:
        >>> tick(0.25), tick(12345.6), tick(3e-7), tick(1e-7, log=True), tick(10, log=True)
        ('0.25', '12,346', '3e-7', '10⁻⁷', '10')
    """
    if log and value > 0:
        exponent = round(math.log10(value))
        if not -3 < exponent < 2 and math.isclose(value, 10.0**exponent):
            return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One side of a heat map.

    Args:
        label: What it counts.
        values: One for each column or row: numbers, or words.
        log: Whether the values are powers rather than steps; then 0.001 is printed as 10⁻³.
    """

    label: str
    values: Sequence[float | str]
    log: bool = False

    @property
    def ticks(self) -> list[str]:
        """The values as they are printed."""
        return [value if isinstance(value, str) else tick(value, self.log) for value in self.values]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a heat map.

    Args:
        value: What its colour stands for. None or NaN is blank, and beyond the colour bar is the colour of its end.
        text: What is printed in it; what follows a line break or comes from ``±`` on goes to the next line.
        says: Lines of the tooltip; if there are none, it says where the cell is, its text and its overlay.
        mark: A sign for its upper right corner, such as a star; the caption says what it means.
    """

    value: float | None
    text: str = ""
    says: tuple[str, ...] = ()
    mark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A heat map: blue for low and red for high.

    Args:
        title: What it shows.
        caption: How to read it.
        x: Its columns.
        y: Its rows, the first one on top.
        cells: A sequence of cells for each value of ``y``, one for each value of ``x``.
        label: What the colours stand for.
        low: The value of the first colour.
        high: The value of the last colour, above ``low``.
        log: Whether equal ratios are equal steps of colour.
        reverse: Whether low is red and high is blue.
        overlay: What the cells are compared with, such as a prediction: a value for each cell, on the same scale, drawn as a
            strip at the bottom of the cell. None leaves the strip out.
        overlay_label: What the strip stands for.
    """

    title: str
    caption: str
    x: Axis
    y: Axis
    cells: Sequence[Sequence[Cell]]
    label: str
    low: float
    high: float
    log: bool = False
    reverse: bool = False
    overlay: Sequence[Sequence[float | None]] | None = None
    overlay_label: str = ""

    def __post_init__(self) -> None:
        for name, rows in (("cells", self.cells), ("overlay", self.overlay)):
            found = None if rows is None else [len(row) for row in rows]
            if found is not None and found != [len(self.x.values)] * len(self.y.values):
                raise ValueError(
                    f"{name} of {self.title!r} must be {len(self.y.values)} rows of {len(self.x.values)}, got rows of {found}"
                )
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"the colours of {self.title!r} cannot go from {self.low} to {self.high}, log={self.log}")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One place on a line.

    Args:
        x: Where it is.
        y: How high. What is not finite breaks the line.
        low: Lower end of its band or error bar.
        high: Upper end.
        says: Lines of the tooltip below the name of the line; if there are none, x, y and the ends.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    says: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart.

    Args:
        label: Its name, which no other line of the panel has.
        marks: Its marks, from left to right.
        method: The method whose colour and marker it has everywhere; None for those that the panel has left.
        muted: Whether it is thin and grey, there for comparison.
        dashed: Whether it is not measured, such as a prediction.
        markers: Whether each place has a marker.
        bars: Whether the ends of a mark are an error bar, and not a band.
        of: Label of the line whose colour and marker it shares, such as the measurements it predicts.
    """

    label: str
    marks: Sequence[Mark]
    method: str | None = None
    muted: bool = False
    dashed: bool = False
    markers: bool = True
    bars: bool = False
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """One of several ways to look at a chart of lines; the page has a button for each, and the figure shows the first.

    Args:
        name: What its button says.
        y: Label of the vertical axis.
        y_range: Ends of the vertical axis; all marks if None.
        y_log: Whether the vertical axis is logarithmic.
        series: Labels of the lines that it shows; all if None.
    """

    name: str
    y: str
    y_range: tuple[float, float] | None = None
    y_log: bool = False
    series: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A chart of lines.

    Args:
        title: What is plotted.
        caption: How to read it.
        message: What it shows, in a sentence: the title of the figure, if there is one.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        series: The lines.
        x_log: Whether the horizontal axis is logarithmic. A zero has a place of its own at the end of such an axis.
        y_log: The same for the vertical axis.
        y_range: Ends of the vertical axis; all marks if None.
        x_range: Ends of the horizontal axis; all marks if None.
        x_unit: What follows each number on the horizontal axis.
        x_ticks: Where the figure has ticks on it; chosen by the axis if empty.
        reference: Level lines, each with its label.
        views: Ways to look at it, in place of ``y``, ``y_log`` and ``y_range``.
        views_label: What the views are.
        shade: Where a shaded part of the horizontal axis begins, and its label.
        wide: Whether it takes the whole width of a page.
    """

    title: str
    caption: str
    message: str = ""
    x: str
    y: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    y_range: tuple[float, float] | None = None
    x_range: tuple[float, float] | None = None
    x_unit: str = ""
    x_ticks: tuple[float, ...] = ()
    reference: tuple[tuple[float, str], ...] = ()
    views: tuple[View, ...] = ()
    views_label: str = ""
    shade: tuple[float, str] | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        labels = [series.label for series in self.series]
        if len(set(labels)) < len(labels):
            raise ValueError(f"two lines of {self.title!r} have the same label: {labels}")
        if unknown := {series.of for series in self.series} - {None, *(each.label for each in self.series if each.of is None)}:
            raise ValueError(f"no line of {self.title!r} with a colour of its own is called {unknown.pop()!r}")
        marks = [mark for series in self.series for mark in series.marks]
        if (self.x_log and any(mark.x < 0 for mark in marks)) or (self.y_log and any(mark.y < 0 for mark in marks)):
            raise ValueError(f"a logarithmic axis of {self.title!r} has no place for a negative value")

    @property
    def ways(self) -> tuple[View, ...]:
        """The views, or the one view that the chart itself is."""
        return self.views or (View(name="", y=self.y, y_range=self.y_range, y_log=self.y_log),)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar.

    Args:
        label: Its name.
        value: Its length.
        text: What is written at its end.
        says: Its tooltip.
    """

    label: str
    value: float
    text: str
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Named bars below each other; the longest is as long as there is room.

    Args:
        title: What it shows.
        caption: How to read it.
        bars: The bars.
    """

    title: str
    caption: str
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How many of something have each size, on logarithmic axes.

    Args:
        title: What it shows.
        caption: How to read it.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        edges: Decimal logarithms of the sizes between which is counted, one more than the counts.
        counts: How many there are between two edges.
        cut: A size that is marked, with its label.
    """

    title: str
    caption: str
    x: str
    y: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    cut: tuple[float, str] | None = None

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError(f"{self.title!r} has {len(self.counts)} counts and {len(self.edges)} edges (one more is needed)")


@dataclass(frozen=True, kw_only=True)
class Words:
    """One cell of a table where plain text does not do.

    Args:
        text: What it says.
        small: What is below it on the page, and in brackets behind it in Markdown.
        aside: What is below it on the page only.
        strong: Whether it stands out on the page.
        share: Length of a small bar below it on the page, of 1.
        state: ``"finished"``, ``"running"`` or ``"failed"``: a sign before it on the page.
    """

    text: str
    small: str = ""
    aside: str = ""
    strong: bool = False
    share: float | None = None
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of words and numbers; it is on the page and in the text, not in the figure.

    Args:
        title: What it shows.
        caption: How to read it.
        header: The heads of its columns.
        rows: Its rows, each as long as the header.
        tall: Whether it scrolls in a box of its own on the page.
    """

    title: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Words]]
    tall: bool = False

    def __post_init__(self) -> None:
        if any(len(row) != len(self.header) for row in self.rows):
            raise ValueError(f"every row of {self.title!r} must have {len(self.header)} cells")


@dataclass(frozen=True, kw_only=True)
class Text:
    """Words: paragraphs, names with what each stands for, or commands.

    Args:
        title: What it is about.
        caption: The paragraph.
        facts: Values by name.
        commands: Lines of code.
        folded: Whether the page shows the title only, until it is opened.
    """

    title: str
    caption: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Option:
    """One of the things that can be picked.

    Args:
        name: What the list calls it.
        group: What stands above it in the list.
        among: Which others are drawn behind it: those with the same number.
        panels: What is shown of it, one panel in each place of the :class:`Pick`.
    """

    name: str
    group: str
    among: int
    panels: Sequence[Lines | Bars | Histogram | Text]


@dataclass(frozen=True, kw_only=True)
class Pick:
    """Panels of one thing at a time, which the reader picks from a list. It is on the page only.

    Args:
        title: What it shows.
        caption: How to read it.
        label: What is picked.
        places: The name of each place for a panel.
        options: What can be picked.
        start: Number of the option that is shown first.
    """

    title: str
    caption: str
    label: str
    places: Sequence[str]
    options: Sequence[Option]
    start: int = 0


Panel: TypeAlias = Heat | Lines | Bars | Histogram | Table | Text | Pick
