"""The main figure for papers and README files: test metric against compression. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rewa.report.tables import Comparison, ranking, top_range
from rewa.report.text import headline, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BANDS", "COLORS", "DASHES", "MARKERS", "draw", "leaders", "styles"]

# Okabe and Ito's colours but for their yellow, which does not show on white. Seven colours, four dashes and five markers
# repeat at different places, so that 28 lines differ in colour or dash, and neighbours in everything.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2.5), (8, 3, 2, 3))
MARKERS = ("o", "s", "D", "^", "v")
BANDS = len(COLORS)  # lines in colour, each with one of its own and a band of its spread: more cover each other


def styles(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """A number for each method that gives its colour, dash and marker: the same wherever it appears, those in front first.

    Args:
        comparisons: All that appear together.
    """
    front = [label for comparison in comparisons for label in leaders(comparison)]
    rest = [label for comparison in comparisons for label in (*ranking(comparison), *sorted(comparison.labels.values()))]
    return {label: index for index, label in enumerate(dict.fromkeys([*front, *rest]))}


def leaders(comparison: Comparison) -> list[str]:
    """The methods that a figure can show in colour: the first of :func:`rewa.report.tables.ranking`.

    Args:
        comparison: The comparison.
    """
    return ranking(comparison)[:BANDS]


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
