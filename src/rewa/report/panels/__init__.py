"""Panels: the numbers of an experiment, shown alike as a figure, as one page that needs no network, and as tables.

An experiment hands over what it measured as :class:`Heat`, :class:`Lines` and :class:`Table`; colours, markers, axes and the
words of a tooltip are decided here, once for print and page. Only the figure needs matplotlib.
"""

from rewa.report.panels.figure import draw
from rewa.report.panels.page import to_html, write
from rewa.report.panels.panel import Axis, Cell, Heat, Lines, Panel, Point, Series, Table
from rewa.report.panels.text import to_csv, to_markdown

__all__ = [
    "Axis",
    "Cell",
    "Heat",
    "Lines",
    "Panel",
    "Point",
    "Series",
    "Table",
    "draw",
    "to_csv",
    "to_html",
    "to_markdown",
    "write",
]
