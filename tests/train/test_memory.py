from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from rewa.train.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(4):  # aligned buffers find their places in the first rounds
    before = faults()
    buffers = [torch.ones(2**20) for _ in range(16)]  # 64 MB
    del buffers
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_step_asks_the_kernel_for_no_buffer_that_the_last_one_freed():
    # A fixed threshold to begin with: glibc moves its own, and whether buffers go back then depends on where they lie.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)}

    def faults(mode):
        command = [sys.executable, "-c", FAULTS, mode]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    given_back = faults("give back")
    assert given_back > 2**26 / mmap.PAGESIZE / 2
    assert faults("keep") < 0.1 * given_back
