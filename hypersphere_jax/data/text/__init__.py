# ruff: noqa: F401  (names for import from here)
"""Text: corpora of consecutive sentences to train on, and labelled sentences to evaluate on."""

from hypersphere_jax.data.text.corpus import Corpus, open_corpus
from hypersphere_jax.data.text.labelled import open_labelled
from hypersphere_jax.data.text.packing import SPECIAL
from hypersphere_jax.data.text.prepare import prepare_text, prepared
from hypersphere_jax.data.text.reading import SUFFIXES, has_text, is_text_name
