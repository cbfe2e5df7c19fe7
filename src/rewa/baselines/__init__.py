"""Every method that a run can use, behind one interface: :class:`rewa.baselines.method.Method`.

>>> make("rewa").K
9
>>> make("rewa+rigl").label
'rewa+rigl'
"""

from __future__ import annotations

from typing import Any

from rewa.baselines.acdc import ACDC
from rewa.baselines.adaptive_lasso import AdaptiveLasso
from rewa.baselines.dense import Dense
from rewa.baselines.dwf import DWF
from rewa.baselines.gmp import GMP
from rewa.baselines.ham import HAM
from rewa.baselines.hard_concrete import HardConcrete
from rewa.baselines.l1 import L1, L1Subgradient
from rewa.baselines.lp import ClippedLp, Half, L1ClippedLp
from rewa.baselines.mcp import MCP
from rewa.baselines.method import Method
from rewa.baselines.on import On
from rewa.baselines.powerprop import PowerPropagation
from rewa.baselines.rewa import AnnealedReWA, MatchedPair, ReWA, ReWAAdam, ReWAPair
from rewa.baselines.rigl import RigL
from rewa.baselines.scad import SCAD
from rewa.baselines.spred import Spred
from rewa.baselines.str import STR
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
