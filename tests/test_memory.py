"""Memory that is freed stays with the process."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource
import sys
import numpy as np
from hypersphere_jax.utils import memory

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(100_000_000, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

memory.keep_freed(sys.argv[1])
print(pages(), pages())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
@pytest.mark.parametrize(
    ("platform", "setting", "kept"),
    [("cpu", {}, True), ("cpu", {"MALLOC_ARENA_MAX": "8"}, False), ("gpu", {}, False)],
)
def test_pages_are_cleared_once_on_cpu_unless_the_user_has_settings(platform, setting, kept):
    """Of 100 MB there are 24,414 pages of 4 KB, or fewer that are larger."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, platform]
    found = subprocess.run(command, env=plain | setting, capture_output=True, check=True, text=True)
    first, second = map(int, found.stdout.split())
    assert first > 40
    assert second < 0.1 * first if kept else second > 0.9 * first
