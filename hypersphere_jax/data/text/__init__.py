"""Text: corpora of consecutive sentences to train on, and labelled sentences to evaluate on."""

from hypersphere_jax.data.text.corpus import SPECIAL, Corpus, open_corpus, text
from hypersphere_jax.data.text.labelled import Labelled, Sentences, open_labelled
from hypersphere_jax.data.text.prepare import prepare_text, prepared
from hypersphere_jax.data.text.reading import SUFFIXES, has_text, is_text_name
from hypersphere_jax.data.text.rules import sentences, words

__all__ = [
    "SPECIAL",
    "SUFFIXES",
    "Corpus",
    "Labelled",
    "Sentences",
    "has_text",
    "is_text_name",
    "open_corpus",
    "open_labelled",
    "prepare_text",
    "prepared",
    "sentences",
    "text",
    "words",
]
