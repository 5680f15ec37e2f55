"""Speed of a training step of sentence encoders, and of PyTorch's where torch is installed."""

from collections.abc import Callable

import jax
import numpy as np

from benchmarks.timing import device_kind, rows_of, stepping, take_turns
from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, ObjectiveConfig
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.text.packing import END, PADDING, SPECIAL, pack
from hypersphere_jax.text.sentence_training import make_sentence_step
from hypersphere_jax.training import distributed
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import init_state

LONGEST, TAU = 64, 0.1
OURS = "step, sentences packed in rows"


def text(dim: int, embedding: int, vocabulary: int, batch_size: int, rounds: int) -> None:
    """Time the contrastive step of both sentence encoders, with Adam, on one device."""
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(2.9, 0.7, batch_size)), 2, LONGEST).astype(int)
    # Like the frequencies of words: most are few.
    draws = np.minimum(random.zipf(1.2, lengths.sum()) + len(SPECIAL), vocabulary) - 1
    sentences = [
        np.append(words[1:], END).astype(np.int32)
        for words in np.split(draws, np.cumsum(lengths)[:-1])
    ]
    config = ModelConfig("sentence_gru", dim=dim, embedding=embedding, vocabulary_size=vocabulary)
    forms = {OURS: _our_step(config, sentences), **_torch_steps(config, sentences)}
    count = int(lengths.sum())
    rows = rows_of(take_turns(forms, rounds), count, OURS)
    title = f"{batch_size} sentences, {count:,} words, {device_kind()}"
    print_table(["form", "ms", "words/s", "times ours"], rows, title=title)
    padding = np.mean(pack(sentences, LONGEST)[0].words == PADDING)
    longest = 1 - count / (batch_size * lengths.max())
    print(f"\npadding: {padding:.1%} of the packed rows, {longest:.1%} if each")
    print("sentence were padded to the longest of the batch")


def _our_step(config: ModelConfig, sentences: list[np.ndarray]) -> Callable:
    """With the packing of the sentences, which the loop does at each step."""
    from experiments.quick_thought import OPTIMIZER

    apply, params, stats = models.create(config, jax.random.key(0))
    optimizer = make_optimizer(OPTIMIZER, make_schedule(OPTIMIZER, 1000))
    loss = ObjectiveConfig(
        contrastive_weight=1, contrastive_tau=TAU, align_weight=0, uniform_weight=0
    )
    step = make_sentence_step(loss, apply, optimizer, axis_name=distributed.AXIS)
    rest = np.zeros(0, np.int32), np.zeros(0, np.int32), jax.random.key(0)
    state = init_state(params, stats, optimizer)
    return stepping(step, state, lambda: (*pack(sentences, LONGEST), *rest))


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
            self.words = nn.Embedding(config.vocabulary_size, config.embedding)
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
