"""A small language model under AdamW: the Sparsifier beside gradual magnitude pruning and HAM, on tiny Shakespeare."""

from __future__ import annotations

from dataclasses import replace

from rewa.experiments.comparison import SweepResult
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Contender, Sweep

__all__ = ["SHAKESPEARE"]

ZEROS = (0.8, 0.9, 0.95, 0.99)
RATES = (4e-3, 8e-3)  # GMP is as good with both, on validation data, and so is the Sparsifier

SHAKESPEARE = SweepResult(
    line="the Sparsifier, GMP and GMP with HAM on a character GPT of 0.8 million weights under AdamW, in 45 minutes",
    sweep=Sweep(
        recipe=replace(RECIPES["shakespeare-gpt"], epochs=1, compressions=(1, 5, 10, 20, 100)),
        methods=(
            Contender(method="sparsifier", strengths=ZEROS, rates=RATES),
            Contender(method="gmp", strengths=ZEROS, rates=RATES),
            # HAM's alpha: with its authors' 200 the step is a hundredth of Adam's, and 20,000 diverges.
            Contender(method="gmp+ham", changes=("alpha=2000",), strengths=ZEROS, rates=RATES),
        ),
        seeds=3,
    ),
    table=(5.0, 10.0, 20.0, 100.0),
)
