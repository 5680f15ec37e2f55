import itertools
import time

import pytest
from data_cases import encoded, picture, write
from PIL import Image

NAMES = "train/cat/b.jpg train/cat/a.PNG train/cat/z/c.png train/cat/zz.png train/dog/0.jpeg \
train/ant/1.webp test/cat/a.png test/dog/a.png test/ant/a.bmp"


@pytest.fixture
def tree(rng):
    """Return files of two splits and three classes in no order, one class with an inner folder."""
    kinds = Image.registered_extensions()
    return {n: encoded(picture(rng), kinds[n[n.index(".") :].lower()]) for n in NAMES.split()}


@pytest.fixture
def folder(tmp_path, tree):
    return write(tmp_path / "set", tree)


@pytest.fixture
def slow_clock(monkeypatch):
    """Let ten seconds pass between two looks at the clock; fast work is not cached."""
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 10).__next__)
