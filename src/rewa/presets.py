"""The paper's settings by name.

>>> from rewa import presets
>>> presets.CIFAR10.K, presets.CIFAR10.M, presets.CIFAR10.weight_decay
(9, 2, 0.0001)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import nn

from rewa.optim.groups import param_groups
from rewa.optim.sgd import ReWASGD

__all__ = ["CIFAR10", "DEFAULT", "IMAGENET", "PRESETS", "SYNTHETIC", "Preset"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One setting of ReWA with SGD and the training it belongs to.

    ``optimizer`` builds it for a model; ``dataclasses.replace`` makes a variant.
    """

    name: str
    K: float
    M: float
    eps: float = 0.0
    lr: float
    weight_decay: float
    momentum: float = 0.0
    decoupled: bool = False
    epochs: int | None = None
    steps_per_epoch: int | None = None
    batch_size: int | None = None
    schedule: str | None = None
    warmup_epochs: int | None = None
    source: str

    def optimizer(self, model: nn.Module, **overrides: Any) -> ReWASGD:
        """A :class:`rewa.ReWASGD` for the model: weights sparse, everything else plain.

        Args:
            model: The model.
            overrides: Fields of the preset to change, ``rules``, ``match`` and ``plain_weight_decay`` for
                :func:`rewa.param_groups`, and further arguments of :class:`rewa.ReWASGD` such as ``fused``.

        Example:
            >>> optimizer = CIFAR10.optimizer(nn.Linear(4, 2), lr=0.1, fused=True)
            >>> [(group["K"], group["lr"]) for group in optimizer.param_groups]
            [(9, 0.1), (1, 0.1)]
        """
        fields = {field.name for field in dataclasses.fields(self)}
        chosen = dataclasses.replace(self, **{key: value for key, value in overrides.items() if key in fields})
        rest = {key: value for key, value in overrides.items() if key not in fields}
        own = {key: rest.pop(key) for key in ("rules", "match", "plain_weight_decay") if key in rest}
        groups = param_groups(model, K=chosen.K, M=chosen.M, eps=chosen.eps, weight_decay=chosen.weight_decay, **own)
        return ReWASGD(groups, chosen.lr, momentum=chosen.momentum, decoupled=chosen.decoupled, **rest)


DEFAULT = Preset(
    name="default",
    K=9,
    M=2,
    lr=0.1,
    weight_decay=1e-4,
    momentum=0.9,
    source="the paper's moderate-scale K and M with the usual lr and momentum of SGD",
)

# The paper prints the decay of the synthetic runs per step: 5e-5 = lr * weight_decay at full rate.
SYNTHETIC = Preset(
    name="synthetic",
    K=9,
    M=4,
    lr=2e-4,
    weight_decay=0.25,
    epochs=800,
    steps_per_epoch=80,
    batch_size=25,
    schedule="cosine",
    source="hyperparameter summary and appendix 'Synthetic Dataset'",
)

CIFAR10 = Preset(
    name="cifar10",
    K=9,
    M=2,
    lr=0.256,
    weight_decay=1e-4,
    momentum=0.875,
    epochs=100,
    steps_per_epoch=196,
    batch_size=256,
    schedule="cosine",
    warmup_epochs=5,
    source="hyperparameter summary and appendix 'CIFAR10'",
)

# The summary table prints lr 1.7, the rate of the dense baseline; the appendix and the authors' scripts use 1.0.
IMAGENET = Preset(
    name="imagenet",
    K=3,
    M=2,
    eps=1e-3,
    lr=1.0,
    weight_decay=5e-5,
    momentum=0.9,
    epochs=88,
    steps_per_epoch=2502,
    batch_size=512,
    schedule="linear",  # FFCV's "cyclic": up to epoch 2, then down to zero
    warmup_epochs=2,
    source="appendix 'ImageNet'",
)

PRESETS = {preset.name: preset for preset in (DEFAULT, SYNTHETIC, CIFAR10, IMAGENET)}
