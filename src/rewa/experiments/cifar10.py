"""The paper's main claim on real images: accuracy against compression on CIFAR-10, at a size that two CPU cores can train."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rewa.experiments.comparison import Rules, SweepResult
from rewa.theory import decay_budget, weight_decay_for
from rewa.train.recipes import RECIPES, Recipe
from rewa.train.sweep import Contender, Sweep

__all__ = ["CIFAR10", "CIFAR10_CPU", "CIFAR10_PAPER", "CIFAR10_SCHEDULES", "CIFAR10_TUNING", "PAPER_DECAY", "TABLE", "ZEROS"]

TABLE = (5.0, 10.0, 20.0, 50.0, 100.0)
ZEROS = (0.9, 0.95, 0.98, 0.99)  # of the methods that are told how many to make
EACH = (0.8, *ZEROS)  # one for each column

# When GMP cuts, for whatever trains under it: from 0.2 on, its default, costs a point at 20x, from 0.5 to 0.9 three at 100x.
CUTS = ("begin=0.4", "end=0.8")
LATE = ("on_strength=7.5e-4", "on.begin=0.5", "on.end=0.9")  # annealed ReWA with GMP's own cuts
# With those: as much decay as GMP has, and plain SGD until the first cut.
ANNEALED = ("on_strength=7.5e-4", "on.begin=0.4", "on.end=0.8", *CUTS)


SEVEN = ("sparsifier", "gmp", "gmp+ham", "l1", "rewa", "rewa-pair-matched", "dense")


# AC/DC's paper has phases of five epochs of a hundred, after a tenth of the run: here that is less than an epoch.
SLOW_PHASES = ("dense_start=0.25", "phase=0.1", "final=0.3")
MASKS = (("acdc", SLOW_PHASES), ("rigl", ("every=20",)), ("rewa-annealed+gmp", ()))


def _paper_decay(ours: Recipe) -> float:
    """The paper's weight decay for 100 epochs, 1e-4, taken to a shorter recipe: what the loss does not hold ends as small."""
    paper = RECIPES["cifar10-resnet18"]
    rates = paper.plan(50_000 // paper.batch_size).learning_rates
    budget = decay_budget(rates, K=9, weight_decay=1e-4, momentum=paper.momentum)
    shorter = ours.plan(45_000 // ours.batch_size).learning_rates  # 5,000 images are held out
    return weight_decay_for(math.exp(-budget), shorter, K=9, momentum=ours.momentum)


PAPER_DECAY = _paper_decay(RECIPES["cifar10-cpu"])  # 9.28e-4
FAST_DECAY = _paper_decay(RECIPES["cifar10-fast"])


def _seven(
    recipe: Recipe, rates: tuple[float, ...], *, decays: dict[str, tuple[float, ...]], dense: tuple[float, ...]
) -> Iterator[Contender]:
    """The seven at some learning rates.

    Args:
        recipe: What they train.
        rates: The rates, the recipe's among them.
        decays: Strengths of l1 and ReWA at the recipe's rate. At others as much is lost in a run.
        dense: Strengths of dense training, at the recipe's rate alone: with it the recipe was found.
    """
    yield Contender(method="gmp", strengths=EACH, rates=rates)
    # HAM's alpha is its authors'; with the fast recipe it was the best of four, see CIFAR10_SCHEDULES.
    yield Contender(method="gmp+ham", changes=("alpha=200",), strengths=EACH, rates=rates)
    for name, strengths in decays.items():
        for lr in rates:
            yield Contender(method=name, strengths=tuple(one * recipe.lr / lr for one in strengths), rates=(lr,))
    yield Contender(method="dense", strengths=dense)
    yield Contender(method="sparsifier", strengths=EACH, rates=rates)


CIFAR10_PAPER = SweepResult(
    line="seven methods at the paper's setting: ResNet-18, images at 224, 100 epochs; some days of a GPU",
    sweep=Sweep(
        recipe=RECIPES["cifar10-resnet18"],
        methods=tuple(
            _seven(
                RECIPES["cifar10-resnet18"],
                (0.128, 0.256, 0.512),
                decays={
                    "l1": (1e-5, 3e-5, 1e-4, 3e-4),
                    "rewa": (2.5e-5, 5e-5, 1e-4, 2e-4),
                    "rewa-pair-matched": (5e-5, 1e-4, 2e-4, 4e-4),
                },
                dense=(1e-4, 5e-4),
            )
        ),
        seeds=3,
    ),
    table=TABLE,
    rates_at=20.0,
    needs_gpu=True,
)

CIFAR10 = SweepResult(
    line="seven methods on CIFAR-10, four learning rates and three seeds, and seven more with one; 16 hours",
    sweep=Sweep(
        recipe=RECIPES["cifar10-fast"],
        methods=(
            *_seven(
                RECIPES["cifar10-fast"],
                (0.175, 0.35, 0.7, 1.4),  # GMP is best at the second: it must not be the edge
                decays={
                    "l1": (1.5e-4, 3e-4, 6e-4, 1.2e-3, 2.4e-3),
                    "rewa": tuple(FAST_DECAY * 2**power for power in (-3, -2, -1, 0)),
                    "rewa-pair-matched": (1.5e-4, 3e-4, 6e-4, 1e-3, 1.6e-3),
                },
                dense=(1.5e-3, 3e-3),
            ),
            *(Contender(method=name, changes=changes, strengths=ZEROS[1:3], rates=(0.35, 0.7)) for name, changes in MASKS),
            Contender(method="rewa-annealed", strengths=(2.5e-4, 1e-3), rates=(0.35, 0.7)),
            Contender(method="l1-subgradient", strengths=(5e-5, 2e-4), rates=(0.35, 0.7)),
            Contender(method="spred", strengths=(1.2e-4, 5e-4), rates=(0.35, 0.7)),
            Contender(method="rewa-adamw", strengths=(0.05, 0.1)),
        ),
        seeds=3,
    ),
    table=TABLE,
    rates_at=20.0,
    rules=Rules(methods=SEVEN),
)

# One seed and rate: what is chosen here, CIFAR10 trains.
CIFAR10_SCHEDULES = SweepResult(
    line="when methods under masks should cut on CIFAR-10, and HAM's alpha: one seed, validation images, 80 minutes",
    sweep=Sweep(
        recipe=RECIPES["cifar10-fast"],
        methods=(
            Contender(method="gmp", strengths=(0.98,)),
            Contender(method="gmp", changes=CUTS, strengths=(0.98,)),
            *(Contender(method="gmp+ham", changes=(f"alpha={alpha}",), strengths=(0.98,)) for alpha in (20, 60, 200, 600)),
            Contender(method="acdc", strengths=(0.98,)),
            Contender(method="acdc", changes=SLOW_PHASES, strengths=(0.98,)),
            Contender(method="rigl", strengths=(0.98,)),
            Contender(method="rigl", changes=("every=20",), strengths=(0.98,)),
        ),
        seeds=1,
    ),
    table=(50.0,),
    judged_on="validation",
)

CIFAR10_CPU = SweepResult(
    line="16 methods on CIFAR-10, ResNet-18 of 0.7 million weights, 12 epochs, in some ten hours",
    sweep=Sweep(
        recipe=RECIPES["cifar10-cpu"],
        methods=(
            Contender(method="gmp", changes=CUTS, strengths=EACH),
            Contender(method="rewa-pair-matched", strengths=(4e-4, 6e-4, 9e-4, 1.35e-3, 2e-3)),
            Contender(method="rewa-annealed+gmp", changes=ANNEALED, strengths=EACH),
            Contender(method="l1", strengths=(3e-4, 6e-4, 1.2e-3, 2.4e-3, 4.8e-3)),
            Contender(method="rewa", strengths=tuple(PAPER_DECAY * 2**power for power in (-3, -2, -1, 0))),
            Contender(method="dense", strengths=(5e-4, 1.5e-3, 3e-3)),
            Contender(method="rewa-annealed", strengths=(9.29e-4, 1.86e-3, 3.72e-3)),  # budgets of 4, 8 and 16
            # HAM's alpha: the better of 60 and 200 on validation images; on AC/DC as on Fashion-MNIST.
            Contender(method="gmp+ham", changes=("alpha=60", *CUTS), strengths=EACH),
            Contender(method="acdc", strengths=ZEROS[1:3]),
            Contender(method="acdc+ham", changes=("alpha=20",), strengths=ZEROS[1:3]),
            Contender(method="l1-subgradient", strengths=(3.75e-5, 7.5e-5, 1.5e-4, 3e-4)),
            Contender(method="spred", strengths=(1.5e-4, 3e-4, 6e-4, 1.8e-3)),
            Contender(method="rigl", strengths=ZEROS[1:3]),
            Contender(method="rewa-adamw", strengths=(0.056, 0.1)),
            # The paper's ablations, K = 9: neither M nor eps, with and without decay, and eps alone.
            Contender(method="rewa", changes=("M=0",), strengths=(0.0, PAPER_DECAY)),
            Contender(method="rewa", changes=("M=0", "eps=1e-5"), strengths=(PAPER_DECAY,)),
        ),
        seeds=3,
    ),
    table=TABLE,
    rules=Rules(within=3.0, margin=0.4),  # as on Fashion-MNIST
)

# One seed: what is chosen here, CIFAR10_CPU trains with three.
CIFAR10_TUNING = SweepResult(
    line="when GMP should cut on CIFAR-10, and HAM's alpha: one seed, validation images, in some two hours",
    sweep=Sweep(
        recipe=RECIPES["cifar10-cpu"],
        methods=(
            Contender(method="gmp", strengths=EACH),
            Contender(method="gmp", changes=CUTS, strengths=EACH),
            Contender(method="gmp+ham", changes=("alpha=60",), strengths=ZEROS[1:]),
            Contender(method="gmp+ham", changes=("alpha=200",), strengths=(0.98,)),
            Contender(method="rewa-annealed+gmp", strengths=(0.98,)),
            Contender(method="rewa-annealed+gmp", changes=LATE, strengths=ZEROS),
        ),
        seeds=1,
    ),
    table=TABLE,
    judged_on="validation",
)
