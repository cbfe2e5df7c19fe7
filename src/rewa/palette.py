"""The colours and markers of the whole project: of pages, figures and displays, in print and on a dark screen.

A method has the same colour and the same marker wherever it appears, whatever else is shown beside it: both belong to its name.
Every form of ReWA is blue with a full marker, and every other method has another colour and a hollow marker.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

__all__ = [
    "COLORS",
    "DARK",
    "DARK_GREY",
    "DASHES",
    "GREY",
    "INK",
    "MARKERS",
    "MUTED",
    "PAPER",
    "SOFT",
    "Look",
    "is_rewa",
    "method_look",
]

# Okabe and Ito's colours, which the colour-blind tell apart, but for their yellow, which does not show on white.
BLUE, RED, GREEN, PINK, ORANGE, SKY, SLATE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555"
COLORS = (BLUE, RED, GREEN, PINK, ORANGE, SKY, SLATE)
DARK = ("#3D9FDB", "#F07D2A", "#1FBF92", "#DD93BB", "#F0B030", "#7CC8F2", "#B9BFC6")  # the same on a dark page
PAPER, INK, SOFT = "#FFFFFF", "#1B2026", "#5B6570"
GREY, DARK_GREY, MUTED = (
    "#B4BAC1",
    "#56606B",
    "#7C93AB",
)  # of what is there for comparison, and of what is a little more than that
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2.5), (8, 3, 2, 3))

# By matplotlib's sign, the same shape as a path around the origin.
MARKERS = {
    "o": "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0z",
    "s": "M-.9,-.9h1.8v1.8h-1.8z",
    "D": "M0,-1.3l1.3,1.3l-1.3,1.3l-1.3,-1.3z",
    "^": "M0,-1.2l1.2,2.2h-2.4z",
    "v": "M0,1.2l1.2,-2.2h-2.4z",
    "<": "M-1.2,0l2.2,-1.2v2.4z",
    ">": "M1.2,0l-2.2,-1.2v2.4z",
    "p": "M0,-1.2L1.14,-.37L.71,.97L-.71,.97L-1.14,-.37z",
    "P": "M-.45,-1.25h.9v.8h.8v.9h-.8v.8h-.9v-.8h-.8v-.9h.8z",
    "X": "M-1.2,-.6L-.6,-1.2L0,-.6L.6,-1.2L1.2,-.6L.6,0L1.2,.6L.6,1.2L0,.6L-.6,1.2L-1.2,.6L-.6,0z",
    "*": "M0,-1.4L.33,-.45L1.33,-.43L.53,.17L.82,1.13L0,.56L-.82,1.13L-.53,.17L-1.33,-.43L-.33,-.45z",
    "h": "M0,-1.15L1,-.58L1,.58L0,1.15L-1,.58L-1,-.58z",
}


@dataclass(frozen=True)
class Look:
    """How a line looks.

    Args:
        color: Number of its colour in :data:`COLORS` and :data:`DARK`.
        marker: One of :data:`MARKERS`.
        full: Whether the marker is filled.
        dash: One of :data:`DASHES`.
    """

    color: int
    marker: str
    full: bool = True
    dash: tuple[float, ...] = ()


# Those that are often in front have colours of their own, so that no two of them are alike in any figure.
_METHODS = {
    BLUE: "rewa o rewa-annealed+gmp D rewa-annealed s rewa-adamw ^ rewa-pair v rewa-pair-matched < rewa+gmp > rewa+rigl p "
    "rewa+acdc P rewa+ham X",
    RED: "gmp+ham s mcp ^ ham X hard-concrete p",
    GREEN: "gmp D scad v powerprop P",
    ORANGE: "l1 ^ l1-subgradient v sgd-l1 v rigl p dwf *",
    PINK: "sparsifier * acdc < spred P adaptive-lasso h abess s",
    SKY: "acdc+ham > str X lasso h half < clipped-lp D clipped-lp-l1 o",
    SLATE: "dense o",
}


def _table() -> dict[str, Look]:
    found: dict[str, Look] = {}
    for number, color in enumerate(COLORS):
        words = _METHODS[color].split()
        found |= {name: Look(number, marker, number == 0) for name, marker in zip(words[::2], words[1::2], strict=True)}
    return found


_LOOKS = _table()


def method_look(name: str) -> Look:
    """The colour and the marker of a method, by nothing but its name.

    A method with settings, such as ``rewa (K=5)``, has the colour of the method and a marker of its own. A name that is not
    known has the colour and the marker that follow from its letters.

    Args:
        name: Its label, in any case.

    Example:
        >>> method_look("gmp") == method_look("GMP"), method_look("rewa (K=5)").color == method_look("rewa").color
        (True, True)
    """
    label = name.casefold()
    if label in _LOOKS:
        return _LOOKS[label]
    number, markers = zlib.crc32(label.encode()), list(MARKERS)
    known = _LOOKS.get(re.split(r"[ (,]", label)[0])
    if known is not None:
        return Look(known.color, markers[number % len(markers)], known.full)
    if is_rewa(label):
        return Look(0, markers[number % len(markers)])
    # Blue is ReWA's.
    return Look(1 + number % (len(COLORS) - 1), markers[number // len(COLORS) % len(markers)], full=False)


def is_rewa(name: str) -> bool:
    """Whether a method is a form of ReWA, alone or with another; so is the Sparsifier's.

    Args:
        name: Its label, such as ``rewa-annealed+gmp``.
    """
    return any(part.startswith(("rewa", "sparsifier")) for part in name.casefold().split("+"))
