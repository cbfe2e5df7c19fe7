"""One process or many, as ``torchrun`` or ``accelerate launch`` starts them: who we are, what is summed, what is split."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rewa.train.data import Shard

__all__ = ["SyncedBatchNorm", "World", "connected", "full_state", "gradients_shared", "load_state", "wrap"]


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    @property
    def shard(self) -> Shard:
        """This process's part of the data."""
        return Shard(self.rank, self.size)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the processes, in place.

        Args:
            values: A tensor of the same shape everywhere.
        """
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agreed(self, flag: bool) -> bool:
        """Whether any process says so, so that all do the same.

        Args:
            flag: What this process says.
        """
        return bool(self.sum(torch.tensor(int(flag), device=self.device))) if self.size > 1 else flag

    def told(self, value: Any) -> Any:
        """What the first process says.

        Args:
            value: Its value; that of the others does not count.
        """
        if self.size > 1:
            values = [value]
            dist.broadcast_object_list(values, 0, device=self.device)
            return values[0]
        return value

    def copy(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values, in place.

        Args:
            tensors: Tensors of the same shapes everywhere.
        """
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def connected(device: str | None = None) -> Iterator[World]:
    """The world that the launcher made: read from its environment variables, connected, and taken down in the end.

    Args:
        device: Such as ``"cpu"`` or ``"cuda"``; by default a GPU where there is one.
    """
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES.items())
    kind = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type
    place = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    if size == 1:
        yield World(device=place)
        return
    if kind == "cuda":
        torch.cuda.set_device(place)
    # The first process measures the model alone in the end while the others wait.
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(hours=6))
    try:
        yield World(rank, size, place)
    finally:
        dist.destroy_process_group()


_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


class _Sum(torch.autograd.Function):
    """The sum over the processes; in the backward pass, of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]  # torch's
    return total


class SyncedBatchNorm(nn.BatchNorm2d):
    """Batch norm over the batches of all processes, on any device: torch's own ``SyncBatchNorm`` needs a GPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize by the mean and the variance of the whole batch."""
        if not self.training:
            return super().forward(input)
        world = dist.get_world_size()
        axes = [0, 2, 3]
        count = world * input.numel() / input.shape[1]  # the processes have equal parts
        x = input if input.dtype == torch.float64 else input.float()
        mean = _sum(x.sum(axes)) / count
        centered = x - mean.view(1, -1, 1, 1)
        variance = _sum(centered.square().sum(axes)) / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            with torch.no_grad():
                self.running_mean.lerp_(mean.detach(), share)
                self.running_var.lerp_(variance.detach() * count / (count - 1), share)
        result = centered * (variance + self.eps).rsqrt().view(1, -1, 1, 1)
        if self.affine:
            result = result * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return result.to(input.dtype)


def wrap(model: nn.Module, world: World, parallel: str, sync_batchnorm: bool) -> nn.Module:
    """The model as the processes train it together; itself where there is one.

    Args:
        model: The model, on its device; FSDP and synchronized norms change it in place.
        world: The processes.
        parallel: ``"ddp"``, a copy in each process, or ``"fsdp"``, a part in each.
        sync_batchnorm: Whether batch norms see the whole batch.
    """
    if world.size == 1:
        return model
    if sync_batchnorm:
        for module in model.modules():
            if type(module) is nn.BatchNorm2d:
                module.__class__ = SyncedBatchNorm
    if parallel == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for child in model.children():
            # The blocks of a Sequential one by one: only one of them is whole at a time.
            for unit in child if isinstance(child, nn.Sequential) else (child,):
                if any(True for _ in unit.parameters()):
                    fully_shard(unit)
        fully_shard(model)
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[world.device] if world.device.type == "cuda" else None)


@contextmanager
def gradients_shared(model: nn.Module, world: World, parallel: str, share: bool) -> Iterator[None]:
    """Exchange gradients between the processes in this backward pass, or leave that to a later one.

    Args:
        model: What :func:`wrap` returned.
        world: The processes.
        parallel: What :func:`wrap` was told.
        share: Whether to exchange them.
    """
    if world.size > 1 and parallel == "fsdp":
        model.set_requires_gradient_sync(share)  # type: ignore[operator]
    with contextlib.nullcontext() if world.size == 1 or parallel == "fsdp" or share else model.no_sync():  # type: ignore[operator]
        yield


def full_state(state: Any) -> Any:
    """A state with every tensor whole and on the CPU; all processes must call it together.

    Args:
        state: A state dict, nested as it may be.
    """
    if isinstance(state, dict):
        return {key: full_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(full_state(value) for value in state)
    if isinstance(state, Tensor):
        whole = state.full_tensor() if hasattr(state, "full_tensor") else state
        return whole.detach().cpu().clone()
    return state


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Give an optimizer its saved state, split like the parameters it belongs to.

    Args:
        optimizer: The optimizer.
        state: What :func:`full_state` made of its ``state_dict()``.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    split = {
        index: {key: _like(value, params[index]) for key, value in entry.items()} for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": split})


def _like(value: Any, param: Tensor) -> Any:
    if not hasattr(param, "full_tensor") or not isinstance(value, Tensor) or value.shape != param.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, param.device_mesh, param.placements)  # type: ignore[attr-defined]
