"""Making, reading and comparing corpora."""

from hypersphere_jax.data import text


def made(raw, out, **options):
    """The training and the held-out split of a new corpus."""
    assert text.prepare_text(raw, out, **options)
    return text.open_corpus(out)


def read_back(corpus):
    """All sentences, their words with spaces between them."""
    return [text.text(corpus, i) for i in range(len(corpus))]


def contents(folder):
    """The bytes of each file of a corpus."""
    return {file: (folder / file).read_bytes() for file in names(folder)}


def names(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def sentences_of(folder, content: str | bytes, form="prose"):
    """The words of each sentence of a file with this content, as its corpus has them."""
    folder /= str(len(list(folder.iterdir())))
    folder.mkdir()
    (folder / "t.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    options = {"form": form, "held_out": 0, "max_tokens": 512}
    return read_back(made(folder / "t.txt", folder / "out", **options)[0])
