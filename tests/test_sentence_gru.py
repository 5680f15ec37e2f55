"""The sentence encoders against a loop over words in NumPy, packed or a sentence in each row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError
from hypersphere_jax.packing import END, Packed, one_a_row, pack

CONFIG = ModelConfig("sentence_gru", dim=6, embedding=5, vocabulary=11)
T = 9


@functools.cache
def encoder(config=CONFIG):
    apply, params, stats = models.create(config, jax.random.key(0))
    # Biases are zero at first, and would hide where they go.
    for number, name in enumerate(("bias", "recurrent_bias")):
        params[name] = jax.random.normal(jax.random.key(number), params[name].shape)
    return jax.jit(apply, static_argnums=3), params, stats


def sentences(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [np.append(rng.integers(2, 11, length - 1), END) for length in lengths]


def packed(given, t=T):
    return pack(given, t)[0]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_words(params, sentence):
    """Unit features of f and of g, word by word in float64."""
    found = []
    for e in range(2):
        ends = []
        for d in range(2):
            w, u, b, c = (
                np.asarray(params[name], np.float64)[e, d]
                for name in ("kernel", "recurrent", "bias", "recurrent_bias")
            )
            h = np.zeros(3)
            for word in sentence if d == 0 else sentence[::-1]:
                x = np.asarray(params["embedding"], np.float64)[e, word] @ w + b
                y = h @ u + c
                reset, update = sigmoid(x[:3] + y[:3]), sigmoid(x[3:6] + y[3:6])
                new = np.tanh(x[6:] + reset * y[6:])
                h = (1 - update) * new + update * h
            ends.append(h)
        found.append(np.concatenate(ends))
    return [x / np.linalg.norm(x) for x in found]


def test_packed_sentences_are_as_by_words():
    apply, params, stats = encoder()
    given = sentences([4, 1, 7, 2, 2, 9, 5, 3])
    outputs, _ = apply(params, stats, packed(given), False)
    for i, sentence in enumerate(given):
        f, g = by_words(params, sentence)
        np.testing.assert_allclose(outputs["f"][i], f, atol=2e-6)
        np.testing.assert_allclose(outputs["g"][i], g, atol=2e-6)
        np.testing.assert_allclose(outputs["output"][i], np.concatenate([f, g]), atol=2e-6)
        table = np.asarray(params["embedding"])
        mean = table[:, sentence[:-1]].mean(1) if len(sentence) > 1 else np.zeros((2, 5))
        np.testing.assert_allclose(outputs["bag"][i], mean.reshape(-1), atol=1e-6)


def test_a_row_for_each_sentence_is_the_same():
    apply, params, stats = encoder()
    given = sentences([4, 1, 7, 2, 9], seed=1)
    rows = np.zeros((5, T), np.int32)
    for row, sentence in zip(rows, given, strict=True):
        row[: len(sentence)] = sentence
    one, _ = apply(params, stats, jnp.asarray(rows), False)
    other, _ = apply(params, stats, packed(given), False)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-6, err_msg=name)
    assert one_a_row(jnp.asarray(rows)).last.tolist() == [3, 9, 24, 28, 44]


def test_gradient_does_not_depend_on_the_packing():
    apply, params, stats = encoder()
    given = sentences([4, 1, 7, 2, 9, 3, 3], seed=2)

    def loss(params, x):
        outputs, _ = apply(params, stats, x, True)
        return jnp.sum(outputs["f"] @ jnp.arange(1.0, 7)) + jnp.sum(outputs["g"] ** 3)

    gradient = jax.jit(jax.grad(loss))
    tight = gradient(params, packed(given))
    words = np.zeros((9, T), np.int32)  # with empty rows
    for row, sentence in zip(words, given, strict=False):
        row[: len(sentence)] = sentence
    first = np.arange(7) * T
    loose = Packed(words, first, first + np.array([len(sentence) for sentence in given]) - 1)
    for name, value in gradient(params, loose).items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(tight[name], value, atol=2e-6 * scale, err_msg=name)


def test_unit_norm_in_training_is_an_option():
    given = packed(sentences([4, 3]))
    for unit in (True, False):
        config = ModelConfig("sentence_gru", dim=6, embedding=5, vocabulary=11, unit_norm=unit)
        apply, params, stats = encoder(config)
        norms = {
            train: np.linalg.norm(apply(params, stats, given, train)[0]["f"], axis=1)
            for train in (True, False)
        }
        np.testing.assert_allclose(norms[False], 1, atol=1e-6)
        assert np.allclose(norms[True], 1, atol=1e-6) == unit


def test_layers_and_shapes():
    assert models.layers(CONFIG) == {"bag": (10,), "f": (6,), "g": (6,), "output": (12,)}
    _, params, stats = encoder()
    assert stats == {}
    assert {name: array.shape for name, array in params.items()} == {
        "embedding": (2, 11, 5),
        "kernel": (2, 2, 5, 9),
        "recurrent": (2, 2, 3, 9),
        "bias": (2, 2, 9),
        "recurrent_bias": (2, 2, 9),
    }
    for matrix in np.asarray(params["recurrent"]).reshape(4, 3, 3, 3).transpose(0, 2, 1, 3):
        for gate in matrix.transpose(0, 1, 2):
            np.testing.assert_allclose(gate @ gate.T, np.eye(3), atol=1e-5)
    assert np.abs(params["embedding"]).max() <= 0.1


def test_bfloat16_is_near():
    config = ModelConfig("sentence_gru", dim=6, embedding=5, vocabulary=11, dtype="bfloat16")
    given = packed(sentences([4, 8, 3]))
    (near, _), (exact, _) = (
        encoder(each)[0](*encoder(each)[1:], given, False) for each in (config, CONFIG)
    )
    assert near["f"].dtype == jnp.float32
    np.testing.assert_allclose(near["f"], exact["f"], atol=0.05)
    assert not np.array_equal(near["f"], exact["f"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 7}, "take an even number"),
        ({"head": "moco_v2"}, "--head is for encoders of images, not sentence_gru"),
        ({"embedding": 0}, "--embedding 0: must be at least 1"),
        ({"name": "small_cnn", "embedding": 8}, "--embedding is for encoders of sentences"),
        ({"name": "small_cnn", "unit_norm": False}, "--no-unit-norm is for encoders of sentences"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(UserError, match=message):
        ModelConfig(**{"name": "sentence_gru"} | options)


def test_a_vocabulary_is_needed():
    with pytest.raises(UserError, match="vocabulary must be given"):
        models.create(ModelConfig("sentence_gru"), jax.random.key(0))


def test_packed_is_what_the_step_takes():
    words = np.array([[5, END, 6, END]], np.int32)
    apply, params, stats = encoder()
    outputs, _ = apply(params, stats, Packed(words, np.array([2, 0]), np.array([3, 1])), False)
    for row, word in zip(outputs["f"], (6, 5), strict=True):
        np.testing.assert_allclose(row, by_words(params, [word, END])[0], atol=2e-6)
