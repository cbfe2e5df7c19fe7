"""Methods that decide which weights are zero while the method that they wrap trains the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.methods.method import Bound, Plan
from rewa.methods.parametrized import Parametrized
from rewa.methods.wrapper import BoundWrapper, Wrapper
from rewa.optim.optimizer import root_mean_square

__all__ = ["BoundMasked", "Masked"]

# Where zero is absorbing, weights come back with this share of the size that the weights of their layer started with.
REGROWN_SIZE = 0.1
Masking = TypeVar("Masking", bound="Masked")


@dataclass(frozen=True, kw_only=True)
class Masked(Wrapper):
    r"""A method that holds weights at zero and wraps one that trains the others.

    With a mask :math:`m \in \{0, 1\}` for every weight, the other method steps with the gradient :math:`m\,g`, and
    :math:`x \leftarrow m\,x` follows. The momentum of a weight that is dropped or comes back is set to zero, so none builds up
    behind a mask. Masks change at certain steps only, by a rule of the step, the weights and the gradients alone.

    **Weights that come back.** In dense training they start at zero, as in the papers. Under ReWA zero is absorbing, and a
    weight of size a grows only while its gradient satisfies :math:`|g|\,u^{M-1} > \lambda` with :math:`u = a^{1/K}`. It
    therefore starts at :math:`-\mathrm{sign}(g)\,a`, so that growing is what the loss wants, with

    .. math:: a = 0.1 \cdot \text{the root mean square of the layer's weights at the start of the run}.

    All weights of a layer coming back at once then have a tenth of its first norm, which disturbs the model little. By the
    growth condition those with :math:`|g| > \lambda\,a^{(1-M)/K}` grow, and the decay takes the others back. A
    smaller a would only raise this bar (for :math:`M > 1`), and the root makes even a small a a useful u: with ``K=9`` a weight
    of a tenth of another's size has 0.77 of its u. A size that follows the present weights would feed on itself: what comes
    back adds to the norm.

    A weight that comes back takes its first step with the next gradient. The present one belongs to a model without it,
    and behind a batch norm, for a channel that had lost all its weights, that gradient can be hundreds of times too large.

    Args:
        strength: Share of the prunable weights that is zero in the end.
        on: The method that trains the others. Without a strength it gets the second of its grid, and dense training the
            recipe's weight decay.
    """

    strength_is: ClassVar[str] = "share of zeros"

    def __post_init__(self) -> None:
        for one in self.on.levels():
            if isinstance(one, (Masked, Parametrized)):
                raise ValueError(f"{self.name} cannot wrap {one.name}, which does not train the weights themselves")
        if self.on.exact:
            raise ValueError(f"{self.name} cannot wrap {self.on.label}, which cuts weights itself: use one of them")

    def check(self) -> None:
        """Refuse what is not a share of zeros."""
        if self.strength is None or not 0 <= self.strength < 1:
            raise ValueError(f"Invalid strength: {self.strength} (allowed: a share of zeros, at least 0 and below 1)")
        super().check()

    def grid(self, plan: Plan) -> tuple[float, ...]:
        """One to ten weights of a hundred are left."""
        return (0.9, 0.95, 0.98, 0.99)

    def _bound(self) -> type[Bound[Any]]:
        return BoundMasked


class BoundMasked(BoundWrapper[Masking]):
    """A masked method at work: a subclass says when masks change, and to what.

    Args:
        method: The method, settled.
        model: The plain model.
        plan: The run.
    """

    def __init__(self, method: Masking, model: nn.Module, plan: Plan) -> None:
        super().__init__(method, model, plan)
        self.masks: dict[str, Tensor] = {}  # True where a weight may be nonzero
        self.sizes: dict[str, float] = {}  # root mean squares at the start

    def start(self) -> Optimizer:
        """Start the other method, with the masks of the first step; no weight changes before that step."""
        super().start()
        self.masks = self.first_masks()
        self.sizes = {name: root_mean_square(weight) for name, weight in self.weights.items()}
        return self.optimizer

    def first_masks(self) -> dict[str, Tensor]:
        """The masks that the run starts with: by default everything is trained."""
        return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self.weights.items()}

    def masks_before_forward(self, step: int) -> dict[str, Tensor] | None:
        """New masks chosen by the weights alone, or None.

        Args:
            step: Steps done so far.
        """
        return None

    def masks_before_step(self, step: int) -> dict[str, Tensor] | None:
        """New masks for which the gradients of all weights are needed, or None.

        Args:
            step: Steps done so far.
        """
        return None

    def before_forward(self, step: int) -> None:
        """Drop weights where it is time to."""
        masks = self.masks_before_forward(step)
        if masks is not None or step == 0:
            self._put(self.masks if masks is None else masks)
        super().before_forward(step)

    def before_step(self, step: int) -> None:
        """Change masks where it is time to, then hide the gradients of masked weights from the other method."""
        before, masks = self.masks, self.masks_before_step(step)
        if masks is not None:
            self._put(masks)
        for name, weight in self.weights.items():
            if weight.grad is not None:
                weight.grad.masked_fill_(~(self.masks[name] & before[name]), 0)
        super().before_step(step)

    def after_step(self, step: int, lr: float) -> None:
        """Whatever the other method did, masked weights are zero."""
        super().after_step(step, lr)
        self._zero_masked()

    def state_dict(self) -> dict[str, Any]:
        """The masks, the sizes that the layers started with, and the state of the other method."""
        return {"masks": dict(self.masks), "sizes": dict(self.sizes), "on": super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back masks, sizes and state."""
        if state["masks"].keys() != self.masks.keys():
            different = sorted(state["masks"].keys() ^ self.masks.keys())
            raise ValueError(
                f"the state has masks for other weights than the model ({different[0]!r}): load that of this model"
            )
        self.masks = {name: mask.to(self.masks[name].device) for name, mask in state["masks"].items()}
        self.sizes = dict(state["sizes"])
        super().load_state_dict(state["on"])

    def _put(self, masks: dict[str, Tensor]) -> None:
        """Make these the masks: dropped weights become zero, others come back."""
        for name, mask in masks.items():
            returning = mask & ~self.masks[name]
            self._reset_momentum(self.weights[name], ~mask | returning)
            if self._is_absorbing(self.weights[name]):
                self._regrow(name, returning)
        self.masks = masks
        self._zero_masked()

    @torch.no_grad()
    def _regrow(self, name: str, returning: Tensor) -> None:
        weight, size = self.weights[name], REGROWN_SIZE * self.sizes[name]
        if weight.grad is not None:
            # A weight without a gradient gets a sign all the same: at zero it could not use a later one.
            weight.copy_(torch.where(returning, torch.where(weight.grad > 0, -size, size), weight))

    @torch.no_grad()
    def _zero_masked(self) -> None:
        for name, weight in self.weights.items():
            weight.masked_fill_(~self.masks[name], 0)

    def _reset_momentum(self, param: Tensor, where: Tensor) -> None:
        state = self.optimizer.state.get(param, {})
        for key in ("momentum_buffer", "exp_avg"):
            if isinstance(state.get(key), Tensor):
                state[key].masked_fill_(where, 0)

    def _is_absorbing(self, param: Tensor) -> bool:
        """Whether a weight at exactly zero would stay there: ReWA's groups say how they scale gradients."""
        group = next(g for g in self.optimizer.param_groups if any(one is param for one in g["params"]))
        return bool(group.get("M", 0) > 0 or ("K" in group and group["K"] > 1 and group["eps"] > 0))
