"""Large arrays reuse the memory pages of earlier ones after `disable_malloc_trim`."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from jdml.training import disable_malloc_trim

def of_ten_arrays():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(2**24, np.float32)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fresh = of_ten_arrays()
disable_malloc_trim()
of_ten_arrays()
print(fresh, of_ten_arrays())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.slow  # a process
def test_disable_malloc_trim() -> None:
    """Run in a new process, as the setting cannot be undone."""
    printed = subprocess.check_output([sys.executable, "-c", FAULTS], text=True)
    fresh, reused = map(int, printed.split())
    assert reused < fresh / 10
