"""Every method that a run can use, behind one interface: :class:`rewa.methods.method.Method`.

>>> make("rewa").K
9
>>> make("rewa+rigl").label
'rewa+rigl'
"""

from __future__ import annotations

from typing import Any

from rewa.methods.acdc import ACDC
from rewa.methods.adaptive_lasso import AdaptiveLasso
from rewa.methods.dense import Dense
from rewa.methods.dwf import DWF
from rewa.methods.gmp import GMP
from rewa.methods.ham import HAM
from rewa.methods.hard_concrete import HardConcrete
from rewa.methods.l1 import L1, L1Subgradient
from rewa.methods.lp import ClippedLp, Half, L1ClippedLp
from rewa.methods.mcp import MCP
from rewa.methods.method import Method
from rewa.methods.on import On
from rewa.methods.powerprop import PowerPropagation
from rewa.methods.rewa import AnnealedReWA, MatchedPair, ReWA, ReWAAdam, ReWAPair
from rewa.methods.rigl import RigL
from rewa.methods.scad import SCAD
from rewa.methods.spred import Spred
from rewa.methods.str import STR
from rewa.names import nearest

__all__ = ["METHODS", "make", "names"]

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        *(Dense, L1, L1Subgradient, ReWA, AnnealedReWA, ReWAAdam, ReWAPair, MatchedPair, Spred, PowerPropagation, DWF),
        *(ClippedLp, L1ClippedLp, Half, SCAD, MCP, AdaptiveLasso, STR, HardConcrete, GMP, RigL, ACDC, HAM),
    )
}
TOGETHER = ("rewa+gmp", "rewa+rigl", "rewa+acdc", "rewa+ham", "rewa-annealed+gmp", "gmp+ham", "acdc+ham")


def names() -> list[str]:
    """All methods, and the combinations that have been tried; :func:`make` knows more."""
    return [*METHODS, *TOGETHER]


def make(name: str, **settings: Any) -> Method:
    """A method by its name, as ``rewa list`` shows it.

    Args:
        name: A name, or ``A+B`` for one that stands on another: ``rewa+gmp`` drops weights while ReWA trains them, and
            ``acdc+ham`` adds HAM's step to AC/DC.
        settings: Its fields, such as ``strength``.
    """
    below, _, own = name.rpartition("+")
    if own not in METHODS or below not in ("", *METHODS) or (below and not issubclass(METHODS[own], On)):
        raise ValueError(nearest("method", name, names()))
    if below:
        settings["on"] = METHODS[below]()
    return METHODS[own](**settings)
