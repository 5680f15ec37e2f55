"""Making and comparing corpora, and work that is stopped."""

from hypersphere_jax.data import text

FILES = [f"{split}/{name}" for split in ("train", "held_out")
         for name in ("tokens.bin", "offsets.npy", "documents.npy")]  # fmt: skip
FILES += ["vocabulary.txt", "corpus.json"]


def made(raw, out, **options):
    """The training and the held-out split of a new corpus."""
    assert text.prepare_text(raw, out, **options)
    return text.open_corpus(out)


def read_back(corpus):
    """All sentences, their words with spaces between them."""
    return [text.text(corpus, i) for i in range(len(corpus))]


def contents(folder):
    """The bytes of each file of a corpus."""
    return {name: (folder / name).read_bytes() for name in FILES}


def sentences_of(folder, content: str | bytes, form="prose", name="t.txt"):
    """The words of each sentence of a file with this content, as its corpus has them."""
    number = len(list(folder.iterdir()))
    (folder / str(number)).mkdir()
    file = folder / str(number) / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    train, _ = made(file, folder / str(number) / "out", form=form, held_out=0, max_tokens=512)
    return read_back(train)


class Stop(Exception):
    pass


def stopping(after):
    """A progress that stops the work after so many steps."""

    def track(items, count):
        for number, item in enumerate(items):
            if number == after:
                raise Stop
            yield item

    return track
