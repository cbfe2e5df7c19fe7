"""A setting in words and numbers: what it does to the weights, and which traps it walks into."""

from __future__ import annotations

import dataclasses
import itertools
import math
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewa import theory
from rewa.presets import PRESETS, Preset
from rewa.schedules import learning_rates

__all__ = ["OPTIMIZERS", "Run", "explain", "to_text"]

OPTIMIZERS = ("sgd", "adamw")
MAGNITUDES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
TYPICAL = 0.05  # the size of a weight at the start of a usual network
GRADIENT = 1.0  # a large gradient of one weight
LARGEST = 1e3  # no weight is larger


@dataclass(frozen=True, kw_only=True)
class Run:
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

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"Invalid optimizer: {self.optimizer!r} (allowed: {', '.join(OPTIMIZERS)})")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"Invalid learning rate: {self.lr} (allowed: a finite number > 0)")
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"lr * weight_decay = {self.lr * self.weight_decay:g}: the decay of one step would take every weight to zero "
                "or across; it must stay below 1"
            )

    @classmethod
    def of(cls, preset: Preset) -> Run:
        """The run of a preset; what the preset leaves open is the default here."""
        shared = {field.name for field in dataclasses.fields(cls)} & {field.name for field in dataclasses.fields(preset)}
        return cls(**{name: getattr(preset, name) for name in shared if getattr(preset, name) is not None})

    def shrink_rates(self) -> list[float]:
        """By how much log(1/x) of a weight without gradient grows in every step; their sum is the decay budget."""
        rates = learning_rates(
            self.lr,
            self.epochs * self.steps_per_epoch,
            schedule=self.schedule,
            warmup=self.warmup_epochs * self.steps_per_epoch,
        )
        decoupled = self.decoupled or self.optimizer == "adamw"
        run = {"K": self.K, "weight_decay": self.weight_decay, "momentum": self.momentum}
        per_rate = theory.decay_budget([1.0], **run, decoupled=decoupled)
        return [per_rate * rate for rate in rates]


def explain(run: Run) -> dict[str, Any]:
    """What a run does, as a dictionary of plain values.

    Args:
        run: The setting.

    Example:
        >>> result = explain(Run(K=9, M=2, weight_decay=1e-4, lr=0.256, momentum=0.875, epochs=100, steps_per_epoch=196))
        >>> result["configuration"], round(result["p"], 3), result["nearest_preset"]
        ('A', 0.889, 'cifar10')
        >>> round(result["decay_budget"], 1)
        18.1
    """
    configuration = theory.configuration(run.K, run.M, run.eps)
    adam = run.optimizer == "adamw"
    setting = {"K": run.K, "M": run.M, "eps": run.eps, "lam": run.weight_decay}
    shrink = list(itertools.accumulate(run.shrink_rates()))
    thousandth = next((step for step, total in enumerate(shrink, start=1) if total >= math.log(1000)), None)
    result: dict[str, Any] = {
        "run": dataclasses.asdict(run),
        "p": configuration.p,
        "configuration": configuration.name,
        "why": configuration.why + (" (with SGD; Adam rescales every gradient)" if adam else ""),
        "penalty": [] if adam else _penalty(setting),
        "decay_budget": shrink[-1],
        "ends_at": {"start": TYPICAL, "end": TYPICAL * math.exp(-shrink[-1])},
        "thousandth_at_epoch": None if thousandth is None else thousandth / run.steps_per_epoch,
        "sign_flips": _sign_flips(run),
        "nearest_preset": _nearest_preset(run),
    }
    if not all(math.isfinite(number) for row in result["penalty"] for number in row.values()):
        raise ValueError(f"M={run.M:g} is too large for K={run.K:g}: the penalty of small weights overflows")
    result["warnings"] = _warnings(run, result)
    return result


def _penalty(setting: dict[str, float]) -> list[dict[str, float]]:
    """The penalty and its slope at a few magnitudes."""
    with np.errstate(over="ignore"):
        values, slopes = theory.regularizer(MAGNITUDES, **setting), theory.regularizer_gradient(MAGNITUDES, **setting)
    rows = zip(MAGNITUDES, values.tolist(), slopes.tolist(), strict=True)
    return [{"x": x, "penalty": value, "gradient_to_hold": slope} for x, value, slope in rows]


def _sign_flips(run: Run) -> dict[str, float | None] | None:
    """Between which sizes of x a step at the peak rate can change a sign; None if at none, an open side if unlimited."""
    if run.optimizer == "adamw":  # its step in y is about lr, whatever the gradient
        low, high = 0.0, run.lr / (1 - run.lr * run.weight_decay)
    else:
        lr = run.lr / (1 - run.momentum)  # the pace that momentum reaches
        decay = run.weight_decay * (1 - run.momentum if run.decoupled else 1)
        if lr * decay >= 1:
            return {"above": None, "below": None}
        low, high = theory.sign_flips(K=run.K, M=run.M, eps=run.eps, lr=lr, weight_decay=decay, gradient_bound=GRADIENT)
    if low > 0 and run.K * math.log(low) > math.log(LARGEST):
        return None
    above = low**run.K if low > 0 else None
    below = high**run.K if high < math.inf and run.K * math.log(high) < math.log(LARGEST) else None
    return {"above": above, "below": below}


def _nearest_preset(run: Run) -> str:
    """The preset whose exponents and decay differ least, on a logarithmic scale for the decay."""

    def distance(name: str) -> float:
        preset = PRESETS[name]
        decay = abs(math.log((run.weight_decay + 1e-12) / (preset.weight_decay + 1e-12)))
        rate = abs(math.log(run.lr / preset.lr))
        stabilizer = abs(math.log10(run.eps + 1e-9) - math.log10(preset.eps + 1e-9))
        return abs(run.K - preset.K) + abs(run.M - preset.M) + stabilizer + decay / 2 + rate / 2

    return min(PRESETS, key=distance)


def _warnings(run: Run, result: dict[str, Any]) -> list[str]:
    """One sentence for each trap of the method that the setting walks into."""
    found = []
    if run.M > 0 or (run.eps > 0 and run.K > 1):
        found.append("Zero is absorbing: tensors that start at zero never train. Use rewa.param_groups for biases and norms.")
    flips = result["sign_flips"]
    if flips is None or (flips["above"] or 0) > TYPICAL:
        where = "no weight" if flips is None else f"no weight below |x| = {flips['above']:.2g}"
        found.append(
            f"Zero is hard to cross: at this rate {where} changes its sign in a step (gradients up to {GRADIENT:g}); "
            "one that starts with the wrong sign is lost. Raise lr, lower M, or use rewa.reparametrize(form='pair')."
        )
    needed, smaller = theory.regularizer_gradient([TYPICAL, TYPICAL / 10], run.K, run.M, run.eps, lam=run.weight_decay)
    if needed > 0.1 and smaller > needed and run.optimizer == "sgd":
        found.append(
            f"Growth: a weight that starts at {TYPICAL:g} needs a gradient above {needed:.2g} to grow; what sees less dies. "
            "Lower weight_decay or M, or start larger."
        )
    if run.K >= 3:
        found.append(
            f"Low precision: |y|^{run.K:g} underflows in float16. Weights in float16 or bfloat16 need ReWASGD or ReWAAdamW."
        )
    if run.optimizer == "adamw" and (run.M > 0 or run.eps > 0):
        found.append("Adam cancels a constant scale: M and eps act through their change over time only. Choose K.")
    first = theory.effective_p(run.K, run.M)
    if result["configuration"] == "neither" and not 0 < first < 1:
        found.append(f"Not an l_p penalty with 0 < p < 1: {result['why']}.")
    if run.eps > 0 and run.M > 2:
        found.append("eps with M > 2: close to zero the penalty falls without bound, faster than a logarithm. Set eps = 0.")
    coupled_momentum = 0.0 if run.decoupled or run.optimizer == "adamw" else run.momentum
    if run.lr * run.weight_decay > theory.strongest_decay(coupled_momentum):
        found.append(
            f"Decay too strong for this momentum: lr * weight_decay = {run.lr * run.weight_decay:.2g} is above "
            f"{theory.strongest_decay(coupled_momentum):.2g}; weights swing around zero and shrink less than the budget says."
        )
    if run.weight_decay == 0:
        found.append("No weight decay: nothing pulls a weight to zero, whatever K and M. Set weight_decay.")
    elif result["decay_budget"] < 3:
        found.append(
            f"Decay budget {result['decay_budget']:.2g}: an unsupported weight only shrinks to "
            f"{math.exp(-result['decay_budget']):.0%} of its start; little becomes sparse. "
            "Raise weight_decay, lr or the number of steps."
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


def _flips_in_words(flips: dict[str, float | None] | None, run: dict[str, Any]) -> str:
    if run["optimizer"] == "adamw":
        return f"possible near zero: a step moves y by about lr, {run['lr']:g}"
    bound = f", for gradients up to {GRADIENT:g}" + (" and momentum at its full pace" if run["momentum"] else "")
    if flips is None:
        return f"none in one step, at any size a weight has{bound}"
    sizes = [f"{side} |x| = {size:.2g}" for side, size in flips.items() if size is not None]
    return f"possible in one step {' and '.join(sizes) or 'at every size'}{bound}"
