"""What the parts of annealed ReWA are worth, left out or changed, at one share of zeros."""

from __future__ import annotations

from rewa.experiments.comparison import SweepResult
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Contender, Sweep

__all__ = ["FASHION_MNIST_ABLATIONS"]

ZEROS = 0.98
ANNEALED = "rewa-annealed+gmp"


def _annealed(*changes: str) -> Contender:
    return Contender(method=ANNEALED, changes=changes, strengths=(ZEROS,))


FASHION_MNIST_ABLATIONS = SweepResult(
    line="parts of annealed ReWA left out or changed, on Fashion-MNIST at 98 % zeros, in some 20 minutes",
    sweep=Sweep(
        recipe=RECIPES["fashion-mnist"],
        methods=(
            _annealed(),
            Contender(method="gmp", strengths=(ZEROS,)),
            _annealed("K_start=none"),  # K = 2 all the time
            _annealed("K=1"),  # M alone
            _annealed("M=1.5"),  # p ends at 0.75
            _annealed("M=2"),  # at 0.5
            _annealed("on.begin=0.3", "on.end=0.7"),  # later
            _annealed("on.begin=0.5", "on.end=0.9"),  # later still
            Contender(method="rewa+gmp", strengths=(ZEROS,)),  # the paper's exponents
            _annealed("K=9", "M=2", "K_start=none", "M_start=2"),  # with a matched step
        ),
        seeds=3,
    ),
    table=(50.0,),
    judged_on="validation",
)
