"""ReWA as a method: on the recipe's SGD, on AdamW, annealed, and as the signed pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.forms import Pair, matched_groups
from rewa.methods.method import Bound, Method, Plan
from rewa.methods.parametrized import BoundParametrized, Parametrized
from rewa.optim.adamw import ReWAAdamW
from rewa.optim.annealing import Annealing
from rewa.optim.groups import param_groups
from rewa.optim.optimizer import root_mean_square
from rewa.optim.sgd import ReWASGD
from rewa.weights import remembered_rules

__all__ = ["AnnealedReWA", "MatchedPair", "ReWA", "ReWAAdam", "ReWAPair"]

# What the decay alone does to a weight over the run: it ends at exp(-budget) of its start.
BUDGETS = {"sgd": (3.0, 6.0, 12.0, 24.0), "adamw": (0.8, 1.6, 2.8, 4.0)}
ADAM_LR = 3e-3  # the learning rate up to which those for AdamW hold
Variant = TypeVar("Variant", bound="ReWA")


def _decays(plan: Plan, K: float, budgets: Mapping[str, tuple[float, ...]] = BUDGETS) -> tuple[float, ...]:
    # Adam moves y by about the learning rate a step, so that a faster run holds its weights against more decay.
    faster = max(1.0, max(plan.learning_rates) / ADAM_LR) if plan.optimizer == "adamw" else 1.0
    return tuple(faster * decay for decay in plan.decays(budgets[plan.optimizer], K))


@dataclass(frozen=True, kw_only=True)
class ReWA(Method):
    r"""The paper's method on the recipe's optimizer: Algorithm 1 on SGD, Algorithm 2 on AdamW.

    With :math:`x = \mathrm{sign}(y)|y|^K` and the scale :math:`s = |y|^M\,|y|^{K-1}/(|y|^{K-1}+\varepsilon)`, for plain SGD

    .. math:: y \leftarrow y - \eta\,(s\,g + \lambda y).

    Args:
        strength: Weight decay :math:`\lambda` of y.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.

    References:
        ReWA, ICML 2026, Algorithms 1 and 2.
    """

    name: ClassVar[str] = "rewa"
    line: ClassVar[str] = "train y with x = sign(y)|y|^K, weight decay on y, adaptive rates"
    paper: ClassVar[str] = "ReWA, ICML 2026"
    strength_is: ClassVar[str] = "weight decay of y"
    shards: ClassVar[bool] = True
    matched: ClassVar[bool] = False  # whether the step is SGD's for a weight of the usual size

    K: float = 9
    M: float = 2
    eps: float = 0.0

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """Decays for which a weight without gradient ends at exp(-3) to exp(-24) of its start; on AdamW exp(-0.8) to exp(-4).

        AdamW's range is for learning rates up to 3e-3, and grows in proportion to larger ones.
        """
        return _decays(plan, self.K)

    def _bound(self) -> type[Bound[Any]]:
        return BoundReWA


class BoundReWA(Bound[Variant]):
    """ReWA at work."""

    def _make_optimizer(self) -> Optimizer:
        """ReWASGD or ReWAAdamW, with the fused kernel on a CPU."""
        method = self.method
        match = method.matched and self.plan.optimizer == "sgd"
        settings = {"K": method.K, "M": method.M, "eps": method.eps, "weight_decay": method.chosen}
        groups = param_groups(self.model, **settings, match=match, rules=remembered_rules(self.model))
        fused = all(weight.device.type == "cpu" for weight in self.weights.values()) or None
        lr = self.plan.learning_rates[0]
        if self.plan.optimizer == "adamw":
            return ReWAAdamW(groups, lr, betas=self.plan.betas, fused=fused)
        return ReWASGD(groups, lr, momentum=self.plan.momentum, nesterov=self.plan.nesterov, fused=fused)


@dataclass(frozen=True, kw_only=True)
class ReWAAdam(ReWA):
    r"""Algorithm 2 whatever the recipe's optimizer: :math:`s\,g` is the gradient that AdamW gets for y.

    Adam cancels a constant scale, so M acts through its change over time only.

    Args:
        strength: Weight decay :math:`\lambda` of y, decoupled.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        adam_lr: Largest learning rate where the recipe's is for SGD; a recipe for AdamW keeps its own. It is the step of y,
            whose size is about 0.7 at the start for ``K=9``: at a rate that suits plain weights, y would hardly move in
            a run of a few hundred steps.

    References:
        ReWA, ICML 2026, Algorithm 2.
    """

    name: ClassVar[str] = "rewa-adamw"
    line: ClassVar[str] = "ReWA on AdamW (Algorithm 2)"

    adam_lr: float = 2e-2

    def planned(self, plan: Plan) -> Plan:
        """The same schedule, on AdamW."""
        if plan.optimizer == "adamw":
            return plan
        scale = self.adam_lr / max(plan.learning_rates)
        return replace(plan, optimizer="adamw", learning_rates=tuple(scale * lr for lr in plan.learning_rates))


@dataclass(frozen=True, kw_only=True)
class AnnealedReWA(ReWA):
    r"""ReWA that starts as plain SGD: K and M grow, so that p falls, and the step is matched to SGD's.

    The penalty is :math:`\ell_p` with :math:`p = 1 + (1-M)/K`: 2 at the start, where signs change freely and the network
    learns, and by default 1 in the end, when what the loss does not hold is left behind. The gradient of each tensor is
    divided by the step that a weight of its first root mean square would make (:func:`rewa.reparam.step_size`), so that
    the recipe's learning rate for SGD suits ReWA too. See :class:`rewa.Annealing`.

    Args:
        strength: Weight decay :math:`\lambda` of y, in the end.
        K: Order of the reparameterization in the end.
        M: Adaptivity exponent in the end.
        eps: Stabilizer.
        K_start: Order at the start; None for K all the time.
        M_start: Adaptivity exponent at the start.
        begin: Where they begin to grow, as a share of the run.
        end: Where they arrive.

    References:
        Algorithms 1 and 2 of ReWA, ICML 2026; the annealing and the matched step are this project's.
    """

    name: ClassVar[str] = "rewa-annealed"
    line: ClassVar[str] = "ReWA that starts as plain SGD: K and M grow, with SGD's step for a weight of the usual size"
    paper: ClassVar[str] = "this project, on ReWA, ICML 2026"

    matched: ClassVar[bool] = True

    K: float = 2
    M: float = 1
    K_start: float | None = 1.0
    M_start: float = 0.0
    begin: float = 0.1
    end: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= 1:
            raise ValueError(f"Invalid begin and end: {self.begin}, {self.end} (allowed: 0 <= begin <= end <= 1)")

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """As for ReWA, on SGD with two thirds of the budgets: a matched step finds what can go with less decay."""
        return _decays(plan, self.K, {**BUDGETS, "sgd": (2.0, 4.0, 8.0, 16.0)})

    def _bound(self) -> type[Bound[Any]]:
        return BoundAnnealedReWA


class BoundAnnealedReWA(BoundReWA[AnnealedReWA]):
    """Annealed ReWA at work, with matched steps on SGD; Adam's size of a step is its own."""

    def start(self) -> Optimizer:
        """Take hold of the weights, make the optimizer, and lay out how K and M grow."""
        made, method = super().start(), self.method
        self.annealing = Annealing(
            made, self.plan.steps, K_start=method.K_start, M_start=method.M_start, begin=method.begin, end=method.end
        )
        return made

    def before_forward(self, step: int) -> None:
        """Move K and M to their values at this step."""
        self.annealing.at(step)


@dataclass(frozen=True, kw_only=True)
class ReWAPair(Parametrized):
    r"""ReWA on the signed pair :math:`x = |u|^K - |v|^K`: a weight can change its sign without crossing zero.

    Both parts take ReWA's step, u with the gradient g and v with -g.

    Args:
        strength: Weight decay :math:`\lambda` of u and v.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        start_value: What both parts start with beside the weight itself.

    References:
        ReWA, ICML 2026, the remark on K = 2, here for any K.
    """

    name: ClassVar[str] = "rewa-pair"
    line: ClassVar[str] = "ReWA on x = |u|^K - |v|^K: signs may change"
    paper: ClassVar[str] = "ReWA, ICML 2026"
    strength_is: ClassVar[str] = "weight decay of u and v"

    K: float = 9
    M: float = 2
    eps: float = 0.0
    start_value: float = 0.005

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """As for ReWA."""
        return _decays(plan, self.K)

    def form(self, weight: Tensor) -> nn.Module:
        """The pair."""
        return Pair(K=self.K, M=self.M, eps=self.eps, start=self.start_value)

    def weight_decay(self, plan: Plan) -> float:
        """The strength."""
        return self.chosen


@dataclass(frozen=True, kw_only=True)
class MatchedPair(ReWAPair):
    r"""The signed pair with SGD's step: it starts as plain SGD and becomes ReWA as decay shrinks what both parts share.

    With ``K = 2, M = 1`` it is gradient descent on u and v with :math:`x = u^2 - v^2`, and the penalty is
    :math:`\lambda\|x\|_1`. Both parts share the root mean square of their tensor at first, so that a weight moves as under
    SGD and may change its sign; decay takes that away, and what is small moves less and less (:class:`rewa.forms.Pair`). The
    learning rate of each tensor is divided by the step that a weight of its root mean square would make, so that the
    recipe's rate for SGD suits, and the penalty is the same for every layer (:func:`rewa.matched_groups`).

    Args:
        strength: Weight decay :math:`\lambda` of u and v; for ``K = 2, M = 1`` the slope of the penalty.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        start_value: What both parts start with beside the weight itself, as a multiple of the tensor's root mean square.

    References:
        ReWA, ICML 2026, the remark on K = 2; the start and the matched step are this project's.
    """

    name: ClassVar[str] = "rewa-pair-matched"
    line: ClassVar[str] = "ReWA on x = u^2 - v^2 that starts as plain SGD: what decay leaves small moves less and less"
    paper: ClassVar[str] = "this project, on ReWA, ICML 2026"

    K: float = 2
    M: float = 1
    start_value: float = 1.0

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """On SGD, slopes that would move a weight without gradient by 0.1 to 3 over the run, if it moved as under SGD."""
        if plan.optimizer == "adamw":
            return super().grid(plan)
        return tuple(distance / (plan.rate_sum * plan.coupled) for distance in (0.1, 0.3, 1.0, 3.0))

    def form(self, weight: Tensor) -> nn.Module:
        """The pair, in units of the weight."""
        return Pair(K=self.K, M=self.M, eps=self.eps, start=self.start_value * root_mean_square(weight))

    def _bound(self) -> type[Bound[Any]]:
        return BoundMatchedPair


class BoundMatchedPair(BoundParametrized[MatchedPair]):
    """The matched pair at work."""

    def _make_optimizer(self) -> Optimizer:
        """The recipe's, on SGD with rates that are matched; Adam's size of a step is its own."""
        if self.plan.optimizer == "adamw":
            return super()._make_optimizer()
        groups = matched_groups(self.model, lr=1.0, weight_decay=self.method.chosen)
        for group in groups:
            group["lr_scale"] = group.pop("lr")  # the loop sets the rate at each step
        return self.plan.base_optimizer(groups)
