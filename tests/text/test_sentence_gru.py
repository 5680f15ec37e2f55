"""Packing of sentences, and sentence encoders against a loop over words in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.text import packing
from hypersphere_jax.text.packing import END, OTHER_DEVICE, Packed, one_per_row, pack

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
        w, u, b, c = (params[n][e, d] for n in ("kernel", "recurrent", "bias", "recurrent_bias"))
        h = np.zeros(3)
        for word in sentence if d == 0 else sentence[::-1]:
            x = params["embedding"][e, word] @ w + b
            y = h @ u + c
            reset, update = expit(x[:3] + y[:3]), expit(x[3:6] + y[3:6])
            h = (1 - update) * np.tanh(x[6:] + reset * y[6:]) + update * h
        ends.append(h)
    return np.reshape(ends, (2, 6))


@pytest.mark.slow
def test_layers_agree_with_a_loop_over_words(sentences):
    outputs, params = encoder()
    found = outputs(pack(sentences, T)[0])
    table = np.asarray(params["embedding"])
    for i, sentence in enumerate(sentences):
        expected = by_words(params, sentence)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose([found["f"][i], found["g"][i]], expected, atol=2e-6)
        np.testing.assert_allclose(found["output"][i], expected.reshape(-1), atol=2e-6)
        mean = table[:, sentence[:-1]].mean(1) if len(sentence) > 1 else np.zeros((2, 5))
        np.testing.assert_allclose(found["bag"][i], mean.reshape(-1), atol=1e-6)
    rows = in_rows(sentences)
    for name, value in outputs(rows).items():
        np.testing.assert_allclose(value, found[name], atol=1e-6, err_msg=name)
    assert one_per_row(jnp.asarray(rows)).last.tolist() == [3, 9, 24, 28, 37, 53, 58, 65]
    near = encoder(dtype="bfloat16")[0](rows)["f"]
    assert near.dtype == jnp.float32 and not np.array_equal(near, found["f"])
    np.testing.assert_allclose(near, found["f"], atol=0.05)


@pytest.mark.slow
def test_gradient_does_not_depend_on_the_packing(sentences):
    outputs, params = encoder(unit_norm=False)

    def loss(params, x):
        found = outputs(x, params, train=True)
        value = jnp.sum(found["f"] @ jnp.arange(1.0, 7)) + jnp.sum(found["g"] ** 3)
        return value, (found["f"], found["g"])

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    tight = pack(sentences, T)[0]
    empty = np.zeros((len(sentences) - len(tight.words), T), np.int32)
    tight = tight._replace(words=np.concatenate([tight.words, empty]))
    first = np.arange(len(sentences), dtype=np.int32) * T
    loose = Packed(in_rows(sentences), first, first + np.array(LENGTHS, np.int32) - 1)
    (_, (f, g)), found = gradient(params, tight)
    for i, sentence in enumerate(sentences):
        np.testing.assert_allclose([f[i], g[i]], by_words(params, sentence), atol=2e-6)
    for name, value in gradient(params, loose)[1].items():
        np.testing.assert_allclose(found[name], value, atol=2e-6 * np.abs(value).max())


def test_unit_norm(sentences):
    for train in (True, False):
        found = encoder(unit_norm=train)[0](in_rows(sentences), train=train)
        norms = np.linalg.norm([found["f"], found["g"]], axis=2)
        np.testing.assert_allclose(norms, 1, atol=1e-6)


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


def test_chrono_initialization():
    """Update gates keep a share of 1 / 2 to 63 / 64 of a state."""
    first = {
        init: models.create(ModelConfig("sentence_gru", init=init, **CONFIG), jax.random.key(0))[1]
        for init in ("he", "chrono")
    }
    reset, update, new = np.split(np.asarray(first["chrono"].pop("bias")), 3, axis=-1)
    words = np.exp(update)
    assert words.min() >= 1 and words.max() <= 63 and np.ptp(words) > 30
    assert len(np.unique(words)) == words.size and not reset.any() and not new.any()
    for name, values in first["chrono"].items():
        np.testing.assert_array_equal(values, first["he"][name])


@pytest.mark.parametrize("devices", [1, 3])
def test_packed_sentences_can_be_read_back(rng, devices):
    for t in (2, 12, 39):
        sentences = [np.append(rng.integers(3, 90, n), END) for n in rng.integers(0, t, 40)]
        parts = pack(sentences, t, devices)
        assert len({part.words.shape for part in parts}) == 1
        read = {}
        for part in parts:
            assert part.words.shape[1] == t
            for i, (first, last) in enumerate(zip(part.first, part.last, strict=True)):
                assert (first == OTHER_DEVICE) == (last == OTHER_DEVICE)
                if first != OTHER_DEVICE:
                    assert i not in read and first // t == last // t  # on one device, in one row
                    read[i] = part.words.reshape(-1)[first : last + 1].tolist()
        assert [read[i] for i in range(40)] == [sentence.tolist() for sentence in sentences]
        assert sum((p.words != packing.PADDING).sum() for p in parts) == sum(map(len, sentences))


@pytest.mark.parametrize("devices, share", [(1, 0.85), (8, 0.8)])
def test_little_is_padding(rng, devices, share):
    work = words = 0
    for _ in range(30):
        lengths = np.clip(np.exp(rng.normal(2.9, 0.7, 400)), 2, 64).astype(int)
        count = packing.best_fit(lengths if devices == 1 else np.sort(lengths), 64)[2]
        work += devices * packing.padded_count(-(-count // devices)) * 64
        words += lengths.sum()
    assert words / work > share
    for lengths, rows in (([3, 5, 5, 3, 8], 3), ([8] * 7, 7), ([1] * 16, 2)):
        assert packing.best_fit(lengths, 8)[2] == rows
    # Few shapes are compiled.
    assert len({packing.padded_count(rows) for rows in range(1, 1000)}) < 60
    assert all(n <= packing.padded_count(n) <= max(n + 1, n * 9 / 8) for n in range(1, 1000))
