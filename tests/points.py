"""Points that tests of all folders make."""

import numpy as np


def sphere(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Points on the unit sphere, float32."""
    x = rng.standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
