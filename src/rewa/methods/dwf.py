"""Deep weight factorization: each weight is a product of K, with weight decay on all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rewa.forms import Factors
from rewa.methods.method import Bound, Plan
from rewa.methods.parametrized import BoundParametrized, Parametrized

__all__ = ["DWF"]


@dataclass(frozen=True, kw_only=True)
class DWF(Parametrized):
    r"""The weight is :math:`x = \omega_1 \cdots \omega_K`, elementwise, with weight decay :math:`\lambda` on each factor.

    For plain SGD, with g the gradient of x,

    .. math:: \omega_k \leftarrow \omega_k - \eta\,\Bigl(g \prod_{j \ne k} \omega_j + \lambda\,\omega_k\Bigr).

    At a minimizer the factors have equal magnitudes, where :math:`\frac{\lambda}{2}\sum_k \omega_k^2 = \frac{\lambda K}{2}
    |x|^{2/K}`: an :math:`\ell_{2/K}` penalty. ``K=2`` has the penalty of :class:`~rewa.methods.spred.Spred`.

    Args:
        strength: Weight decay :math:`\lambda` of the factors.
        K: Number of factors.
        init: ``"dwf"`` is the paper's: with :math:`\sigma_w` the standard deviation of a layer's weights every factor is drawn
            from :math:`N(0, \sigma_w^{2/K})`, so that the product would have the variance :math:`\sigma_w^2`, restricted to
            :math:`\varepsilon^{1/K} < |\omega| < \min(1, (2\sigma_w)^{1/K})`. ``"equal"`` starts with K factors of magnitude
            :math:`|x|^{1/K}`, which give the model's own initial weights; but equal magnitudes stay equal, so that no
            weight can change its sign.
        smallest: The :math:`\varepsilon` of ``init="dwf"``: no initial product has a smaller magnitude.

    Note:
        The paper matches the variance before it restricts the interval, and so does ``"dwf"``: the product's standard
        deviation is therefore somewhat below :math:`\sigma_w`. It draws new weights, in the place of the model's own.

    References:
        Kolb et al., "Deep weight factorization: Sparse learning through the lens of artificial symmetries", ICLR 2025,
        Algorithm D.1 for the initialization.
    """

    name: ClassVar[str] = "dwf"
    line: ClassVar[str] = "x = a product of K factors, with weight decay on each"
    paper: ClassVar[str] = "Kolb et al., ICLR 2025"
    strength_is: ClassVar[str] = "weight decay of the factors"

    K: int = 3
    init: str = "dwf"
    smallest: float = 3e-3

    budgets: ClassVar[dict[str, tuple[float, ...]]] = {"sgd": (3.0, 5.0, 8.0, 12.0), "adamw": (0.4, 0.8, 1.4, 2.2)}

    def __post_init__(self) -> None:
        if self.init not in ("equal", "dwf"):
            raise ValueError(f"Invalid init: {self.init!r} (allowed: 'equal', 'dwf')")
        if not 0 <= self.smallest < math.inf:
            raise ValueError(f"Invalid smallest: {self.smallest} (allowed: a finite number >= 0)")

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """A weight x that gets no gradient ends at exp(-b) of its start, for the budgets b."""
        return plan.decays(self.budgets[plan.optimizer], self.K)

    def form(self, weight: Tensor) -> nn.Module:
        """The factors."""
        return Factors(K=self.K)

    def weight_decay(self, plan: Plan) -> float:
        """The strength."""
        return self.chosen

    def _bound(self) -> type[Bound[Any]]:
        return BoundDWF


class BoundDWF(BoundParametrized[DWF]):
    """The factors at work; they are drawn at once if that is the start.

    Args:
        method: The settings.
        model: The plain model.
        plan: The run.
    """

    def __init__(self, method: DWF, model: nn.Module, plan: Plan) -> None:
        super().__init__(method, model, plan)
        if method.init == "dwf":
            self._draw(method.smallest, method.K)

    @torch.no_grad()
    def _draw(self, smallest: float, K: int) -> None:
        for name, weight in self.current().items():
            std = float(weight.std())
            low, high = smallest ** (1 / K), min(1.0, (2 * std) ** (1 / K))
            if not low < high:
                raise ValueError(
                    f"smallest={smallest} leaves no initial value for {name!r}, whose standard deviation is {std:.2g}: "
                    "it must be below twice that, and below 1"
                )
            module, own_name = self.places[name]
            for factor in module.get_submodule(f"parametrizations.{own_name}").parameters(recurse=False):
                factor.copy_(_restricted_normal(factor, std ** (1 / K), low, high))


def _restricted_normal(like: Tensor, std: float, low: float, high: float) -> Tensor:
    """Draws of N(0, std^2) given low < |draw| < high, by the inverse of the distribution function."""
    # Of |draw|, P(|draw| < t) = erf(t / (std sqrt 2)).
    ends = [math.erf(end / (std * math.sqrt(2))) for end in (low, high)]
    share = torch.rand(like.shape, dtype=torch.float64) * (ends[1] - ends[0]) + ends[0]
    magnitude = (torch.erfinv(share) * std * math.sqrt(2)).clamp(low, high)
    sign = torch.where(torch.rand(like.shape) < 0.5, -1.0, 1.0)
    return (magnitude * sign).to(like)
