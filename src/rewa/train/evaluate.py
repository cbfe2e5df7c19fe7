"""What a model is worth: on a split of the data, and cut at each compression."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rewa import cutting
from rewa.deploy.zeros import finalize, recalibrate_norms
from rewa.modes import keeping_modes
from rewa.record import Point
from rewa.sparsity import count, prunable, whole
from rewa.train.data import WHOLE, Batch, Data, Shard
from rewa.train.numeric import Numeric
from rewa.train.processes import World
from rewa.train.recipes import Recipe

__all__ = ["Score", "calibration", "cut", "cut_at", "estimate_norms", "fresh_norms", "losses", "measure", "score", "thresholds"]


class Score(NamedTuple):
    """Mean loss, and accuracy in per cent."""

    loss: float
    accuracy: float

    def value(self, metric: str) -> float:
        """As one number, larger is better.

        Args:
            metric: ``"accuracy"`` or ``"loss"``.
        """
        if metric == "accuracy":
            return self.accuracy
        return -math.inf if math.isnan(self.loss) else -self.loss


def losses(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The mean cross entropy, and how many predictions are right.

    Args:
        logits: One row for each target, the classes last.
        targets: Class numbers.
        label_smoothing: Share of the target that is spread over all classes.
    """
    rows = logits.flatten(0, -2).float()
    loss = F.cross_entropy(rows, targets.flatten(), label_smoothing=label_smoothing)
    return loss, (rows.detach().argmax(1) == targets.flatten()).sum()


@torch.no_grad()
def score(model: nn.Module, batches: Iterable[Batch], numeric: Numeric, world: World) -> Score:
    """Loss and accuracy over all processes' batches.

    Args:
        model: The model; it is evaluated in eval mode, and its modes come back.
        batches: This process's.
        numeric: How to compute.
        world: The processes.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=numeric.device)
    with keeping_modes(model):
        model.eval()
        for inputs, targets in batches:
            with numeric.autocast():
                logits = model(numeric.place(inputs))
            if targets.numel():
                loss, right = losses(logits, numeric.place(targets))
                totals += torch.stack([loss.double() * targets.numel(), right.double(), right.new_tensor(targets.numel())])
    loss_sum, right_sum, seen = world.sum(totals).tolist()
    return Score(loss_sum / seen, 100 * right_sum / seen)


def estimate_norms(model: nn.Module, inputs: Iterable[Tensor], numeric: Numeric) -> None:
    """Estimate batch-norm statistics again, in the precision in which the model is trained and evaluated.

    Args:
        model: The model; only the running statistics change.
        inputs: Batches of training examples.
        numeric: How to compute.
    """
    with numeric.autocast():
        recalibrate_norms(model, (numeric.place(batch) for batch in inputs))


@contextmanager
def fresh_norms(model: nn.Module, inputs: Iterable[Tensor], numeric: Numeric) -> Iterator[None]:
    """Batch-norm statistics of the weights as they are now; the running averages come back afterwards, to the bit.

    Args:
        model: The model.
        inputs: Batches of training examples to estimate them from.
        numeric: How to compute.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers(recurse=False)} for norm in norms]
    if norms:
        estimate_norms(model, inputs, numeric)
    try:
        yield
    finally:
        for norm, buffers in zip(norms, before, strict=True):
            for name, buffer in buffers.items():
                norm.get_buffer(name).copy_(buffer)


def thresholds(model: nn.Module, compressions: Iterable[float]) -> list[float]:
    """For each compression the smallest threshold that reaches it; once each, rising.

    Args:
        model: A plain model.
        compressions: Weights over nonzero weights, from 1.

    Example:
        >>> model = nn.Linear(4, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[0.0, 0.5, -2.0, 1.0]]))
        >>> thresholds(model, [1, 2, 4])
        [0.0, 0.5, 1.0]
    """
    sizes = torch.cat([weight.detach().abs().flatten().double().cpu() for weight in prunable(model).values()]).sort().values
    zeros = [len(sizes) - int(len(sizes) / compression) for compression in compressions]
    return sorted({float(sizes[number - 1]) if number else 0.0 for number in zeros})


def calibration(data: Data, recipe: Recipe, seed: int, batch_size: int, shard: Shard = WHOLE) -> Iterable[Batch]:
    """The training examples that batch norms are estimated from after a cut, augmented as in training.

    Norms of networks that were trained on crops with black frames are not those of whole images: estimated from whole images, a
    cut network on CIFAR-10 lost two points.

    Args:
        data: The data.
        recipe: The recipe.
        seed: The seed of the run.
        batch_size: Examples at a time, of all processes together.
        shard: Which rows of each batch.
    """
    if not recipe.augment:
        return data.evaluation("train", batch_size=batch_size, shard=shard, limit=recipe.recalibrate)
    size = recipe.image_size_at(recipe.epochs - 1)
    batches = data.batches(recipe.epochs, seed=seed, batch_size=batch_size, shard=shard, image_size=size)
    return itertools.islice(batches, -(-recipe.recalibrate // batch_size))


@torch.no_grad()
def cut_at(model: nn.Module, threshold: float, inputs: Iterable[Tensor], numeric: Numeric) -> nn.Module:
    """A copy of the model with zeros for what is at most the threshold, and new batch-norm statistics.

    Args:
        model: A plain model.
        threshold: The largest magnitude that becomes zero.
        inputs: To estimate the norms from.
        numeric: How to compute.
    """
    candidate = copy.deepcopy(model)
    cutting.cut(prunable(candidate).values(), threshold)
    estimate_norms(candidate, inputs, numeric)
    return candidate


def cut(
    model: nn.Module,
    *,
    max_drop: float | None,
    metric: str,
    batches: Callable[[str], Iterable[Batch]],
    numeric: Numeric,
    tick: Callable[[], None] = lambda: None,
) -> float:
    """Cut a trained model in place as far as validation data allows, with new batch-norm statistics; returns the threshold.

    Args:
        model: The plain model.
        max_drop: Most that the cut may cost in units of the metric; what new statistics alone cost does not count. None for
            no cut: the model has its zeros already.
        metric: ``"accuracy"`` or ``"loss"``.
        batches: Makes the batches of ``"train"`` (to estimate norms) and ``"validation"``.
        numeric: How to compute.
        tick: Called before each evaluation.
    """
    inputs = [batch for batch, _ in batches("train")]
    alone = World(device=numeric.device)

    def evaluate(candidate: nn.Module) -> float:
        tick()
        estimate_norms(candidate, inputs, numeric)
        return score(candidate, batches("validation"), numeric, alone).value(metric)

    threshold = 0.0 if max_drop is None else finalize(model, evaluate=evaluate, max_drop=max_drop).threshold
    estimate_norms(model, inputs, numeric)
    return threshold


def measure(
    model: nn.Module,
    *,
    compressions: Iterable[float],
    max_drop: float | None,
    metric: str,
    batches: Callable[[str], Iterable[Batch]],
    numeric: Numeric,
    tick: Callable[[str], None] = lambda what: None,
) -> tuple[list[Point], Point, nn.Module]:
    """Cut a trained model at each compression, and once more for good, as far as validation data allows.

    Each cut is followed by new batch-norm statistics from training examples. Everything is decided on validation data; then
    the test data is read, once for each point that was already decided.

    Args:
        model: The plain model; it is left alone.
        compressions: Where to measure.
        max_drop: Most that the last cut may cost in units of the metric, on validation data; None for no cut.
        metric: ``"accuracy"`` or ``"loss"``.
        batches: Makes the batches of ``"train"`` (to estimate norms), ``"validation"`` and ``"test"``.
        numeric: How to compute.
        tick: Called with what is done next, in words.

    Returns:
        The curve, the final cut, and the model with that cut.
    """
    alone = World(device=numeric.device)
    inputs = [batch for batch, _ in batches("train")]

    def point(candidate: nn.Module, threshold: float) -> Point:
        validation, test = (score(candidate, batches(split), numeric, alone) for split in ("validation", "test"))
        return Point(threshold, count(prunable(candidate).values()), whole(candidate), *validation, *test)

    def choosing() -> None:
        tick("choosing the last cut on validation data")

    final = copy.deepcopy(model)
    last = cut(final, max_drop=max_drop, metric=metric, batches=batches, numeric=numeric, tick=choosing)
    curve = []
    cuts = thresholds(model, compressions)
    for number, threshold in enumerate(cuts, 1):
        tick(f"measuring: {number} of {len(cuts)}")
        curve.append(point(cut_at(model, threshold, inputs, numeric), threshold))
    return curve, point(final, last), final
