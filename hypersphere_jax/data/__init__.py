# ruff: noqa: F401  (names for import from here)
"""Data sets: images with labels, by index, and their batches.

`load` opens the data of a config. `subsets` contains parts of data sets, `pipeline` makes batches.
"""

from hypersphere_jax.data.datasets import (
    EMBEDDED,
    NAMED,
    Dataset,
    load,
    load_raw_splits,
    located,
)
from hypersphere_jax.data.source import Arrays, Source
