"""Small texts for tests: sentences of few words, of which some go with their neighbours."""

import numpy as np

TOPICS = (
    ("the ship", "a sail", "the sea", "the captain", "the storm"),
    ("the garden", "a rose", "the hedge", "the gardener", "the rain"),
    ("the king", "a crown", "the throne", "the queen", "the castle"),
)
VERBS = ("saw", "loved", "left", "found", "feared", "knew")
ENDINGS = ("", "again", "at once", "in the evening", "and nobody ever knew why it was so")


def sentence(rng, topic):
    one, other = rng.choice(TOPICS[topic], 2)
    ending = rng.choice(ENDINGS)
    return f"{one} {rng.choice(VERBS)} {other} {ending}".strip().capitalize() + "."


def books(folder, sizes=(90, 61, 20), seed=0):
    """Books of so many sentences, one a line; the topic changes every ten sentences."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        topics = np.repeat(rng.integers(0, len(TOPICS), -(-size // 10)), 10)
        lines = [sentence(rng, topic) for topic in topics[:size]]
        (folder / f"book{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


def opinions(stem, n=40, seed=1):
    """Files of sentences whose class is their topic: those of ships, and those of gardens."""
    rng = np.random.default_rng(seed)
    stem.parent.mkdir(parents=True, exist_ok=True)
    for topic, ending in enumerate((".pos", ".neg")):
        lines = [sentence(rng, topic) for _ in range(n)]
        stem.with_suffix(ending).write_text("\n".join(lines) + "\n")
    return stem
