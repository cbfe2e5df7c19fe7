"""A setting in words and numbers: what it does to the weights, and which traps it walks into."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from rewa import theory
from rewa.presets import PRESETS

__all__ = ["SCHEDULES", "Run", "explain", "to_text"]

SCHEDULES = ("constant", "cosine", "linear")
MAGNITUDES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
TYPICAL = 0.05  # the size of a weight at the start of a usual network


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

    def learning_rates(self) -> list[float]:
        """The learning rate of every step."""
        steps = self.epochs * self.steps_per_epoch
        if self.schedule not in SCHEDULES or steps < 1:
            raise ValueError(
                f"a run needs a schedule among {', '.join(SCHEDULES)} and at least one step; got {self.schedule!r}, "
                f"{self.epochs} epochs of {self.steps_per_epoch} steps"
            )
        times = [step / steps for step in range(steps)]
        if self.schedule == "constant":
            return [self.lr] * steps
        if self.schedule == "linear":
            return [self.lr * (1 - t) for t in times]
        return [self.lr * (1 + math.cos(math.pi * t)) / 2 for t in times]


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
    rates = run.learning_rates()
    adam = run.optimizer == "adamw"
    budget = theory.decay_budget(
        rates, K=run.K, weight_decay=run.weight_decay, momentum=run.momentum, decoupled=run.decoupled or adam
    )
    setting = {"K": run.K, "M": run.M, "eps": run.eps}
    result: dict[str, Any] = {
        "run": dataclasses.asdict(run),
        "p": theory.effective_p(run.K, run.M),
        "configuration": configuration.name,
        "why": configuration.why,
        "penalty": [
            {"x": x, "gradient_to_hold": float(theory.regularizer_gradient(x, **setting, lam=run.weight_decay))}
            for x in MAGNITUDES
        ],
        "decay_budget": budget,
        "ends_at": {"start": TYPICAL, "end": TYPICAL * math.exp(-budget)},
        "sign_flip_radius": _sign_flip_radius(run),
        "nearest_preset": _nearest_preset(run),
    }
    result["warnings"] = _warnings(run, result)
    return result


def _sign_flip_radius(run: Run) -> float | None:
    """Weights x below this cannot change sign in a step at the full rate, for gradients up to 1; None where K <= 2."""
    if run.K <= 2 or run.lr <= 0 or run.lr * run.weight_decay >= 1:
        return None
    run_values = {"lr": run.lr, "weight_decay": run.weight_decay, "gradient_bound": 1.0}
    radius: float = theory.stagnation_radii(K=run.K, M=run.M, eps=run.eps, **run_values).with_M ** run.K
    return radius


def _nearest_preset(run: Run) -> str:
    """The preset whose exponents and decay differ least, on a logarithmic scale for the decay."""

    def distance(name: str) -> float:
        preset = PRESETS[name]
        decay = abs(math.log((run.weight_decay + 1e-12) / (preset.weight_decay + 1e-12)))
        rate = abs(math.log((run.lr + 1e-12) / (preset.lr + 1e-12)))
        stabilizer = abs(math.log10(run.eps + 1e-9) - math.log10(preset.eps + 1e-9))
        return abs(run.K - preset.K) + abs(run.M - preset.M) + stabilizer + decay / 2 + rate / 2

    return min(PRESETS, key=distance)


def _warnings(run: Run, result: dict[str, Any]) -> list[str]:
    """One sentence for each trap of the method that the setting walks into."""
    found = []
    if run.K > 1 and (run.M > 0 or run.eps > 0):
        found.append("Zero is absorbing: tensors that start at zero never train. Use rewa.param_groups for biases and norms.")
    radius = result["sign_flip_radius"]
    if radius is not None and radius > TYPICAL:
        found.append(
            f"Zero is hard to cross: at this rate no weight below {radius:.2g} changes sign in a step (gradients up to 1); "
            "one that starts with the wrong sign is lost. Raise lr, lower M, or use rewa.reparametrize(form='pair')."
        )
    needed = float(theory.growth_threshold(TYPICAL, run.K, run.M, lam=run.weight_decay))
    if needed > 0.1:
        found.append(
            f"Growth: a weight that starts at {TYPICAL:g} needs a gradient above {needed:.2g} to grow; what sees less dies."
        )
    if run.K >= 3:
        found.append(
            f"Low precision: |y|^{run.K:g} underflows in float16. Weights in float16 or bfloat16 need ReWASGD or ReWAAdamW."
        )
    if run.optimizer == "adamw" and (run.M > 0 or run.eps > 0):
        found.append("Adam cancels a constant scale: M and eps act through their change over time only. Choose K.")
    if result["configuration"] == "neither" and not 0 < result["p"] < 1:
        found.append(f"Not an l_p penalty with 0 < p < 1: {result['why']}.")
    if result["decay_budget"] < 3:
        found.append(
            f"Decay budget {result['decay_budget']:.2g}: an unsupported weight only shrinks to "
            f"{math.exp(-result['decay_budget']):.0%} of its start; little becomes sparse. "
            "Raise weight_decay, lr or the number of steps."
        )
    if result["decay_budget"] > 40:
        found.append(f"Decay budget {result['decay_budget']:.3g}: supported weights may die, too. Lower weight_decay.")
    return found


def to_text(result: dict[str, Any]) -> str:
    """The same as a page for the terminal."""
    run = result["run"]
    radius = result["sign_flip_radius"]
    ends = result["ends_at"]
    lines = [
        f"ReWA on {run['optimizer']}: K={run['K']:g}, M={run['M']:g}, eps={run['eps']:g}, "
        f"weight_decay={run['weight_decay']:g}, lr={run['lr']:g}, momentum={run['momentum']:g}",
        f"  penalty        {result['why']} (configuration {result['configuration']})",
        f"  decay budget   {result['decay_budget']:.3g} over {run['epochs']} epochs of {run['steps_per_epoch']} steps, "
        f"{run['schedule']}: an unsupported weight goes from {ends['start']:g} to {ends['end']:.2g}",
        "  sign flips     "
        + ("possible at every size" if not radius else f"none in one step below |x| = {radius:.2g}, for gradients up to 1"),
        f"  nearest preset {result['nearest_preset']}",
        "",
        "  to hold a weight at |x|   the gradient must reach",
        *(f"  {row['x']:>22g}   {row['gradient_to_hold']:>22.3g}" for row in result["penalty"]),
    ]
    if result["warnings"]:
        lines += ["", "Warnings", *(f"  - {warning}" for warning in result["warnings"])]
    return "\n".join(lines)
