"""Speed of a training step of sentence encoders, and of PyTorch's where torch is installed."""

from collections.abc import Callable

import jax
import numpy as np

from benchmarks.timing import take_turns
from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, ObjectiveConfig
from hypersphere_jax.packing import END, PADDING, SPECIAL, pack
from hypersphere_jax.report import print_table
from hypersphere_jax.train import sharding
from hypersphere_jax.train.optimizers import make_optimizer, make_schedule
from hypersphere_jax.train.step import init_state, make_sentence_objective, make_sentence_step

LONGEST, TAU = 64, 0.1


def text(
    dim: int = 200,
    embedding: int = 200,
    vocabulary: int = 30_000,
    batch_size: int = 400,
    rounds: int = 5,
) -> None:
    """Time the contrastive step of both sentence encoders, with Adam, on one device.

    All forms take turns in every round, so that a machine whose speed drifts slows all alike; the
    ratios are medians over the rounds. Words are random, sentences as long as those of novels.
    PyTorch's GRU runs on its packed sequences, and on sequences padded to the longest.

    Args:
        dim: Dimensions of each encoder's output.
        embedding: Dimensions of the word embeddings.
        vocabulary: Number of words.
        batch_size: Sentences in a batch.
        rounds: Rounds that count, after one that compiles.
    """
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(2.9, 0.7, batch_size)), 2, LONGEST).astype(int)
    # Like the frequencies of words: most are few.
    draws = np.minimum(random.zipf(1.2, lengths.sum()) + len(SPECIAL), vocabulary) - 1
    sentences = [
        np.append(words[1:], END).astype(np.int32)
        for words in np.split(draws, np.cumsum(lengths)[:-1])
    ]
    config = ModelConfig("sentence_gru", dim=dim, embedding=embedding, vocabulary=vocabulary)
    run, padding = _our_step(config, sentences)
    forms = {"step, sentences packed in rows": run, **_torch_steps(config, sentences)}
    times = take_turns(forms, rounds)
    base = next(iter(times.values()))
    count = int(lengths.sum())
    rows = [
        [
            name,
            round(1e3 * float(np.median(seconds)), 1),
            round(count / float(np.median(seconds))),
            float(np.median(seconds / base)),
        ]
        for name, seconds in times.items()
    ]
    title = f"{batch_size} sentences, {count:,} words, {jax.devices()[0].device_kind}"
    print_table(["form", "ms", "words/s", "times ours"], rows, title=title)
    print(f"\npadding: {padding:.1%} of the packed rows, {_padded_to_longest(lengths):.1%} if each")
    print("sentence were padded to the longest of the batch")


def _padded_to_longest(lengths: np.ndarray) -> float:
    return 1 - lengths.sum() / (len(lengths) * lengths.max())


def _our_step(config: ModelConfig, sentences: list[np.ndarray]) -> tuple[Callable, float]:
    from experiments.quick_thought import OPTIMIZER

    apply, params, stats = models.create(config, jax.random.key(0))
    optimizer = make_optimizer(OPTIMIZER, make_schedule(OPTIMIZER, 1000))
    objective = make_sentence_objective(
        ObjectiveConfig(contrastive_weight=1, contrastive_tau=TAU, align_weight=0, uniform_weight=0)
    )
    devices = sharding.local_devices(1)
    step = make_sentence_step(apply, objective, optimizer, axis_name=sharding.AXIS)
    mapped = sharding.pmap(step, devices, donate=(0,))
    state = sharding.replicate(init_state(params, stats, optimizer), devices)

    nothing = np.zeros(0, np.int32)
    rest = sharding.replicate((nothing, nothing, jax.random.key(0)), devices)

    def run():
        nonlocal state
        (packed,) = pack(sentences, LONGEST)
        state, metrics = mapped(state, sharding.replicate(packed, devices), *rest)
        jax.block_until_ready(metrics)

    return run, float(np.mean(pack(sentences, LONGEST)[0].words == PADDING))


def _torch_steps(config: ModelConfig, sentences: list[np.ndarray]) -> dict[str, Callable]:
    """The same encoders, loss and optimizer in PyTorch as its users write them."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its steps are left out")
        return {}
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    words = torch.zeros((len(sentences), int(lengths.max())), dtype=torch.int64)
    for row, sentence in zip(words, sentences, strict=True):
        row[: len(sentence)] = torch.from_numpy(sentence)
    words = words.to(device)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(config.vocabulary, config.embedding)
            self.gru = nn.GRU(
                config.embedding, config.dim // 2, bidirectional=True, batch_first=True
            )

        def forward(self, packed):
            x = self.words(words)
            if packed:
                x = nn.utils.rnn.pack_padded_sequence(
                    x, lengths, batch_first=True, enforce_sorted=False
                )
            return nn.functional.normalize(torch.cat(list(self.gru(x)[1]), dim=-1))

    def made(packed):
        f, g = Encoder().to(device), Encoder().to(device)
        parameters = [*f.parameters(), *g.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=5e-4)

        def run():
            similarities = f(packed) @ g(packed).T / TAU
            after, before = (torch.diagonal(similarities, offset) for offset in (1, -1))
            positive = (after.sum() + before.sum() + after[0] + before[-1]) / 2
            loss = torch.logsumexp(similarities, 1).mean() - positive / len(words)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            loss.item()

        return run

    return {"PyTorch, packed": made(True), "PyTorch, padded": made(False)}
