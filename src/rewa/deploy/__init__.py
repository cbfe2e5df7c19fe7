"""From a trained model to one that is used: exact zeros, smaller networks, smaller files and faster passes.

:mod:`~rewa.deploy.zeros` makes small weights exactly zero, :mod:`~rewa.deploy.freezing` keeps them so,
:mod:`~rewa.deploy.surgery` takes out what the zeros have emptied, :mod:`~rewa.deploy.packed` writes and reads ``.rewa`` files,
:mod:`~rewa.deploy.inference` computes with the zeros left out, and :mod:`~rewa.deploy.export` writes ONNX.
"""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """A module of this package, imported when it is first used: ``rewa.deploy.packed`` after ``import rewa``."""
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
