"""What a comparison says: who is in front and by how much, in words, and the numbers as they are printed everywhere."""

from __future__ import annotations

import math
import statistics

from rewa.palette import is_rewa
from rewa.report.tables import Cell, Comparison, Entry

__all__ = [
    "drop",
    "finding",
    "front",
    "headline",
    "level",
    "message",
    "prominent",
    "ranking",
    "ratio",
    "score",
    "size",
    "spread",
    "top_range",
    "unit",
]

RIVALS = 2  # methods that stand out beside the best ReWA: more cover each other
NAMES = {
    "acdc": "AC/DC",
    "dense": "dense training",
    "gmp": "GMP",
    "ham": "HAM",
    "hard-concrete": "hard concrete gates",
    "mcp": "MCP",
    "rewa": "ReWA",
    "rewa-adamw": "ReWA's AdamW",
    "rewa-annealed": "annealed ReWA",
    "rewa-pair": "ReWA as a pair",
    "rewa-pair-matched": "ReWA as a matched pair",
    "rigl": "RigL",
    "scad": "SCAD",
    "sparsifier": "the Sparsifier",
    "str": "STR",
}


def unit(metric: str) -> str:
    """What a metric is called on an axis.

    Args:
        metric: ``"accuracy"`` or ``"loss"``.
    """
    return "test accuracy, %" if metric == "accuracy" else "test loss"


def score(value: float, metric: str) -> str:
    """A metric's value in the digits that matter.

    Args:
        value: The value.
        metric: Its metric.
    """
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.2f}" if metric == "accuracy" else f"{value:.4g}"


def spread(cell: Cell, metric: str) -> str:
    """Mean and standard deviation of a cell; the mean alone for one seed.

    Args:
        cell: The cell.
        metric: Its metric.
    """
    if cell.sd is None or not math.isfinite(cell.mean):
        return score(cell.mean, metric)
    return (
        f"{score(cell.mean, metric)} ± {cell.sd:.2f}" if metric == "accuracy" else f"{score(cell.mean, metric)} ± {cell.sd:.2g}"
    )


def ratio(value: float) -> str:
    """A compression, three digits.

    Args:
        value: All weights over those that are not zero.

    Example:
        >>> ratio(12.345), ratio(1234.5), ratio(float("inf"))
        ('12.3x', '1,234x', 'infinite')
    """
    if math.isinf(value):
        return "infinite"
    return f"{value:.3g}x" if value < 1000 else f"{value:,.0f}x"


def size(count: float) -> str:
    """A number of bytes.

    Args:
        count: The bytes.

    Example:
        >>> size(9354), size(104_832_000)
        ('9.35 kB', '105 MB')
    """
    if count < 999.5:
        return f"{count:.0f} bytes"
    for name in ("kB", "MB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {name}"
    return f"{count / 1000:.3g} GB"


def headline(comparison: Comparison) -> str:
    """What a comparison shows, in one line.

    Args:
        comparison: The comparison.
    """
    count = len(comparison.entries)
    if not count:
        return f"{comparison.title}: no run is finished yet"
    return f"{count} method{'s' * (count > 1)} on {comparison.title}: test {comparison.metric} against compression"


def front(comparison: Comparison) -> tuple[float, list[tuple[Entry, Cell]]] | None:
    """Where it matters: the largest compression whose best mean lies within ``max_drop`` of the best of all, and who is there.

    Args:
        comparison: The comparison.

    Returns:
        The compression, and the methods that reach it with their cells, best first; None as long as no cell is there.
    """
    leaders = {each: best for each in comparison.compressions if (best := comparison.best(each))}
    if not leaders:
        return None
    sign = comparison.sign
    mark = max(sign * best[0][1].mean for best in leaders.values())
    compression = max(each for each, best in leaders.items() if mark - sign * best[0][1].mean <= comparison.max_drop + 1e-9)
    return compression, leaders[compression]


def finding(comparison: Comparison) -> str:
    """Who is best where it matters, see :func:`front`.

    Args:
        comparison: The comparison. The sentence is empty as long as no cell is there.
    """
    found = front(comparison)
    if found is None:
        return ""
    compression, ((entry, cell), *others) = found
    metric, percent = comparison.metric, " %" if comparison.metric == "accuracy" else ""
    sentence = (
        f"At {ratio(compression)}, the furthest that any method stays within {drop(comparison)} of the best {metric}, "
        f"{entry.label} has {spread(cell, metric)}{percent} ({cell.n} seed{'s' * (cell.n > 1)})"
    )
    if len(comparison.entries) == 1:
        return f"{sentence}."
    if not others:
        return f"{sentence}; no other method gets there."
    second, behind = others[0]
    return f"{sentence}; the next, {second.label}, has {spread(behind, metric)}{percent}."


def drop(comparison: Comparison) -> str:
    """The allowed fall of the metric, in words.

    Args:
        comparison: The comparison.
    """
    value = comparison.max_drop
    return f"{value:g} point{'s' * (value != 1)}" if comparison.metric == "accuracy" else f"{value:g}"


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


def ranking(comparison: Comparison) -> list[str]:
    """The labels of the methods, those nearest to the best one over the part that matters first.

    The middle of the gaps counts: a mask that leads up to what it was made for and falls apart beyond it is in front.

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
                gaps[entry.label].append(abs(cell.mean - best[0][1].mean) if cell and math.isfinite(cell.mean) else math.inf)

    def behind(label: str) -> tuple[float, float]:
        # Gaps beyond the range count as its width, and among those that lie there by their own size.
        middle = statistics.median([min(gap, high - low) for gap in gaps[label]] or [0.0])
        return middle, statistics.median_low(gaps[label] or [0.0])

    return sorted(gaps, key=behind)


def prominent(comparison: Comparison) -> list[str]:
    """The methods that stand out: the best ReWA, the Sparsifier and the two strongest others, by place at the :func:`front`.

    Args:
        comparison: The comparison.

    Returns:
        Their labels, best first. Without ReWA there are three others.
    """
    found = front(comparison)
    there = [] if found is None else [entry.label for entry, _ in _judged(found[1])]
    order = list(dict.fromkeys([*there, *ranking(comparison)]))
    methods = {entry.label: entry.method for entry in comparison.entries}
    ours = [label for label in order if is_rewa(methods[label])]
    ours = [label for place, label in enumerate(ours) if place == 0 or label == "sparsifier"]
    others = [label for label in order if not is_rewa(methods[label])][: RIVALS + (not ours)]
    return sorted([*ours, *others], key=order.index)


def _judged(there: list[tuple[Entry, Cell]]) -> list[tuple[Entry, Cell]]:
    """Methods with several seeds before those with one, whose place may be luck; best first in both."""
    return sorted(there, key=lambda pair: pair[1].n == 1)


def level(best: Cell, cell: Cell, metric: str) -> bool:
    """Whether a cell is no worse than the best as printed, or within the standard error of the difference.

    Args:
        best: The best cell.
        cell: Another.
        metric: Their metric.
    """
    error = math.hypot(*((each.sd or 0.0) / math.sqrt(each.n) for each in (best, cell)))
    return score(cell.mean, metric) == score(best.mean, metric) or abs(cell.mean - best.mean) <= error


def message(comparison: Comparison) -> str:
    """Who leads where it matters, see :func:`front`, and by how much; or who is level within the spread over the seeds.

    Args:
        comparison: The comparison.
    """
    found = front(comparison)
    if found is None:
        return headline(comparison)
    compression, there = found
    where, metric = ratio(compression), comparison.metric
    judged = _judged(there)
    if judged[0][1].n > 1:
        judged = [pair for pair in judged if pair[1].n > 1]
    (entry, best), *others = judged
    percent = " %" if metric == "accuracy" else ""
    if not others:
        alone = "" if len(comparison.entries) == 1 else ", and is the only one there"
        return _sentence(f"{_named(entry.label)} has {score(best.mean, metric)}{percent} at {where}{alone}")
    level = [other for other, cell in others if abs(cell.mean - best.mean) <= math.hypot(best.sd or 0.0, cell.sd or 0.0)]
    if not level:
        second, behind = others[0]
        lead = f"{_named(entry.label)} leads {_named(second.label)} by {_gap(best, behind, metric)} at {where}"
        return _sentence(lead + _behind(comparison, judged, metric) + (" (one seed)" if best.n == 1 else ""))
    # Of those that are level, a ReWA is named before others.
    names = [entry, *sorted(level, key=lambda other: is_rewa(other.method) <= is_rewa(entry.method))]
    tail = f"within the spread{_behind(comparison, judged, metric, names)}"
    if len(names) == 2:
        behind = next(cell for other, cell in others if other is names[1])
        ahead = f"{_gap(best, behind, metric)} ahead of {_named(names[1].label)}"
        return _sentence(f"{_named(entry.label)} is {ahead} at {where}, {tail}")
    listed = f"{_named(names[0].label)}, {_named(names[1].label)} and {len(names) - 2} more"
    return _sentence(f"{listed} are level at {where}, {tail}")


def _behind(comparison: Comparison, judged: list[tuple[Entry, Cell]], metric: str, named: list[Entry] | None = None) -> str:
    """How far the best ReWA is behind, where it is not in front itself."""
    ahead = named or [judged[0][0], judged[1][0]]
    ours = next((cell for entry, cell in judged if is_rewa(entry.method)), None)
    if ours is None or any(is_rewa(entry.method) for entry in ahead):
        return ""
    return f"; the best ReWA is {_gap(judged[0][1], ours, metric)} behind"


def _gap(best: Cell, cell: Cell, metric: str) -> str:
    gap = abs(best.mean - cell.mean)
    if metric != "accuracy":
        return f"{gap:.2g}"
    return f"{gap:.1f} points" if gap >= 0.095 else f"{gap:.2f} points"


def _named(label: str) -> str:
    """A method as one speaks of it.

    Example:
        >>> _named("gmp+ham"), _named("rewa-annealed+gmp"), _named("rewa (M=0)")
        ("GMP with HAM's step", 'annealed ReWA with GMP', 'ReWA (M=0)')
    """
    base, bracket, settings = label.partition(" (")
    first, *others = [NAMES.get(part, part) for part in base.split("+")]
    words = " with ".join([first, *("HAM's step" if other == "HAM" else other for other in others)])
    if len(settings) > 32:
        settings = f"{settings[:30].rpartition(',')[0] or settings[:28]}, …)"
    return words + bracket + settings


def _sentence(text: str) -> str:
    """The same with a capital letter, unless it begins with a name that has none."""
    return text[0].upper() + text[1:] if text.startswith(tuple(NAMES.values())) else text
