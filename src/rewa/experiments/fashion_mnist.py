"""The quick twin of the comparison on CIFAR-10: the same figure in an hour, on Fashion-MNIST with LeNet-300-100."""

from __future__ import annotations

from rewa.experiments.cifar10 import TABLE, ZEROS
from rewa.experiments.comparison import Rules, SweepResult
from rewa.train.recipes import RECIPES
from rewa.train.sweep import Contender, Sweep

__all__ = ["FASHION_MNIST"]

DECAYS = (4.14e-4, 1.24e-3)  # a weight without gradient ends at exp(-6) of its start, and at exp(-18) as in the paper
RATES = (0.05, 0.1)  # of the methods that lead at one of them

FASHION_MNIST = SweepResult(
    line="17 methods on Fashion-MNIST, LeNet-300-100 of 266,000 weights, five seeds, in two hours",
    sweep=Sweep(
        recipe=RECIPES["fashion-mnist"],
        methods=(
            Contender(method="sparsifier", strengths=ZEROS, rates=RATES),
            Contender(method="rewa-annealed+gmp", strengths=ZEROS, rates=RATES),
            Contender(method="gmp", strengths=ZEROS, rates=RATES),
            Contender(method="rewa-pair-matched", strengths=(3.9e-5, 7.8e-5, 1.55e-4, 3.107e-4, 6.214e-4)),
            Contender(method="l1", strengths=(6e-4, 1.2e-3, 2.5e-3, 5e-3, 1e-2, 2e-2)),
            "rewa",
            "dense",
            "rewa-annealed",
            Contender(method="acdc", strengths=ZEROS),
            # HAM's alpha: the best of 6, 20 and 60 on GMP, on validation images; its authors' 200 diverges on AC/DC, and 60 on
            # GMP with a rate of 0.1, on some processors.
            Contender(method="gmp+ham", changes=("alpha=60",), strengths=ZEROS, rates=(0.05, 0.07)),
            Contender(method="acdc+ham", changes=("alpha=20",), strengths=ZEROS),
            Contender(method="rigl", strengths=ZEROS),
            Contender(method="l1-subgradient", strengths=(6e-5, 1.2e-4, 2.5e-4, 5e-4, 1e-3)),
            "spred",
            "rewa-adamw",
            # The paper's ablations, K = 9: neither M nor eps, with and without decay, and eps alone.
            Contender(method="rewa", changes=("M=0",), strengths=(0.0, *DECAYS)),
            Contender(method="rewa", changes=("M=0", "eps=1e-5"), strengths=DECAYS),
        ),
        seeds=5,
    ),
    table=TABLE,
    rules=Rules(within=3.0, margin=0.4),  # the standard error of 5,000 validation images
)
