"""C++ kernels, compiled for this machine at their first use and kept on disk.

They have a plain C interface and are called through ctypes: without torch's headers a kernel compiles in a third of a second
and needs only a C++ compiler. OpenMP's threads are torch's own, since both load the one library.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["build"]


def build(source: Path, macros: tuple[str, ...] = ()) -> Path:
    """Compile a C++ file with these macros unless that was done before; return the library's path.

    Args:
        source: The file; its functions have a C interface.
        macros: Such as ``"-DK=9"``.

    Raises:
        OSError: If there is no compiler, or no place to write to.
        subprocess.SubprocessError: If the compiler fails; ``stderr`` holds what it said.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or list(filter(None, map(shutil.which, ("g++", "clang++", "c++"))))[:1]
    if not compiler:
        raise FileNotFoundError("no C++ compiler was found.")
    flags = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-march=native"]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mprefer-vector-width=512")
    key = hashlib.sha256(repr((source.read_bytes(), compiler, flags, macros, _processor())).encode()).hexdigest()[:24]
    target = _cache() / f"{source.stem}-{key}.so"
    if target.exists():
        return target
    # Threads and vectorized pow are worth having but not everywhere to be had; the last try is plain C++.
    for extras in (["-fopenmp", "-DVECTOR_POW", "-lmvec"], ["-fopenmp"], []):
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            output = Path(scratch, "kernel.so")
            command = [*compiler, *flags, *macros, str(source), "-o", str(output), *extras]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
                ctypes.CDLL(str(output))
            except (OSError, subprocess.SubprocessError):
                if not extras:
                    raise
                continue
            output.replace(target)
            break
    return target


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
    base = os.environ.get("REWA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rewa")
    try:
        path = Path(base)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if os.access(path, os.W_OK) and not (status.st_mode & 0o022) and status.st_uid == os.getuid():
            return path
    except OSError:
        pass  # no home or a read-only one: compile for this process only
    private = tempfile.TemporaryDirectory(prefix="rewa-")
    _keep_alive.append(private)
    return Path(private.name)


_keep_alive: list[tempfile.TemporaryDirectory[str]] = []
