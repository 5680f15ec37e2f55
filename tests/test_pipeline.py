"""Batches from memory and from a stream: the same for any number of workers, with bad images."""

import logging
import multiprocessing

import numpy as np
import pytest

from hypersphere_jax.config import UserError
from hypersphere_jax.data.pipeline import Bad, OneCrop, TwoCrops, in_memory, stream
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import UnreadableImage

N, BATCH = 60, 8


class Numbered:
    """Images that show their number; some cannot be read, and sizes may differ."""

    class_names = ("a", "b")
    origin = "numbers"
    digest = "0123456789abcdef"

    def __init__(self, n=N, bad=(), sizes=(4,)):
        self.n, self.bad, self.sizes = n, frozenset(bad), sizes
        self.labels = np.arange(n, dtype=np.int32) % 2
        self.image_shape = (sizes[0], sizes[0], 3) if len(sizes) == 1 else None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.bad:
            raise UnreadableImage(f"image {i} is cut short")
        side = self.sizes[i % len(self.sizes)]
        return {"image": np.full((side, side, 3), i, np.uint8), "label": int(self.labels[i])}


def shrink(rng, image):
    """A crop whose content tells what was drawn."""
    return np.full((2, 2, 3), image[0, 0, 0] // 2 + rng.integers(100), np.uint8)


def corner(image):
    return image[:2, :2]


def batches(source, on_bad="skip", steps=range(3, 20), **options):
    bad = Bad(source, on_bad)
    found = list(stream(source, Sampler(len(source), BATCH, 1), steps, bad, **options))
    return found, bad.found


def same(a, b):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype


def test_stream_follows_the_sampler():
    source, sampler = Numbered(), Sampler(N, BATCH, 1)
    found, bad = batches(source)
    assert len(found) == 17 and not bad
    for step, batch in zip(range(3, 20), found, strict=True):
        np.testing.assert_array_equal(batch.indices, sampler(step))
        np.testing.assert_array_equal(batch.images[:, 0, 0, 0], sampler(step))
        np.testing.assert_array_equal(batch.labels, sampler(step) % 2)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(workers):
    """Also not where images are bad and the host crops; nor does it matter where one starts."""
    source = Numbered(bad=(3, 50, 51), sizes=(4, 6, 9))
    prepare = TwoCrops(shrink, seed=5)
    threads, missing = batches(source, prepare=prepare)
    assert threads[0].images.shape == (BATCH, 2, 2, 2, 3)
    processes, missing_there = batches(source, prepare=prepare, workers=workers)
    same(threads, processes)
    assert missing == missing_there
    resumed, _ = batches(source, prepare=prepare, steps=range(12, 20))
    same(threads[9:], resumed)


def test_hosts_read_their_rows():
    source, prepare = Numbered(sizes=(4, 5)), TwoCrops(shrink, seed=0)
    whole, _ = batches(source, prepare=prepare)
    halves = [batches(source, prepare=prepare, rows=rows)[0] for rows in (slice(4), slice(4, None))]
    for step, batch in enumerate(whole):
        together = [np.concatenate(parts) for parts in zip(*(h[step] for h in halves), strict=True)]
        same([batch], [together])


def test_crops_differ_between_views_steps_and_seeds():
    image, prepare = np.zeros((9, 9, 3), np.uint8), TwoCrops(shrink, seed=0)
    drawn = {
        int(crop[0, 0, 0])
        for step in range(3)
        for position in range(3)
        for crop in prepare(image, step, position)
    }
    assert len(drawn) > 12  # of 18 draws from 100
    same([[prepare(image, 1, 2)]], [[TwoCrops(shrink, seed=0)(image, 1, 2)]])
    assert (prepare(image, 1, 2) != TwoCrops(shrink, seed=1)(image, 1, 2)).any()


def test_bad_images_are_replaced_counted_and_logged(caplog):
    source = Numbered(bad=(50, 51, 59))
    with caplog.at_level(logging.WARNING, "hypersphere_jax"):
        found, bad = batches(source, steps=range(N // BATCH * 2))
    assert bad == {i: f"image {i} is cut short" for i in (50, 51, 59)}
    assert len([r for r in caplog.records if "cut short" in r.message]) == 3  # once each
    order = np.concatenate([Sampler(N, BATCH, 1)(step) for step in range(N // BATCH * 2)])
    expected = np.where((order == 50) | (order == 51), 52, np.where(order == 59, 0, order))
    np.testing.assert_array_equal(np.concatenate([b.indices for b in found]), expected)
    np.testing.assert_array_equal(np.concatenate([b.images for b in found])[:, 0, 0, 0], expected)


def test_memory_and_stream_agree_about_bad_images():
    source = Numbered(bad=(50, 51, 59))
    bad = Bad(source, "skip")
    arrays = in_memory(source, bad)
    assert sorted(bad.found) == [50, 51, 59]
    wanted = Sampler(N, BATCH, 1)
    for step, batch in zip(range(3, 20), batches(source)[0], strict=True):
        np.testing.assert_array_equal(batch.images, arrays.images[wanted(step)])
        np.testing.assert_array_equal(batch.labels, arrays.labels[wanted(step)])


def test_without_replacement_a_bad_image_is_marked():
    source = Numbered(bad=(2, 7), sizes=(4, 5))
    bad = Bad(source, "skip")
    order = lambda step: np.arange(step * 25, min(N, step * 25 + 25))  # noqa: E731
    found = list(stream(source, order, range(3), bad, prepare=OneCrop(corner), replace=False))
    assert [len(batch.indices) for batch in found] == [25, 25, 10]
    indices = np.concatenate([batch.indices for batch in found])
    np.testing.assert_array_equal(indices, np.where(np.isin(np.arange(N), (2, 7)), -1, range(N)))
    assert not found[0].images[2].any() and found[0].labels[2] == -1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_is_an_error(workers):
    with pytest.raises(UserError, match=r"image 50 is cut short; .* --bad-images skip"):
        batches(Numbered(bad=(50,)), "error", workers=workers)
    with pytest.raises(UserError, match="image 50 is cut short"):
        in_memory(Numbered(bad=(50,)), Bad(Numbered(), "error"))


def test_a_lost_process_is_a_clear_error():
    source = Numbered()
    found = stream(source, Sampler(N, BATCH, 1), range(100000), Bad(source, "error"), workers=1)
    before = {child.pid for child in multiprocessing.active_children()}
    next(found)
    (reader,) = (c for c in multiprocessing.active_children() if c.pid not in before)
    reader.kill()
    with pytest.raises(UserError, match=r"was lost.*--workers"):
        for _ in found:
            pass


def test_too_many_bad_images_are_no_accident():
    source = Numbered(bad=range(10, 17))
    with pytest.raises(UserError, match="7 of the 60 images of numbers cannot be read"):
        in_memory(source, Bad(source, "skip"))
    with pytest.raises(UserError, match="of the 60 images of numbers cannot be read"):
        batches(Numbered(bad=range(N)), steps=range(2))


def test_memory_needs_one_size():
    source = Numbered(sizes=(4, 5))
    with pytest.raises(UserError, match=r"differ in size.*--pipeline streaming"):
        in_memory(source, Bad(source, "error"))


class TestCache:
    @pytest.fixture(autouse=True)
    def slow(self, monkeypatch):
        monkeypatch.setattr("hypersphere_jax.data.pipeline.SLOW_SECONDS", -1)

    def test_second_time_decodes_nothing(self, tmp_path):
        source = Numbered()
        first = in_memory(source, Bad(source, "error"), tmp_path)
        source.bad = frozenset(range(N))  # now nothing could be decoded
        again = in_memory(source, Bad(source, "error"), tmp_path)
        np.testing.assert_array_equal(again.images, first.images)
        np.testing.assert_array_equal(again.labels, first.labels)

    def test_unreadable_images_are_tried_again(self, tmp_path):
        source = Numbered(bad=(3,))
        in_memory(source, Bad(source, "skip"), tmp_path)
        source.bad = frozenset()
        assert in_memory(source, Bad(source, "error"), tmp_path).images[3, 0, 0, 0] == 3

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_damaged_file_is_made_anew(self, tmp_path, which):
        source = Numbered()
        in_memory(source, Bad(source, "skip"), tmp_path)
        file = sorted(tmp_path.iterdir())[which]
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        arrays = in_memory(source, Bad(source, "skip"), tmp_path)
        np.testing.assert_array_equal(arrays.images[:, 0, 0, 0], np.arange(N))
        assert len(list(tmp_path.iterdir())) == 2

    def test_nothing_stays_of_what_could_not_be_written(self, tmp_path, monkeypatch, caplog):
        def full(stream, array):
            stream.write(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "save", full)
        source = Numbered()
        assert len(in_memory(source, Bad(source, "error"), tmp_path)) == N
        assert not list(tmp_path.iterdir()) and "No space" in caplog.text

    def test_a_folder_that_cannot_be_written_is_no_error(self, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        source = Numbered()
        arrays = in_memory(source, Bad(source, "skip"), tmp_path / "file" / "cache")
        assert len(arrays) == N and "not kept" in caplog.text
