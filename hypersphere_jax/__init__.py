"""Alignment, uniformity and contrastive representation learning on the unit hypersphere, in JAX.

The losses stand at the top: `from hypersphere_jax import align_loss, uniform_loss`. Importing
them needs jax and numpy only; training and evaluation live in modules that are imported by name.
"""

from hypersphere_jax.losses import *  # noqa: F403  one list of names, in losses/__init__.py
from hypersphere_jax.losses import __all__  # noqa: F401

__version__ = "0.1.0"
