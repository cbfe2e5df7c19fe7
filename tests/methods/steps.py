"""Steps of a method as the training loop makes them, on problems small enough to follow by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from rewa.methods.method import Bound, Method, Plan

Loss = Callable[[nn.Module], Tensor]


def begin(method: Method, model: nn.Module, plan: Plan) -> Bound:
    """The method at work on the model, started."""
    bound = method.bind(model, plan)
    bound.start()
    return bound


def advance(bound: Bound, loss: Loss, steps: Iterable[int]) -> None:
    """These steps of the bound method's plan."""
    for step in steps:
        lr = bound.plan.learning_rates[step]
        for group in bound.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        torch.manual_seed(step)
        bound.before_forward(step)
        bound.optimizer.zero_grad()
        value, penalty = loss(bound.model), bound.penalty()
        (value if penalty is None else value + penalty).backward()
        bound.before_step(step)
        bound.optimizer.step()
        bound.after_step(step, lr)


def train(method: Method, model: nn.Module, loss: Loss, plan: Plan) -> nn.Module:
    """The whole of a plan."""
    advance(begin(method, model, plan), loss, range(plan.steps))
    return model


def brute_force(z: np.ndarray, penalty: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Minimizers of (x - z)^2 / 2 + penalty(x), which lie between 0 and z, on a grid and a finer one around its best."""

    def best(candidates: np.ndarray) -> np.ndarray:
        values = (candidates - z[:, None]) ** 2 / 2 + penalty(candidates)
        return candidates[np.arange(len(z)), values.argmin(1)]

    coarse = best(z[:, None] * np.linspace(0, 1, 4001))
    fine = coarse[:, None] + z[:, None] * np.linspace(-1, 1, 4001) / 4000
    return np.where(coarse == 0, 0, best(fine))


def line(*weights: float) -> nn.Linear:
    """One linear layer with these weights and the bias 0.25."""
    model = nn.Linear(len(weights), 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
        model.bias.fill_(0.25)
    return model


def slanted(*slopes: float) -> Loss:
    """A loss with these gradients for the weights of a linear layer, and 1 for its bias."""
    return lambda model: (torch.tensor([slopes]) * model.weight).sum() + model.bias.sum()


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))


def fitting(model: nn.Module) -> Tensor:
    """The loss of a small regression, full batch."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(40, 6, generator=generator)
    target = torch.stack([X[:, 0] - X[:, 1], X[:, 2].relu()], 1)
    return nn.functional.mse_loss(model(X), target)


def run(method: Method, plan: Plan, *, stop_at: int | None = None) -> tuple[nn.Module, Bound]:
    """The whole plan on the network; where it stops, a new process goes on with what was saved."""
    model = network()
    bound = begin(method, model, plan)
    advance(bound, fitting, range(plan.steps if stop_at is None else stop_at))
    if stop_at is not None:
        saved = copy.deepcopy((model.state_dict(), bound.optimizer.state_dict(), bound.state_dict()))
        model = network()
        torch.manual_seed(99)
        bound = method.bind(model, plan)
        model.load_state_dict(saved[0])
        bound.start().load_state_dict(saved[1])
        bound.load_state_dict(saved[2])
        advance(bound, fitting, range(stop_at, plan.steps))
    bound.finish()
    return model, bound


def plain(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model that must be free of parametrizations."""
    assert all(type(param) is nn.Parameter for param in model.parameters())
    assert not any("parametrizations" in name for name, _ in model.named_modules())
    return {name: param.detach() for name, param in model.named_parameters()}


def fit_logistic(method: Method) -> Tensor:
    """The weights of a logistic model after 60 steps on data of which the first two features decide."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(400, 20, generator=generator)
    target = (X[:, :2] @ torch.tensor([2.0, -2.0]) > 0).double()

    def loss(model: nn.Module) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], target)

    torch.manual_seed(0)
    return train(method, nn.Linear(20, 1), loss, Plan(learning_rates=(0.5,) * 60, steps_per_epoch=1)).weight.detach()[0]
