"""What the parts of annealed ReWA are worth, left out or changed, at one share of zeros."""

from __future__ import annotations

from rewa.experiments.comparison import SweepResult
from rewa.train.recipes import RECIPES, Recipe
from rewa.train.sweep import Contender, Sweep

__all__ = ["CIFAR10_ABLATIONS", "FASHION_MNIST_ABLATIONS"]

ZEROS = 0.98
ANNEALED = "rewa-annealed+gmp"


def _ablations(recipe: Recipe, line: str, *further: tuple[str, ...]) -> SweepResult:
    changed = (
        *further,
        ("K=9", "M=2", "K_start=none", "M_start=2"),  # the paper's exponents all the time: the step is matched, no more
        ("K_start=none",),  # K = 2 all the time
        ("K=1",),  # M alone
        ("M=1.5",),  # p ends at 0.75
        ("M=2",),  # at 0.5
        ("on.begin=0.3", "on.end=0.7"),  # later
        ("on.begin=0.5", "on.end=0.9"),  # later still
    )
    return SweepResult(
        line=line,
        sweep=Sweep(
            recipe=recipe,
            methods=(
                Contender(method=ANNEALED, strengths=(ZEROS,)),
                Contender(method="gmp", strengths=(ZEROS,)),
                *(Contender(method=ANNEALED, changes=changes, strengths=(ZEROS,)) for changes in changed),
                Contender(method="rewa+gmp", strengths=(ZEROS,)),  # as in the paper, neither matched nor annealed
            ),
            seeds=3,
        ),
        table=(50.0,),
        judged_on="validation",
    )


FASHION_MNIST_ABLATIONS = _ablations(
    RECIPES["fashion-mnist"],
    "parts of annealed ReWA left out or changed, on Fashion-MNIST at 98 % zeros, in some 20 minutes",
)
CIFAR10_ABLATIONS = _ablations(
    RECIPES["cifar10-cpu"],
    "the same on CIFAR-10, ResNet-18 of 0.7 million weights, in one to four hours",
    ("on_strength=4.64e-4",),  # half the weight decay
    ("on_strength=1.86e-3",),  # twice
)
