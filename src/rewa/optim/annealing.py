r"""The penalty made sharper on the way: K and M grow from a start that is plain SGD to values that make weights vanish."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rewa.cutting import cubic, global_masks
from rewa.optim.attach import divides
from rewa.optim.misuse import PREFIX
from rewa.optim.optimizer import ReWAOptimizer, root_mean_square
from rewa.reparam import check_exponents, to_y
from rewa.weights import full

__all__ = ["Annealing", "annealed"]

MOVED = ("K", "M", "weight_decay")


def annealed(start: float, final: float, share: float, *, begin: float, end: float) -> float:
    """A value at one time of a run: ``start`` up to ``begin``, ``final`` from ``end`` on, a straight line between.

    Args:
        start: The value at the beginning.
        final: The value in the end.
        share: Time, as a share of the run.
        begin: Where the value begins to change, as a share of the run.
        end: Where it arrives.

    Example:
        >>> [round(annealed(0, 1.5, share, begin=0.1, end=0.7), 3) for share in (0.0, 0.1, 0.4, 0.7, 1.0)]
        [0, 0, 0.75, 1.5, 1.5]
    """
    if share <= begin:
        return start
    return final if share >= end else start + (final - start) * (share - begin) / (end - begin)


class Annealing(LRScheduler):
    r"""Moves K and M of an optimizer's sparse groups from plain training to the values they were given, and cuts on the way.

    The penalty behind ReWA is :math:`\ell_p` with :math:`p = 1 + (1 - M)/K`. At ``K = 1, M = 0`` p is 2: plain SGD with weight
    decay, where signs change freely. As K and M grow p falls, and weights that the loss does not need are left behind. From
    ``M > 1`` on a weight near zero is lost, so it should have found its sign by then.

    The decay of y changes with K such that a weight without gradient shrinks as fast at any time: ``K * weight_decay`` stays
    what it is in the end.

    With ``sparsity`` the smallest weights are set to zero on the way and stay there: the share of zeros rises by the cubic
    law of gradual magnitude pruning, over all sparse weights at once, and is exact from ``cut[1]`` on. No layer loses its
    last weight.

    Adam and its kind move a weight by about the learning rate per step, whatever its size, so that layers soon have other
    sizes than at the start. Groups with ``match`` are therefore matched anew at ``begin``; under SGD that gains nothing.

    Call :meth:`step` after each step of the optimizer, as with torch's learning-rate schedulers. It sets ``K``, ``M`` and
    ``weight_decay`` of the groups at every step, and leaves ``lr`` to others. In Lightning return it with
    ``"interval": "step"``.

    Args:
        optimizer: A :class:`rewa.ReWASGD` or :class:`rewa.ReWAAdamW`, or any with :func:`rewa.attach`.
        steps: Number of steps in the whole run.
        K_start: K at the beginning; None for the group's own, all the time.
        M_start: M at the beginning.
        begin: Where they begin to change, as a share of the run.
        end: Where they arrive.
        sparsity: Share of the sparse weights that is zero in the end; None to cut nothing.
        cut: The first cut and the last, as shares of the run.

    Example:
        >>> import torch, rewa
        >>> model = torch.nn.Linear(20, 1)
        >>> groups = rewa.param_groups(model, K=2, M=1, weight_decay=1e-3, match=True)
        >>> optimizer = rewa.ReWASGD(groups, lr=0.1)
        >>> annealing = Annealing(optimizer, steps=1000, sparsity=0.75)
        >>> [optimizer.param_groups[0][key] for key in ("K", "M", "weight_decay")]
        [1.0, 0.0, 0.002]
        >>> for _ in range(1000):
        ...     annealing.step()
        >>> [optimizer.param_groups[0][key] for key in ("K", "M", "weight_decay")]
        [2, 1, 0.001]
        >>> int((model.weight == 0).sum())
        15
    """

    def __init__(
        self,
        optimizer: Optimizer,
        steps: int,
        *,
        K_start: float | None = 1.0,
        M_start: float = 0.0,
        begin: float = 0.1,
        end: float = 0.5,
        sparsity: float | None = None,
        cut: Sequence[float] = (0.25, 0.75),
    ) -> None:
        # Not torch's own constructor: it would wrap the optimizer's step and take charge of its learning rates.
        whole = isinstance(steps, numbers.Real) and not isinstance(steps, bool) and math.isfinite(steps) and steps == int(steps)
        if not whole or steps < 1:
            raise ValueError(f"Invalid steps: {steps!r} (allowed: a whole number >= 1)")
        if not 0 <= begin <= end <= 1:
            raise ValueError(f"Invalid begin and end: {begin}, {end} (allowed: 0 <= begin <= end <= 1, shares of the run)")
        if sparsity is not None and (isinstance(sparsity, bool) or not 0 <= sparsity < 1):
            raise ValueError(f"Invalid sparsity: {sparsity} (allowed: a share of zeros, at least 0 and below 1, or None)")
        if not isinstance(cut, (tuple, list)) or len(cut) != 2 or not 0 <= cut[0] <= cut[1] <= 1:
            raise ValueError(f"Invalid cut: {cut} (allowed: two shares of the run, 0 <= first <= last <= 1)")
        check_exponents(1 if K_start is None else K_start, M_start, 0.0)
        self.optimizer, self.steps, self.K_start, self.M_start = optimizer, int(steps), K_start, M_start
        self.begin, self.end, self.cut, self.target = begin, end, cut, sparsity
        self.last_epoch, self.zeros, self.rematched = 0, 0.0, False
        self.masks: dict[Tensor, Tensor] = {}
        self._check()
        if isinstance(optimizer, ReWAOptimizer):
            optimizer.uncompiled_step = torch.compiler.disable(type(optimizer).step)  # type: ignore[no-untyped-call]
        self.at(0)

    def _check(self) -> None:
        for group in self.optimizer.param_groups:
            prefix = _prefix(group)
            if prefix and not getattr(self.optimizer, "reads_rewa_keys", False):
                raise ValueError(f"{type(self.optimizer).__name__} does not read K and M: call rewa.attach(optimizer) first")
            if missing := [key for key in MOVED if _key(prefix, key) not in group]:
                raise ValueError(
                    f"{type(self.optimizer).__name__} has no {', '.join(missing)} in its groups: give a ReWASGD or a "
                    "ReWAAdamW, or call rewa.attach(optimizer) first"
                )
        if self.target is not None and any(hasattr(param, "to_local") for group in self._groups() for param in group["params"]):
            raise ValueError("weights that are sharded over processes cannot be cut here: leave out sparsity")

    def _groups(self) -> list[dict[str, Any]]:
        """The groups that are annealed, those added since among them; each remembers where it ends."""
        groups = []
        for group in self.optimizer.param_groups:
            prefix = _prefix(group)
            if (group[prefix + "K"], group[prefix + "M"]) != (1, 0):
                group.setdefault("annealed_to", {key: group[_key(prefix, key)] for key in MOVED})
            if "annealed_to" in group:
                groups.append(group)
        if not groups:
            raise ValueError("no group of the optimizer can be annealed: give groups with K > 1 or M > 0")
        return groups

    @property
    def sparsity(self) -> float:
        """Share of the sparse weights that is exactly zero now."""
        weights = [param.detach() for group in self._groups() for param in group["params"]]
        total: int = sum(weight.numel() for weight in weights)
        zeros: int = sum(int((weight == 0).sum()) for weight in weights)
        return zeros / max(1, total)

    def step(self, epoch: int | None = None) -> None:
        """Move on by one step.

        Args:
            epoch: Steps that the optimizer has made, if not one more than last time.
        """
        self.at(self.last_epoch + 1 if epoch is None else epoch)

    def at(self, done: int) -> None:
        """Go to any step.

        Args:
            done: Steps that the optimizer has made.
        """
        self.last_epoch = done
        share = min(1.0, done / self.steps)
        groups = self._groups()
        if not self.rematched and done and share >= self.begin:
            self._rematch(groups)
        for group in groups:
            final, prefix = group["annealed_to"], _prefix(group)
            group[prefix + "M"] = annealed(self.M_start, final["M"], share, begin=self.begin, end=self.end)
            if self.K_start is not None:
                old = group[prefix + "K"]
                K = group[prefix + "K"] = annealed(self.K_start, final["K"], share, begin=self.begin, end=self.end)
                group["weight_decay"] = final["weight_decay"] * (final["K"] / K)
                for param in group["params"]:  # what low precision keeps beside the weight stands for the same weight
                    y = self.optimizer.state.get(param, {}).get("y")
                    if y is not None and old != K:
                        y.copy_(to_y(y, K / old))
        if self.target is not None:
            self._cut(done, [param for group in groups for param in group["params"]])

    def _rematch(self, groups: list[dict[str, Any]]) -> None:
        self.rematched = True
        for group in groups:
            key = _prefix(group) + "match"
            if group.get(key) and ("betas" in group or divides(self.optimizer)):
                group[key] = root_mean_square(torch.cat([full(param.detach()).flatten() for param in group["params"]]))

    @torch.no_grad()
    def _cut(self, done: int, weights: list[Tensor]) -> None:
        """Cut where it is time to, and hold what was cut at zero."""
        assert self.target is not None
        first, last = (round(share * self.steps) for share in self.cut)
        every = max(1, self.steps // 100)
        at = last if done >= last else first + (done - first) // every * every
        zeros = 0.0 if done < first else self.target * (cubic((at - first) / (last - first)) if at < last else 1.0)
        if zeros > self.zeros:
            kept = global_masks({str(index): weight for index, weight in enumerate(weights)}, zeros)
            for weight, mask in zip(weights, kept.values(), strict=True):
                self.masks[weight] = mask & self.masks.get(weight, mask)
            self.zeros = zeros
        for weight, mask in self.masks.items():
            weight.masked_fill_(~mask, 0)

    @property
    def base_lrs(self) -> list[float | Tensor]:  # type: ignore[override]
        """The learning rates at the start, or as they are if no scheduler has noted them."""
        return [group.get("initial_lr", group["lr"]) for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float | Tensor]:
        """The learning rates as they are: others set them."""
        return self.get_last_lr()

    def get_last_lr(self) -> list[float | Tensor]:
        """The learning rates as they are: others set them."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """How far it is and what was cut; the groups of the optimizer hold the rest."""
        weights = [param for group in self._groups() for param in group["params"]]
        masks = {index: self.masks[weight] for index, weight in enumerate(weights) if weight in self.masks}
        return {"done": self.last_epoch, "zeros": self.zeros, "rematched": self.rematched, "masks": masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where another one was, once the optimizer has its state back.

        Args:
            state: From :meth:`state_dict`.
        """
        weights = [param for group in self._groups() for param in group["params"]]
        self.zeros, self.rematched = state.get("zeros", 0.0), state.get("rematched", True)
        self.masks = {weights[index]: mask.to(weights[index].device) for index, mask in state.get("masks", {}).items()}
        self.at(state["done"])


def _prefix(group: dict[str, Any]) -> str:
    """What stands before K and M in a group: rewa.attach reads them under names of their own."""
    return PREFIX if PREFIX + "K" in group else ""


def _key(prefix: str, name: str) -> str:
    return name if name == "weight_decay" else prefix + name
