"""Every benchmark at toy size, and the forms of losses that they compare."""

import numpy as np
import pytest

from benchmarks import data, knn, loop, losses, probe, start, step, timing
from benchmarks.loss_forms import LOSSES, compile_dense, compile_gradient, torch_form, unit_vectors
from benchmarks.timing import HAS_TORCH
from hypersphere_jax.configs import UserError

TORCH_FORMS = ["PyTorch"] * HAS_TORCH


@pytest.mark.parametrize(
    ("run", "options"),
    [
        (losses.run, {"losses": ("uniform", "unifrom")}),
        (losses.run, {"sizes": (8, 1)}),
        (step.run, {"batch_size": 1}),
        (data.run, {"steps": 0}),
        (start.run, {"rounds": 0}),
    ],
)
def test_options_are_checked(run, options):
    (name,) = options
    with pytest.raises(UserError, match=name):
        run(**options)


def test_turns_are_compared_round_by_round():
    """The second round is ten times as slow for both forms; the first call does not count."""
    seconds = {"a": iter([9.0, 1.0, 10.0, 2.0]), "b": iter([9.0, 3.0, 30.0, 6.0])}
    forms = {name: values.__next__ for name, values in seconds.items()}
    times = timing.take_turns(forms, 3, measure=lambda form: form())
    assert times["a"].tolist() == [1.0, 10.0, 2.0]
    assert times["b"].tolist() == [3.0, 30.0, 6.0]
    assert timing.compared(times, "a")[1] == {"form": "b", "ms": 6000.0, "relative": 3.0}


def test_slow_forms_run_in_one_round():
    forms = {"slow": lambda: 100.0, "fast": lambda: 1.0}
    times = timing.take_turns(forms, 3, measure=lambda form: form())
    assert len(times["slow"]) == 1 and len(times["fast"]) == 3
    assert timing.ratio(times, "slow", "fast") == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_forms_of_a_loss_agree(name):
    loss = LOSSES[name]
    arrays = unit_vectors(loss.inputs, 24, 6)
    value, gradients = compile_gradient(loss.ours, loss, 24, 6, "float32")(*arrays)
    assert len(gradients) == loss.learned
    others = [compile_dense(loss, 24, 6)(*arrays)]
    if HAS_TORCH:
        others.append(torch_form(loss, arrays)())
    for other, other_gradients in others:
        np.testing.assert_allclose(float(other), float(value), rtol=1e-5)
        for ours, theirs in zip(gradients, other_gradients, strict=True):
            np.testing.assert_allclose(np.asarray(theirs), ours, atol=1e-6)


@pytest.mark.slow
def test_bench_losses(tmp_path):
    rows = losses.run(("uniform",), sizes=(48,), dim=8, rounds=1, figures=str(tmp_path))
    assert [row["form"] for row in rows] == ["hypersphere_jax", "dense JAX", *TORCH_FORMS]
    ours, dense = rows[:2]
    np.testing.assert_allclose(ours["% of peak"], 100 * ours["limit ms"] / ours["ms"])
    assert dense["temporaries MB"] > 4 * 48 * 48 / 1e6  # all pairs
    assert (tmp_path / "uniform.png").is_file()


@pytest.mark.slow
def test_bench_step():
    size = {"width": 0.1, "batch_size": 4, "image_size": 8, "recipe": "digits"}
    rows = step.run("small_cnn", **size, rounds=1)
    assert len(rows) == 3 + len(TORCH_FORMS) and rows[0]["relative"] == 1
    for row in rows:
        np.testing.assert_allclose(row["images/s"], 4 / row["ms"] * 1e3)


@pytest.mark.slow
def test_bench_loop():
    bare, ours = loop.run(epochs=3, rounds=1)
    np.testing.assert_allclose(ours["relative"], ours["ms"] / bare["ms"])


@pytest.mark.slow
def test_bench_data():
    rows = data.run(model="small_cnn", image_size=8, batch_size=4, workers=(0,), steps=2)
    assert len(rows) == 2 + HAS_TORCH
    assert all(0 <= row["wait %"] <= 100 for row in rows)


@pytest.mark.slow
def test_bench_knn():
    rows = knn.run(queries=40, bank=200, dim=8, k=(1, 3))
    assert [row["k"] for row in rows] == [1, 3]
    assert all(row["scikit-learn"] > 0 and row["% of peak"] > 0 for row in rows)


@pytest.mark.slow
def test_bench_probe():
    """Both libraries reach the same minimum, so the same accuracy."""
    ours, theirs = probe.run(n=400, dim=8, rounds=1)
    assert ours["relative"] == 1 and ours["test accuracy"] > 15
    np.testing.assert_allclose(ours["test accuracy"], theirs["test accuracy"], atol=1)


@pytest.mark.slow
def test_bench_start():
    for row in start.run(rounds=1):
        assert 0 < row["opened"] <= row["built"] <= row["first step"]
