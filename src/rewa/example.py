"""An example input, as the user gives it: how a model is called with it, and which tensors go in and come out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Example", "named_tensors", "tensors"]


@dataclass(frozen=True)
class Example:
    """What one call of a model gets: positional arguments and keywords."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, example_input: Any) -> Example:
        """Read an example as users write it.

        Args:
            example_input: A tuple of positional arguments; a dictionary (or transformers' ``BatchEncoding``) of keywords;
                ``(tuple, dictionary)`` for both; anything else is the only argument. A model whose only argument is a
                dictionary gets it as ``(dictionary,)``.

        Example:
            >>> Example.of({"input_ids": 1}).kwargs, Example.of((1, 2)).args, Example.of(((1,), {"mask": 2}))
            ({'input_ids': 1}, (1, 2), Example(args=(1,), kwargs={'mask': 2}))
        """
        if isinstance(example_input, Example):
            return example_input
        if isinstance(example_input, Mapping):
            return cls((), dict(example_input))
        if not isinstance(example_input, tuple):
            return cls((example_input,))
        if len(example_input) == 2 and isinstance(example_input[0], tuple) and isinstance(example_input[1], Mapping):
            return cls(example_input[0], dict(example_input[1]))
        return cls(tuple(example_input))

    def call(self, model: nn.Module) -> Any:
        """The model's output.

        Args:
            model: The model.

        Raises:
            TypeError: If the model does not take these arguments; the message says how to write an example.
        """
        try:
            return model(*self.args, **self.kwargs)
        except TypeError as error:
            self.bound(model)  # the likely reason, in better words
            raise error

    def bound(self, model: nn.Module) -> dict[str, Any]:
        """The arguments by the names of the model's parameters, in their order.

        Args:
            model: The model.

        Raises:
            TypeError: If the model does not take these arguments.
        """
        signature = inspect.signature(model.forward)
        try:
            arguments = signature.bind(*self.args, **self.kwargs).arguments
        except TypeError as error:
            raise TypeError(
                f"{type(model).__name__}.forward{signature} does not take this example: {error}. A tuple holds positional "
                "arguments, a dictionary keywords, (tuple, dictionary) both; a dictionary as the only argument is (dictionary,)"
            ) from None
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(name, {}))
        return dict(arguments)

    def map(self, change: Callable[[Tensor], Tensor]) -> Example:
        """The same example with other tensors; dictionaries, lists and tuples are rebuilt, other objects are shared.

        Args:
            change: Makes the new tensor from the old one.
        """
        return Example(_rebuilt(self.args, change), _rebuilt(self.kwargs, change))

    def shuffled(self, generator: torch.Generator) -> Example:
        """Another example of the same kind: the numbers of each tensor in another order, so that all stay in range.

        Masks (zeros and ones only) stay as they are. A constant tensor of real numbers gets normal noise instead.

        Args:
            generator: Draws the order.
        """

        def shuffle(x: Tensor) -> Tensor:
            copy = x.detach().clone()
            if x.numel() < 2 or x.is_meta or x.layout != torch.strided or x.dtype == torch.bool:
                return copy
            if not x.is_floating_point() and bool(((x == 0) | (x == 1)).all()):
                return copy
            if x.is_floating_point() and bool((x == x.flatten()[0]).all()):
                noise = torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x)
                return copy + noise * x.abs().max().clamp(min=1)
            return copy.flatten()[torch.randperm(x.numel(), generator=generator).to(x.device)].reshape(x.shape)

        return self.map(shuffle)


def _rebuilt(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is dict:
        return {key: _rebuilt(entry, change) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_rebuilt(entry, change) for entry in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rebuilt(entry, change) for entry in value))
    return value


def tensors(value: Any) -> list[Tensor]:
    """Every tensor of a model's output or input, however nested.

    Args:
        value: Tensors in dictionaries, sequences, dataclasses (``ModelOutput``) or other objects (caches, distributions).

    Example:
        >>> len(tensors({"logits": torch.zeros(2), "hidden": (torch.ones(1), None, 3)}))
        2
    """
    return [tensor for _, tensor in _walk("", value, set())]


def named_tensors(value: Any) -> dict[str, Tensor]:
    """As :func:`tensors`, by name: keys, attributes and positions joined by dots; a tensor that stands alone is ``""``.

    Args:
        value: As in :func:`tensors`.

    Example:
        >>> list(named_tensors({"logits": torch.zeros(2), "hidden": (torch.ones(1), None, torch.ones(1))}))
        ['logits', 'hidden.0', 'hidden.2']
    """
    found: dict[str, Tensor] = {}
    for name, tensor in _walk("", value, set()):
        while name in found:  # the key "a.b" beside "b" in "a"
            name += "_"
        found[name] = tensor
    return found


def _walk(name: str, value: Any, above: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, Mapping):
        children = list(value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        children = list(zip(value._fields, value, strict=True))
    elif isinstance(value, (list, tuple)):
        children = list(enumerate(value))
    elif isinstance(value, (nn.Module, type, ModuleType, FunctionType, MethodType)):
        return  # what it holds are weights, not values
    else:
        children = list(getattr(value, "__dict__", {}).items())
    if id(value) in above:  # objects may point back at their owner
        return
    for key, child in children:
        yield from _walk(f"{name}.{key}" if name else str(key), child, above | {id(value)})
