"""The main figure for papers and README files: test metric against compression. Needs matplotlib."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rewa.report.tables import Comparison
from rewa.report.text import headline, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BANDS", "COLORS", "DASHES", "MARKERS", "draw", "leaders", "styles", "top_range"]

# Okabe and Ito's colours but for their yellow, which does not show on white. Seven colours, four dashes and five markers
# repeat at different places, so that 28 lines differ in colour or dash, and neighbours in everything.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2.5), (8, 3, 2, 3))
MARKERS = ("o", "s", "D", "^", "v")
BANDS = 8  # lines that can have a band of their spread: more cover each other


def styles(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """A number for each method that gives its colour, dash and marker: the same wherever it appears.

    Args:
        comparisons: All that appear together.
    """
    labels = dict.fromkeys(label for comparison in comparisons for label in _labels(comparison))
    return {label: index for index, label in enumerate(labels)}


def _labels(comparison: Comparison) -> list[str]:
    finished = [entry.label for entry in comparison.entries]
    return finished + sorted(set(comparison.labels.values()) - set(finished))


def top_range(comparison: Comparison) -> tuple[float, float]:
    """The part of the metric's axis that matters: from the best mean to six times the allowed drop behind it.

    Collapsed points would press everything else into a line. The range is doubled until at least two methods have a point in
    it, reaches down to the best method of a compression if that is at most twice as far, and is no wider than all points need.

    Args:
        comparison: The comparison.
    """
    lines = [[cell.mean for cell in entry.line if math.isfinite(cell.mean)] for entry in comparison.entries]
    means = [mean for line in lines for mean in line]
    if not means:
        return (0.0, 1.0)
    sign = comparison.sign
    best = sign * max(sign * mean for mean in means)
    nearest = sorted(min(abs(mean - best) for mean in line) for line in lines if line)
    span = 6 * comparison.max_drop or 0.05 * abs(best) or 1.0
    while span < nearest[min(1, len(nearest) - 1)]:
        span *= 2
    front = [abs(there[0][1].mean - best) for there in map(comparison.best, comparison.compressions) if there]
    span = max(span, 1.15 * max((gap for gap in front if gap <= 2 * span), default=0.0))
    span = min(span, 1.1 * max(abs(mean - best) for mean in means) or span)
    ends = (best - sign * span, best + sign * 0.12 * span)
    return (min(ends), max(ends))


def leaders(comparison: Comparison) -> list[str]:
    """The methods that a figure can show in colour: those nearest to the best one, over the part that matters.

    The middle of the gaps counts: a mask that leads up to what it was made for and falls apart beyond it is a leader.

    Args:
        comparison: The comparison.
    """
    low, high = top_range(comparison)
    gaps: dict[str, list[float]] = {entry.label: [] for entry in comparison.entries}
    for compression in comparison.compressions:
        best = comparison.best(compression)
        if best and low <= best[0][1].mean <= high:
            for entry in comparison.entries:
                cell = entry.table.get(compression)
                gap = abs(cell.mean - best[0][1].mean) if cell and math.isfinite(cell.mean) else math.inf
                gaps[entry.label].append(min(gap, high - low))
    return sorted(gaps, key=lambda label: statistics.median(gaps[label] or [0.0]))[:BANDS]


def draw(comparisons: Sequence[Comparison]) -> Figure:
    """One panel for each comparison that has a finished run.

    Args:
        comparisons: The comparisons.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the figure needs matplotlib: pip install 'rewa[plot]', or leave figures out") from error

    shown = [comparison for comparison in comparisons if comparison.entries]
    if not shown:
        raise ValueError("no run is finished: there is nothing to draw")
    numbers = styles(comparisons)
    with mpl.rc_context({"font.size": 11}):
        tallest = max(4.2, 0.24 * max(len(comparison.entries) for comparison in shown))
        figure = Figure(figsize=(8.6, tallest * len(shown)), layout="constrained")
        for axes, comparison in zip(figure.subplots(len(shown), squeeze=False).flat, shown, strict=True):
            bright = leaders(comparison)
            for entry in sorted(comparison.entries, key=lambda entry: entry.label not in bright):
                cells = [cell for cell in entry.line if math.isfinite(cell.mean)]
                number = numbers[entry.label]
                x, y = [cell.compression for cell in cells], [cell.mean for cell in cells]
                color, dash = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
                colored = entry.label in bright
                if len(comparison.entries) > BANDS and colored:
                    # So many lines: the leaders share out the colours among themselves.
                    color, dash = (
                        COLORS[bright.index(entry.label) % len(COLORS)],
                        DASHES[bright.index(entry.label) // len(COLORS)],
                    )
                axes.plot(
                    x,
                    y,
                    color=color if colored else "#aaaaaa",
                    marker=MARKERS[number % len(MARKERS)],
                    label=entry.label,
                    linewidth=1.8 if colored else 1.0,
                    markersize=4.5 if colored else 3.5,
                    linestyle=(0, dash) if dash else "-",
                    zorder=3 if colored else 2,
                )
                if colored:
                    low, high = ([cell.mean + sign * (cell.sd or 0) for cell in cells] for sign in (-1, 1))
                    axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
            axes.set(
                xscale="log",
                xlabel="compression of the prunable weights (all / nonzero), at least",
                ylabel=unit(comparison.metric),
            )
            ticks = comparison.compressions or (1.0,)
            axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
            axes.minorticks_off()
            axes.set_ylim(*top_range(comparison))
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(headline(comparison), loc="left")
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small")
        return figure
