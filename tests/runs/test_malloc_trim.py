"""Large arrays reuse the memory pages of earlier ones after `disable_malloc_trim`."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from jdml.training import disable_malloc_trim

faults = []
for turn in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(2**24, np.float32)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    disable_malloc_trim()
print(faults[0], faults[2])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.slow  # a process
def test_disable_malloc_trim() -> None:
    """Run in a new process, as the setting cannot be undone."""
    printed = subprocess.check_output([sys.executable, "-c", FAULTS], text=True)
    fresh, reused = map(int, printed.split())
    assert reused < fresh / 10
