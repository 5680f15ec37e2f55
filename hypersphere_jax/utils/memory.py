"""The memory of the process: how it is taken, and errors that say that it is used up."""

import ctypes
import os

# Of XLA; and of NVIDIA's libraries where other processes have left them nothing to begin with.
SIGNS = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY", "DNN library initialization failed")
ADVICE = (
    "give less at a time, such as a lower batch_size=; where other processes hold a GPU's memory, "
    "end them, or start each with its share, such as XLA_PYTHON_CLIENT_MEM_FRACTION=0.4"
)

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's mallopt


def keep_freed(platform: str) -> None:
    """Lets the C library keep memory that is freed while steps run on CPU, where that is glibc.

    There XLA takes the memory of every step anew. By default glibc gives large arrays back to the
    kernel at once, which then clears each page again; a step of a small network spends as long on
    that as on its arithmetic. Settings of the user's (`MALLOC_...`, `GLIBC_TUNABLES`) come first.
    A process that only takes large arrays once, as the verb `probe`, would hold more for nothing.
    """
    chosen = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if platform != "cpu" or chosen:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another library's
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)


def is_used_up(error: BaseException) -> bool:
    """Whether an error says so."""
    signs = isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
    return signs or isinstance(error, MemoryError)


def described(error: BaseException) -> str:
    """Such an error in one line."""
    return ": ".join(["out of memory", *str(error).splitlines()[:1]])
