"""Writing files so that no half of one is ever seen."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is either the old one or the new one, never half of it.

    Args:
        path: The file.
        content: Its text or bytes.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
