"""Sentence encoders against a loop over words in NumPy, and the packing of sentences into rows."""

import jax
import numpy as np
import pytest
from scipy.special import expit

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.text.packing import END, OTHER_DEVICE, PADDING, pack

CONFIG = ModelConfig("sentence_gru", dim=6, embedding=5, vocabulary_size=11)
T, LENGTHS = 9, (4, 1, 7, 2, 2, 9, 5, 3)


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("width", [2, 12, 39])
def test_packed_sentences_can_be_read_back(rng, devices, width):
    sentences = [np.append(rng.integers(3, 90, n), END) for n in rng.integers(0, width, 40)]
    parts = pack(sentences, width, devices)
    found = {}
    for part in parts:
        assert part.words.shape == parts[0].words.shape
        for i, (first, last) in enumerate(zip(part.first, part.last, strict=True)):
            assert (first == OTHER_DEVICE) == (last == OTHER_DEVICE)
            if first != OTHER_DEVICE:
                assert i not in found and first // width == last // width  # in one row
                found[i] = part.words.reshape(-1)[first : last + 1].tolist()
    assert [found[i] for i in range(40)] == [sentence.tolist() for sentence in sentences]
    words = sum((part.words != PADDING).sum() for part in parts)
    assert words == sum(map(len, sentences))


def by_words(params, sentence):
    """Return the features of f and of g, word by word in float64."""
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
    features = np.reshape(ends, (2, 6))
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def test_layers_agree_with_a_loop_over_words(rng):
    sentences = [np.append(rng.integers(2, 11, length - 1), END) for length in LENGTHS]
    rows = np.array([np.pad(sentence, (0, T - len(sentence))) for sentence in sentences], np.int32)
    apply, params, stats = models.create(CONFIG, jax.random.key(0))
    for name in ("bias", "recurrent_bias"):  # initially 0, which would hide a fault
        params[name] = np.float32(rng.standard_normal(params[name].shape))
    outputs = jax.jit(lambda x: apply(params, stats, x, False)[0])
    table = np.asarray(params["embedding"])
    for found in (outputs(pack(sentences, T)[0]), outputs(rows)):
        for i, sentence in enumerate(sentences):
            expected = by_words(params, sentence)
            np.testing.assert_allclose([found["f"][i], found["g"][i]], expected, atol=2e-6)
            np.testing.assert_allclose(found["output"][i], expected.reshape(-1), atol=2e-6)
            bag = table[:, sentence[:-1]].sum(axis=1) / max(1, len(sentence) - 1)
            np.testing.assert_allclose(found["bag"][i], bag.reshape(-1), atol=1e-6)


def test_layers_and_first_weights():
    assert models.layers(CONFIG) == {"bag": (10,), "f": (6,), "g": (6,), "output": (12,)}
    _, params, _ = models.create(CONFIG, jax.random.key(0))
    gates = np.split(np.asarray(params["recurrent"]), 3, axis=-1)
    np.testing.assert_allclose(gates @ np.swapaxes(gates, -1, -2) - np.eye(3), 0, atol=1e-5)
    assert np.abs(params["embedding"]).max() <= 0.1 and params["embedding"].min() < -0.05
    limit = np.sqrt(6 / (5 + 9))  # Glorot's, for each encoder and direction
    assert 0.8 * limit < np.abs(params["kernel"]).max() <= limit
    drawn = [*params["embedding"], *params["kernel"].reshape(4, 5, 9)]
    assert len({float(np.sum(array)) for array in drawn}) == 6
    assert not params["bias"].any() and not params["recurrent_bias"].any()
