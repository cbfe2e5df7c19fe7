"""Methods that train other tensors in the place of each weight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from rewa.methods.method import Bound, Method, Plan
from rewa.modes import keeping_modes
from rewa.sparsity import prunable
from rewa.weights import check_unshared

__all__ = ["BoundParametrized", "Parametrized"]

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
        check_unshared(model, weights, "give each layer its own, or use a method that trains the weights themselves")
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
