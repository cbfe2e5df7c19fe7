"""Methods that train other tensors in the place of each weight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from rewa.methods.method import Bound, Method, Plan
from rewa.sparsity import keeping_modes, prunable

__all__ = ["BoundParametrized", "Parametrized", "decays"]

Forming = TypeVar("Forming", bound="Parametrized")


@dataclass(frozen=True, kw_only=True)
class Parametrized(Method):
    """A method that registers one of torch's parametrizations on every prunable weight, and removes them all in the end.

    The tensors that stand in the place of the weights are decayed by :meth:`weight_decay`; what a form learns beside them,
    such as a threshold, gets the group settings of :meth:`form_settings`; everything else is trained without decay.
    """

    @abstractmethod
    def form(self, weight: Tensor) -> nn.Module:
        """The parametrization of one weight; its ``right_inverse`` makes the tensors to train.

        Args:
            weight: The weight as the model starts with it.
        """

    def form_settings(self, plan: Plan) -> dict[str, Any]:
        """The optimizer's settings for the parameters of the forms themselves.

        Args:
            plan: The run, as :meth:`planned` returned it.
        """
        return {"weight_decay": 0.0}

    def _bound(self) -> type[Bound[Any]]:
        return BoundParametrized


class BoundParametrized(Bound[Forming]):
    """A parametrized method at work: the forms are in place from the start and go with :meth:`finish`.

    Args:
        method: The method, settled.
        model: The plain model, which gets the parametrizations.
        plan: The run.
    """

    def __init__(self, method: Forming, model: nn.Module, plan: Plan) -> None:
        super().__init__(method, model, plan)
        self.places: dict[str, tuple[nn.Module, str]] = {}  # each weight's module, and its name there
        weights = prunable(model)
        _check_unshared(model, weights)
        for name, weight in weights.items():
            owner, _, own_name = name.rpartition(".")
            module = model.get_submodule(owner)
            parametrize.register_parametrization(module, own_name, method.form(weight.detach()))
            self.places[name] = module, own_name

    def _find_weights(self) -> dict[str, Tensor]:
        """The tensors that are trained in the weights' place."""
        chosen = {id(param) for chain in self._chains() for param in chain.parameters(recurse=False)}
        return {name: param for name, param in self.model.named_parameters() if id(param) in chosen}

    def _make_optimizer(self) -> Optimizer:
        """The recipe's, with a group for the weights' tensors, one for what the forms learn, and one for the rest."""
        originals = {id(weight) for weight in self.weights.values()}
        learned = {id(param) for form in self.forms() for param in form.parameters()}
        named = [(name, param) for name, param in self.model.named_parameters() if param.requires_grad]
        decay = self.method.weight_decay(self.plan)
        groups: list[dict[str, Any]] = [
            {"params": [pair for pair in named if id(pair[1]) in originals], "weight_decay": decay},
            {"params": [pair for pair in named if id(pair[1]) in learned], **self.method.form_settings(self.plan)},
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

    def finish(self) -> None:
        """Make each weight a plain parameter with the value that its form gives in evaluation."""
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


def _check_unshared(model: nn.Module, weights: dict[str, Tensor]) -> None:
    first = {id(weight): name for name, weight in weights.items()}
    for name, param in model.named_parameters(remove_duplicate=False):
        if first.get(id(param), name) != name:
            raise ValueError(
                f"{name!r} and {first[id(param)]!r} are one shared weight, which a parametrization cannot keep shared: "
                "give each layer its own, or use a method that trains the weights themselves"
            )
