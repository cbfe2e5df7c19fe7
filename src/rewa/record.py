"""Records: what a published number needs beside it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rewa

__all__ = ["provenance"]


def provenance() -> dict[str, Any]:
    """The command, commit, versions and hardware behind a result.

    Example:
        >>> provenance()["versions"]["rewa"] == rewa.__version__
        True
    """
    return {
        "command": _command(sys.orig_argv),
        "commit": _commit(),
        "versions": {
            "rewa": rewa.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "machine": platform.machine(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }


def _command(words: list[str]) -> str:
    """As a person would type it anywhere: without the folder of the interpreter or of the installed script.

    >>> _command(["/opt/bin/python3", "/opt/bin/rewa", "train", "digits"])
    'rewa train digits'
    >>> _command(["/opt/bin/python3", "-m", "rewa", "train"])
    'python -m rewa train'
    """
    rest = words[1:]
    return " ".join(["rewa", *rest[1:]] if rest and Path(rest[0]).name == "rewa" else ["python", *rest])


def _commit() -> str | None:
    """The commit of the source tree, marked if anything but results changed since; None where there is no git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
