"""How panels look, the same in print and on the page: colours, dashes and what an axis shows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rewa.palette import COLORS, DASHES, MARKERS, Look, method_look
from rewa.report.panel import Heat, Lines, Mark, View

__all__ = ["BEND", "STOPS", "Extent", "band", "cell_lines", "color", "extents", "finite", "ink", "looks", "over_text", "stops"]

# From Okabe and Ito's blue to a red by way of their vermilion, through a grey that is not the white of a blank cell.
STOPS = ("#004C78", "#1F80B8", "#93C2DE", "#EAE7E1", "#F4B698", "#DB5B2B", "#961A08")
BEND = 0.6  # decades below its least power of ten that a logarithmic axis keeps for its zero


def finite(value: float | None) -> float | None:
    """The value, None if it is not a number that can be drawn.

    Args:
        value: A number or None.
    """
    return value if value is not None and math.isfinite(value) else None


def stops(heat: Heat) -> tuple[str, ...]:
    """The colours of the bar, from low to high at equal steps.

    Args:
        heat: The heat map.
    """
    return STOPS[::-1] if heat.reverse else STOPS


def color(value: float | None, heat: Heat) -> str | None:
    """The colour of a value, None for blank.

    Args:
        value: The value; beyond the ends of the bar it has the colour of the end.
        heat: The heat map.
    """
    if value is None or math.isnan(value):
        return None
    inside = min(max(value, heat.low), heat.high)
    place = (inside - heat.low) / (heat.high - heat.low)
    if heat.log:
        place = math.log(inside / heat.low) / math.log(heat.high / heat.low)
    colors = stops(heat)
    below = min(int(place * (len(colors) - 1)), len(colors) - 2)
    part = place * (len(colors) - 1) - below
    ends = zip(_channels(colors[below]), _channels(colors[below + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * part):02X}" for a, b in ends)


def _channels(color: str) -> list[int]:
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


def ink(background: str) -> str:
    """Black or white, whichever is read better on a colour: a contrast of at least 4.5 to 1.

    Args:
        background: The colour, ``#RRGGBB``.

    Example:
        >>> ink("#004C78"), ink("#EAE7E1")
        ('#FFFFFF', '#000000')
    """
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (each / 255 for each in _channels(background))
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]  # as of WCAG 2
    return "#FFFFFF" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def cell_lines(text: str) -> list[str]:
    """The lines of a cell's text.

    Args:
        text: The text.

    Example:
        >>> cell_lines("1.25 ± 0.03")
        ['1.25', '± 0.03']
    """
    return [line.strip() for line in text.replace("±", "\n±").split("\n") if line.strip()]


def over_text(value: float, heat: Heat) -> str:
    """A value of the overlay in the digits that the colours can tell apart.

    Args:
        value: The value.
        heat: The heat map.
    """
    if heat.log or not math.isfinite(value):
        return f"{value:.2g}"
    return f"{round(value, 2 - math.floor(math.log10(heat.high - heat.low))):g}"


def looks(lines: Lines) -> list[Look]:
    """How each line of a panel looks: a method as everywhere, the others as the panel has colours left.

    Args:
        lines: The panel.
    """
    own = {series.label: method_look(series.method) for series in lines.series if series.method is not None}
    left = [number for number in range(len(COLORS)) if number not in {look.color for look in own.values()}]
    others = [series.label for series in lines.series if series.of is None and series.method is None]
    markers = list(MARKERS)
    for place, label in enumerate(others):
        own[label] = Look((left or [0])[place % len(left or [0])], markers[place % len(markers)])
    for place, label in enumerate(own):  # settings of one method that happen to share a marker
        taken = {(own[other].color, own[other].marker) for other in list(own)[:place]}
        free = [marker for marker in markers if (own[label].color, marker) not in taken]
        if (own[label].color, own[label].marker) in taken and free:
            own[label] = replace(own[label], marker=free[0])
    predicted = any(series.dashed for series in lines.series)
    result = []
    for series in lines.series:
        look = own[series.of or series.label]
        dash: tuple[float, ...] = ()
        if series.dashed:
            dash = DASHES[1 + look.color % (len(DASHES) - 1)]
        elif not series.markers and not predicted:
            # Without markers the dash tells lines apart in black print, unless dashes say what is a prediction.
            dash = DASHES[look.color % len(DASHES)]
        result.append(replace(look, dash=dash))
    return result


def band(mark: Mark) -> tuple[float, float] | None:
    """The ends of a mark's band or error bar, None if it has neither.

    Args:
        mark: The mark. An end that is missing is the mark itself.
    """
    low, high = finite(mark.low), finite(mark.high)
    if finite(mark.y) is None or (low is None and high is None):
        return None
    return (mark.y if low is None else low, mark.y if high is None else high)


@dataclass(frozen=True)
class Extent:
    """What an axis shows.

    Args:
        low: Its lower end.
        high: Its upper end.
        log: Whether it is logarithmic.
        zero: The power of ten below which a logarithmic axis is linear, so that it has a zero; None if it needs none.
    """

    low: float
    high: float
    log: bool = False
    zero: float | None = None


def extents(lines: Lines, view: View | None = None) -> tuple[Extent, Extent]:
    """What the horizontal and the vertical axis of a panel show.

    Args:
        lines: The panel.
        view: One of its views; the first by default.
    """
    view = view or lines.ways[0]
    marks = [mark for series in lines.series if view.series is None or series.label in view.series for mark in series.marks]
    ends = [end for mark in marks for end in band(mark) or ()]
    levels = [level for level, _ in lines.reference]
    x = _extent([mark.x for mark in marks], lines.x_log, given=lines.x_range)
    return x, _extent([*(mark.y for mark in marks), *levels], view.y_log, ends, view.y_range)


def _extent(values: Iterable[float], log: bool, ends: Iterable[float] = (), given: tuple[float, float] | None = None) -> Extent:
    """All values and, as far as is sensible, the ends of their bands."""
    shown, spread = [value for value in values if math.isfinite(value)], list(ends)
    if not log:
        low, high = given or (min([*shown, *spread], default=0.0), max([*shown, *spread], default=1.0))
        margin = 0.03 * (high - low) or 0.1 * abs(high) or 1.0
        return Extent(low - margin, high + margin)
    positive = [value for value in shown if value > 0]
    least, most = min(positive, default=0.1), max([*positive, *spread], default=1.0)
    bent = min(shown, default=1.0) <= 0
    if given is not None:
        bent, most = bent or given[0] <= 0, given[1]
        least = given[0] if given[0] > 0 else least
    if bent:
        return Extent(0.0, 1.25 * max(most, least), True, 10.0 ** math.floor(math.log10(least) + 1e-9))
    if given is None:  # a band that reaches almost to zero must not stretch the axis: it is cut off a decade below its points
        least = max(min([least, *(end for end in spread if end > 0)]), least / 10)
    return Extent(least / 1.25, 1.25 * max(most, least), True)
