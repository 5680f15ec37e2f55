"""Training of sentence encoders (Quick-Thought): options, batches, objective and step."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig, require
from hypersphere_jax.configs.base import refuse
from hypersphere_jax.data import Dataset, Source, located
from hypersphere_jax.data.pipeline import Batch
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.losses import (
    l2_normalize,
    quick_thought_align_loss,
    quick_thought_contrastive_loss,
    quick_thought_uniform_loss,
)
from hypersphere_jax.text.corpus import VOCABULARY, Corpus, read_vocabulary
from hypersphere_jax.text.packing import OTHER_DEVICE, PADDING, Packed, pack
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.step import Metrics, TrainState, update_state

logger = logging.getLogger("hypersphere_jax")

# Options of `PretrainConfig` that apply to images only.
IMAGE_OPTIONS = ("queue_size", "supervised_weight", "learn_tau", "eval_every_epochs")
IMAGE_OPTIONS += ("pipeline", "workers")
WARN_BELOW = 0.9  # share of the sentences that whole batches contain
# Sentences to evaluate are padded to a multiple of this length to limit the compiled shapes.
LENGTH_MULTIPLE = 16


def resolve_text(config: PretrainConfig, dataset: Dataset) -> PretrainConfig:
    """Return the config of a run with the vocabulary size and absolute paths of its text."""
    refuse(config, IMAGE_OPTIONS, f"is for images, and {dataset.origin} is text: omit it")
    corpus: Any = dataset.pretrain
    sampler = ConsecutiveSampler(corpus.documents, config.batch_size, config.seed)
    used = config.batch_size * sampler.steps_per_epoch / len(corpus)
    if used < WARN_BELOW:
        logger.warning(
            "%.0f%% of the %d sentences are not used: a batch is batch_size=%d consecutive "
            "sentences of a document, and the rest of each document is dropped",
            *(100 * (1 - used), len(corpus), config.batch_size),
        )
    return config.replace(vocabulary_size=len(corpus.vocabulary), **located(config))


class ConsecutiveSampler:
    """Batches of consecutive sentences of one document, in a new order in each epoch.

    The last sentences of a document that do not fill a batch are dropped. `documents` is like
    `Corpus.documents`. UserError if no document fills a batch.
    """

    def __init__(self, documents: np.ndarray, batch_size: int, seed: int):
        pairs = itertools.pairwise(documents)
        starts = [np.arange(start, end - batch_size + 1, batch_size) for start, end in pairs]
        self._starts = np.concatenate(starts)
        self.batch_size = batch_size
        self.steps_per_epoch = len(self._starts)
        longest = np.diff(documents).max(initial=0)
        message = f"batch_size={batch_size}: the longest document has {longest:,} sentences"
        require(self.steps_per_epoch > 0, f"{message}; use a smaller batch")
        self._order = Sampler(self.steps_per_epoch, 1, seed)

    def __call__(self, step: int) -> np.ndarray:
        """Return the sentences `[batch_size]` in the global batch of a step, counted from 0."""
        start = self._starts[self._order(step)[0]]
        return np.arange(start, start + self.batch_size)


def sentence_batches(
    corpus: Corpus, sampler: ConsecutiveSampler, steps: range, devices: Sequence[jax.Device]
) -> Iterator[tuple[Packed, Any, Any]]:
    """Yield `(sentences, labels, indices)` on the devices; labels and indices are empty."""
    empty = np.zeros((len(distributed.local(devices)), 0), np.int32)
    for step in steps:
        indices = sampler(step)
        words, lengths = corpus.rows(int(indices[0]), int(indices[-1]) + 1)
        sentences = np.split(words, np.cumsum(lengths)[:-1])
        parts = pack(sentences, corpus.max_tokens, len(devices))
        local_parts = [parts[row] for row in distributed.local_rows(len(devices), devices)]
        packed = jax.tree.map(lambda *arrays: np.stack(arrays), *local_parts)
        yield distributed.split((packed, empty, empty), devices)


def sentence_eval_batches(source: Source, size: int) -> Iterator[Batch]:
    """Yield all sentences of a source in batches, one sentence per row."""
    for start in range(0, len(source), size):
        indices = np.arange(start, min(len(source), start + size))
        samples = [source[int(i)] for i in indices]
        words = np.stack([sample["image"] for sample in samples])
        longest = np.flatnonzero(words.any(axis=0))[-1] + 1
        width = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        labels = np.array([sample["label"] for sample in samples], np.int32)
        yield Batch(words[:, :width], labels, indices)


def make_sentence_step(
    config: ObjectiveConfig,
    apply: Callable,
    optimizer: optax.GradientTransformation,
    *,
    axis_name: str | None,
    scalars: Mapping[str, jax.Array] | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Make the training step of two sentence encoders, for one device; see `step.make_step`.

    The loss is the weighted sum of Wang & Isola, B.3. Alignment and uniformity normalize the
    features; the contrastive loss does not. The metric `uniform` is the sum of both encoders', and
    `padding` the share of padding in the rows.

    Returns:
      `step(state, sentences, labels, indices, key) -> (state, metrics)`. `sentences` is this
      device's `Packed` part; labels, indices and key are not used.
    """
    values = vars(config) | dict(scalars or {})

    def step(state, sentences, labels, indices, key):
        del labels, indices, key

        def loss_of(params, _):
            outputs, stats = apply(params, state.stats, sentences, True, axis_name)
            f = _scatter(outputs["f"], sentences, axis_name)
            g = _scatter(outputs["g"], sentences, axis_name)
            loss, metrics = _weighted_loss(f, g, config, values, axis_name)
            return loss, (stats, metrics)

        padding = jnp.mean(sentences.words == PADDING)
        if axis_name is not None:
            padding = jax.lax.pmean(padding, axis_name)
        state, metrics = update_state(state, loss_of, optimizer, axis_name)
        return state, metrics | {"padding": padding}

    return step


def _weighted_loss(f, g, config: ObjectiveConfig, values, axis_name) -> tuple[jax.Array, Metrics]:
    """Return the weighted sum of the losses of features `[k / devices, d]`, and its terms."""
    unit_f = l2_normalize(f)
    unit_g = l2_normalize(g)
    options = {"axis_name": axis_name}
    metrics = {
        "align": quick_thought_align_loss(unit_f, unit_g, values["align_alpha"], **options),
        "uniform": quick_thought_uniform_loss(unit_f, unit_g, values["uniform_t"], **options),
    }
    if config.contrastive_weight:
        tau = values["contrastive_tau"]
        metrics["contrastive"] = quick_thought_contrastive_loss(f, g, tau, **options)
    # A term of weight 0 is omitted, since 0 times infinity is NaN.
    terms = [
        values[f"{name}_weight"] * metrics[name]
        for name in ("contrastive", "align", "uniform")
        if getattr(config, f"{name}_weight")
    ]
    return sum(terms), metrics


def _scatter(x: jax.Array, sentences: Packed, axis_name: str | None) -> jax.Array:
    """Return this device's share `[k / devices, d]` of the batch's features, in order.

    Each device computes the features of the sentences in its rows.
    """
    if axis_name is None:
        return x
    is_mine = (sentences.last != OTHER_DEVICE)[:, None]
    return jax.lax.psum_scatter(jnp.where(is_mine, x, 0.0), axis_name, tiled=True)


def run_vocabulary(folder: Path) -> tuple[str, ...]:
    """Return the words that an encoder knows; UserError if their file is missing or damaged."""
    words = read_vocabulary(folder / VOCABULARY)
    size = run_dir.read_config(folder).vocabulary_size
    message = f"{folder / VOCABULARY} has {len(words)} words, and the encoder knows {size}"
    require(len(words) == size, f"{message}: repeat the `pretrain` command, which writes the file")
    return words


def check_vocabulary(config: PretrainConfig, dataset: Dataset) -> None:
    """Raise UserError unless the run in `init_from` knows the words of the data."""
    folder = run_dir.find(str(config.init_from), config.runs_dir)
    corpus: Any = dataset.pretrain
    is_same = run_dir.read_config(folder).reads_text and run_vocabulary(folder) == corpus.vocabulary
    message = f"init_from={config.init_from} has another vocabulary than {config.data}"
    require(is_same, f"{message}: name a run on the same corpus")
