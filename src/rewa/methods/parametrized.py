"""Methods that train other tensors in the place of each weight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from rewa.methods.method import Method, Plan
from rewa.modes import keeping_modes
from rewa.sparsity import prunable
from rewa.weights import check_unshared

__all__ = ["Parametrized", "decays"]


@dataclass(kw_only=True)
class Parametrized(Method):
    """A method that registers one of torch's parametrizations on every prunable weight, and removes them all in the end.

    The tensors that stand in the place of the weights are decayed by :meth:`weight_decay`; what a form learns beside them,
    such as a threshold, gets the group settings of :meth:`form_settings`; everything else is trained without decay.
    """

    places: dict[str, tuple[nn.Module, str]] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def form(self, weight: Tensor) -> nn.Module:
        """The parametrization of one weight; its ``right_inverse`` makes the tensors to train.

        Args:
            weight: The weight as the model starts with it.
        """

    def form_settings(self) -> dict[str, Any]:
        """The optimizer's settings for the parameters of the forms themselves."""
        return {"weight_decay": 0.0}

    def prepare(self, model: nn.Module) -> None:
        """Put the parametrizations in place."""
        weights = prunable(model)
        check_unshared(model, weights, "give each layer its own, or use a method that trains the weights themselves")
        for name, weight in weights.items():
            owner, _, own_name = name.rpartition(".")
            module = model.get_submodule(owner)
            parametrize.register_parametrization(module, own_name, self.form(weight.detach()))
            self.places[name] = module, own_name

    def start(self, model: nn.Module, plan: Plan) -> Optimizer:
        """Take hold of the tensors that are trained in the weights' place, as ``weights``."""
        self.plan = plan
        chosen = {id(param) for chain in self._chains() for param in chain.parameters(recurse=False)}
        self.weights = {name: param for name, param in model.named_parameters() if id(param) in chosen}
        return self.optimizer(model)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The recipe's, with a group for the weights' tensors, one for what the forms learn, and one for the rest."""
        originals = {id(weight) for weight in self.weights.values()}
        learned = {id(param) for form in self.forms() for param in form.parameters()}
        named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [pair for pair in named if id(pair[1]) in originals], "weight_decay": self.weight_decay()},
            {"params": [pair for pair in named if id(pair[1]) in learned], **self.form_settings()},
            {"params": [pair for pair in named if id(pair[1]) not in originals | learned], "weight_decay": 0.0},
        ]
        return self.plan.base_optimizer([group for group in groups if group["params"]])

    def forms(self) -> list[nn.Module]:
        """The parametrizations in place, one for each weight."""
        return [form for chain in self._chains() for form in chain.children()]

    def current(self) -> dict[str, Tensor]:
        """The weights that the forms give now, as in evaluation."""
        result = {}
        for chain, (name, (module, own_name)) in zip(self._chains(), self.places.items(), strict=True):
            with keeping_modes(chain), torch.no_grad():
                chain.eval()
                result[name] = getattr(module, own_name).detach()
        return result

    def finish(self, model: nn.Module) -> None:
        """Each weight becomes a plain parameter with the value that its form gives in evaluation."""
        # torch asks the value whether it needs a gradient, to decide whether a parameter is to be left.
        with torch.enable_grad():
            for chain, (module, own_name) in zip(list(self._chains()), self.places.values(), strict=True):
                chain.eval()
                parametrize.remove_parametrizations(module, own_name)

    def _chains(self) -> Iterator[nn.Module]:
        for module, own_name in self.places.values():
            yield module.get_submodule(f"parametrizations.{own_name}")


def decays(plan: Plan, budgets: Mapping[str, tuple[float, ...]], factors: float = 1.0) -> tuple[float, ...]:
    r"""Decays for which, without gradients, a product of decayed tensors ends at :math:`e^{-\text{budget}}` of its start.

    .. math:: \lambda = \frac{\text{budget}}{\text{factors} \cdot \sum_t \eta_t / (1 - \mu)}

    with the momentum :math:`\mu` of SGD, whose decay is a part of the gradient; AdamW's is not, and the denominator is 1.

    On SGD large budgets are fine: the loss holds what it needs by its gradient, however large. AdamW's step is
    about the learning rate whatever the gradient, so that no trained tensor can stay above :math:`1/\lambda`: there the
    budgets are smaller, and given apart.

    Args:
        plan: The run.
        budgets: Weakest first, for ``"sgd"`` and for ``"adamw"``.
        factors: How many tensors make the product, or which power of one it is.

    Example:
        >>> plan = Plan(learning_rates=(0.125,) * 80, steps_per_epoch=10, momentum=0.5)
        >>> [round(decay, 6) for decay in decays(plan, {"sgd": (1.0, 4.0), "adamw": (0.2, 0.4)}, factors=2)]
        [0.025, 0.1]
    """
    return tuple(budget / (factors * plan.rate_sum * plan.coupled) for budget in budgets[plan.optimizer])
