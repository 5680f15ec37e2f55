"""Errors that say that memory is used up: the machine's, or that of a GPU or TPU."""

# Of XLA; and of NVIDIA's libraries where other processes have left them nothing to begin with.
SIGNS = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY", "DNN library initialization failed")
ADVICE = (
    "give less at a time, such as a lower --batch-size; where other processes hold a GPU's memory, "
    "end them, or start each with its share, such as XLA_PYTHON_CLIENT_MEM_FRACTION=0.4"
)


def is_used_up(error: BaseException) -> bool:
    """Whether an error says so."""
    signs = isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
    return signs or isinstance(error, MemoryError)


def described(error: BaseException) -> str:
    """Such an error in one line."""
    return ": ".join(["out of memory", *str(error).splitlines()[:1]])
