"""Batches: the same images from memory and from a stream, for any number of workers."""

import numpy as np
import pytest
from data_cases import equal

from hypersphere_jax.configs import UserError
from hypersphere_jax.data.pipeline import BadImages, TwoCrops, in_memory, stream
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import UnreadableImage

N = 60
ORDER = Sampler(N, 8, seed=1)


class Numbered:
    """Images that contain their index; some cannot be read, and sizes may differ."""

    class_names = ("a", "b")
    origin = "numbers"
    labels = np.arange(N, dtype=np.int32) % 2

    def __init__(self, bad=(), sizes=(4,), digest="0123456789abcdef"):
        self.bad = frozenset(bad)
        self.sizes = sizes
        self.digest = digest
        self.image_shape = (sizes[0], sizes[0], 3) if len(sizes) == 1 else None

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i in self.bad:
            raise UnreadableImage(f"image {i} is cut short")
        side = self.sizes[i % len(self.sizes)]
        return {"image": np.full((side, side, 3), i, np.uint8), "label": int(self.labels[i])}


def crop(rng, image):
    """Return a crop whose content is a function of the random numbers."""
    return image[:2, :2] + rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)


def batches(source, on_bad="skip", steps=range(3, 20), order=ORDER, **options):
    """Return the batches of the steps, and why images cannot be read."""
    bad = BadImages(source, on_bad)
    return list(stream(source, order, steps, bad, **options)), bad.reasons


def decoded(source, on_bad="skip", cache_dir=None):
    return in_memory(source, BadImages(source, on_bad), cache_dir)


def joined(found):
    return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]


@pytest.mark.parametrize("n", [20, 23])  # the last incomplete batch is dropped
def test_each_epoch_has_the_images_once_in_another_order(n):
    sampler = Sampler(n, batch_size=5, seed=3)
    orders = np.array([sampler(step) for step in range(120)]).reshape(30, 20)
    assert sampler.steps_per_epoch == 4
    assert all(len(set(order)) == 20 for order in orders.tolist())
    assert len({tuple(order) for order in orders.tolist()}) == 30
    assert set(orders.ravel()) == set(range(n))
    for step in (11, 2, 4, 3, 15, 0):  # in any order of calls
        equal(sampler(step), orders.reshape(-1, 5)[step])
    # Runs that a later version resumes depend on this order.
    equal(orders[1], np.random.default_rng([3, 1]).permutation(n)[:20])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_do_not_depend_on_hosts_workers_and_interruptions(workers):
    """Some images are unreadable, and the host crops the others."""
    source = Numbered(bad=(3, 50, 51), sizes=(4, 6, 9))
    options = {"prepare": TwoCrops(crop, seed=5), "workers": workers}
    whole, missing = batches(source, prepare=options["prepare"])
    assert whole[0].images.shape == (8, 2, 2, 2, 3)
    resumed, _ = batches(source, steps=range(12, 20), **options)
    for found, expected in zip(joined(resumed), joined(whole[9:]), strict=True):
        equal(found, expected)
    hosts = [batches(source, rows=rows, **options) for rows in (slice(3), slice(3, None))]
    for batch, *shares in zip(whole, *(found for found, _ in hosts), strict=True):
        for found, expected in zip(joined(shares), batch, strict=True):
            equal(found, expected)
    assert set(missing) == {3, 50, 51}
    assert missing == hosts[0][1] | hosts[1][1]


def test_unreadable_images_are_replaced_by_the_next_and_logged(caplog):
    """Images in memory and a stream treat them alike."""
    source = Numbered(bad=(50, 51, 59))
    found, missing = batches(source, steps=range(14))
    assert missing == {i: f"image {i} is cut short" for i in (50, 51, 59)}
    assert caplog.text.count("cut short") == 3
    order = np.concatenate([ORDER(step) for step in range(14)])
    expected = np.where((order == 50) | (order == 51), 52, np.where(order == 59, 0, order))
    images, labels, indices = joined(found)
    equal(indices, expected)
    equal(images[:, 0, 0, 0], expected)
    equal(labels, expected % 2)
    arrays = decoded(source)
    equal(arrays.images[order], images)
    equal(arrays.labels[order], labels)


def test_unreadable_images_are_marked_without_replacement():
    source = Numbered(bad=(2, *range(25, 30)))
    ends = [0, 25, 30, N]  # the second batch has unreadable images only
    order = lambda step: np.arange(ends[step], ends[step + 1])  # noqa: E731
    found, _ = batches(source, steps=range(3), order=order, replace=False)
    images, labels, indices = joined(found)
    lost = np.isin(range(N), list(source.bad))
    equal(indices, np.where(lost, -1, range(N)))
    equal(labels, np.where(lost, -1, source.labels))
    equal(images[~lost, 1, 1, 2], np.flatnonzero(~lost))


@pytest.mark.parametrize("read", [batches, decoded])
def test_unreadable_images_are_errors_or_at_most_a_tenth(read):
    with pytest.raises(UserError, match="image 50 is cut short"):
        read(Numbered(bad=(50,)), "error")
    read(Numbered(bad=range(6)), "skip")
    with pytest.raises(UserError, match="numbers"):
        read(Numbered(bad=range(10, 17)), "skip")


def test_decoded_images_are_cached(tmp_path, slow_clock):
    def numbers(source, on_bad="error"):
        return decoded(source, on_bad, tmp_path / "cache").images[:, 0, 0, 0].tolist()

    every = list(range(N))
    assert numbers(Numbered()) == numbers(Numbered(bad=every)) == every
    with pytest.raises(UserError, match="cut short"):
        numbers(Numbered(every, digest="another"))
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    file.unlink()  # it is mapped
    file.write_bytes(whole.replace(bytes([7] * 48), bytes([9] * 48)))
    assert numbers(Numbered()) == every
    assert file.read_bytes() == whole  # written again
    # Images are not cached while one is unreadable.
    assert numbers(Numbered((3,), digest="third"), "skip")[3] == 4
    assert numbers(Numbered(digest="third")) == every
