"""Panels as a figure for papers and README files. Needs matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rewa.palette import COLORS, GREY, INK, PAPER, SOFT, Look
from rewa.report.look import BEND, Extent, band, cell_lines, color, extents, finite, ink, looks, over_text, stops
from rewa.report.panel import Bars, Heat, Histogram, Lines, Panel, Series, tick

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["draw"]

Chart: TypeAlias = Heat | Lines | Bars | Histogram

STRIP = 0.3  # of a cell's height is the overlay


def draw(panels: Sequence[Panel], *, columns: int | None = None, message: str = "") -> Figure:
    """The charts as one figure.

    Args:
        panels: The panels; tables and words are left out.
        columns: How many stand side by side; at most three if None.
        message: What the figure shows, in a sentence above all charts.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the figure needs matplotlib: pip install 'rewa[plot]', or leave figures out") from error

    shown = [panel for panel in panels if isinstance(panel, Heat | Lines | Bars | Histogram)]
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
    heading = _balanced(message, int(9 * sum(widths)))
    # A dollar is a dollar: the page has no formulas either.
    with mpl.rc_context({"font.size": 9.5, "axes.titlesize": 10.5, "text.parse_math": False}):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = Figure(figsize=(sum(widths), sum(heights) + 0.3 * len(heading)), layout=layout)
        if heading:
            figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
        grid = figure.subplots(rows, columns, squeeze=False, width_ratios=widths, height_ratios=heights)
        for index, axes in enumerate(grid.flat):
            if index >= len(shown):
                axes.set_axis_off()
                continue
            panel = shown[index]
            _name(axes, panel, widths[index % columns])
            if isinstance(panel, Heat):
                _draw_heat(figure, axes, panel)
            elif isinstance(panel, Lines):
                _draw_lines(axes, panel, insides[index // columns])
            elif isinstance(panel, Bars):
                _draw_bars(axes, panel)
            else:
                _draw_histogram(axes, panel)
        return figure


def _balanced(text: str, width: int) -> list[str]:
    """The lines of a text, about equally long."""
    count = len(textwrap.wrap(text, width))
    widths = range(max(1, len(text) // max(count, 1)), width + 1)
    return next((lines for each in widths if len(lines := textwrap.wrap(text, each)) == count), [])


def _name(axes: Axes, panel: Chart, width: float) -> None:
    """Write what a chart shows above it and, if that is a sentence, in small below the sentence what is plotted."""
    message = panel.message if isinstance(panel, Lines) else ""
    if not message:
        axes.set_title(textwrap.fill(panel.title, int(10.5 * (width - 0.7))), loc="left", color=INK)
        return
    axes.set_title("\n".join(_balanced(message, int(9 * (width - 0.7)))), loc="left", pad=20, size=13, weight="bold", color=INK)
    axes.annotate(
        panel.title, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", color=SOFT, annotation_clip=False
    )


def _size(panel: Chart) -> tuple[float, float, float]:
    """In inches the width, the height of what the axes enclose, and the height of what is written above and below them."""
    if isinstance(panel, Lines):
        if panel.wide:
            return 9.6, max(3.6, 0.2 * len(panel.series)), 1.3
        return 4.6, 2.6, 1.0 + 0.19 * math.ceil(len(panel.series) / _legend_columns(panel))
    if isinstance(panel, Bars):
        return 4.6, max(1.0, 0.3 * len(panel.bars)), 0.6
    if isinstance(panel, Histogram):
        return 4.6, 2.6, 1.0
    names = 0.08 * _longest(panel.y.ticks)
    width, height = _cell_size(panel)
    around = 0.95 + (0.2 if panel.overlay is not None else 0.0) + (0.05 * _longest(panel.x.ticks) if _aslant(panel) else 0.0)
    return max(3.6, 1.5 + names + width * len(panel.x.values)), height * len(panel.y.values), around


def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=1)


# ---------------------------------------------------------------------------------------------------------- heat maps


def _aslant(heat: Heat) -> bool:
    """Whether the names of the columns are wider than the columns."""
    return _longest(heat.x.ticks) > 7


def _cell_size(heat: Heat) -> tuple[float, float]:
    return 0.64, 0.46 if heat.overlay is None else 0.56


def _draw_heat(figure: Figure, axes: Axes, heat: Heat) -> None:
    _fill_cells(axes, heat)
    axes.set(xlim=(-0.5, len(heat.x.values) - 0.5), ylim=(len(heat.y.values) - 0.5, -0.5))
    strip = f"\n▬ lower strip: {heat.overlay_label}" if heat.overlay is not None and heat.overlay_label else ""
    axes.set_xlabel(heat.x.label + strip, loc="left" if strip else "center")  # a long line must not leave the figure
    axes.set_ylabel(heat.y.label)
    width, height = _cell_size(heat)
    axes.set_box_aspect(height * len(heat.y.values) / (width * len(heat.x.values)))
    axes.set_anchor("NW")
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if _aslant(heat) else {}
    axes.set_xticks(range(len(heat.x.values)), heat.x.ticks, **turned)
    axes.set_yticks(range(len(heat.y.values)), heat.y.ticks)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _color_bar(figure, axes, heat)


def _fill_cells(axes: Axes, heat: Heat) -> None:
    from matplotlib.patches import Rectangle

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


def _color_bar(figure: Figure, axes: Axes, heat: Heat) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.ticker import FuncFormatter, NullFormatter

    norm = LogNorm(heat.low, heat.high) if heat.log else Normalize(heat.low, heat.high)
    mappable = ScalarMappable(norm, LinearSegmentedColormap.from_list("rewa", stops(heat)))
    # In inches from the cells, so that it is as tall as they are.
    right = _cell_size(heat)[0] * len(heat.x.values)
    bar = figure.colorbar(mappable, cax=axes.inset_axes((1 + 0.1 / right, 0, 0.13 / right, 1)), label=heat.label)
    bar.ax.spines[:].set_visible(False)
    if heat.log:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, log=True)))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())


# -------------------------------------------------------------------------------------------------------------- lines


def _draw_lines(axes: Axes, lines: Lines, height: float) -> None:
    view = lines.ways[0]
    x, y = extents(lines, view)
    shown = [(series, look) for series, look in zip(lines.series, looks(lines), strict=True)]
    handles = [
        _draw_line(axes, series, look, log=view.y_log)
        for series, look in shown
        if view.series is None or series.label in view.series
    ]
    _scale(axes, "x", x)
    _scale(axes, "y", y)
    if lines.x_ticks:
        axes.set_xticks(lines.x_ticks, [f"{value:g}{lines.x_unit}" for value in lines.x_ticks])
    axes.set(xlabel=textwrap.fill(lines.x, 90 if lines.wide else 48), ylabel=textwrap.fill(view.y, 38))
    axes.grid(alpha=0.3, linewidth=0.6)
    _levels(axes, lines, x.high)
    axes.spines[["top", "right"]].set_visible(False)
    _legend(axes, lines, handles, height)


def _draw_line(axes: Axes, series: Series, look: Look, *, log: bool) -> Artist:
    """One line with its band or its error bars: thick and in colour, or thin and grey."""
    shade = GREY if series.muted else COLORS[look.color]
    marks = [mark for mark in series.marks if math.isfinite(mark.x)]
    xs, ys = [mark.x for mark in marks], [math.nan if finite(mark.y) is None else mark.y for mark in marks]
    ends = [band(mark) or (height, height) for mark, height in zip(marks, ys, strict=True)]
    low, high = [max(end, 0.0) if log else end for end, _ in ends], [end for _, end in ends]
    depth = 2.0 if series.muted else 3.0
    if series.bars:
        lengths = [[height - end for height, end in zip(ys, low, strict=True)]]
        lengths += [[end - height for height, end in zip(ys, high, strict=True)]]
        axes.errorbar(xs, ys, lengths, color=shade, fmt="none", elinewidth=1.1, capsize=2.5)
    elif low != high and not series.muted:
        axes.fill_between(xs, low, high, color=shade, alpha=0.15, linewidth=0, zorder=depth - 0.5)
    (line,) = axes.plot(
        xs,
        ys,
        color=shade,
        linewidth=0.9 if series.muted else 2.0,
        linestyle=(0, look.dash) if look.dash else "-",
        marker=look.marker if series.markers else "",
        markersize=3.4 if series.muted else 5.0,
        markerfacecolor=shade if look.full else PAPER,
        markeredgewidth=0.8 if series.muted else 1.3,
        label=series.label,
        zorder=depth,
    )
    return line


def _levels(axes: Axes, lines: Lines, right: float) -> None:
    """Level lines, each with its label where that of the one above is not in the way."""
    from matplotlib.patheffects import withStroke

    taken = math.inf
    for level, label in sorted(lines.reference, reverse=True):
        axes.axhline(level, color=SOFT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        _, place = axes.transAxes.inverted().transform(axes.transData.transform((right, level)))
        below = taken - place < 0.06
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
            path_effects=[withStroke(linewidth=2.5, foreground=PAPER)],
        )
        taken = place


def _legend(axes: Axes, lines: Lines, handles: Sequence[Artist], height: float) -> None:
    muted = {series.label for series in lines.series if series.muted}
    labels = [str(handle.get_label()) for handle in handles]
    columns = 1 if lines.wide else _legend_columns(lines)
    # matplotlib fills one column after the other: this way what follows another line stands beside it.
    order = [index for column in range(columns) for index in range(column, len(handles), columns)]
    if lines.wide:  # what stands out first
        order = sorted(order, key=lambda index: labels[index] in muted)
    place: dict[str, Any] = (
        {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
        if lines.wide
        else {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.52 / height)}  # below the label of the axis, where no line is
    )
    legend = axes.legend(
        [handles[index] for index in order],
        [textwrap.fill(labels[index], 40 if lines.wide else 52) for index in order],
        ncols=columns,
        handlelength=2.6,
        frameon=False,
        fontsize="small",
        borderaxespad=0.0,
        **place,
    )
    for text, index in zip(legend.get_texts(), order, strict=True):
        text.set_color(SOFT if labels[index] in muted else INK)


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


# --------------------------------------------------------------------------------------------------------------- bars


def _draw_bars(axes: Axes, bars: Bars) -> None:
    axes.barh(range(len(bars.bars)), [bar.value for bar in bars.bars], color=COLORS[0], height=0.6)
    for row, bar in enumerate(bars.bars):
        axes.annotate(bar.text, (bar.value, row), (4, 0), textcoords="offset points", va="center", color=SOFT, fontsize="small")
    axes.set_yticks(range(len(bars.bars)), [bar.label for bar in bars.bars])
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)


def _draw_histogram(axes: Axes, histogram: Histogram) -> None:
    axes.stairs(histogram.counts, [10**edge for edge in histogram.edges], fill=True, color=COLORS[0])
    axes.set(xscale="log", yscale="log", xlabel=histogram.x, ylabel=histogram.y)
    if histogram.cut is not None:
        size, label = histogram.cut
        axes.axvline(size, color=COLORS[1], linestyle=(0, (5, 4)))
        axes.annotate(label, (size, 1), (4, -2), xycoords=("data", "axes fraction"), textcoords="offset points", va="top")
    axes.spines[["top", "right"]].set_visible(False)
