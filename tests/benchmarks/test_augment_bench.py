"""The benchmark of augmentation: Pillow's form has the same law, its numbers are complete."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from augment_cases import keys, random_image
from scipy import stats

from benchmarks import augment as bench
from benchmarks.augment_pillow import pillow_views
from hypersphere_jax.augment import RECIPES, Recipe, make_augment
from hypersphere_jax.config import UserError
from run import main


def described(views):
    """Of each view: means of the channels, contrast, edges, balance of left and right, range."""
    views = np.asarray(views)
    edges = np.abs(np.diff(views, axis=2)).mean(axis=(1, 2, 3))
    sides = views[:, :, :8].mean(axis=(1, 2, 3)) - views[:, :, 8:].mean(axis=(1, 2, 3))
    colours = np.ptp(views, axis=-1).mean(axis=(1, 2))
    spread = views.std(axis=(1, 2, 3))
    return [*views.mean(axis=(1, 2)).T, spread, edges, sides, colours, views.max(axis=(1, 2, 3))]


@pytest.mark.parametrize(
    "name",
    [
        "balanced_cutout",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("simclr_cifar", "balanced_rotation")),
    ],
)
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
    np.testing.assert_array_equal(spent["a"], [1.0] * 3)
    np.testing.assert_array_equal(walls["a"], [2.0] * 3)
    assert now[0] == 2.0 * (2 + 4 * 3)  # it compiles, it is timed once, and 4 rounds of 3


def test_memory_is_read_before_half_way_and_after(monkeypatch):
    held = []
    monkeypatch.setattr(bench, "_held", lambda: len(held))
    found = bench.memory_over(partial(held.append, None), 20)
    assert found == {"calls": 20, "before_mb": 1, "half_mb": 11, "after_mb": 21}


@pytest.mark.slow
def test_command_writes_all_results(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "ROUND_S", 0.001)
    options = ["--sizes", "8", "--images", "4", "--rounds", "2", "--epoch", "20"]
    out = tmp_path / "out"
    assert main(["bench", "augment", *options, "--out", str(out)]) == 0
    results = json.loads((out / "augment.json").read_text())
    (record,) = results["records"]
    assert results["recipe"] == "simclr_cifar" and record["size"] == 8 and record["calls"] == 5
    left_out = {name for name, _ in RECIPES["simclr_cifar"].train} - {"rgb"}
    assert set(record["share"]) == left_out
    assert set(record["seconds"]) == {bench.OURS, bench.PILLOWS, *left_out}
    assert all(len(seconds) == 2 for seconds in record["seconds"].values())
    said = capsys.readouterr().out
    assert all(name in said for name in left_out)


def test_mistakes(tmp_path):
    for options, message in (
        ({"recipe": "moco_v3"}, "no recipe 'moco_v3': the recipes are stl10"),
        ({"recipe": "digits"}, "digits: random_affine, random_intensity is not written"),
        ({"sizes": (4,)}, "--sizes"),
    ):
        with pytest.raises(UserError, match=message):
            bench.augment(out=tmp_path, **options)
