"""What the parts of annealed ReWA are worth, left out or changed, at one share of zeros."""

from __future__ import annotations

from rewa.experiments.cifar10 import LATE
from rewa.experiments.comparison import SweepResult
from rewa.train.recipes import RECIPES, Recipe
from rewa.train.sweep import Contender, Sweep

__all__ = ["CIFAR10_ABLATIONS", "FASHION_MNIST_ABLATIONS"]

ZEROS = 0.98
ANNEALED = "rewa-annealed+gmp"


def _annealed(*changes: str) -> Contender:
    return Contender(method=ANNEALED, changes=changes, strengths=(ZEROS,))


def _ablations(recipe: Recipe, line: str, contenders: tuple[Contender, ...]) -> SweepResult:
    """The recipe, the contenders, and the paper's exponents without and with a matched step."""
    methods = (
        _annealed(),
        Contender(method="gmp", strengths=(ZEROS,)),
        *contenders,
        Contender(method="rewa+gmp", strengths=(ZEROS,)),
        _annealed("K=9", "M=2", "K_start=none", "M_start=2"),
    )
    sweep = Sweep(recipe=recipe, methods=methods, seeds=3)
    return SweepResult(line=line, sweep=sweep, table=(50.0,), judged_on="validation")


FASHION_MNIST_ABLATIONS = _ablations(
    RECIPES["fashion-mnist"],
    "parts of annealed ReWA left out or changed, on Fashion-MNIST at 98 % zeros, in some 20 minutes",
    (
        _annealed("K_start=none"),  # K = 2 all the time
        _annealed("K=1"),  # M alone
        _annealed("M=1.5"),  # p ends at 0.75
        _annealed("M=2"),  # at 0.5
        _annealed("on.begin=0.3", "on.end=0.7"),  # later
        _annealed("on.begin=0.5", "on.end=0.9"),  # later still
    ),
)
CIFAR10_ABLATIONS = _ablations(
    RECIPES["cifar10-cpu"],
    "the same on CIFAR-10, ResNet-18 of 0.7 million weights, in less than three hours",
    (
        Contender(method="gmp+ham", changes=("alpha=60",), strengths=(ZEROS,)),  # what HAM's alpha should be
        Contender(method="gmp+ham", changes=("alpha=200",), strengths=(ZEROS,)),
        _annealed(*LATE),
        _annealed("K=1", "M=0.5"),  # p ends at 1.5
    ),
)
