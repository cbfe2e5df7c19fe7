"""Writing files so that no half of one is ever seen."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing", "write_atomically"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A scratch file to write to; what it holds takes the place of ``path`` if the block ends well, and else is removed.

    A symbolic link stays, and the file that it points to is replaced. The mode of a file that is replaced stays too; a new
    one gets the mode that the umask gives, whatever mode the block's writer chose.

    Args:
        path: The file to be made or replaced.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} to")
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{str(path)!r} is a link into {str(target.parent)!r}, and there is no such folder")
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    try:
        scratch.touch(0o666)  # the system applies the umask, which cannot be read without changing it
        mode = stat.S_IMODE((target if target.exists() else scratch).stat().st_mode)
        yield scratch
        scratch.chmod(mode)
        scratch.replace(target)
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
