"""Batches and the training step of sentence encoders."""

import functools
from types import SimpleNamespace
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest

from hypersphere_jax import configs as C
from hypersphere_jax.text.packing import OTHER_DEVICE, Packed
from hypersphere_jax.text.sentence_training import (
    ConsecutiveSampler,
    make_sentence_step,
    resolve_text,
    sentence_eval_batches,
)
from hypersphere_jax.training.step import init_state

OPTIMIZER = optax.sgd(0.1)


def test_batches_are_consecutive_sentences_of_one_document():
    documents = np.array([0, 50, 58, 90])
    sampler = ConsecutiveSampler(documents, 8, seed=3)
    assert sampler.steps_per_epoch == 6 + 1 + 4
    epochs = [[sampler(step) for step in range(start, start + 11)] for start in (0, 11)]
    for batches in epochs:
        assert all((np.diff(batch) == 1).all() and len(batch) == 8 for batch in batches)
        assert sorted(batch[0] for batch in batches) == [*range(0, 48, 8), 50, *range(58, 90, 8)]
    first, second = ([batch[0] for batch in batches] for batches in epochs)
    assert first != second and first != sorted(first)
    assert ConsecutiveSampler(documents, 8, seed=3)(17).tolist() == epochs[1][6].tolist()
    other = ConsecutiveSampler(documents, 8, seed=4)
    assert [other(step)[0] for step in range(11)] != first
    with pytest.raises(C.UserError, match="batch_size=51"):
        ConsecutiveSampler(documents, 51, seed=0)


@pytest.mark.parametrize("sizes", [(80, 80), (80, 39)])
def test_a_warning_reports_sentences_that_fit_no_batch(sizes, caplog):
    documents = np.cumsum([0, *sizes])
    corpus = MagicMock(documents=documents, vocabulary=("a",) * 9)
    corpus.__len__.return_value = sum(sizes)
    dataset = SimpleNamespace(pretrain=corpus, origin="books")
    config = C.PretrainConfig(model="sentence_gru", data="books", data_dir=".", batch_size=40)
    found = resolve_text(config, dataset)
    assert found.vocabulary_size == 9 and found.data == "books" and found.data_dir.startswith("/")
    assert len(caplog.messages) == (sizes[1] < 40)
    for refused in ({"queue_size": 8}, {"supervised_weight": 1.0}, {"pipeline": "streaming"}):
        with pytest.raises(C.UserError, match=next(iter(refused))):
            resolve_text(config.replace(**refused), dataset)


def test_evaluation_batches_contain_whole_sentences(rng):
    """Batches are as wide as their longest sentence, rounded up to a multiple of 16."""
    lengths = rng.integers(1, 60, 21)
    words = np.where(np.arange(64) < lengths[:, None], rng.integers(1, 9, (21, 64)), 0)
    source = [{"image": row, "label": i % 3} for i, row in enumerate(words)]
    batches = sentence_eval_batches(source, 8)
    for indices, batch in zip(np.split(np.arange(21), (8, 16)), batches, strict=True):
        width = -(-lengths[indices].max() // 16) * 16
        np.testing.assert_array_equal(batch.images, words[indices, :width])
        np.testing.assert_array_equal(batch.indices, indices)
        np.testing.assert_array_equal(batch.labels, indices % 3)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.slow
def test_step_on_one_and_two_devices():
    """Features count where their sentences are, and only the contrastive loss is unnormalized."""
    words = np.array([[5, 6, 1, 0], [7, 1, 0, 0], [8, 9, 3, 1], [4, 1, 0, 0]])
    last = np.array([2, 1, 3, 1])  # positions of the end token
    rows_of_device = np.array([[0, 3], [1, 2]])
    parts = np.full((2, 4), OTHER_DEVICE)
    for device, rows in enumerate(rows_of_device):
        parts[device, rows] = [last[row] + 4 * i for i, row in enumerate(rows)]
    many = Packed(words[rows_of_device], parts, parts)
    positions = last + 4 * np.arange(4)
    one = Packed(words, positions, positions)

    def encoders(params, stats, sentences, train, axis_name):
        features = params["w"][jnp.ravel(sentences.words)[sentences.last - 1]]
        return {"f": features, "g": features[:, ::-1]}, stats

    config = C.ObjectiveConfig(
        contrastive_weight=0.5, contrastive_tau=0.3, align_weight=0.7, uniform_weight=1.2
    )
    scalars = {"contrastive_weight": 0.6, "align_alpha": 1.2, "uniform_t": 1.5}
    make = functools.partial(make_sentence_step, config, encoders, OPTIMIZER, scalars=scalars)
    key = jax.random.key(0)
    params = {"w": jax.random.normal(key, (10, 3))}
    state = init_state(params, {}, OPTIMIZER)
    expected = jax.jit(make(axis_name=None))(state, one, None, None, key)
    axes = {"in_axes": (None, 0, None, None, None), "devices": jax.devices()[:2]}
    found = jax.pmap(make(axis_name="data"), "data", **axes)(state, many, None, None, key)
    for device in range(2):
        jax.tree.map(
            lambda x, y, i=device: np.testing.assert_allclose(x[i], y, rtol=2e-5, atol=1e-6),
            found,
            expected,
        )
    f = np.array(params["w"])[[6, 7, 3, 4]]
    g = f[:, ::-1]
    losses = {
        "contrastive": oracles.quick_thought_contrastive_oracle(f, g, 0.3),
        "align": oracles.quick_thought_align_oracle(unit(f), unit(g), 1.2),
        "uniform": oracles.quick_thought_uniform_oracle(unit(f), unit(g), 1.5),
    }
    new_state, metrics = expected
    for name, value in losses.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name
    loss = 0.6 * losses["contrastive"] + 0.7 * losses["align"] + 1.2 * losses["uniform"]
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["padding"] == pytest.approx(5 / 16)
    has_moved = np.any(new_state.params["w"] != params["w"], axis=1)
    np.testing.assert_array_equal(np.flatnonzero(has_moved), [3, 4, 6, 7])
