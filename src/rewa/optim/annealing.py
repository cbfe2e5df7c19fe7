r"""The penalty made sharper on the way: M grows from a start where the penalty is convex to a value where it is not."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

__all__ = ["Annealing", "annealed"]


def annealed(M: float, share: float, *, start: float = 0.0, begin: float = 0.1, end: float = 0.7) -> float:
    """The adaptivity exponent at one time of a run: ``start`` up to ``begin``, M from ``end`` on, a straight line between.

    Args:
        M: The exponent in the end.
        share: Time, as a share of the run.
        start: The exponent at the beginning.
        begin: Where it begins to change, as a share of the run.
        end: Where it arrives.

    Example:
        >>> [round(annealed(1.5, share), 3) for share in (0.0, 0.1, 0.4, 0.7, 1.0)]
        [0.0, 0.0, 0.75, 1.5, 1.5]
    """
    if share <= begin:
        return start
    return M if share >= end else start + (M - start) * (share - begin) / (end - begin)


class Annealing:
    r"""Moves M of an optimizer's sparse groups from ``start`` to the value that they were given.

    The penalty behind ReWA is :math:`\ell_p` with :math:`p = 1 + (1 - M)/K`. With ``M = 0`` p is above 1: steps do not vanish
    at zero, signs change freely and the network learns as with plain SGD. As M grows p falls below 1, and what the loss does
    not hold is left behind. From ``M > 1`` on a weight near zero is lost, so it should have found its sign by then.

    Call :meth:`step` after each step of the optimizer, as with torch's learning-rate schedulers.

    Args:
        optimizer: A :class:`rewa.ReWASGD` or :class:`rewa.ReWAAdamW`.
        steps: Of the whole run.
        start: M at the beginning.
        begin: Where M begins to change, as a share of the run.
        end: Where it arrives.

    Example:
        >>> import torch, rewa
        >>> model = torch.nn.Linear(20, 1)
        >>> optimizer = rewa.ReWASGD(model.parameters(), lr=0.1, K=2, M=1.5)
        >>> annealing = Annealing(optimizer, steps=1000)
        >>> optimizer.param_groups[0]["M"]
        0.0
        >>> for _ in range(1000):
        ...     annealing.step()
        >>> optimizer.param_groups[0]["M"]
        1.5
    """

    def __init__(self, optimizer: Optimizer, steps: int, *, start: float = 0.0, begin: float = 0.1, end: float = 0.7) -> None:
        if steps < 1:
            raise ValueError(f"Invalid steps: {steps} (allowed: a whole number >= 1)")
        if not 0 <= begin <= end <= 1:
            raise ValueError(f"Invalid begin and end: {begin}, {end} (allowed: 0 <= begin <= end <= 1, shares of the run)")
        if not 0 <= start < float("inf"):
            raise ValueError(f"Invalid start: {start} (allowed: a finite number >= 0)")
        self.optimizer, self.steps, self.start, self.begin, self.end = optimizer, steps, start, begin, end
        self.done = 0
        for group in self._groups():
            group.setdefault("final_M", group["M"])
        self._set()

    def step(self) -> None:
        """Go on by one step."""
        self.done += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """How far it is; the groups of the optimizer hold the rest."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another one was, once the optimizer has its state back.

        Args:
            state: From :meth:`state_dict`.
        """
        self.done = state["done"]
        self._set()

    def _groups(self) -> list[dict[str, Any]]:
        return [group for group in self.optimizer.param_groups if group.get("K", 1) > 1]

    def _set(self) -> None:
        share = min(1.0, self.done / self.steps)
        for group in self._groups():
            group["M"] = annealed(group["final_M"], share, start=self.start, begin=self.begin, end=self.end)
