"""What a run is to become: which weights, what share of zeros for each part of a model, and when they are cut."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.cutting import LAWS, window
from rewa.names import close, nearest
from rewa.optim.groups import Rules, decided_by_rules
from rewa.weights import Decision, computed, decisions, full, is_plain, reshard

__all__ = ["Course", "Evaluate", "Pool", "decided_for", "pools_of", "shares_of", "trained_weights", "unwrapped"]

CUTS = 100  # in a whole run; those between begin and end are made
SPARSEST = 0.999  # the last level, where a value decides how far to go
LEVELS = 40  # between begin and end, each after an evaluation

REWA = {"K": 2, "M": 1, "eps": 0.0, "weight_decay": 0.0}
PLAIN = {"K": 1, "M": 0, "eps": 0.0, "weight_decay": 0.0}
Evaluate = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Pool:
    """Weights that are cut together: one threshold for all of them."""

    names: tuple[str, ...]
    share: float  # of zeros in the end
    total: int
    pattern: str = ""

    def zeros(self, part: float = 1.0) -> int:
        """How many are zero after a part of the whole cut.

        Args:
            part: Between 0 and 1.
        """
        return round(part * self.share * self.total)


@dataclass(frozen=True)
class Course:
    """When weights are cut in a run.

    Args:
        steps: Steps of the run.
        begin: Where the first cut is made, as a share of the run.
        end: Where the last cut is made.
        law: How the share of zeros rises in between.
        in_levels: Whether a value decides how far to go.
    """

    steps: int
    begin: float
    end: float
    law: str
    in_levels: bool = False

    def __post_init__(self) -> None:
        steps: object = self.steps
        for name, value in (("begin", self.begin), ("end", self.end)):
            if not _is_number(value):
                raise ValueError(f"Invalid {name}: {value!r} (allowed: a share of the run, from 0 to 1)")
        if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or self.steps < 1:
            raise ValueError(f"Invalid steps: {steps!r} (allowed: a whole number >= 1, the optimizer steps of the whole run)")
        if not 0 <= self.begin <= self.end <= 1:
            raise ValueError(
                f"Invalid begin and end: {self.begin}, {self.end} (allowed: 0 <= begin <= end <= 1, shares of the run)"
            )
        if self.law not in LAWS:
            raise ValueError(nearest("schedule", str(self.law), LAWS))

    @property
    def first(self) -> int:
        """The step after which the first cut is made."""
        return window(self.steps, self.begin, self.end)[0]

    @property
    def last(self) -> int:
        """The step after which the last cut is made."""
        return window(self.steps, self.begin, self.end)[1]

    @property
    def every(self) -> int:
        """Steps from one cut to the next."""
        number = round(LEVELS * self.steps / max(1, self.last - self.first)) if self.in_levels else CUTS
        return max(1, self.steps // max(1, number))

    @property
    def levels(self) -> int:
        """How many cuts there are between the first and the last."""
        return max(1, (self.last - self.first) // self.every)

    def is_time(self, done: int) -> bool:
        """Whether a cut is due; after the last one, whether to look if its zeros are still there.

        Args:
            done: Steps that were made.
        """
        return done == self.last or (done >= self.first and (done - self.first) % self.every == 0)

    def part(self, done: int) -> float:
        """The part of the whole cut that is made after so many steps, between 0 and 1.

        Args:
            done: Steps that were made.

        Example:
            >>> [Course(100, 0.2, 0.8, "linear").part(done) for done in (10, 50, 80, 100)]
            [0.0, 0.5, 1.0, 1.0]
        """
        first, last, every = self.first, self.last, self.every
        if done >= last:
            return 1.0
        return 0.0 if done < first else LAWS[self.law]((done - first) // every * every / (last - first))


def shares_of(
    sparsity: float | Mapping[str, float] | None,
    compression: float | None,
    max_drop: float | None,
    evaluate: Evaluate | None,
) -> dict[str, float]:
    """The share of zeros for each pattern; the empty pattern stands for all weights.

    Args:
        sparsity: One share, or one for each pattern.
        compression: Or weights over nonzero weights.
        max_drop: Or what the value of the model may lose.
        evaluate: Returns that value.
    """
    targets = {"sparsity": sparsity, "compression": compression, "max_drop": max_drop}
    given = [name for name, value in targets.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of sparsity, compression and max_drop; got {', '.join(given) or 'none'}")
    if (evaluate is None) != (max_drop is None):
        raise ValueError(
            "max_drop needs evaluate, a function that takes the model and returns its value on validation data"
            if evaluate is None
            else "evaluate is for max_drop: give that instead of a share"
        )
    if evaluate is not None and not callable(evaluate):
        raise ValueError(f"Invalid evaluate: {evaluate!r} (allowed: a function that takes the model and returns its value)")
    if max_drop is not None:
        if not _is_number(max_drop) or not 0 <= max_drop < math.inf:
            raise ValueError(
                f"Invalid max_drop: {max_drop!r} (allowed: a finite number >= 0, in units of what evaluate returns)"
            )
        return {"": SPARSEST}
    if compression is not None:
        if not _is_number(compression) or not 1 <= compression < math.inf:
            raise ValueError(f"Invalid compression: {compression!r} (allowed: a number >= 1, 20 for 95 % zeros)")
        return {"": 1 - 1 / compression}
    shares = dict(sparsity) if isinstance(sparsity, Mapping) else {"": sparsity}
    if not shares:
        raise ValueError("Invalid sparsity: {} (allowed: a share, or at least one pattern with its share)")
    for pattern, share in shares.items():
        if not _is_number(share) or not 0 <= share < 1:
            where = f" for {pattern!r}" if pattern else ""
            hint = f"; {share} % is {share / 100:g}" if _is_number(share) and 1 < share < 100 else ""
            raise ValueError(f"Invalid sparsity{where}: {share!r} (allowed: a share of zeros, at least 0 and below 1{hint})")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"sparsity: {pattern!r} is not a regular expression: {error}") from None
    return {pattern: float(share) for pattern, share in shares.items() if share is not None}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def pools_of(weights: Mapping[str, Tensor], shares: Mapping[str, float], *, bounded: bool) -> list[Pool]:
    """The weights that are cut together.

    Args:
        weights: The weights by name.
        shares: The share of zeros for each pattern, as of :func:`shares_of`.
        bounded: Whether some weights must be left.
    """
    names: dict[str, list[str]] = {pattern: [] for pattern in shares}
    for name in weights:
        if (pattern := next((one for one in shares if not one or re.fullmatch(one, name)), None)) is not None:
            names[pattern].append(name)
    pools = []
    for pattern, share in shares.items():
        if not names[pattern]:
            such = close(pattern, weights, count=3, cutoff=0.3) or list(weights)[:3]
            raise ValueError(
                f"sparsity: {pattern!r} matches the whole name of no weight that is left, such as {', '.join(such)}; biases, "
                "norms and embeddings are no weights unless rules make them so"
            )
        pool = Pool(tuple(names[pattern]), share, sum(weights[name].numel() for name in names[pattern]), pattern)
        if pool.zeros() >= pool.total and bounded:
            most = math.floor(1e6 * (1 - 1 / pool.total)) / 1e6
            raise ValueError(f"Invalid sparsity: {share} of {pool.total:,} weights leaves none (allowed: at most {most:g})")
        pools.append(pool)
    return pools


def decided_for(model: nn.Module, rules: Rules | None) -> tuple[list[Decision], list[Decision]]:
    """The decision for each parameter of a model, and those that rules made.

    Args:
        model: The model, without wrappers.
        rules: As for :func:`rewa.param_groups`; None for what the model remembers.
    """
    reshard(model)
    for found in computed(model):
        if found.is_sparse:
            raise found.error()
    if rules is None:
        return list(decisions(model).values()), []
    return decided_by_rules(model, rules, REWA, PLAIN)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP, ``torch.compile`` and the like, whose names have no prefix.

    Args:
        model: The model, wrapped or not.
    """
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def trained_weights(decided: Sequence[Decision], optimizer: Optimizer) -> dict[str, Tensor]:
    """The weights that become sparse, by name.

    Args:
        decided: The decisions for the parameters of a model.
        optimizer: The optimizer that must train them.
    """
    sparse = [one for one in decided if one.is_sparse and one.param.numel()]
    if not sparse:
        reasons = ", ".join(f"{one.name} ({one.reason})" for one in decided[:3])
        raise ValueError(
            f"the model has no weight that can become sparse: {reasons or 'no parameters'}. "
            "rules={'name': {'sparse': True}} makes one"
        )
    trained = {id(param) for group in optimizer.param_groups for param in group["params"]}
    missing = [one.name for one in sparse if one.param.requires_grad and id(one.param) not in trained]
    if missing:
        raise ValueError(
            f"{type(optimizer).__name__} does not train {missing[0]!r}"
            + (f" and {len(missing) - 1} more weights" if len(missing) > 1 else "")
            + " of this model: make the optimizer from model.parameters(), after the model is moved, sharded or "
            "compiled; or keep them dense, by rules={'name': None}"
        )
    weights = {one.name: one.param for one in sparse if one.param.requires_grad}
    if not weights:
        raise ValueError("every weight that can become sparse has requires_grad=False: nothing would train around the zeros")
    for name, param in weights.items():
        if param.is_complex():
            raise ValueError(f"{name!r} is {param.dtype}: keep it dense, by rules={{{name!r}: None}}")
        if param.device.type == "meta":
            raise ValueError(f"{name!r} is on the meta device: fill the model first, by to_empty and its own initialization")
        settings = _settings(optimizer, param)
        if settings is not None and not is_plain(settings) and not bool(full(param.detach().any())):
            raise ValueError(
                f"{name!r} is all zero, which ReWA's step never leaves: start it at other values, or keep it dense, by "
                f"rules={{{name!r}: None}}"
            )
    return weights


def _settings(optimizer: Optimizer, param: Tensor) -> dict[str, Any] | None:
    """The settings of ReWA under which the optimizer trains a weight, if it is one of ReWA's."""
    if not getattr(optimizer, "reads_rewa_keys", False):
        return None
    group = next(g for g in optimizer.param_groups if any(one is param for one in g["params"]))
    found = {key: group.get(f"rewa_{key}", group.get(key)) for key in ("K", "M", "eps")}
    return found if None not in found.values() else None
