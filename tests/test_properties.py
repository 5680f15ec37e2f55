"""Property tests: readers of files of any content, and invariances of the losses."""

import contextlib
import functools
import gzip
import io
import itertools
import json
import zipfile

import hypothesis
import jax
import numpy as np
import oracles
import pytest
import yaml
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from safetensors.numpy import save

import hypersphere_jax as hj
from hypersphere_jax import configs as C
from hypersphere_jax.configs.flags import read_options
from hypersphere_jax.data import load
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.pretrained import read_state
from hypersphere_jax.text.text_files import read_sentences
from hypersphere_jax.training.run_dir import read_config
from hypersphere_jax.utils.arrays import open_array

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # from NumPy and Pillow
settings = hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=list(hypothesis.HealthCheck),
)
numbers = itertools.count()  # names of folders

FLOATS = np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3)
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
SENTENCES = b"The ship saw the sea. The king left the hall.\n\nA storm came!\n" * 3
OPTIONS = C.to_dict(C.PretrainConfig(decay_at=(0.5, 1), devices=1))
SESSION = {"device": {"count": 1}, "command": "pretrain", "from_step": 0}
RECORD = {"config": OPTIONS, "data_digest": "d", "sessions": [SESSION]}


def saved(write, *arguments, **options):
    """Return what `write(stream, ...)` writes."""
    stream = io.BytesIO()
    write(stream, *arguments, **options)
    return stream.getvalue()


IMAGE = saved(Image.fromarray(PIXELS).save, "PNG")


def write_zip(stream):
    with zipfile.ZipFile(stream, "w") as archive:
        for number in range(12):
            archive.writestr(f"{'ab'[number % 2]}/{number}.png", IMAGE)


def read_images(path):
    """Read all images of a file or folder; a zip file contains only `PIXELS`."""
    dataset = load(C.DataConfig(str(path), bad_images="skip"))
    for split in filter(None, dataset[:2]):
        for index in range(len(split)):
            with contextlib.suppress(UnreadableImage):
                found = split[index]["image"]
                assert found.dtype == np.uint8
                assert path.suffix != ".zip" or np.array_equal(found, PIXELS)


# Sound content, and the function that reads the file.
READERS = {
    "a.npy": (saved(np.save, FLOATS), open_array),
    "a.npz": (saved(np.savez, a=FLOATS), open_array),
    "a.zip": (saved(write_zip), read_images),
    "a.png": (IMAGE, lambda file: read_images(file.parent)),
    "options.yaml": (
        yaml.safe_dump(OPTIONS).encode(),
        lambda file: read_options(C.PretrainConfig, file),
    ),
    "config.json": (json.dumps(RECORD).encode(), lambda file: read_config(file.parent)),
    "a.safetensors": (save({"a": FLOATS}), read_state),
    "a.txt.gz": (gzip.compress(SENTENCES), lambda file: list(read_sentences(file, "auto"))),
}


@st.composite
def damaged(draw, content):
    """Replace, remove or insert some bytes in up to three places, then perhaps cut the end."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        stop = draw(st.integers(start, min(start + 40, len(content))))
        content = content[:start] + draw(st.binary(max_size=8)) + content[stop:]
    if draw(st.booleans()):
        content = content[: draw(st.integers(0, len(content)))]
    return content


def read_or_refuse(name, content, folder):
    """Read a file; return whether the content is valid. An error is one line with its path."""
    file = folder / str(next(numbers)) / name
    file.parent.mkdir()
    file.write_bytes(content)
    try:
        READERS[name][1](file)
    except C.UserError as error:
        assert str(file.parent) in str(error)
        assert "\n" not in str(error)
        return False
    return True


@pytest.mark.parametrize("name", READERS)
@settings
@hypothesis.given(data=st.data())
def test_files_of_any_content_are_read_or_refused(name, data, tmp_path):
    whole, _ = READERS[name]
    assert read_or_refuse(name, whole, tmp_path)
    read_or_refuse(name, data.draw(st.binary(max_size=100) | damaged(whole)), tmp_path)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=3)
names = st.sampled_from(sorted(OPTIONS)) | st.text(max_size=5)


@settings
@hypothesis.given(options=st.dictionaries(names, values, min_size=1, max_size=3))
def test_any_options_give_a_valid_config_or_are_refused(options, tmp_path):
    record = RECORD | {"config": OPTIONS | options}
    read_or_refuse("config.json", json.dumps(record).encode(), tmp_path)
    read_or_refuse("options.yaml", yaml.safe_dump(options).encode(), tmp_path)
    with contextlib.suppress(C.UserError):
        config = C.from_dict(C.PretrainConfig, options)
        assert C.from_dict(C.PretrainConfig, json.loads(json.dumps(C.to_dict(config)))) == config


# Losses of unit features, some of which may coincide.

N = 12
D = 5
VIEWS = {"align": 2, "uniform": 1, "contrastive": 2, "nt_xent": 2}
BLOCKS = {"block_size": 5}  # does not divide the number of points


def unit(x):
    """Return rows of unit norm; short rows become the first axis."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.where(norms > 0.1, x / np.maximum(norms, 0.1), np.eye(1, D, dtype=x.dtype))


points = arrays(np.float32, (N, D), elements=st.floats(-1, 1, width=32)).map(unit)
close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)


@functools.cache
def value_and_gradients(name):
    """Return `features, mask -> loss, gradients`, compiled."""
    options = {} if name == "align" else BLOCKS
    loss = functools.partial(getattr(hj, f"{name}_loss"), **options)
    return jax.jit(jax.value_and_grad(lambda features, mask: loss(*features, mask=mask)))


@pytest.mark.parametrize("name", VIEWS)
@settings
@hypothesis.given(
    x=points,
    y=points,
    hidden=st.sets(st.integers(0, N - 1), max_size=N - 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_losses_ignore_rotations_order_and_masked_rows(name, x, y, hidden, seed):
    """Masked rows contain NaN, and their gradients are zero."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(N)
    rotation = np.float32(np.linalg.qr(rng.standard_normal((D, D)))[0])
    mask = ~np.isin(np.arange(N), list(hidden))
    features = [x, y][: VIEWS[name]]
    given = [np.where(mask[:, None], z, np.float32(np.nan)) for z in features]
    found, gradients = value_and_gradients(name)(given, mask)
    close(found, getattr(oracles, f"{name}_oracle")(*(z[mask] for z in features)))
    moved = value_and_gradients(name)([z[order] @ rotation for z in given], mask[order])
    close(moved[0], found)
    for gradient, other in zip(gradients, moved[1], strict=True):
        assert np.isfinite(gradient).all() and not gradient[~mask].any()
        close(other, gradient[order] @ rotation)
