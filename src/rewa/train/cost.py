"""What a run will take, before it begins: operations and memory, counted on a few examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from rewa.train.data import Batch, Data
from rewa.train.evaluate import losses
from rewa.train.job import build_model
from rewa.train.numeric import Numeric, choose
from rewa.train.recipes import Recipe

__all__ = ["Cost", "kept_bytes", "loss_of", "run_cost"]

EXAMPLES = 2  # that are counted on


@dataclass(frozen=True)
class Cost:
    """What a run takes.

    Args:
        operations: In all, evaluation included; a multiply-add is two.
        memory: Bytes of weights, gradients and momentum, and of what the backward pass needs of a whole batch.
    """

    operations: float
    memory: int


def run_cost(recipe: Recipe, data: Data, device: torch.device) -> Cost:
    """Count the operations of a run and its memory, from two examples on the CPU.

    Args:
        recipe: What is trained. Methods change little: at most another copy of the weights.
        data: The data.
        device: Where it will run, which decides the precision.
    """
    wanted = choose(device, recipe.precision, recipe.channels_last)
    numeric = Numeric(torch.device("cpu"), wanted.precision, wanted.channels_last)
    model = numeric.place_model(build_model(recipe, data)).train()
    images, epochs = data.sizes["train"] // recipe.batch_size * recipe.batch_size, range(recipe.epochs)
    at = {size: 0.0 for size in {recipe.image_size_at(epoch) for epoch in epochs}}
    for size in at:
        with FlopCounterMode(display=False) as counter:
            loss_of(model, _examples(recipe, data, EXAMPLES, size), recipe, numeric).backward()  # type: ignore[no-untyped-call]
        at[size] = counter.get_total_flops() / EXAMPLES
    training = sum(images * at[recipe.image_size_at(epoch)] for epoch in epochs)
    measured = recipe.epochs * data.sizes["validation"]
    measured += len(recipe.compressions) * (data.sizes["validation"] + data.sizes["test"] + recipe.recalibrate)
    last = recipe.image_size_at(recipe.epochs - 1)
    few, many = (kept_bytes(model, _examples(recipe, data, n, last), recipe, numeric) for n in (EXAMPLES, 2 * EXAMPLES))
    at_once = recipe.batch_size // recipe.accumulate
    activations = few + (many - few) / EXAMPLES * (at_once - EXAMPLES)
    weights = 3 * sum(param.numel() * param.element_size() for param in model.parameters())
    return Cost(training + measured * at[last] / 3, round(weights + activations))


def kept_bytes(model: nn.Module, batch: Batch, recipe: Recipe, numeric: Numeric) -> int:
    """What autograd keeps of a batch for the backward pass, every storage once, the weights not counted.

    Args:
        model: The model.
        batch: Inputs and targets.
        recipe: The recipe.
        numeric: The precision.
    """
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(model, batch, recipe, numeric)
    own = {param.untyped_storage().data_ptr() for param in model.parameters()}
    del loss  # only now: while the graph lives, no two storages have one address
    return sum(size for address, size in kept.items() if address not in own)


def _examples(recipe: Recipe, data: Data, count: int, size: int | None) -> Batch:
    return next(data.batches(0, seed=0, batch_size=count, image_size=size))


def loss_of(model: nn.Module, batch: Batch, recipe: Recipe, numeric: Numeric) -> Tensor:
    """The loss of a batch.

    Args:
        model: The model.
        batch: Inputs and targets.
        recipe: The recipe.
        numeric: The precision.
    """
    with numeric.autocast():
        logits = model(numeric.place(batch[0]))
    return losses(logits, batch[1], recipe.label_smoothing)[0]
