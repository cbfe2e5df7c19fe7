r"""The penalty made sharper on the way: K and M grow from a start that is plain SGD to values that make weights vanish."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from rewa.reparam import check_exponents, to_y

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


class Annealing:
    r"""Moves K and M of an optimizer's sparse groups from a start to the values that they were given.

    The penalty behind ReWA is :math:`\ell_p` with :math:`p = 1 + (1 - M)/K`. At ``K = 1, M = 0`` p is 2: plain SGD with weight
    decay, where signs change freely. As K and M grow p falls, and what the loss does not hold is left behind. From ``M > 1``
    on a weight near zero is lost, so it should have found its sign by then.

    The decay of y changes with K such that a weight without gradient shrinks as fast at any time: ``K * weight_decay`` stays
    what it is in the end.

    Call :meth:`step` after each step of the optimizer, as with torch's learning-rate schedulers. It sets ``K``, ``M`` and
    ``weight_decay`` of the groups at every step; what they end at is what the groups had when the first annealing was made.

    Args:
        optimizer: A :class:`rewa.ReWASGD` or :class:`rewa.ReWAAdamW`.
        steps: Of the whole run.
        K_start: K at the beginning; None for the group's own, all the time.
        M_start: M at the beginning.
        begin: Where they begin to change, as a share of the run.
        end: Where they arrive.

    Example:
        >>> import torch, rewa
        >>> model = torch.nn.Linear(20, 1)
        >>> groups = rewa.param_groups(model, K=2, M=1, weight_decay=1e-3, match=True)
        >>> optimizer = rewa.ReWASGD(groups, lr=0.1)
        >>> annealing = Annealing(optimizer, steps=1000)
        >>> [optimizer.param_groups[0][key] for key in ("K", "M", "weight_decay")]
        [1.0, 0.0, 0.002]
        >>> for _ in range(1000):
        ...     annealing.step()
        >>> [optimizer.param_groups[0][key] for key in ("K", "M", "weight_decay")]
        [2, 1, 0.001]
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
    ) -> None:
        if steps < 1:
            raise ValueError(f"Invalid steps: {steps} (allowed: a whole number >= 1)")
        if not 0 <= begin <= end <= 1:
            raise ValueError(f"Invalid begin and end: {begin}, {end} (allowed: 0 <= begin <= end <= 1, shares of the run)")
        check_exponents(1 if K_start is None else K_start, M_start, 0.0)
        self.optimizer, self.steps, self.K_start, self.M_start = optimizer, steps, K_start, M_start
        self.begin, self.end, self.done = begin, end, 0
        for group in optimizer.param_groups:
            if missing := [key for key in MOVED if key not in group]:
                raise ValueError(
                    f"{type(optimizer).__name__} has no {', '.join(missing)} in its groups: give a ReWASGD or a ReWAAdamW"
                )
            if (group["K"], group["M"]) != (1, 0):
                group.setdefault("annealed_to", {key: group[key] for key in MOVED})
        self.at(0)

    def step(self) -> None:
        """Go on by one step."""
        self.at(self.done + 1)

    def at(self, done: int) -> None:
        """Go to any step.

        Args:
            done: Steps that the optimizer has made.
        """
        self.done = done
        share = min(1.0, done / self.steps)
        groups = [group for group in self.optimizer.param_groups if "annealed_to" in group]
        if not groups:
            raise ValueError(
                "no group of the optimizer can be annealed: give groups with K > 1 or M > 0; after loading a state saved "
                "without annealing, make the Annealing anew"
            )
        for group in groups:
            final = group["annealed_to"]
            group["M"] = annealed(self.M_start, final["M"], share, begin=self.begin, end=self.end)
            if self.K_start is not None:
                old = group["K"]
                group["K"] = annealed(self.K_start, final["K"], share, begin=self.begin, end=self.end)
                group["weight_decay"] = final["weight_decay"] * (final["K"] / group["K"])
                for param in group["params"]:  # what low precision keeps beside the weight stands for the same weight
                    y = self.optimizer.state.get(param, {}).get("y")
                    if y is not None and group["K"] != old:
                        y.copy_(to_y(y, group["K"] / old))

    def state_dict(self) -> dict[str, Any]:
        """How far it is; the groups of the optimizer hold the rest."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another one was, once the optimizer has its state back.

        Args:
            state: From :meth:`state_dict`.
        """
        self.at(state["done"])
