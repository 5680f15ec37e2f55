"""Sweeps: what is trained again, recorded, and where."""

import numpy as np
import pytest
import tiny_runs

from experiments.lib.evaluation import Evaluation
from experiments.lib.records import Predictions, read_results, write_results
from experiments.lib.sweep import Run, placed, read_rows, run_all
from experiments.options import SweepOptions
from hypersphere_jax.configs import UserError


def make_run(name, **changes):
    evaluation = Evaluation(only_loss=True)
    return Run(tiny_runs.short("unused", name, **changes), {"weight": 2}, evaluation)


RUNS = [
    make_run("late", init_from="diverged"),
    make_run("a"),
    make_run("diverged", learning_rate=1e30),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a finished sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    run_all(lambda rows: RUNS, folder)
    return folder


def modified(folder):
    """Return the times at which results were written, by run."""
    return {file.parts[-3]: file.stat().st_mtime_ns for file in folder.glob("*/sweep/*.json")}


def test_failures_are_recorded_and_the_sweep_continues(folder):
    rows = run_all(lambda rows: RUNS, folder)
    assert [row["status"] for row in rows] == ["failed", "done", "failed"]
    assert rows[1]["weight"] == 2 and np.isfinite(rows[1]["final_loss"])
    assert "diverged" in rows[0]["reason"]  # the run that it starts from


def test_finished_runs_are_skipped_and_failed_runs_retried_on_request(folder):
    first = modified(folder)
    run_all(lambda rows: RUNS, folder)
    assert modified(folder) == first
    run_all(lambda rows: RUNS, folder, SweepOptions(retry=True))
    second = modified(folder)
    assert {name for name in first if second[name] != first[name]} == {"late", "diverged"}


def test_later_runs_depend_on_earlier_rows(folder):
    a, b = make_run("a"), make_run("b", epochs=1)
    rows = run_all(lambda rows: [a, b] if rows else [a], folder)
    assert [row["run"] for row in rows] == ["a", "b"]


def test_selected_runs_are_trained_alone(folder):
    with pytest.raises(UserError, match="--only"):
        run_all(lambda rows: [make_run("a"), make_run("c")], folder, SweepOptions(only=("a*",)))
    assert not (folder / "c").exists()


def test_rows_belong_to_config_and_evaluation(folder):
    run = make_run("a")
    for other in (run.replace(seed=1), run.evaluated(folds=None), run.evaluated(tasks=("mr",))):
        assert read_rows(placed(other, folder)) is None
    # Devices, logging and the folder of the data do not change the rows.
    moved = run.replace(devices=1, log_every_steps=7)
    assert read_rows(placed(moved, folder, SweepOptions(data_dir="elsewhere")))


def test_seed_offset_shifts_seeds_and_names(tmp_path):
    run = make_run("late", init_from="start")
    moved = placed(run, tmp_path, SweepOptions(seed_offset=100))
    assert moved.config.seed == run.config.seed + 100 and moved.config.name == "late_plus100"
    assert moved.config.init_from == f"{tmp_path}/start_plus100"
    assert moved.labels["run"] == "late"


def test_results_survive_a_round_trip(tmp_path, rng):
    targets = [rng.integers(0, 10, 7), rng.integers(0, 300, 5)]
    names = [("x", "y"), ("x",), ()]
    rows = []
    for run, scores in enumerate(names):
        labels = targets[run % 2]
        predictions = {name: Predictions(labels, rng.permutation(labels)) for name in scores}
        rows.append({"run": f"{run}", "status": "done", "value": 0.1, "predictions": predictions})
    write_results(tmp_path, rows)
    for before, after in zip(rows, read_results(tmp_path), strict=True):
        assert str(after["run"]) == before["run"] and after["value"] == 0.1
        assert before["predictions"].keys() == after["predictions"].keys()
        for name, values in before["predictions"].items():
            np.testing.assert_array_equal(values, after["predictions"][name])


def test_missing_images_end_a_sweep_before_training(tmp_path):
    runs = [make_run("a"), make_run("b", data=str(tmp_path / "nowhere"))]
    with pytest.raises(UserError, match="nowhere"):
        run_all(lambda rows: runs, tmp_path)
    assert not modified(tmp_path)
