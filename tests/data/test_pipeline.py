"""Batches: the same images from memory and from a stream, for any number of workers."""

import itertools

import numpy as np
import pytest
from data_cases import equal, why

from hypersphere_jax.data.pipeline import BadImages, TwoCrops, in_memory, stream
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.utils import caches

N = 60
ORDER = Sampler(N, 8, seed=1)


class Numbered:
    """Images that contain their index; some cannot be read, and sizes may differ."""

    class_names, origin, labels = ("a", "b"), "numbers", np.arange(N, dtype=np.int32) % 2

    def __init__(self, bad=(), sizes=(4,), digest="0123456789abcdef"):
        self.bad, self.sizes, self.digest = frozenset(bad), sizes, digest
        self.image_shape = (sizes[0], sizes[0], 3) if len(sizes) == 1 else None

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i in self.bad:
            raise UnreadableImage(f"image {i} is cut short")
        side = self.sizes[i % len(self.sizes)]
        return {"image": np.full((side, side, 3), i, np.uint8), "label": int(self.labels[i])}


def shrink(rng, image):
    """A crop with a function of the random numbers as its content."""
    return image[:2, :2] + rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)


def batches(source, on_bad="skip", steps=range(3, 20), order=ORDER, **options):
    bad = BadImages(source, on_bad)
    return list(stream(source, order, steps, bad, **options)), bad.reasons


def joined(found):
    return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]


def same(a, b):
    for x, y in zip(itertools.chain(*a), itertools.chain(*b), strict=True):
        equal(x, y)
        assert x.dtype == y.dtype


def test_epoch_contains_each_image_once_in_random_order():
    for n in (20, 23):  # the last incomplete batch is dropped
        sampler = Sampler(n, batch_size=5, seed=3)
        orders = np.array([sampler(step) for step in range(120)]).reshape(30, 20)
        assert sampler.steps_per_epoch == 4 and orders.dtype == np.int32
        assert all(len(set(order)) == 20 for order in orders.tolist())
        assert len({tuple(order) for order in orders.tolist()}) == 30
        assert set(orders.ravel()) == set(range(n))
    for step in (11, 2, 4, 3, 15, 0):  # in any order of calls
        equal(sampler(step), orders.reshape(-1, 5)[step])
    # Runs that a later version resumes depend on this order.
    equal(orders[1], np.random.default_rng([3, 1]).permutation(23)[:20])
    assert len({tuple(Sampler(23, 5, seed)(0)) for seed in range(20)}) == 20


@pytest.mark.slow
def test_batches_do_not_depend_on_hosts_workers_and_interruptions():
    """With unreadable images and crops on the host."""
    source = Numbered(bad=(3, 50, 51), sizes=(4, 6, 9))
    options = {"prepare": TwoCrops(shrink, seed=5)}
    whole, missing = batches(source, **options)
    assert whole[0].images.shape == (8, 2, 2, 2, 3) and set(missing) == {3, 50, 51}
    same(whole[9:], batches(source, steps=range(12, 20), **options)[0])
    hosts = (batches(source, rows=rows, **options)[0] for rows in (slice(3), slice(3, None)))
    same(whole, [joined(parts) for parts in zip(*hosts, strict=True)])
    processes, missing_there = batches(source, workers=2, **options)
    same(whole, processes)
    assert missing == missing_there


def test_crops_depend_on_seed_step_position_and_view():
    image = np.arange(243, dtype=np.uint8).reshape(9, 9, 3)
    places = list(itertools.product(range(3), repeat=3))
    crops = [TwoCrops(shrink, seed)(image, step, position) for seed, step, position in places]
    assert len({view.tobytes() for crop in crops for view in crop}) == 2 * 27
    equal(crops, [TwoCrops(shrink, seed)(image, *place) for seed, *place in places])


def test_unreadable_images_are_replaced_by_the_next_and_logged(caplog):
    """Images in memory and in a stream are equal."""
    source, steps = Numbered(bad=(50, 51, 59)), range(14)
    found, missing = batches(source, steps=steps)
    assert missing == {i: f"image {i} is cut short" for i in (50, 51, 59)}
    assert caplog.text.count("cut short") == 3
    order = np.concatenate([ORDER(step) for step in steps])
    expected = np.where((order == 50) | (order == 51), 52, np.where(order == 59, 0, order))
    images, labels, indices = joined(found)
    equal(indices, expected)
    equal(images[:, 0, 0, 0], expected)
    equal(labels, expected % 2)
    bad = BadImages(source, "skip")
    arrays = in_memory(source, bad)
    assert bad.reasons == missing and arrays.class_names == ("a", "b")
    same([[arrays.images[order], arrays.labels[order]]], [[images, labels]])


def test_unreadable_image_is_marked_without_replacement():
    source, ends = Numbered(bad=(2, *range(25, 30)), sizes=(4, 5)), [0, 25, 30, N]
    order = lambda step: np.arange(ends[step], ends[step + 1])  # noqa: E731  one has bad ones only
    options = {"prepare": lambda image, *_: image[:2, :2], "replace": False}
    found, _ = batches(source, steps=range(3), order=order, **options)
    assert [batch.images.shape for batch in found] == [(n, 2, 2, 3) for n in (25, 5, 30)]
    images, labels, indices = joined(found)
    lost = np.isin(range(N), list(source.bad))
    equal(indices, np.where(lost, -1, range(N)))
    equal(labels, np.where(lost, -1, source.labels))
    equal(images[:, 1, 1, 2], np.where(lost, 0, range(N)))


def test_unreadable_images_are_errors_or_at_most_a_tenth():
    one, source, varied = Numbered(bad=(50,)), Numbered(), Numbered(sizes=(4, 5))
    for said in (why(in_memory, one, BadImages(one, "error")), why(batches, one, "error")):
        assert "image 50 is cut short; " in said and "bad_images=skip" in said
    assert len(in_memory(Numbered(bad=range(6)), BadImages(source, "skip"))) == N
    assert "7 of the 60" in why(in_memory, Numbered(bad=range(10, 17)), BadImages(source, "skip"))
    assert "pipeline=streaming" in why(in_memory, varied, BadImages(varied, "error"))


def test_decoded_images_are_cached(tmp_path, monkeypatch):
    every, source, unreadable = list(range(N)), Numbered(), range(N)

    def images(source, on_bad="error"):
        found = in_memory(source, BadImages(source, on_bad), tmp_path / "cache")
        equal(found.labels, found.images[:, 0, 0, 0] % 2)
        return found.images[:, 0, 0, 0].tolist()

    monkeypatch.setattr(caches, "SLOW_SECONDS", -1)
    assert images(source) == images(Numbered(unreadable)) == every
    assert "cut short" in why(images, Numbered(unreadable, digest="another"))
    monkeypatch.setattr(caches, "SLOW_SECONDS", 100)
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(bytes([7] * 48), bytes([9] * 48))):
        file.unlink()
        file.write_bytes(damaged)
        assert images(source) == every and file.read_bytes() == whole  # written again
    np.save(file, np.zeros((N, 2, 2, 3), np.uint8))
    assert images(source) == every
    # Images are not cached while one is unreadable.
    assert images(Numbered((3,), digest="third"), "skip")[3] == 4
    assert images(Numbered(digest="third")) == every
