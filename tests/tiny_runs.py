"""Configs of runs that take a second, one of each kind, and the texts that they read."""

import jax
import numpy as np
import pytest

from hypersphere_jax import cli
from hypersphere_jax import configs as C


def parse_pretrain(*arguments) -> C.PretrainConfig:
    """Return the config that `pretrain` reads from a command line."""
    return cli.parse_run(C.PretrainConfig, "pretrain", arguments)


def two() -> int:
    """Devices; one where there are no two."""
    return min(2, jax.device_count())


def needs_devices(count: int) -> pytest.MarkDecorator:
    """Skip a test where there are fewer devices."""
    return pytest.mark.skipif(jax.device_count() < count, reason=f"needs {count} devices")


def flat(changes):
    """Return options by name, with those of whole sections, such as `C.RuntimeConfig(...)`."""
    options = {}
    for name, value in changes.items():
        options |= vars(value) if isinstance(value, C.Config) else {name: value}
    return options


def images(folder, name="images", **changes) -> C.PretrainConfig:
    """56 steps of digits; a probe of the result scores above 75%."""
    parts = {
        "dim": 6,
        "width": 0.25,
        "epochs": 8,
        "batch_size": 200,
        "devices": 1,
        "log_every_steps": 7,
        "checkpoint_every_steps": 28,
    }
    return C.PretrainConfig(name=name, runs_dir=str(folder), **(parts | flat(changes)))


def short(folder, name="short", **changes) -> C.PretrainConfig:
    """12 steps of the smallest encoder on two devices, with checkpoints 0, 6, 9, 12."""
    parts = {
        "dim": 3,
        "width": 0.1,
        "epochs": 2,
        "batch_size": 220,
        "devices": two(),
        "log_every_steps": 2,
        "checkpoint_every_steps": 3,
    }
    return C.PretrainConfig(name=name, runs_dir=str(folder), **(parts | flat(changes)))


def queue(folder, name="queue", **changes) -> C.PretrainConfig:
    """10 steps with a queue of 130 keys, which the batch of 104 does not divide."""
    parts = {
        "fraction": 0.15,
        "contrastive_weight": 0.5,
        "queue_size": 130,
        "ema_decay": 0.9,
        "epochs": 5,
        "batch_size": 104,
        "devices": two(),
        "log_every_steps": 1,
        "checkpoint_every_steps": 2,
        "keep_last": 2,
        "keep_every_steps": 4,
    }
    return short(folder, name, **(parts | flat(changes)))


def text(folder, texts, name="text", **changes) -> C.PretrainConfig:
    """10 steps of sentence encoders on the books of `texts`."""
    rule = {"optimizer": "adam", "learning_rate": 0.03, "scaling": "none", "decay_at": ()}
    rule |= {"epochs": 2, "batch_size": 24, "weight_decay": 0, "clip_norm": 0.5}
    parts = {
        "data": str(texts / "books"),
        "model": "sentence_gru",
        "dim": 8,
        "embedding": 6,
        "contrastive_weight": 1,
        "contrastive_tau": 0.2,
        "align_weight": 0.5,
        "uniform_weight": 0.1,
        **rule,
        "devices": two(),
        "log_every_steps": 1,
        "checkpoint_every_steps": 3,
    }
    return C.PretrainConfig(name=name, runs_dir=str(folder), **(parts | flat(changes)))


TOPICS = (
    ("the ship", "a sail", "the sea", "the captain", "the storm"),
    ("the garden", "a rose", "the hedge", "the gardener", "the rain"),
    ("the king", "a crown", "the throne", "the queen", "the castle"),
)
VERBS = ("saw", "loved", "left", "found", "feared", "knew")
ENDINGS = ("", "again", "at once", "in the evening", "and nobody ever knew why it was so")


def sentence(rng, topic: int) -> str:
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


def write_texts(folder):
    books(folder / "books")
    opinions(folder / "labelled" / "topics")
