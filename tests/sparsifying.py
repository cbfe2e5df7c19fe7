"""A small network, its batches and its optimizers, for the tests of the Sparsifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import rewa

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "nadam": lambda params: torch.optim.NAdam(params, lr=1e-2),  # not known to the kernel
    "rewa": lambda params: rewa.ReWASGD(params, lr=0.05, momentum=0.9),
}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.LayerNorm(12), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    data = torch.randn(16, 6, generator=generator, dtype=torch.float64)
    return data.to(torch.get_default_dtype()), (data[:, 0] > 0).long() + (data[:, 1] > 0).long()


def make(kind: str, model: nn.Module) -> Optimizer:
    return OPTIMIZERS[kind](rewa.param_groups(model, K=2, M=1) if kind == "rewa" else model.parameters())


def train(model: nn.Module, optimizer: Optimizer, start: int, end: int) -> None:
    for step in range(start, end):
        optimizer.zero_grad()
        data, label = batch(step)
        nn.functional.cross_entropy(model(data), label).backward()
        lower_rate(optimizer, step)
        optimizer.step()


def lower_rate(optimizer: Optimizer, step: int) -> None:
    """A rate that falls, as most do: the bound of lengthened steps moves with it."""
    for group in optimizer.param_groups:
        if group["lr"] is not None:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) / (1 + step / 5)


def weights(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def zeros(model: nn.Module) -> int:
    left = rewa.sparsity.count(rewa.sparsity.prunable(model).values())
    return left.total - left.nonzero
