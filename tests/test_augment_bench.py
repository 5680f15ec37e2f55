"""The benchmark of augmentation: Pillow's form has the same law, its numbers are complete."""

import json

import jax
import numpy as np
import pytest
from augment_cases import keys, random_image
from scipy import stats
from test_cli import run_py

from benchmarks import augment as bench
from benchmarks.augment_pillow import pillow_views
from hypersphere_jax.augment import RECIPES, make_augment
from hypersphere_jax.config import UserError


def describe(views):
    """Of each view: means of the channels, contrast, edges, balance of left and right, range."""
    views = np.asarray(views)
    edges = np.abs(np.diff(views, axis=2)).mean(axis=(1, 2, 3))
    sides = views[:, :, :8].mean(axis=(1, 2, 3)) - views[:, :, 8:].mean(axis=(1, 2, 3))
    colours = np.ptp(views, axis=-1).mean(axis=(1, 2))
    spread = views.std(axis=(1, 2, 3))
    return [*views.mean(axis=(1, 2)).T, spread, edges, sides, colours, views.max(axis=(1, 2, 3))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simclr_cifar", "balanced_cutout", "balanced_rotation"])
def test_views_have_the_law_of_pillows(name):
    image, n, steps = random_image(20, 24), 1200, RECIPES[name].train
    ours = jax.jit(jax.vmap(make_augment(name, 16), (0, None)))(keys(n), image)
    pillow = pillow_views(np.random.default_rng(0), steps, 16, np.stack([image] * n))
    for one, other in zip(describe(ours), describe(pillow), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.001


@pytest.mark.slow
def test_command_writes_all_results(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "ROUND_S", 0.001)
    options = ["--sizes", "8", "--images", "4", "--rounds", "2", "--epoch", "20"]
    out = tmp_path / "out"
    assert run_py.main(["bench", "augment", *options, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.replace(str(out), "").splitlines())) <= 100
    results = json.loads((out / "augment.json").read_text())
    (record,) = results["records"]
    assert results["recipe"] == "simclr_cifar" and record["size"] == 8 and record["calls"] == 5
    left_out = {name for name, _ in RECIPES["simclr_cifar"].train} - {"rgb"}
    assert set(record["share"]) == left_out
    assert set(record["seconds"]) == {bench.OURS, bench.PILLOWS, *left_out}
    assert all(len(seconds) == 2 for seconds in record["seconds"].values())
    assert all(name in said for name in left_out)


def test_rounds_are_of_one_call_after_those_that_compile():
    now = [0.0]

    def call():
        now[0] += 2.0

    spent, walls = bench.processor_rounds({"a": call}, 3, lambda: now[0])
    np.testing.assert_array_equal(spent["a"], [2.0] * 3)
    assert (walls["a"] < 0.01).all()


def test_memory_that_grows_is_seen():
    kept = []
    found = bench.memory_over(lambda: kept.append(np.ones(10**6)), 20)
    before, half, after = (found[f"{when}_mb"]["resident"] for when in ("before", "half", "after"))
    if before is None:
        pytest.skip("resident memory cannot be read here")
    assert after - half == pytest.approx(80, abs=20) == half - before


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="no recipe 'moco_v3': the recipes are stl10"):
        bench.augment(recipe="moco_v3", out=tmp_path)
    with pytest.raises(UserError, match="digits: random_affine, random_intensity is not written"):
        bench.augment(recipe="digits", out=tmp_path)
    with pytest.raises(UserError, match="--sizes"):
        bench.augment(sizes=(4,), out=tmp_path)
