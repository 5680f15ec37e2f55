"""Packing of sentences into rows of words."""

import numpy as np
import pytest

from hypersphere_jax.text import packing
from hypersphere_jax.text.packing import END, OTHER_DEVICE, pack


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
    words = sum((part.words != packing.PADDING).sum() for part in parts)
    assert words == sum(map(len, sentences))
