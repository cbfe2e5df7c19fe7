r"""The :math:`\ell_1` penalty, by its proximal map and by its subgradient, and what all penalties share with it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rewa.methods.method import Bound, Method, Plan
from rewa.weights import local

__all__ = ["L1", "L1Subgradient", "Penalized", "Proximal", "Subgradient"]


@dataclass(frozen=True, kw_only=True)
class Penalized(Method):
    r"""A method that minimizes :math:`f(x) + \sum_j \psi(x_j)`: it shrinks by the penalty, so without weight decay."""

    shards: ClassVar[bool] = True

    def weight_decay(self, plan: Plan) -> float:
        """Zero."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Proximal(Penalized):
    r"""A penalty by its proximal map, after each step of the optimizer.

    .. math:: x \leftarrow \operatorname{prox}_{\eta\psi}(x), \qquad
        \operatorname{prox}_{\eta\psi}(z) = \arg\min_x \tfrac12 (x - z)^2 + \eta\,\psi(x)

    What the optimizer did to the gradient, the map does not see. On SGD with momentum :math:`\mu` a gradient acts
    :math:`1/(1-\mu)` times and the map once, so the run rests where :math:`f + (1-\mu)\sum_j\psi(x_j)` does. On AdamW it
    rests where Adam's normalized gradient, a number between -1 and 1, balances :math:`\psi'`.
    """

    # Weight units: how far the penalty moves a weight without gradient over the run. Adam's step is at most its rate.
    budgets: ClassVar[dict[str, tuple[float, ...]]] = {"sgd": (0.2, 0.8, 3.0, 10.0), "adamw": (0.05, 0.1, 0.2, 0.4)}

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Slopes at zero that move a weight without gradient by the same distances in short and long runs."""
        return tuple(budget / plan.rate_sum for budget in self.budgets[plan.optimizer])

    @abstractmethod
    def prox(self, z: Tensor, lr: float) -> Tensor:
        """The proximal map.

        Args:
            z: Weights as the optimizer left them.
            lr: Learning rate.
        """

    def _bound(self) -> type[Bound[Any]]:
        return BoundProximal


class BoundProximal(Bound[Proximal]):
    """A penalty at work by its proximal map."""

    @torch.no_grad()
    def after_step(self, step: int, lr: float) -> None:
        """Apply the map to every weight."""
        for weight in self.weights.values():
            x = local(weight.detach())
            x.copy_(self.method.prox(x, lr))


@dataclass(frozen=True, kw_only=True)
class Subgradient(Penalized):
    r"""A penalty by its subgradient, added to the gradient that the optimizer gets: :math:`g \leftarrow g + \psi'(x)`.

    It is added after the backward pass, so no loss scale or low precision of the forward pass touches it. A weight never
    rests at zero: it keeps swinging around it by the size of a step.

    Note:
        AdamW divides the sum by its root mean square. A weight without other gradient then moves by about the learning rate
        a step whatever the strength; the strength decides only which gradients are too small to resist. So for AdamW
        the strengths to sweep are sizes of gradients, and do not depend on the length of the run.
    """

    @abstractmethod
    def slope(self, x: Tensor) -> Tensor:
        r"""The subgradient :math:`\psi'(x)`.

        Args:
            x: Weights.
        """

    def _bound(self) -> type[Bound[Any]]:
        return BoundSubgradient


class BoundSubgradient(Bound[Subgradient]):
    """A penalty at work by its subgradient."""

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Add the subgradient; a weight that got no gradient has the penalty's alone."""
        for weight in self.weights.values():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            local(weight.grad).add_(self.method.slope(local(weight.detach())))


@dataclass(frozen=True, kw_only=True)
class L1(Proximal):
    r"""The penalty :math:`\lambda\|x\|_1` by its proximal map, the soft threshold, after each step of the optimizer.

    .. math:: x \leftarrow \mathrm{sign}(x)\,\max(|x| - \eta\lambda,\ 0)

    The weights at zero are exactly zero. With momentum :math:`\mu` the penalty that is minimized is
    :math:`(1-\mu)\lambda\|x\|_1`: a gradient acts :math:`1/(1-\mu)` times, the threshold once. On AdamW a weight stays at zero
    where Adam's normalized gradient is at most :math:`\lambda`; from :math:`\lambda = 1` nothing resists.

    Args:
        strength: Slope :math:`\lambda`; a weight without gradient moves by :math:`\lambda\sum\eta` over the run.

    References:
        Tibshirani, "Regression shrinkage and selection via the lasso", JRSS B 1996; Parikh and Boyd, "Proximal algorithms",
        Foundations and Trends in Optimization 2014.
    """

    name: ClassVar[str] = "l1"
    line: ClassVar[str] = "soft threshold after each step"
    paper: ClassVar[str] = "Tibshirani, JRSS B 1996"
    strength_is: ClassVar[str] = "slope of the penalty"

    def prox(self, z: Tensor, lr: float) -> Tensor:
        """The soft threshold."""
        return F.softshrink(z, lr * self.chosen)


@dataclass(frozen=True, kw_only=True)
class L1Subgradient(Subgradient):
    r"""The penalty :math:`\lambda\|x\|_1` by its subgradient, as SGD on the penalized loss has it.

    .. math:: g \leftarrow g + \lambda\,\mathrm{sign}(x)

    No weight becomes exactly zero; a threshold at the end has to cut what swings around it.

    Args:
        strength: Slope :math:`\lambda`, in units of the gradient.

    References:
        The baseline SGD-l1 of ReWA, ICML 2026.
    """

    name: ClassVar[str] = "l1-subgradient"
    line: ClassVar[str] = "l1 penalty in the gradient, cut at the end"
    paper: ClassVar[str] = "Tibshirani, JRSS B 1996"
    strength_is: ClassVar[str] = "slope of the penalty"

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """As for the proximal form, which momentum does not repeat; for AdamW, sizes of gradients."""
        if plan.optimizer == "adamw":
            return (3e-3, 1e-2, 3e-2, 1e-1)
        return tuple(budget / (plan.rate_sum * plan.coupled) for budget in L1.budgets[plan.optimizer])

    def slope(self, x: Tensor) -> Tensor:
        """The sign, zero at zero."""
        return self.chosen * x.sign()
