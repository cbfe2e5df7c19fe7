"""Every method that a run can use, behind one interface: :class:`rewa.methods.method.Method`.

>>> make("rewa").K
9
>>> make("rewa+rigl").label
'rewa+rigl'
>>> make("rewa+ham+gmp", strength=0.9, on_strength=0.01).settings["on"]["on"]
{'name': 'rewa', 'strength': 0.01, 'K': 9, 'M': 2, 'eps': 0.0}
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
from rewa.methods.powerprop import PowerPropagation
from rewa.methods.rewa import AnnealedReWA, MatchedPair, ReWA, ReWAAdam, ReWAPair
from rewa.methods.rigl import RigL
from rewa.methods.scad import SCAD
from rewa.methods.sparsifier import Sparsifying
from rewa.methods.spred import Spred
from rewa.methods.str import STR
from rewa.methods.wrapper import Wrapper
from rewa.names import nearest

__all__ = ["METHODS", "make", "names"]

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        *(Dense, Sparsifying, L1, L1Subgradient, ReWA, AnnealedReWA, ReWAAdam, ReWAPair, MatchedPair, Spred, PowerPropagation),
        *(DWF, ClippedLp, L1ClippedLp, Half, SCAD, MCP, AdaptiveLasso, STR, HardConcrete, GMP, RigL, ACDC, HAM),
    )
}
TOGETHER = ("rewa+gmp", "rewa+rigl", "rewa+acdc", "rewa+ham", "rewa-annealed+gmp", "gmp+ham", "acdc+ham")


def names() -> list[str]:
    """All methods, and the combinations that have been tried; :func:`make` knows more."""
    return [*METHODS, *TOGETHER]


def make(name: str, **settings: Any) -> Method:
    """A method by its name, as ``rewa list`` shows it.

    Args:
        name: A name, or ``A+B`` for B around A: ``rewa+gmp`` drops weights while ReWA trains them, ``acdc+ham`` adds HAM's
            step to AC/DC, and ``rewa+ham+gmp`` drops weights while both of these train.
        settings: Values by the names of :meth:`rewa.methods.method.Method.options`, such as ``strength`` or ``on_strength``.
    """
    first, *others = name.split("+")
    if any(one not in METHODS for one in (first, *others)) or not all(issubclass(METHODS[one], Wrapper) for one in others):
        raise ValueError(nearest("method", name, names()))
    method = METHODS[first]()
    for one in others:
        method = METHODS[one](on=method)  # type: ignore[call-arg]  # a wrapper
    return method.changed(settings)
