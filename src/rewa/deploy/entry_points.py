"""What of a model may be called by name apart from ``forward``: its public methods, and the modules that they reach."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from types import FunctionType
from typing import Any, NamedTuple

from torch import nn

__all__ = ["Exposed", "entry_points", "public_methods"]


class Exposed(NamedTuple):
    """What a method of the model other than forward reaches: the modules whose inputs and outputs a caller may see."""

    method: str
    modules: set[nn.Module]


def entry_points(model: nn.Module) -> list[Exposed]:
    """The public methods of a model that use its modules, by their source.

    A method without arguments counts if it calls a module: most others set up or look up. What is reached by other ways than
    ``self.name`` is not seen, nor are private methods, unless a public one calls them.

    Args:
        model: The model.
    """
    found = []
    for name in public_methods(type(model)):
        function = getattr(type(model), name)
        takes_data = len(inspect.signature(function).parameters) > 1
        if modules := _reached(model, function, takes_data=takes_data, seen=set()):
            found.append(Exposed(name, modules))
    return found


def public_methods(kind: type[nn.Module]) -> list[str]:
    """The methods that somebody else wrote for users to call.

    Args:
        kind: The class of a model.
    """
    own = [cls for cls in kind.__mro__ if not cls.__module__.startswith("torch.") and cls is not object]
    names = {name for cls in own for name, value in vars(cls).items() if isinstance(value, FunctionType)}
    return sorted(name for name in names if not name.startswith("_") and name != "forward")


def _reached(module: nn.Module, function: Any, *, takes_data: bool, seen: set[tuple[nn.Module, Any]]) -> set[nn.Module]:
    """The modules that a method hands to its caller: it calls them, or does with them what it likes."""
    found: set[nn.Module] = set()
    if not isinstance(function, FunctionType) or (module, function) in seen:
        return found
    seen.add((module, function))
    for chain, called in _uses(function):
        target, rest = module, list(chain)
        while rest and isinstance(child := target._modules.get(rest[0]), nn.Module):
            target = child
            rest.pop(0)
        if rest and not rest[0].startswith("__") and rest[0] not in vars(nn.Module) and hasattr(type(target), rest[0]):
            found |= _reached(target, getattr(type(target), rest[0]), takes_data=takes_data, seen=seen)
        elif target is not module and not rest and called:
            found.add(target)
        elif target is not module and not rest and takes_data:
            found |= set(target.modules())
        elif rest and rest[0] in {**target._parameters, **target._buffers} and takes_data:
            found.add(target)
    return found


@functools.lru_cache(maxsize=4096)
def _uses(function: FunctionType) -> list[tuple[tuple[str, ...], bool]]:
    """The chains ``self.a.b`` that a method reads, and whether it calls them."""
    function = inspect.unwrap(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # typed at a prompt: every name it mentions may be used in any way
        return [((name,), False) for name in function.__code__.co_names]
    own = function.__code__.co_varnames[0] if function.__code__.co_argcount else ""
    found: list[tuple[tuple[str, ...], bool]] = []

    def visit(node: ast.AST, called: bool = False) -> None:
        names: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            names.insert(0, inner.attr)
            inner = inner.value
        if names and isinstance(inner, ast.Name) and inner.id == own:
            if isinstance(getattr(node, "ctx", None), ast.Load):
                found.append((tuple(names), called))
            return
        for child in ast.iter_child_nodes(node):
            visit(child, isinstance(node, ast.Call) and child is node.func)

    visit(tree)
    return found
