"""C++ kernels, compiled for this machine at their first use and kept on disk.

They have a plain C interface and are called through ctypes: without torch's headers a kernel compiles in a third of a second
and needs only a C++ compiler. With g++ OpenMP's threads are torch's own, since both load the one library.

A kept library is code that runs in this process. Its name holds the digest of its content, and only a regular file with that
content which nobody else can write to is loaded. Anything else is deleted and compiled again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["kernel", "load"]


def kernel(
    source: Path,
    signatures: Mapping[str, Sequence[Any]],
    macros: Mapping[str, object] | None = None,
    *,
    otherwise: str = "",
) -> ctypes.CDLL | None:
    """The functions of a C++ file, ready to be called, or None where it can neither be found on disk nor compiled.

    Args:
        source: The file; its functions have a C interface and return nothing.
        signatures: The functions and the types of their arguments.
        macros: What it is compiled for: ``{"K": 9}``.
        otherwise: What is done without it. If given, the first time in a process is a warning.
    """
    flags = tuple(f"-D{name}={value}" for name, value in sorted((macros or {}).items()))
    try:
        library = load(source, flags, tuple(signatures))
    except OSError as error:
        if otherwise and source not in _warned:
            _warned.add(source)
            warnings.warn(
                f"{source.name} could not be compiled ({error}): {otherwise}. "
                "Or install a C++ compiler (g++ or clang++), or name one in CXX.",
                RuntimeWarning,
                stacklevel=3,
            )
        return None
    for name, types in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = list(types), None
    return library


def load(source: Path, macros: tuple[str, ...] = (), symbols: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Load a C++ file as a library, from disk if it was compiled before with these macros, else compiled now.

    Args:
        source: The file; its functions have a C interface.
        macros: Such as ``"-DK=9"``.
        symbols: Functions that the library must have.

    Raises:
        OSError: If it is not on disk and cannot be compiled: no compiler, no place to write to, or what the compiler said.
    """
    flags = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-march=native"]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mprefer-vector-width=512")
    # The compiler itself is no part of the key: what is on disk serves where there is none.
    wanted = (source.read_bytes(), os.environ.get("CXX", ""), flags, macros, _processor())
    stem = f"{source.stem}-{hashlib.sha256(repr(wanted).encode()).hexdigest()[:24]}"
    for kept in sorted(_cache().glob(f"{stem}-*.so")):
        try:
            _verify(kept)
            return _open(kept, symbols)
        except OSError:
            with contextlib.suppress(OSError):
                kept.unlink()
    return _compile([*flags, *macros, str(source)], stem, symbols)


def _compile(arguments: list[str], stem: str, symbols: Sequence[str]) -> ctypes.CDLL:
    """Compile into the cache and load; the file appears there whole or not at all."""
    compiler = shlex.split(os.environ.get("CXX", "")) or list(filter(None, map(shutil.which, ("g++", "clang++", "c++"))))[:1]
    if not compiler:
        raise FileNotFoundError("no C++ compiler was found")
    # Threads and vectorized pow are worth having but not available everywhere; the last try is plain C++.
    for extras in (["-fopenmp", "-DVECTOR_POW", "-lmvec"], ["-fopenmp"], []):
        with tempfile.TemporaryDirectory(dir=_cache()) as scratch:
            output = Path(scratch, "kernel.so")
            try:
                command = [*compiler, *arguments, "-o", str(output), *extras]
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
                output.chmod(0o500)  # whatever the umask
                loaded = _open(output, symbols)
                output.replace(_cache() / f"{stem}-{_digest(output.read_bytes())}.so")
                return loaded
            except (OSError, subprocess.SubprocessError) as error:
                if not extras:
                    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or ["failed"]
                    said = next((line for line in lines if "error" in line), lines[0])
                    raise OSError(f"{' '.join(compiler)}: {said.strip()[:300]}") from error
    raise AssertionError  # the last try returned or raised


def _open(library: Path, symbols: Sequence[str]) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    if missing := [symbol for symbol in symbols if not hasattr(loaded, symbol)]:
        raise OSError(f"{library} has no {', '.join(missing)}")
    return loaded


def _verify(library: Path) -> None:
    """Raise ``OSError`` unless the file is what was written here: loading half of a library would end the process."""
    status = library.lstat()
    if not (stat.S_ISREG(status.st_mode) and _is_private(status)):
        raise PermissionError(f"{library} is a link, or others can write to it")
    if _digest(library.read_bytes()) != library.stem.rpartition("-")[2]:
        raise OSError(f"{library} is damaged")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _is_private(status: os.stat_result) -> bool:
    """Whether a file or directory is this user's and nobody else can write to it."""
    return not status.st_mode & 0o022 and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def _processor() -> str:
    """What -march=native depends on, so that a home directory shared by unlike machines holds a kernel for each."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
    except OSError:
        return platform.processor() + platform.platform()


@functools.lru_cache(maxsize=1)
def _cache() -> Path:
    """A directory for compiled kernels that only this user can write to: what lies in it is run."""
    try:
        path = Path(os.environ.get("REWA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rewa"))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(path, os.W_OK) and _is_private(path.stat()):
            return path
    except (OSError, RuntimeError):
        pass  # no home or a read-only one: compile for this process only
    private = tempfile.TemporaryDirectory(prefix="rewa-")
    _keep_alive.append(private)
    return Path(private.name)


_keep_alive: list[tempfile.TemporaryDirectory[str]] = []
_warned: set[Path] = set()
