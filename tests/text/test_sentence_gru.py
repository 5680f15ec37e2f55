"""Sentence encoders against a loop over words in NumPy."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import expit

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.text.packing import END, pack

CONFIG = {"dim": 6, "embedding": 5, "vocabulary_size": 11}
T, LENGTHS = 9, (4, 1, 7, 2, 2, 9, 5, 3)


@functools.cache
def encoder(**changes):
    config = ModelConfig("sentence_gru", **CONFIG | changes)
    apply, params, stats = models.create(config, jax.random.key(0))
    # Initial biases are 0, which would hide a fault.
    for number, name in enumerate(("bias", "recurrent_bias")):
        params[name] = jax.random.normal(jax.random.key(number), params[name].shape)

    @functools.partial(jax.jit, static_argnames="train")
    def outputs(x, params=params, train=False):
        return apply(params, stats, x, train)[0]

    return outputs, params


@pytest.fixture
def sentences(rng):
    return [np.append(rng.integers(2, 11, length - 1), END) for length in LENGTHS]


def in_rows(sentences):
    return np.array([np.pad(sentence, (0, T - len(sentence))) for sentence in sentences], np.int32)


def by_words(params, sentence):
    """Return the unnormalized features of f and of g, word by word in float64."""
    params = {name: np.asarray(array, np.float64) for name, array in params.items()}
    ends = []
    for e, d in np.ndindex(2, 2):
        names = ("kernel", "recurrent", "bias", "recurrent_bias")
        w, u, b, c = (params[name][e, d] for name in names)
        h = np.zeros(3)
        for word in sentence if d == 0 else sentence[::-1]:
            x = params["embedding"][e, word] @ w + b
            y = h @ u + c
            reset, update = expit(x[:3] + y[:3]), expit(x[3:6] + y[3:6])
            h = (1 - update) * np.tanh(x[6:] + reset * y[6:]) + update * h
        ends.append(h)
    return np.reshape(ends, (2, 6))


def test_layers_agree_with_a_loop_over_words(sentences):
    outputs, params = encoder()
    packed = outputs(pack(sentences, T)[0])
    rows = outputs(in_rows(sentences))
    table = np.asarray(params["embedding"])
    for i, sentence in enumerate(sentences):
        expected = by_words(params, sentence)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        bag = np.zeros((2, 5))
        if len(sentence) > 1:
            bag = table[:, sentence[:-1]].mean(axis=1)
        for found in (packed, rows):
            np.testing.assert_allclose([found["f"][i], found["g"][i]], expected, atol=2e-6)
            np.testing.assert_allclose(found["output"][i], expected.reshape(-1), atol=2e-6)
            np.testing.assert_allclose(found["bag"][i], bag.reshape(-1), atol=1e-6)


def test_layers_and_first_weights():
    config = ModelConfig("sentence_gru", **CONFIG)
    assert models.layers(config) == {"bag": (10,), "f": (6,), "g": (6,), "output": (12,)}
    _, params, _ = models.create(config, jax.random.key(0))
    gates = np.split(np.asarray(params["recurrent"]), 3, axis=-1)
    np.testing.assert_allclose(gates @ np.swapaxes(gates, -1, -2) - np.eye(3), 0, atol=1e-5)
    assert np.abs(params["embedding"]).max() <= 0.1 and params["embedding"].min() < -0.05
    limit = np.sqrt(6 / (5 + 9))  # Glorot's, for each encoder and direction
    assert 0.8 * limit < np.abs(params["kernel"]).max() <= limit
    drawn = [*params["embedding"], *params["kernel"].reshape(4, 5, 9)]
    assert len({float(np.sum(array)) for array in drawn}) == 6
    assert not params["bias"].any() and not params["recurrent_bias"].any()
