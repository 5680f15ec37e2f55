"""Making and reading corpora."""

from hypersphere_jax.data import text


def made(raw, out, **options):
    """The training and the held-out split of a new corpus."""
    assert text.prepare_text(raw, out, **options)
    return text.open_corpus(out)


def read_back(corpus):
    """All sentences, their words with spaces between them."""
    return [text.text(corpus, i) for i in range(len(corpus))]
