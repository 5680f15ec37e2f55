"""Corpora made for a test, and their sentences."""

from hypersphere_jax.text.corpus import open_corpus
from hypersphere_jax.text.prepare import PrepareTextConfig, prepare_text


def made(raw, out, **options):
    """Return the training and the held-out split of a new corpus."""
    prepare_text(PrepareTextConfig(str(raw), str(out), **options))
    return open_corpus(out)


def read_back(corpus):
    """Return all sentences as words separated by spaces."""
    return [corpus.text(i) for i in range(len(corpus))]
