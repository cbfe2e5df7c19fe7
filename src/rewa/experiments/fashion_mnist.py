"""The quick twin of the comparison on CIFAR-10: the same figure in minutes, on Fashion-MNIST with LeNet-300-100."""

from __future__ import annotations

from rewa.experiments.cifar10 import TABLE, ZEROS
from rewa.experiments.comparison import SweepResult
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Contender, Sweep

__all__ = ["FASHION_MNIST"]

FASHION_MNIST = SweepResult(
    line="eight methods on Fashion-MNIST, LeNet-300-100 of 266,000 weights, five seeds",
    sweep=Sweep(
        recipe=RECIPES["fashion-mnist"],
        methods=(
            Contender(method="rewa-annealed+gmp", strengths=ZEROS),
            Contender(method="gmp", strengths=ZEROS),
            "l1",
            "rewa",
            "rewa-annealed",
            "dense",
            "spred",
            Contender(method="acdc", strengths=ZEROS),
        ),
        seeds=5,
    ),
    table=TABLE,
)
