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
LENGTHS = (4, 1, 7, 2, 2, 9, 5, 3)


@functools.cache
def encoder(**changes):
    config = {"dim": 6, "embedding": 5, "vocabulary": 11} | changes
    apply, params, stats = models.create(ModelConfig("sentence_gru", **config), jax.random.key(0))
    # Biases are zero at first, and would hide where they go.
    for number, name in enumerate(("bias", "recurrent_bias")):
        params[name] = jax.random.normal(jax.random.key(number), params[name].shape)

    @functools.partial(jax.jit, static_argnames="train")
    def outputs(x, params=params, train=False):
        return apply(params, stats, x, train)[0]

    return outputs, params


def sentences():
    rng = np.random.default_rng(0)
    return [np.append(rng.integers(2, 11, length - 1), END) for length in LENGTHS]


def in_rows(given):
    """A sentence in each row."""
    words = np.zeros((len(given), T), np.int32)
    for row, sentence in zip(words, given, strict=True):
        row[: len(sentence)] = sentence
    return words


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_words(params, sentence):
    """Features of f and of g, word by word in float64, before they are divided by their norm."""
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
    return found


def test_packed_sentences_are_as_by_words():
    outputs, params = encoder()
    given = sentences()
    found = outputs(pack(given, T)[0])
    table = np.asarray(params["embedding"])
    for i, sentence in enumerate(given):
        f, g = (x / np.linalg.norm(x) for x in by_words(params, sentence))
        np.testing.assert_allclose(found["f"][i], f, atol=2e-6)
        np.testing.assert_allclose(found["g"][i], g, atol=2e-6)
        np.testing.assert_allclose(found["output"][i], np.concatenate([f, g]), atol=2e-6)
        mean = table[:, sentence[:-1]].mean(1) if len(sentence) > 1 else np.zeros((2, 5))
        np.testing.assert_allclose(found["bag"][i], mean.reshape(-1), atol=1e-6)
    # The same with a row for each sentence.
    rows = in_rows(given)
    for name, value in outputs(rows).items():
        np.testing.assert_allclose(value, found[name], atol=1e-6, err_msg=name)
    assert one_a_row(jnp.asarray(rows)).last.tolist() == [3, 9, 24, 28, 37, 53, 58, 65]


def test_gradient_does_not_depend_on_the_packing():
    """In training; without unit norm, features are the states themselves."""
    outputs, params = encoder(unit_norm=False)
    given = sentences()

    def loss(params, x):
        found = outputs(x, params, train=True)
        value = jnp.sum(found["f"] @ jnp.arange(1.0, 7)) + jnp.sum(found["g"] ** 3)
        return value, (found["f"], found["g"])

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    tight = pack(given, T)[0]
    empty = np.zeros((len(given) - len(tight.words), T), np.int32)
    tight = tight._replace(words=np.concatenate([tight.words, empty]))
    first = (np.arange(len(given)) * T).astype(np.int32)
    last = first + np.array(LENGTHS, np.int32) - 1
    loose = Packed(in_rows(given), first, last)
    (_, (f, g)), found = gradient(params, tight)
    for i, sentence in enumerate(given):
        for value, expected in zip((f[i], g[i]), by_words(params, sentence), strict=True):
            np.testing.assert_allclose(value, expected, atol=2e-6)
    for name, value in gradient(params, loose)[1].items():
        atol = 2e-6 * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)


def test_unit_norm():
    """In training where the config says so, and always in evaluation."""
    given = in_rows(sentences())
    for train in (True, False):
        found = encoder(unit_norm=train)[0](given, train=train)
        for name in ("f", "g"):
            np.testing.assert_allclose(np.linalg.norm(found[name], axis=1), 1, atol=1e-6)


def test_layers_and_first_weights():
    assert models.layers(CONFIG) == {"bag": (10,), "f": (6,), "g": (6,), "output": (12,)}
    _, params, stats = models.create(CONFIG, jax.random.key(0))
    assert stats == {}
    assert {name: array.shape for name, array in params.items()} == {
        "embedding": (2, 11, 5),
        "kernel": (2, 2, 5, 9),
        "recurrent": (2, 2, 3, 9),
        "bias": (2, 2, 9),
        "recurrent_bias": (2, 2, 9),
    }
    for gate in (
        np.asarray(params["recurrent"]).reshape(4, 3, 3, 3).swapaxes(1, 2).reshape(12, 3, 3)
    ):
        np.testing.assert_allclose(gate @ gate.T, np.eye(3), atol=1e-5)
    assert np.abs(params["embedding"]).max() <= 0.1 and params["embedding"].min() < -0.05
    limit = np.sqrt(6 / (5 + 9))  # Glorot's, of each encoder and direction
    assert 0.8 * limit < np.abs(params["kernel"]).max() <= limit
    drawn = [*params["embedding"], *params["kernel"].reshape(4, 5, 9)]
    assert len({float(np.sum(array)) for array in drawn}) == 6
    assert not params["bias"].any() and not params["recurrent_bias"].any()


def test_bfloat16_is_near():
    given = in_rows(sentences())
    near, exact = encoder(dtype="bfloat16")[0](given), encoder()[0](given)
    assert near["f"].dtype == jnp.float32
    np.testing.assert_allclose(near["f"], exact["f"], atol=0.05)
    assert not np.array_equal(near["f"], exact["f"])


def test_options_that_do_not_fit():
    for message, name, option, value in (
        ("take an even number", "sentence_gru", "dim", 7),
        ("--head is for encoders of images, not sentence_gru", "sentence_gru", "head", "moco_v2"),
        ("--embedding 0: must be at least 1", "sentence_gru", "embedding", 0),
        ("--embedding is for encoders of sentences", "small_cnn", "embedding", 8),
        ("--no-unit-norm is for encoders of sentences", "small_cnn", "unit_norm", False),
    ):
        with pytest.raises(UserError, match=message):
            ModelConfig(name, **{option: value})
    with pytest.raises(UserError, match="vocabulary must be given"):
        models.create(ModelConfig("sentence_gru"), jax.random.key(0))
