"""Batches and the training step of sentence encoders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest

from hypersphere_jax import configs as C
from hypersphere_jax.text.packing import pack
from hypersphere_jax.text.sentence_training import (
    ConsecutiveSampler,
    make_sentence_step,
    sentence_eval_batches,
)
from hypersphere_jax.training.step import init_state

OPTIMIZER = optax.sgd(0.1)


def test_batches_are_consecutive_sentences_of_one_document():
    documents = np.array([0, 50, 58, 90])
    sampler = ConsecutiveSampler(documents, 8, seed=3)
    assert sampler.steps_per_epoch == 6 + 1 + 4
    batches = np.array([sampler(step) for step in range(22)])
    assert batches.shape == (22, 8) and (np.diff(batches) == 1).all()
    first, second = batches[:, 0].reshape(2, 11).tolist()
    assert sorted(first) == sorted(second) == [*range(0, 48, 8), 50, *range(58, 90, 8)]
    assert first != second and first != sorted(first)
    other = ConsecutiveSampler(documents, 8, seed=4)
    assert [other(step)[0] for step in range(11)] != first
    with pytest.raises(C.UserError, match="batch_size=51"):
        ConsecutiveSampler(documents, 51, seed=0)


def test_evaluation_batches_contain_whole_sentences(rng):
    lengths = rng.integers(1, 60, 21)
    words = np.where(np.arange(64) < lengths[:, None], rng.integers(1, 9, (21, 64)), 0)
    source = [{"image": row, "label": i % 3} for i, row in enumerate(words)]
    batches = sentence_eval_batches(source, 8)
    for indices, batch in zip(np.split(np.arange(21), (8, 16)), batches, strict=True):
        width = batch.images.shape[1]
        np.testing.assert_array_equal(batch.images, words[indices, :width])
        assert not words[indices, width:].any()
        np.testing.assert_array_equal(batch.indices, indices)
        np.testing.assert_array_equal(batch.labels, indices % 3)


def encode(params, stats, sentences, train, axis_name):
    """Look up the word before the end token; g is f with its columns reversed."""
    features = params["w"][jnp.ravel(sentences.words)[sentences.last - 1]]
    return {"f": features, "g": features[:, ::-1]}, stats


@pytest.mark.slow
def test_step_on_one_and_two_devices():
    """Only the contrastive loss is of unnormalized features."""
    sentences = [np.array(words) for words in ([5, 6, 1], [7, 1], [8, 9, 3, 1], [4, 1])]
    (one,) = pack(sentences, 4)
    many = jax.tree.map(lambda *parts: np.stack(parts), *pack(sentences, 4, devices=2))
    weights = {"contrastive_weight": 0.5, "align_weight": 0.7, "uniform_weight": 1.2}
    config = C.ObjectiveConfig(contrastive_tau=0.3, **weights)
    scalars = {"contrastive_weight": 0.6, "align_alpha": 1.2, "uniform_t": 1.5}
    make = functools.partial(make_sentence_step, config, encode, OPTIMIZER, scalars=scalars)
    key = jax.random.key(0)
    params = {"w": jax.random.normal(key, (10, 3))}
    state = init_state(params, {}, OPTIMIZER)
    new_state, metrics = jax.jit(make(axis_name=None))(state, one, None, None, key)
    axes = {"in_axes": (None, 0, None, None, None), "devices": jax.devices()[:2]}
    found, _ = jax.pmap(make(axis_name="data"), "data", **axes)(state, many, None, None, key)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(new_state), strict=True):
        np.testing.assert_allclose(x, jnp.stack([y, y]), rtol=2e-5, atol=1e-6)
    f = np.array(params["w"])[[6, 7, 3, 4]]
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    losses = {
        "contrastive": oracles.quick_thought_contrastive_oracle(f, f[:, ::-1], 0.3),
        "align": oracles.quick_thought_align_oracle(unit, unit[:, ::-1], 1.2),
        "uniform": oracles.quick_thought_uniform_oracle(unit, unit[:, ::-1], 1.5),
    }
    losses["loss"] = np.dot([0.6, 0.7, 1.2], list(losses.values()))
    for name, value in losses.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name
    has_moved = np.any(new_state.params["w"] != params["w"], axis=1)
    np.testing.assert_array_equal(np.flatnonzero(has_moved), [3, 4, 6, 7])
