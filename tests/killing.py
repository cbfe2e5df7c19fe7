"""A call in a new process, which ends well or kills itself in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def die() -> None:
    """End this process as a power cut would: no handler runs, no file is closed."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_new_process(file: str, function: str, *args: object, killed: bool = False) -> None:
    """Call a function of a test file in a new process.

    Args:
        file: The test file.
        function: Name of the function.
        *args: Its arguments, which must be what their ``repr`` says.
        killed: Whether it is to kill itself.
    """
    path = Path(file)
    call = f"{path.stem}.{function}({', '.join(map(repr, args))})"
    code = f"import sys; sys.path[:0] = {[str(path.parent), str(TESTS)]}; import {path.stem}; {call}"
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
