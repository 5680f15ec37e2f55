"""Memory of the process: glibc's allocator, and out-of-memory errors."""

import contextlib
import ctypes
import os

# Texts of XLA's out-of-memory errors, and of NVIDIA's libraries when other processes fill the GPU.
SIGNS = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY", "DNN library initialization failed")
ADVICE = (
    "give less at a time, such as a lower batch_size=; where other processes hold a GPU's memory, "
    "end them, or start each with its share, such as XLA_PYTHON_CLIENT_MEM_FRACTION=0.4"
)

# Options of glibc's mallopt.
TRIM_THRESHOLD = -1
MMAP_MAX = -4


def keep_freed(platform: str) -> None:
    """Make glibc reuse freed memory between training steps on CPUs.

    XLA allocates memory in every step, and by default glibc returns large arrays to the kernel,
    which clears each page again. In a step of a small network this takes half of the time. The
    user's settings (`MALLOC_...`, `GLIBC_TUNABLES`) take precedence.
    """
    is_configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if platform == "cpu" and not is_configured:
        with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(MMAP_MAX, 0)
            mallopt(TRIM_THRESHOLD, 2**31 - 1)


def is_used_up(error: BaseException) -> bool:
    """Return whether an exception is an out-of-memory error."""
    if isinstance(error, RuntimeError):
        return any(sign in str(error) for sign in SIGNS)
    return isinstance(error, MemoryError)


def described(error: BaseException) -> str:
    """Return an out-of-memory error in one line."""
    return ": ".join(["out of memory", *str(error).splitlines()[:1]])
