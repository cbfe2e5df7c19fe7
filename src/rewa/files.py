"""Writing files so that no half of one is ever seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing", "write_atomically"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A scratch path to write to; what it holds takes the place of ``path`` if the block ends well, and else is removed.

    Args:
        path: The file to be made or replaced.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} to")
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield scratch
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is either the old one or the new one, never half of it.

    Args:
        path: The file.
        content: Its text or bytes.
    """
    with replacing(path) as scratch, scratch.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())  # or a power cut may leave the new name with nothing in it
