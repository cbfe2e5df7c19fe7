"""Toy problems and the table of implementations that the common tests run through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import rewa

IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def random_problem(steps: int, shape: tuple[int, ...] = (7, 5), seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    """Initial weights of a network's size, and one gradient for each step, in float64."""
    rng = np.random.default_rng(seed)
    return 0.3 * rng.standard_normal(shape), [rng.standard_normal(shape) for _ in range(steps)]


def run(make: Callable[[list[Tensor]], torch.optim.Optimizer], x: np.ndarray, grads: list[np.ndarray]) -> np.ndarray:
    """The weights after stepping the optimizer that ``make`` builds through the gradients."""
    param = nn.Parameter(torch.tensor(x))
    optimizer = make([param])
    for grad in grads:
        param.grad = torch.tensor(grad)
        optimizer.step()
    return param.detach().numpy()


def log_shrinkage(
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    orders: tuple[float, ...],
    x: np.ndarray,
    grads: list[np.ndarray],
    *,
    steps: int,
    dtype: torch.dtype = torch.float32,
) -> list[np.ndarray]:
    """Logarithm of how much each weight has shrunk after the steps, one group and one constant gradient for each order K."""
    params = [nn.Parameter(torch.tensor(x, dtype=dtype)) for _ in orders]
    starts = [param.detach().double() for param in params]
    optimizer = make([{"params": [param], "K": K} for param, K in zip(params, orders, strict=True)])
    for param, grad in zip(params, grads, strict=True):
        param.grad = torch.tensor(grad, dtype=dtype)
    for _ in range(steps):
        optimizer.step()
    results = []
    for param, start, K in zip(params, starts, orders, strict=True):
        y = optimizer.state.get(param, {}).get("y")  # holds what low precision cannot
        end = param.detach().double() if y is None else y.double().sign() * y.double().abs() ** K
        results.append((end / start).log().numpy())
    return results


def race(*makes: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype) -> list[Tensor]:
    """The weights after twenty steps of each optimizer from one start, with the same gradients for all."""
    params = [nn.Parameter(torch.linspace(-1, 1, 30, dtype=dtype)) for _ in makes]
    optimizers = [make([param]) for make, param in zip(makes, params, strict=True)]
    for _ in range(20):
        grad = torch.randn(30, dtype=dtype)
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = grad.clone()
            optimizer.step()
    return [param.detach() for param in params]


class Weight(nn.Module):
    """A module that is its weight."""

    def __init__(self, x: np.ndarray) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(x))


def run_parametrized(
    make: Callable[[Any], torch.optim.Optimizer], x: np.ndarray, grads: list[np.ndarray], **form: Any
) -> np.ndarray:
    """The same through ``rewa.reparametrize``: the optimizer trains the parametrization's own tensors."""
    module = rewa.reparametrize(Weight(x), **form)
    optimizer = make(module.parameters())
    for grad in grads:
        optimizer.zero_grad()
        (module.weight * torch.tensor(grad)).sum().backward()
        optimizer.step()
    return rewa.remove_reparametrization(module).weight.detach().numpy()
