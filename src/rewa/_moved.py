"""Modules and names at their old places, for one release: each use warns and gives what is at the new place."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

__all__ = ["MOVED", "install", "names_moved"]

_DEPLOYED = ("coding", "contents", "export", "heads", "inference", "packed", "surgery", "tracing", "zeros")
MOVED = {
    "rewa.baselines.on": "rewa.methods.wrapper",
    "rewa.baselines": "rewa.methods",
    "rewa.channels": "rewa.deploy.dataflow",
    "rewa.report.records": "rewa.record",
    "rewa.train.beginnings": "rewa.train.shared_beginnings",
    "rewa.train.folder": "rewa.train.image_folder",
    "rewa.train.loop": "rewa.train.run",
    "rewa.train.runs": "rewa.train.run_folder",
    **{f"rewa.{name}": f"rewa.deploy.{name}" for name in _DEPLOYED},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if new_name(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        name = new_name(spec.name)
        assert name is not None
        warnings.warn(f"{spec.name} is now {name}; the old name goes in the next release", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has put that of the old name in its place


def new_name(name: str) -> str | None:
    """Where a module is now; None if it has not moved.

    >>> new_name("rewa.baselines.gmp")
    'rewa.methods.gmp'
    """
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


def install() -> None:
    """Let the import system know the old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # before the one that would load the same file again


def names_moved(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module that some names have left.

    Args:
        module: The module.
        homes: For each old name the new one, with its module.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        words = f"{module}.{name} is now {homes[name]}; the old name goes in the next release"
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        home, _, new = homes[name].rpartition(".")
        return getattr(importlib.import_module(home), new)

    return __getattr__
