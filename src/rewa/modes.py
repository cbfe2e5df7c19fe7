"""Training and evaluation mode: what runs a model for a while leaves each of its modules in the mode it was in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["keeping_modes"]


@contextmanager
def keeping_modes(model: nn.Module) -> Iterator[dict[nn.Module, bool]]:
    """Whatever the block does, afterwards each module trains or evaluates as before.

    Args:
        model: The model.

    Yields:
        The mode of each module; modules that the block puts in the place of others can be entered.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with keeping_modes(model):
        ...     _ = model.eval()
        >>> [module.training for module in model]
        [True, False]
    """
    modes = {module: module.training for module in model.modules()}
    try:
        yield modes
    finally:
        for module, training in modes.items():
            module.training = training
