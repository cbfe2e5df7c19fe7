"""The comparisons on digits: the demo's, and the table of all methods."""

from __future__ import annotations

from rewa.experiments.comparison import SweepResult
from rewa.methods import names
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Sweep

__all__ = ["DIGITS", "DIGITS_METHODS"]

DIGITS = SweepResult(
    line="dense, l1 and the Sparsifier on digits, three learning rates each: what the demo shows, in three minutes",
    sweep=Sweep(recipe=RECIPES["digits"], methods=("dense", "l1", "sparsifier"), rates=(0.1, 0.2, 0.4), seeds=3),
)
DIGITS_METHODS = SweepResult(
    line="every method on digits, four strengths and three seeds each: the table in docs/methods.md",
    sweep=Sweep(recipe=RECIPES["digits"], methods=tuple(names()), seeds=3),
)
