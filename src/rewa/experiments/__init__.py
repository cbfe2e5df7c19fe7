"""Published results, each made again by one command: ``rewa reproduce NAME``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewa.experiments.published import RESULTS

__all__ = ["RESULTS"]


def __getattr__(name: str) -> Any:
    """``RESULTS``, imported when it is first used: a process that times a first call must not import torch before."""
    if name == "RESULTS":
        from rewa.experiments.published import RESULTS

        return RESULTS
    raise AttributeError(f"module 'rewa.experiments' has no attribute {name!r}")
