"""What an experiment hands over: heat maps, lines and tables, all of them numbers and words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Axis", "Cell", "Heat", "Lines", "Panel", "Point", "Series", "Table", "tick"]


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
class Point:
    """One point of a line.

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
        points: Its points, from left to right.
        dashed: Whether it is not measured, such as a prediction.
        markers: Whether each point has a marker.
        bars: Whether the ends of a point are an error bar, and not a band.
        of: Label of the line whose colour and marker it shares, such as the measurements it predicts.
    """

    label: str
    points: Sequence[Point]
    dashed: bool = False
    markers: bool = True
    bars: bool = False
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A chart of lines.

    Args:
        title: What it shows.
        caption: How to read it.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        series: The lines.
        x_log: Whether the horizontal axis is logarithmic. A zero has a place of its own at the end of such an axis.
        y_log: The same for the vertical axis.
        y_range: Ends of the vertical axis; all points if None.
        reference: Level lines, each with its label.
    """

    title: str
    caption: str
    x: str
    y: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    y_range: tuple[float, float] | None = None
    reference: tuple[tuple[float, str], ...] = ()

    def __post_init__(self) -> None:
        labels = [series.label for series in self.series]
        if len(set(labels)) < len(labels):
            raise ValueError(f"two lines of {self.title!r} have the same label: {labels}")
        if unknown := {series.of for series in self.series} - {None, *(each.label for each in self.series if each.of is None)}:
            raise ValueError(f"no line of {self.title!r} with a colour of its own is called {unknown.pop()!r}")
        points = [point for series in self.series for point in series.points]
        if (self.x_log and any(point.x < 0 for point in points)) or (self.y_log and any(point.y < 0 for point in points)):
            raise ValueError(f"a logarithmic axis of {self.title!r} has no place for a negative value")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of words and numbers; it is on the page and in the text, not in the figure.

    Args:
        title: What it shows.
        caption: How to read it.
        header: The heads of its columns.
        rows: Its rows, each as long as the header.
    """

    title: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.header) for row in self.rows):
            raise ValueError(f"every row of {self.title!r} must have {len(self.header)} cells")


Panel: TypeAlias = Heat | Lines | Table
