"""The benchmark of augmentation: Pillow's form has the same law, its numbers are complete."""

import jax
import numpy as np
import pytest
from augment_cases import keys, random_image
from scipy import stats

from benchmarks import augment as bench
from benchmarks.augment_pillow import pillow_views
from hypersphere_jax.augment import RECIPES, Recipe, make_augment


def described(views):
    """Of each view: means of the channels, contrast, edges, balance of left and right, range."""
    views = np.asarray(views)
    every, edges = (1, 2, 3), np.abs(np.diff(views, axis=2))
    sides = views[:, :, :8].mean(every) - views[:, :, 8:].mean(every)
    parts = views.std(every), edges.mean(every), sides, np.ptp(views, axis=-1).mean((1, 2))
    return [*views.mean(axis=(1, 2)).T, *parts, views.max(every)]


ROTATION = pytest.param("balanced_rotation", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["balanced_cutout", ROTATION])
def test_views_have_the_law_of_pillows(name):
    image, n, steps = random_image(20, 24), 700, RECIPES[name].train
    ours = jax.jit(jax.vmap(make_augment(name, 16), (0, None)))(keys(n), image)
    pillow = pillow_views(np.random.default_rng(0), steps, 16, np.stack([image] * n))
    for number, pair in enumerate(zip(described(ours), described(pillow), strict=True)):
        assert stats.ks_2samp(*pair).pvalue > 0.001, number


def test_numbers_are_of_one_view(monkeypatch):
    """4 images of two views; ours takes 1 s, without the flip 0.25, Pillow 8."""
    seconds = {bench.OURS: 1.0, "random_horizontal_flip": 0.25, bench.PILLOWS: 8.0}

    def processor_rounds(calls, rounds, clock):
        assert calls.keys() == seconds.keys()
        assert np.shape(calls[bench.PILLOWS]()) == np.shape(calls[bench.OURS]()) == (2, 4, 8, 8, 3)
        spent = {form: np.full(rounds, second) for form, second in seconds.items()}
        return spent, {form: second / 2 for form, second in spent.items()}

    monkeypatch.setattr(bench, "processor_rounds", processor_rounds)
    steps = ("rgb", {}), ("random_horizontal_flip", {"p": 0.5})
    found = bench.measure(Recipe(steps, ()), 8, images=4, rounds=3, epoch=9)
    assert found["us"] == {bench.OURS: 1e6 / 8, bench.PILLOWS: 1e6}
    assert found["views_per_s"] == {bench.OURS: 16.0, bench.PILLOWS: 2.0}
    assert found["ratio"] == 8 and found["share"] == {"random_horizontal_flip": 0.75}
    assert found["calls"] == 3 and found["wall_seconds"][bench.OURS] == [0.5] * 3


def test_rounds_are_of_one_call_after_those_that_compile(monkeypatch):
    now = [0.0]

    def call():
        now[0] += 2.0

    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(bench, "ROUND_S", 5.0)
    spent, walls = bench.processor_rounds({"a": call}, 3, lambda: now[0] / 2)
    assert (*spent["a"], *walls["a"]) == (1.0,) * 3 + (2.0,) * 3
    assert now[0] == 2.0 * (2 + 4 * 3)  # it compiles, it is timed once, and 4 rounds of 3
