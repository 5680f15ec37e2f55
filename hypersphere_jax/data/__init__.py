# ruff: noqa: F401  (names for import from here)
"""Data sets: images or sentences with labels, by index, and their batches.

`load` opens the data of a config. `subsets` contains parts of data sets, `pipeline` makes batches.
"""

from hypersphere_jax.data.datasets import (
    EMBEDDED,
    NAMED,
    Dataset,
    is_text,
    load,
    load_labelled,
    load_raw_splits,
    located,
    text_folder,
)
from hypersphere_jax.data.source import Arrays, Source
from hypersphere_jax.data.text import Corpus
