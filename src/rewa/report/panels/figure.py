"""Panels as a figure for papers. Needs matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rewa.report.figure import COLORS, MARKERS
from rewa.report.panels.look import BEND, Extent, band, cell_lines, color, extents, finite, ink, looks, over_text, stops
from rewa.report.panels.panel import Heat, Lines, Panel, Table, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["draw"]

WHITE, INK, SOFT = "#FFFFFF", "#1B2026", "#5B6570"
STRIP = 0.3  # of a cell's height is the overlay


def draw(panels: Sequence[Panel], *, columns: int | None = None) -> Figure:
    """The heat maps and lines as one figure.

    Args:
        panels: The panels; tables are left out.
        columns: How many stand side by side; at most three if None.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the figure needs matplotlib: pip install 'rewa[plot]'") from error

    shown = [panel for panel in panels if not isinstance(panel, Table)]
    if not shown:
        raise ValueError("there is neither a heat map nor a line: nothing to draw")
    if columns is None:
        columns = math.ceil(len(shown) / math.ceil(len(shown) / 3))
    columns = min(columns, len(shown))
    rows = math.ceil(len(shown) / columns)
    sizes = [_size(panel) for panel in shown]
    widths = [max(width for width, _, _ in sizes[column::columns]) for column in range(columns)]
    in_row = [sizes[row * columns : (row + 1) * columns] for row in range(rows)]
    insides = [max(inside for _, inside, _ in each) for each in in_row]
    heights = [inside + max(around for _, _, around in each) for inside, each in zip(insides, in_row, strict=True)]
    # A dollar is a dollar: the page has no formulas either.
    with mpl.rc_context({"font.size": 9.5, "axes.titlesize": 10.5, "text.parse_math": False}):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = Figure(figsize=(sum(widths), sum(heights)), layout=layout)
        grid = figure.subplots(rows, columns, squeeze=False, width_ratios=widths, height_ratios=heights)
        for index, axes in enumerate(grid.flat):
            if index >= len(shown):
                axes.set_axis_off()
                continue
            panel = shown[index]
            axes.set_title(textwrap.fill(panel.title, int(10.5 * (widths[index % columns] - 0.7))), loc="left")
            if isinstance(panel, Heat):
                _draw_heat(figure, axes, panel)
            else:
                _draw_lines(axes, panel, insides[index // columns])
        return figure


def _size(panel: Heat | Lines) -> tuple[float, float, float]:
    """In inches the width, the height of what the axes enclose, and the height of what is written above and below them."""
    if isinstance(panel, Lines):
        return 4.6, 2.6, 1.0 + 0.19 * math.ceil(len(panel.series) / _legend_columns(panel))
    names = 0.08 * _longest(panel.y.ticks)
    width, height = _cell_size(panel)
    around = 0.95 + (0.2 if panel.overlay is not None else 0.0) + (0.05 * _longest(panel.x.ticks) if _aslant(panel) else 0.0)
    return max(3.6, 1.5 + names + width * len(panel.x.values)), height * len(panel.y.values), around


def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=1)


def _aslant(heat: Heat) -> bool:
    """Whether the names of the columns are wider than the columns."""
    return _longest(heat.x.ticks) > 7


def _cell_size(heat: Heat) -> tuple[float, float]:
    return 0.64, 0.46 if heat.overlay is None else 0.56


def _draw_heat(figure: Figure, axes: Axes, heat: Heat) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import FuncFormatter, NullFormatter

    words: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 1.05}
    # The gap between cells is wider than that above a strip, which thus belongs to its cell.
    gap = 0.012 if heat.overlay is None else 0.03
    for row, cells in enumerate(heat.cells):
        for column, cell in enumerate(cells):
            filled, over = color(cell.value, heat), None if heat.overlay is None else heat.overlay[row][column]
            below = color(over, heat)
            written = INK if filled is None else ink(filled)
            if filled is not None:
                height = 1 - 2 * gap - (0 if below is None else STRIP)
                axes.add_patch(Rectangle((column - 0.5 + gap, row - 0.5 + gap), 1 - 2 * gap, height, color=filled, linewidth=0))
            middle = row if below is None else row - STRIP / 2
            lines = cell_lines(cell.text)
            size = min(7.8, 78 / _longest(lines))
            axes.text(column, middle, "\n".join(lines), color=written, fontsize=size, **words)
            if cell.mark:
                axes.text(column + 0.44, row - 0.44, cell.mark, color=written, ha="right", va="top", fontsize=7)
            if below is not None and over is not None:
                height, top = STRIP - 0.015, row + 0.5 - gap - STRIP + 0.015
                axes.add_patch(Rectangle((column - 0.5 + gap, top), 1 - 2 * gap, height, color=below, linewidth=0))
                axes.text(column, top + height / 2, over_text(over, heat), color=ink(below), fontsize=6.6, **words)
    axes.set(xlim=(-0.5, len(heat.x.values) - 0.5), ylim=(len(heat.y.values) - 0.5, -0.5))
    strip = f"\n▬ lower strip: {heat.overlay_label}" if heat.overlay is not None and heat.overlay_label else ""
    axes.set(xlabel=heat.x.label + strip, ylabel=heat.y.label)
    width, height = _cell_size(heat)
    axes.set_box_aspect(height * len(heat.y.values) / (width * len(heat.x.values)))
    axes.set_anchor("NW")
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if _aslant(heat) else {}
    axes.set_xticks(range(len(heat.x.values)), heat.x.ticks, **turned)
    axes.set_yticks(range(len(heat.y.values)), heat.y.ticks)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    norm = LogNorm(heat.low, heat.high) if heat.log else Normalize(heat.low, heat.high)
    mappable = ScalarMappable(norm, LinearSegmentedColormap.from_list("rewa", stops(heat)))
    # In inches from the cells, so that it is as tall as they are.
    right = width * len(heat.x.values)
    bar = figure.colorbar(mappable, cax=axes.inset_axes((1 + 0.1 / right, 0, 0.13 / right, 1)), label=heat.label)
    bar.ax.spines[:].set_visible(False)
    if heat.log:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, log=True)))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())


def _draw_lines(axes: Axes, lines: Lines, height: float) -> None:
    from matplotlib.patheffects import withStroke

    x, y = extents(lines)
    handles = []
    for series, (number, dash) in zip(lines.series, looks(lines), strict=True):
        look: dict[str, Any] = {"color": COLORS[number % len(COLORS)]}
        points = [point for point in series.points if math.isfinite(point.x)]
        xs, ys = [point.x for point in points], [math.nan if finite(point.y) is None else point.y for point in points]
        ends = [band(point) or (height, height) for point, height in zip(points, ys, strict=True)]
        low, high = [max(end, 0.0) if lines.y_log else end for end, _ in ends], [end for _, end in ends]
        if series.bars:
            lengths = [[height - end for height, end in zip(ys, low, strict=True)]]
            lengths += [[end - height for height, end in zip(ys, high, strict=True)]]
            axes.errorbar(xs, ys, lengths, **look, fmt="none", elinewidth=1.1, capsize=2.5)
        elif low != high:
            axes.fill_between(xs, low, high, **look, alpha=0.15, linewidth=0)
        look |= {"linewidth": 1.7, "markersize": 4.2, "linestyle": (0, dash) if dash else "-"}
        handles += axes.plot(xs, ys, **look, marker=MARKERS[number % len(MARKERS)] if series.markers else "")
    _scale(axes, "x", x)
    _scale(axes, "y", y)
    axes.set(xlabel=textwrap.fill(lines.x, 48), ylabel=textwrap.fill(lines.y, 38))
    axes.grid(alpha=0.3)
    taken = math.inf
    for level, label in sorted(lines.reference, reverse=True):
        axes.axhline(level, color=SOFT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        _, place = axes.transAxes.inverted().transform(axes.transData.transform((x.high, level)))
        below = taken - place < 0.06  # where the label of the line above is in the way
        axes.annotate(
            label,
            (1, level),
            (-2, -2 if below else 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="top" if below else "bottom",
            fontsize="small",
            color=SOFT,
            path_effects=[withStroke(linewidth=2.5, foreground=WHITE)],
        )
        taken = place
    axes.spines[["top", "right"]].set_visible(False)
    # matplotlib fills one column after the other: this way what follows another line stands beside it.
    columns = _legend_columns(lines)
    order = [index for column in range(columns) for index in range(column, len(handles), columns)]
    axes.legend(
        [handles[index] for index in order],
        [textwrap.fill(lines.series[index].label, 52) for index in order],
        ncols=columns,
        handlelength=2.6,
        frameon=False,
        fontsize="small",
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.52 / height),  # below the label of the axis, where no line is
        borderaxespad=0.0,
    )


def _scale(axes: Axes, name: Literal["x", "y"], extent: Extent) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, SymmetricalLogLocator

    axis: Axis = axes.xaxis if name == "x" else axes.yaxis
    low = extent.low
    if extent.log:
        # matplotlib counts the linear part in units of 10/9 of a decade.
        bend: dict[str, Any] = {"linthresh": extent.zero, "linscale": 0.9 * BEND} if extent.zero else {}
        getattr(axes, f"set_{name}scale")("symlog" if extent.zero else "log", **bend)
        if extent.zero:
            axis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=extent.zero))
            low = -0.12 * extent.zero  # so that a marker at zero is whole
        else:
            axis.set_major_locator(LogLocator(subs=(1.0,) if extent.high > 50 * extent.low else (1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, log=True)))
    else:
        axis.set_major_locator(MaxNLocator(6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    getattr(axes, f"set_{name}lim")(low, extent.high)


def _legend_columns(lines: Lines) -> int:
    return 2 if max((len(series.label) for series in lines.series), default=0) <= 26 else 1
