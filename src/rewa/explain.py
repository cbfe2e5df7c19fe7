"""A setting in words and numbers: what it does to the weights, and which traps it walks into."""

from __future__ import annotations

import bisect
import dataclasses
import math
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewa import theory
from rewa.presets import PRESETS, Preset
from rewa.schedules import rate_sum

__all__ = ["DTYPES", "MEASURED", "OPTIMIZERS", "Training", "explain", "to_text"]

OPTIMIZERS = ("sgd", "adamw")
DTYPES = ("float32", "bfloat16", "float16")
MAGNITUDES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
MOST_STEPS = 2**53  # beyond it float64 does not count
GRADIENT = 1.0  # a large gradient of one weight
LARGEST = 1e3  # no weight is larger
# Decay budget and share of zeros that cost at most a point of accuracy: the runs under results/ with K = 9, M = 2, first seed.
MEASURED: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "sgd": {
        "cifar10-cpu": ((2.247, 0.8689), (4.492, 0.9451), (8.987, 0.9791), (17.97, 0.9937)),
        "fashion-mnist": ((2.999, 0.943), (6.0, 0.991), (12.0, 0.9959), (24.0, 0.9984)),
    },
    "adamw": {
        "cifar10-cpu": ((10.59, 0.9047), (18.92, 0.9368)),
        "fashion-mnist": ((5.333, 0.7211), (10.67, 0.9096), (18.67, 0.9578), (26.67, 0.9804)),
    },
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A setting of ReWA and the training it is for."""

    K: float = 9
    M: float = 2
    eps: float = 0.0
    weight_decay: float = 1e-4
    lr: float = 0.1
    momentum: float = 0.0
    decoupled: bool = False
    optimizer: str = "sgd"
    epochs: int = 100
    steps_per_epoch: int = 200
    schedule: str = "cosine"
    warmup_epochs: int = 0
    start: float = 0.05  # usual size of a weight at the start
    dtype: str = "float32"  # of the weights

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"Invalid optimizer: {self.optimizer!r} (allowed: {', '.join(OPTIMIZERS)})")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"Invalid learning rate: {self.lr} (allowed: a finite number > 0)")
        if self.dtype not in DTYPES:
            raise ValueError(f"Invalid dtype: {self.dtype!r} (allowed: {', '.join(DTYPES)})")
        if not 0 <= self.start < math.inf:
            raise ValueError(f"Invalid start: {self.start} (allowed: a finite number >= 0, the usual size of a weight)")
        if min(self.epochs, self.steps_per_epoch) < 1:
            raise ValueError(f"a run needs at least one step; got {self.epochs} epochs of {self.steps_per_epoch} steps")
        if self.steps > MOST_STEPS:
            raise ValueError(f"a run of more than {MOST_STEPS:.1g} steps is too many to count; lower --epochs")
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"lr * weight_decay = {self.lr * self.weight_decay:g}: the decay of one step would take every weight to zero "
                "or across; it must stay below 1"
            )

    @classmethod
    def of(cls, preset: Preset) -> Training:
        """The run of a preset; what the preset leaves open is the default here."""
        shared = {field.name for field in dataclasses.fields(cls)} & {field.name for field in dataclasses.fields(preset)}
        return cls(**{name: getattr(preset, name) for name in shared if getattr(preset, name) is not None})

    @property
    def steps(self) -> int:
        """Length of the run."""
        return self.epochs * self.steps_per_epoch

    def rate_sum(self, done: int | None = None) -> float:
        """Sum of the learning rates of the first steps.

        Args:
            done: How many; all by default.
        """
        warmup = self.warmup_epochs * self.steps_per_epoch
        return rate_sum(self.lr, self.steps, schedule=self.schedule, warmup=warmup, done=done)

    def shrinkage(self, done: int | None = None) -> float:
        """How far log(1/x) of a weight without gradient has grown after some steps; after all, the decay budget.

        Args:
            done: Steps; all by default.
        """
        return self.decay_budget_of(self.weight_decay, done)

    def decay_budget_of(self, weight_decay: float, done: int | None = None) -> float:
        """The same for another decay, to which it is proportional.

        Args:
            weight_decay: The decay.
            done: Steps; all by default.
        """
        run = {"K": self.K, "weight_decay": weight_decay, "momentum": self.momentum}
        return theory.decay_budget([self.rate_sum(done)], **run, decoupled=self.decoupled or self.optimizer == "adamw")


def explain(training: Training, *, sparsity: float | None = None) -> dict[str, Any]:
    """What a run does, as a dictionary of plain values.

    Args:
        training: The setting.
        sparsity: Share of zeros to find a decay for, as a guide.

    Example:
        >>> result = explain(Training(K=9, M=2, weight_decay=1e-4, lr=0.256, momentum=0.875, epochs=100, steps_per_epoch=196))
        >>> result["configuration"], round(result["p"], 3), result["nearest_preset"]
        ('A', 0.889, 'cifar10')
        >>> round(result["decay_budget"], 1)
        18.1
    """
    configuration = theory.configuration(training.K, training.M, training.eps)
    adam = training.optimizer == "adamw"
    setting = {"K": training.K, "M": training.M, "eps": training.eps, "lam": training.weight_decay}
    budget = training.shrinkage()
    after = bisect.bisect_left(range(training.steps + 1), math.log(1000), key=training.shrinkage)
    result: dict[str, Any] = {
        "run": dataclasses.asdict(training),
        "p": configuration.p,
        "configuration": configuration.name,
        "why": configuration.why + (" (with SGD; Adam rescales every gradient)" if adam else ""),
        "penalty": [] if adam else _penalty(setting),
        "decay_budget": budget,
        "ends_at": {"start": training.start, "end": training.start * math.exp(-budget)},
        "thousandth_at_epoch": after / training.steps_per_epoch if after <= training.steps else None,
        "sign_flips": _sign_flips(training),
        "nearest_preset": _nearest_preset(training),
        "adamw": _adamw(training) if adam else None,
        "sparsity": None if sparsity is None else _decay_for(training, sparsity),
    }
    if not all(math.isfinite(number) for row in result["penalty"] for number in row.values()):
        raise ValueError(f"M={training.M:g} is too large for K={training.K:g}: the penalty of small weights overflows")
    result["warnings"] = _warnings(training, result)
    return result


def _penalty(setting: dict[str, float]) -> list[dict[str, float]]:
    """The penalty and its slope at a few magnitudes."""
    with np.errstate(over="ignore"):
        values, slopes = theory.regularizer(MAGNITUDES, **setting), theory.regularizer_gradient(MAGNITUDES, **setting)
    rows = zip(MAGNITUDES, values.tolist(), slopes.tolist(), strict=True)
    return [{"x": x, "penalty": value, "gradient_to_hold": slope} for x, value, slope in rows]


def _adamw(training: Training) -> dict[str, Any]:
    """What Adam's step of about lr, whatever the gradient, allows: the largest weight, how far y moves, and better values."""
    bound = theory.adamw_bound(training.K, training.weight_decay)
    reach, start = training.rate_sum(), training.start
    return {
        "largest_weight": bound if bound < math.inf else None,
        "reach": reach,
        "start_of_y": start ** (1 / training.K),
        "advice": theory.adamw_advice(training.K, reach / training.lr, start=start)._asdict() if start else None,
    }


def _decay_for(training: Training, sparsity: float) -> dict[str, Any]:
    """The decays whose budgets gave a share of zeros on the recorded runs, between two of them on logarithmic scales."""
    if not 0 <= sparsity < 1:
        raise ValueError(f"Invalid sparsity: {sparsity} (allowed: 0 <= sparsity < 1, such as 0.95)")
    if training.optimizer == "adamw":  # measured at the advised rate; a slower run would need a decay that forbids its weights
        advised = theory.adamw_advice(training.K, training.rate_sum() / training.lr, start=training.start or Training.start)
        training = dataclasses.replace(training, lr=advised.lr, weight_decay=0.0)
    decays: list[dict[str, Any]] = []
    for study, points in MEASURED[training.optimizer].items():
        budgets, zeros = zip(*points, strict=True)
        if zeros[0] <= sparsity <= zeros[-1]:
            left = [-math.log1p(-share) for share in zeros]
            budget = math.exp(np.interp(-math.log1p(-sparsity), left, np.log(budgets)))
            decays.append({"study": study, "decay_budget": budget, "weight_decay": budget / training.decay_budget_of(1.0)})
    if not decays:
        shares = [zeros for points in MEASURED[training.optimizer].values() for _, zeros in points]
        raise ValueError(
            f"sparsity = {sparsity:g}: the recorded runs went from {min(shares):.1%} to {max(shares):.1%}, and nothing was "
            "measured beyond; to cut a trained model to any share, use rewa.finalize(model, sparsity=...)"
        )
    strongest = max(row["weight_decay"] for row in decays)
    if training.optimizer == "adamw" and theory.adamw_bound(training.K, strongest) < theory.ADAMW_ROOM * training.start:
        raise ValueError(
            f"sparsity = {sparsity:g} needs weight_decay = {strongest:.2g} in a run of {training.steps} steps, and under AdamW "
            f"that leaves no weight above {theory.adamw_bound(training.K, strongest):.2g}; train longer"
        )
    return {"zeros": sparsity, "lr": training.lr, "decays": decays}


def _sign_flips(training: Training) -> dict[str, float | None] | None:
    """Between which sizes of x a step at the peak rate can change a sign; None if at none, an open side if unlimited."""
    if training.optimizer == "adamw":  # its step in y is about lr, whatever the gradient
        low, high = 0.0, training.lr / (1 - training.lr * training.weight_decay)
    else:
        lr = training.lr / (1 - training.momentum)  # the pace that momentum reaches
        decay = training.weight_decay * (1 - training.momentum if training.decoupled else 1)
        if lr * decay >= 1:
            return {"above": None, "below": None}
        setting = {"K": training.K, "M": training.M, "eps": training.eps}
        low, high = theory.sign_flips(**setting, lr=lr, weight_decay=decay, gradient_bound=GRADIENT)
    if low > 0 and training.K * math.log(low) > math.log(LARGEST):
        return None
    above = low**training.K if low > 0 else None
    below = high**training.K if high < math.inf and training.K * math.log(high) < math.log(LARGEST) else None
    return {"above": above, "below": below}


def _nearest_preset(training: Training) -> str:
    """The preset whose exponents and decay differ least, on a logarithmic scale for the decay."""

    def distance(name: str) -> float:
        preset = PRESETS[name]
        decay = abs(math.log((training.weight_decay + 1e-12) / (preset.weight_decay + 1e-12)))
        rate = abs(math.log(training.lr / preset.lr))
        stabilizer = abs(math.log10(training.eps + 1e-9) - math.log10(preset.eps + 1e-9))
        return abs(training.K - preset.K) + abs(training.M - preset.M) + stabilizer + decay / 2 + rate / 2

    return min(PRESETS, key=distance)


def _warnings(training: Training, result: dict[str, Any]) -> list[str]:
    """One sentence for each trap of the method that the setting walks into."""
    return [*_start_warnings(training, result), *_adamw_warnings(training, result), *_decay_warnings(training, result)]


def _start_warnings(training: Training, result: dict[str, Any]) -> list[str]:
    """What becomes of weights where they start."""
    found = []
    if training.start == 0 and (training.M > 0 or (training.eps > 0 and training.K > 1)):
        found.append("Zero is absorbing: tensors that start at zero never train. Use rewa.param_groups for biases and norms.")
    flips = result["sign_flips"]
    if training.start > 0 and (flips is None or (flips["above"] or 0) > training.start):
        where = "no weight" if flips is None else f"no weight below |x| = {flips['above']:.2g}"
        found.append(
            f"Zero is hard to cross: at this rate {where} changes its sign in a step (gradients up to {GRADIENT:g}); "
            "one that starts with the wrong sign is lost. Raise lr, lower M, or use rewa.reparametrize(form='pair')."
        )
    sizes = [training.start, training.start / 10]
    needed, smaller = theory.regularizer_gradient(sizes, training.K, training.M, training.eps, lam=training.weight_decay)
    if needed > 0.1 and smaller > needed and training.optimizer == "sgd":
        found.append(
            f"Growth: a weight that starts at {training.start:g} needs a gradient above {needed:.2g} to grow; what sees less "
            "dies. Lower weight_decay or M, or start larger."
        )
    if training.dtype != "float32":
        found.append(
            f"Low precision: in {training.dtype} small steps round to nothing, and |y|^{training.K:g} underflows in float16. "
            "ReWASGD and ReWAAdamW keep y in float32 for such weights; other optimizers need float32 weights."
        )
    return found


def _adamw_warnings(training: Training, result: dict[str, Any]) -> list[str]:
    """What Adam makes of a rate and a decay that suit SGD, or plain weights."""
    adam = result["adamw"]
    if adam is None:
        return []
    found = []
    largest, reach, start = adam["largest_weight"], adam["reach"], adam["start_of_y"]
    if largest is not None and largest < theory.ADAMW_ROOM * training.start:
        found.append(
            "Decay forbids large weights: Adam moves y by about lr per step whatever its gradient, and the decay balances that "
            f"at |y| = {1 / training.weight_decay:.2g}. So no weight above |x| = {largest:.2g} can exist; usual ones start at "
            f"{training.start:g}. Lower weight_decay."
        )
    if reach < start:
        found.append(
            f"y hardly moves: it starts at about {start:.2g}, and all steps together move it by {reach:.2g} at most. Raise lr."
        )
    if training.optimizer == "adamw" and (training.M > 0 or training.eps > 0):
        found.append("Adam cancels a constant scale: M and eps act through their change over time only. Choose K.")
    return found


def _decay_warnings(training: Training, result: dict[str, Any]) -> list[str]:
    """Penalties that are none, and decay that is too strong or too weak."""
    found = []
    first = theory.effective_p(training.K, training.M)
    if result["configuration"] == "neither" and not 0 < first < 1:
        found.append(f"Not an l_p penalty with 0 < p < 1: {result['why']}.")
    if training.eps > 0 and training.M > 2:
        found.append("eps with M > 2: close to zero the penalty falls without bound, faster than a logarithm. Set eps = 0.")
    coupled_momentum = 0.0 if training.decoupled or training.optimizer == "adamw" else training.momentum
    if training.lr * training.weight_decay > theory.strongest_decay(coupled_momentum):
        found.append(
            f"Decay too strong for this momentum: lr * weight_decay = {training.lr * training.weight_decay:.2g} is above "
            f"{theory.strongest_decay(coupled_momentum):.2g}; weights swing around zero and shrink less than the budget says."
        )
    if training.weight_decay == 0:
        found.append("No weight decay: nothing pulls a weight to zero, whatever K and M. Set weight_decay.")
    elif result["decay_budget"] < 3:
        found.append(
            f"Decay budget {result['decay_budget']:.2g}: an unsupported weight only shrinks to "
            f"{math.exp(-result['decay_budget']):.0%} of its start; little becomes sparse by decay alone. "
            "Raise weight_decay, lr or the number of steps, or cut on the way: rewa.Annealing(optimizer, steps, sparsity=...)."
        )
    return found


def to_text(result: dict[str, Any]) -> str:
    """The same as a page for the terminal."""
    run, flips, ends = result["run"], result["sign_flips"], result["ends_at"]
    decay = "decoupled" if run["decoupled"] or run["optimizer"] == "adamw" else "coupled"
    warmup = f", the first {run['warmup_epochs']} to warm up" if run["warmup_epochs"] else ""
    thousandth = result["thousandth_at_epoch"]
    reaches = "does not reach" if thousandth is None else f"by epoch {math.ceil(thousandth)} is"
    facts = {
        "penalty": f"{result['why']} (configuration {result['configuration']})",
        "decay": f"budget {result['decay_budget']:.3g} ({decay}): a weight that gets no gradient goes from {ends['start']:g} "
        f"to {ends['end']:.2g}, and {reaches} a thousandth of its start",
        "sign flips": _flips_in_words(flips, run),
        **_adamw_in_words(result),
        **_sparsity_in_words(result),
        "nearest preset": result["nearest_preset"],
    }
    lines = [
        f"ReWA on {run['optimizer']}: K={run['K']:g}, M={run['M']:g}, eps={run['eps']:g}, "
        f"weight_decay={run['weight_decay']:g}, lr={run['lr']:g}, momentum={run['momentum']:g}",
        f"{run['epochs']} epochs{warmup}, of {run['steps_per_epoch']} steps, {run['schedule']} schedule",
        "",
    ]
    for name, words in facts.items():
        lines += textwrap.wrap(words, 100, initial_indent=f"  {name:<15}", subsequent_indent=" " * 17)
    if result["penalty"]:
        lines += ["", "  at |x|       penalty      gradient that holds it; a larger one makes it grow"]
    lines += [f"  {row['x']:<10g}   {row['penalty']:<10.3g}   {row['gradient_to_hold']:.3g}" for row in result["penalty"]]
    if result["warnings"]:
        lines += ["", "Warnings"]
        for warning in result["warnings"]:
            lines += textwrap.wrap(warning, 100, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines)


def _adamw_in_words(result: dict[str, Any]) -> dict[str, str]:
    adam = result["adamw"]
    if adam is None:
        return {}
    largest = "no bound on |x|" if adam["largest_weight"] is None else f"no |x| above {adam['largest_weight']:.2g} can exist"
    words = {
        "adamw": f"{largest}, since a step moves y by about lr whatever its gradient; y starts at about "
        f"{adam['start_of_y']:.2g} and can move by {adam['reach']:.2g} in the whole run"
    }
    if adam["advice"]:
        setting = ", ".join(f"{name}={value:.2g}" for name, value in adam["advice"].items())
        words["advice"] = f"without cuts, try {setting} for a run of this length"
    return words


def _sparsity_in_words(result: dict[str, Any]) -> dict[str, str]:
    guide = result["sparsity"]
    if guide is None:
        return {}
    ranges = {}
    for key in ("weight_decay", "decay_budget"):
        values = [row[key] for row in guide["decays"]]
        ranges[key] = f"{min(values):.2g}" + (f" to {max(values):.2g}" if len(values) > 1 else "")
    studies = " and ".join(row["study"] for row in guide["decays"])
    return {
        f"{100 * guide['zeros']:g}% zeros": f"lr={guide['lr']:.3g} and weight_decay {ranges['weight_decay']}, "
        f"a budget of {ranges['decay_budget']}: what it took on {studies} with K=9, M=2 for so many zeros within a point of "
        "accuracy; a guide, not a promise"
    }


def _flips_in_words(flips: dict[str, float | None] | None, run: dict[str, Any]) -> str:
    if run["optimizer"] == "adamw":
        return f"possible near zero: a step moves y by about lr, {run['lr']:g}"
    bound = f", for gradients up to {GRADIENT:g}" + (" and momentum at its full pace" if run["momentum"] else "")
    if flips is None:
        return f"none in one step, at any size a weight has{bound}"
    sizes = [f"{side} |x| = {size:.2g}" for side, size in flips.items() if size is not None]
    return f"possible in one step {' and '.join(sizes) or 'at every size'}{bound}"
