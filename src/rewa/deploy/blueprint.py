"""What :func:`rewa.shrink` made of each layer, as plain data: written beside the weights and done again to a fresh model.

Each layer of a shrunk model knows the shapes and sizes it had before. So a copy, a part of the model and a model around it can
be saved too, and a model that is shrunk twice still says what it was at first. A file holds the shapes before and after, and
the numbers of the heads where these matter. The weights are the file's tensors. Nothing in a blueprint names code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rewa.deploy.heads import COUNTS, WIDTHS, FewerHeads, SomeBiases, has_some_biases

__all__ = ["Blueprint", "Change", "remember", "replace_modules"]

VERSION = 1
MARK = "_before_shrink"  # the attribute in which a layer keeps its form before the first cut
# The attributes of layers that surgery sets: no others are written from a file.
SIZES = {
    *("in_features", "out_features", "nx", "nf", "in_channels", "out_channels", "groups", "num_features", "num_parameters"),
    *COUNTS,
    *WIDTHS,
}
LARGEST = 1 << 48

Shape = tuple[int, ...]


# Plain values, so that a pickled model needs rewa no more than it did before.
Form = tuple[dict[str, Shape], dict[str, int]]


def form_of(module: nn.Module) -> Form:
    """The shapes of a layer's own tensors, and its attributes among ``SIZES``.

    Args:
        module: The layer.
    """
    tensors = {**module._parameters, **module._buffers}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    return shapes, {name: value for name, value in vars(module).items() if name in SIZES and type(value) is int}


@dataclass(frozen=True)
class Change:
    """What became of one layer: only what differs.

    Attributes:
        before: The shapes of its tensors; a bias that was added is not among them.
        after: The shapes now.
        sizes: Attributes such as ``out_channels``, before and after.
        heads: For an attention whose code depends on it, the heads that are left.
        of: How many heads there were.
    """

    before: dict[str, Shape]
    after: dict[str, Shape]
    sizes: dict[str, tuple[int, int]]
    heads: tuple[int, ...] | None = None
    of: int = 0

    def __str__(self) -> str:
        was, now = ("x".join(map(str, next(iter(side.values()), ()))) or "none" for side in (self.before, self.after))
        return f"{was} -> {now}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        heads = {} if self.heads is None else {"heads": list(self.heads), "of": self.of}
        sides = [{name: list(shape) for name, shape in side.items()} for side in (self.before, self.after)]
        return {"before": sides[0], "after": sides[1], "sizes": {k: list(v) for k, v in self.sizes.items()}, **heads}

    @classmethod
    def from_dict(cls, content: Any) -> Change:
        """Read it from plain values of any origin.

        Args:
            content: What a file says.

        Raises:
            ValueError: If no cut gives this. A cut makes nothing larger, so no file can make a model larger than it was.
        """
        try:
            before, after = ({str(name): tuple(shape) for name, shape in content[side].items()} for side in ("before", "after"))
            sizes = {str(name): (int(old), int(new)) for name, (old, new) in content["sizes"].items()}
            heads = tuple(content["heads"]) if "heads" in content else None
            change = cls(before, after, sizes, heads, content.get("of", 0))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"no cut is described by {str(content)[:200]}") from error
        if change.to_dict() != content or not change._is_possible():
            raise ValueError(f"no cut is described by {str(content)[:200]}")
        return change

    def _is_possible(self) -> bool:
        shapes = [*self.before.values(), *self.after.values()]
        numbers = [*(n for shape in shapes for n in shape), *(n for pair in self.sizes.values() for n in pair), self.of]
        if not all(type(n) is int and 0 <= n < LARGEST for n in numbers) or not self.sizes.keys() <= SIZES:
            return False
        widest = max([n for shape in self.before.values() for n in shape], default=0)
        for name, after in self.after.items():
            before = self.before.get(name)
            if before is None and not (name == "bias" and len(after) == 1 and after[0] <= widest):
                return False
            if before is not None and not (len(before) == len(after) and all(map(int.__le__, after, before))):
                return False
        if self.heads is not None and not (
            all(type(head) is int and 0 <= head < self.of for head in self.heads)
            and list(self.heads) == sorted({*self.heads})
            and (self.of, len(self.heads)) in [pair for name, pair in self.sizes.items() if name in COUNTS]
        ):
            return False
        return self.before.keys() <= self.after.keys() and all(after <= before for before, after in self.sizes.values())

    def is_done(self, module: nn.Module) -> bool:
        """Whether a layer has this form already.

        Args:
            module: The layer.
        """
        return self._matches(module, self.after, 1) and _heads(module) == (self.heads, self.of)

    def is_possible_for(self, module: nn.Module) -> bool:
        """Whether a layer has the form that was cut.

        Args:
            module: The layer.
        """
        if not self._matches(module, self.before, 0) or _heads(module) != (None, 0):
            return False
        added = self.after.keys() - self.before.keys()
        if added and ("bias" not in module._parameters or module._parameters.get("weight") is None):
            return False
        if type(module) is nn.MultiheadAttention:
            kept = None if self.heads is None else len(self.heads)
            rows = [self.after[name][0] * self.of == self.before[name][0] * kept for name in self.before if kept is not None]
            return kept is not None and module.bias_k is None and all(rows)
        return self.heads is None or has_some_biases(module)

    def _matches(self, module: nn.Module, shapes: dict[str, Shape], side: int) -> bool:
        own, sizes = form_of(module)
        return {name: own[name] for name in self.after if name in own} == shapes and all(
            sizes.get(name) == pair[side] for name, pair in self.sizes.items()
        )

    def apply(self, module: nn.Module) -> None:
        """Give a layer this form, in place; its new tensors are zeros.

        Args:
            module: One for which :meth:`is_possible_for` held, or a :class:`FewerHeads` of it.
        """
        if self.heads is not None and not isinstance(module, FewerHeads | SomeBiases):
            SomeBiases.take(module, self.heads, self.of)
        tensors: dict[str, Any] = {**module._parameters, **module._buffers}
        for name, shape in self.after.items():
            old = tensors["weight" if tensors[name] is None else name]
            data = torch.zeros(shape, dtype=old.dtype, device=old.device)
            setattr(module, name, nn.Parameter(data, old.requires_grad) if isinstance(old, nn.Parameter) else data)
        for name, (_, size) in self.sizes.items():
            setattr(module, name, size)


def _mark(module: nn.Module, form: Form) -> None:
    """Note what a layer was before its first cut."""
    module.__dict__.setdefault(MARK, form)


def _heads(module: nn.Module) -> tuple[tuple[int, ...] | None, int]:
    """Which heads an attention has of how many; None for all."""
    if isinstance(module, FewerHeads | SomeBiases):
        return tuple(module.heads), module.original_heads
    return None, 0


def remember(before: nn.Module, after: nn.Module) -> None:
    """Let each layer that was cut know what it was, unless it knows from an earlier cut.

    Args:
        before: The model as it was.
        after: The same model with layers cut.
    """
    old = dict(before.named_modules(remove_duplicate=False))
    for path, module in after.named_modules():
        form = form_of(old[path])
        if form_of(module) != form:
            _mark(module, form)


@dataclass(frozen=True)
class Blueprint:
    """What became of the layers of a model, by their paths; nothing for a model that was not shrunk."""

    changes: dict[str, Change] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, state: Mapping[str, Tensor]) -> Blueprint:
        """Read it from a model.

        Args:
            model: Perhaps one that :func:`rewa.shrink` returned, or one that holds such a model.
            state: The tensors that will be stored for it.
        """
        found = {}
        for path, module in model.named_modules(remove_duplicate=False):
            if MARK not in vars(module):
                continue
            shapes, sizes = vars(module)[MARK]
            stored = {name: state.get(_join(path, name)) for name in (*shapes, "bias")}
            after = {name: tuple(tensor.shape) for name, tensor in stored.items() if tensor is not None}
            changed = [name for name in after if after[name] != shapes.get(name)]
            now = {name: vars(module).get(name) for name in sizes}
            change = Change(
                {name: shapes[name] for name in changed if name in shapes},
                {name: after[name] for name in changed},
                {name: (size, now[name]) for name, size in sizes.items() if now[name] != size},
                *_heads(module),
            )
            if change._is_possible():  # else somebody has changed the layer since
                found[path] = change
        return cls(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the version."""
        return {"version": VERSION, "layers": {path: change.to_dict() for path, change in self.changes.items()}}

    @classmethod
    def from_dict(cls, content: Any) -> Blueprint:
        """Read it from plain values of any origin.

        Args:
            content: What a file says.

        Raises:
            ValueError: If it is no blueprint, or one of another version.
        """
        if not isinstance(content, dict) or content.get("version") != VERSION or not isinstance(content.get("layers"), dict):
            raise ValueError(f"it describes no shrunk model in a way that this rewa knows (version {VERSION})")
        return cls({path: Change.from_dict(change) for path, change in content["layers"].items()})

    def numel(self, stored: Mapping[str, Shape]) -> tuple[int, int]:
        """The elements of all tensors, before and after.

        Args:
            stored: The tensors of the file, each once.
        """
        after = sum(map(math.prod, stored.values()))
        gone = 0
        for path, change in self.changes.items():
            for name, shape in change.after.items():
                if _join(path, name) in stored:
                    gone += math.prod(change.before.get(name, (0,))) - math.prod(shape)
        return after + gone, after

    def missing(self, model: nn.Module) -> Blueprint:
        """The changes that a model still needs.

        Args:
            model: One as it was before it was shrunk, or as it was afterwards.

        Raises:
            ValueError: If it is neither; it names the layer.
        """
        layers = dict(model.named_modules(remove_duplicate=False))
        found = {}
        for path, change in self.changes.items():
            module = layers.get(path)
            if module is None:
                raise ValueError(f"{path!r} was shrunk ({change}), and the model has no such layer: it is another model")
            if change.is_done(module):
                continue
            if not change.is_possible_for(module):
                own = {name: shape for name, shape in form_of(module)[0].items() if name in change.after}
                raise ValueError(
                    f"{path!r} was shrunk from {change.before} to {change.after}, and the model's {type(module).__name__} has "
                    f"{own or 'no such tensors'}: give a model as it was before rewa.shrink, or as it was afterwards"
                )
            found[path] = change
        return Blueprint(found)

    def shapes(self) -> dict[str, Shape]:
        """The tensors that change, by their names in the ``state_dict``, with their shapes afterwards."""
        return {_join(path, name): shape for path, change in self.changes.items() for name, shape in change.after.items()}

    def nbytes(self, model: nn.Module) -> int:
        """The memory that :meth:`apply` takes.

        Args:
            model: As for :meth:`missing`, of which this is the result.
        """
        widest = max([tensor.element_size() for tensor in (*model.parameters(), *model.buffers())], default=0)
        return widest * sum(map(math.prod, self.shapes().values()))

    def apply(self, model: nn.Module) -> nn.Module:
        """Shrink a model in the same way, in place; the new tensors are zeros.

        Args:
            model: As for :meth:`missing`, of which this is the result.

        Returns:
            The model, or what it has become if it is itself an attention that lost heads.
        """
        layers = dict(model.named_modules(remove_duplicate=False))
        forms = {path: form_of(layers[path]) for path in self.changes}
        found = [(layers[path], change.heads) for path, change in self.changes.items() if change.heads is not None]
        smaller: dict[nn.Module, nn.Module] = {
            layer: FewerHeads(layer, heads) for layer, heads in found if isinstance(layer, nn.MultiheadAttention)
        }
        model = replace_modules(model, smaller)
        layers = dict(model.named_modules(remove_duplicate=False))
        for path, change in self.changes.items():
            change.apply(layers[path])
            _mark(layers[path], forms[path])
        return model


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def replace_modules(model: nn.Module, smaller: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The model with modules replaced wherever they are held.

    Args:
        model: Changed in place.
        smaller: The new module for an old one.
    """
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in smaller:
                setattr(parent, name, smaller[child])
    return smaller.get(model, model)
