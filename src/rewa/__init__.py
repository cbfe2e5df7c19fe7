"""rewa: sparse models by reparameterization, weight decay and adaptive learning rates (ReWA), for PyTorch."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rewa._moved import install as _know_old_names

if TYPE_CHECKING:  # for type checkers and editors; __getattr__ imports each name when it is first used
    from rewa import lockstep, presets, reparam, sparsity, theory
    from rewa.deploy.export import export_onnx
    from rewa.deploy.freezing import freeze_zeros
    from rewa.deploy.inference import accelerate
    from rewa.deploy.packed import PackedFileError, load_packed, save_packed
    from rewa.deploy.surgery import shrink
    from rewa.deploy.zeros import finalize
    from rewa.forms import matched_groups, remove_reparametrization, reparametrize
    from rewa.optim.adamw import ReWAAdamW
    from rewa.optim.annealing import Annealing
    from rewa.optim.attach import attach, detach
    from rewa.optim.groups import param_groups
    from rewa.optim.sgd import ReWASGD
    from rewa.sparsifier import Sparsifier

__version__ = "0.1.0"

__all__ = [
    "Annealing",
    "PackedFileError",
    "ReWAAdamW",
    "ReWASGD",
    "Sparsifier",
    "accelerate",
    "attach",
    "detach",
    "export_onnx",
    "finalize",
    "freeze_zeros",
    "load_packed",
    "lockstep",
    "matched_groups",
    "param_groups",
    "presets",
    "remove_reparametrization",
    "reparam",
    "reparametrize",
    "save_packed",
    "shrink",
    "sparsity",
    "theory",
]

_HOMES = {
    "rewa.deploy.export": ["export_onnx"],
    "rewa.forms": ["matched_groups", "remove_reparametrization", "reparametrize"],
    "rewa.deploy.inference": ["accelerate"],
    "rewa.optim.adamw": ["ReWAAdamW"],
    "rewa.optim.annealing": ["Annealing"],
    "rewa.optim.attach": ["attach", "detach"],
    "rewa.optim.groups": ["param_groups"],
    "rewa.optim.sgd": ["ReWASGD"],
    "rewa.deploy.packed": ["PackedFileError", "load_packed", "save_packed"],
    "rewa.deploy.surgery": ["shrink"],
    "rewa.deploy.freezing": ["freeze_zeros"],
    "rewa.deploy.zeros": ["finalize"],
    "rewa.sparsifier": ["Sparsifier"],
}
_know_old_names()
_HOME = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name: str) -> Any:
        """A public name or a module of the package, imported when it is first used."""
        if name in _HOME:
            value = getattr(import_module(_HOME[name]), name)
        elif name.startswith("_") or find_spec(f"rewa.{name}") is None:
            raise AttributeError(f"module 'rewa' has no attribute {name!r}")
        else:
            value = import_module(f"rewa.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
