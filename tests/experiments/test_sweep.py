"""Sweeps with a stub in place of training: what is trained again, recorded, and placed where."""

from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_runs

from experiments.lib import sweep
from experiments.lib.evaluation import Evaluation
from experiments.lib.processes import run_processes
from experiments.lib.records import (
    Predictions,
    read_predictions,
    read_results,
    write_predictions,
    write_results,
)
from experiments.lib.sweep import Run, SweepOptions, known_rows, run_all
from hypersphere_jax import configs as C


@pytest.fixture
def trained(monkeypatch):
    """Names of trained runs, and errors to raise by name."""
    calls = {"names": [], "raises": {}}

    def train(config, command):
        calls["names"].append(config.name)
        if config.name in calls["raises"]:
            raise calls["raises"][config.name]
        folder = Path(config.runs_dir) / config.name
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        return folder

    monkeypatch.setattr(sweep, "train", train)
    score = {"score": Predictions(np.zeros(3, int), np.array([0, 0, 1]))}
    row = {"align": 0.5, "score": 66.7}
    monkeypatch.setattr(sweep, "evaluate", lambda *_: [row | {"predictions": dict(score)}])
    return calls


def made(*names, **changes):
    return [Run(tiny_runs.short("unused", name, **changes), {"weight": 2}) for name in names]


def test_failures_are_recorded_and_retried_on_request(tmp_path, trained):
    runs = made("a", "diverged", "memory", "b")
    trained["raises"] = {
        "diverged": C.Diverged("loss nan at step 3", "take a lower rate"),
        "memory": jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB"),
    }
    rows, missing = run_all(lambda rows: runs, SweepOptions(tmp_path))
    assert [row["status"] for row in rows] == ["done", "failed", "failed", "done"] and not missing
    assert rows[0]["weight"] == 2 and rows[0]["align"] == 0.5 and rows[0]["seconds_training"] >= 0
    assert rows[0]["predictions"]["score"].correct.tolist() == [True, True, False]
    assert "loss nan" in rows[1]["reason"]
    del trained["raises"]["diverged"]
    assert run_all(lambda rows: runs, SweepOptions(tmp_path))[0][1]["status"] == "failed"
    rows, _ = run_all(lambda rows: runs, SweepOptions(tmp_path, retry=True))
    assert [row["status"] for row in rows] == ["done", "done", "failed", "done"]
    assert trained["names"] == ["a", "diverged", "memory", "b", "diverged", "memory"]


def test_other_errors_end_the_sweep_and_finished_runs_are_kept(tmp_path, trained):
    runs = made("a", "b")
    for error in (ZeroDivisionError(), C.UserError("invalid"), C.Stopped("saved")):
        trained["raises"] = {"b": error}
        with pytest.raises(type(error)):
            run_all(lambda rows: runs, SweepOptions(tmp_path))
    assert trained["names"] == ["a", "b", "b", "b"]


def test_later_runs_depend_on_earlier_rows(tmp_path, trained):
    def plan(rows):
        return made("a", *(["b"] if rows else []))

    rows, missing = run_all(plan, SweepOptions(tmp_path))
    assert [row["run"] for row in rows] == ["a", "b"] and not missing
    rows, missing = run_all(lambda rows: made("a", "c"), SweepOptions(tmp_path, only=("a*",)))
    assert [run.config.name for run in missing] == ["c"] and len(rows) == 1


def test_rows_belong_to_config_and_evaluation(tmp_path, trained):
    options = SweepOptions(tmp_path)
    (run,) = made("a")
    run_all(lambda rows: [run], options)
    others = [run.replace(seed=1), run.evaluated(folds=None), run.evaluated(tasks=("mr",))]
    assert known_rows([sweep.placed(other, options) for other in others]) == []
    # Devices, logging and the folder of the data do not change the rows.
    moved = run.replace(devices=1, log_every_steps=7)
    assert known_rows([sweep.placed(moved, SweepOptions(tmp_path, "elsewhere"))])


def test_a_run_starts_after_its_source(tmp_path, trained):
    late = made("late", init_from="start")
    runs = [*late, *made("other", "start")]
    trained["raises"] = {"start": C.Diverged("nan", "advice")}
    rows, _ = run_all(lambda rows: runs, SweepOptions(tmp_path))
    assert trained["names"] == ["start", "other"]
    assert [row["status"] for row in rows] == ["failed", "done", "failed"]
    trained["raises"] = {}
    run_all(lambda rows: runs, SweepOptions(tmp_path, retry=True))
    assert trained["names"][2:] == ["start", "late"]


def test_seed_offset_shifts_seeds_and_names(tmp_path):
    (run,) = made("late", init_from="start")
    placed = sweep.placed(run, SweepOptions(tmp_path, seed_offset=100))
    assert placed.config.seed == run.config.seed + 100 and placed.config.name == "late_plus100"
    assert placed.config.init_from == f"{tmp_path}/start_plus100"
    assert placed.labels["run"] == "late" and placed.labels["seed"] == run.config.seed


def test_vmapped_training_precedes_evaluation(tmp_path, trained, monkeypatch):
    asked = []

    def train_vmapped(configs, command):
        asked.append([config.name for config in configs])
        lost = C.Diverged("nan", "advice")
        return [lost if config.name == "b" else Path(config.name) for config in configs]

    monkeypatch.setattr(sweep, "train_vmapped", train_vmapped)
    rows, _ = run_all(lambda rows: made("a", "b", "c"), SweepOptions(tmp_path, vmapped=True))
    assert asked == [["a", "b", "c"]] and trained["names"] == ["a", "c"]
    assert [row["status"] for row in rows] == ["done", "failed", "done"]


def test_data_sets_have_subfolders(tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train.zip").touch()
    assert sweep.data_folder("cifar10", str(tmp_path)) == str(tmp_path / "cifar10")
    assert sweep.data_folder("stl10", str(tmp_path)) == str(tmp_path)
    assert sweep.data_folder("digits", str(tmp_path)) is None


def work(task):
    if task == "die":
        import os

        os._exit(1)
    return task * 2


@pytest.mark.slow
def test_processes_return_results_and_report_a_dead_one():
    assert sorted(run_processes([(work, 1), (work, 3)], jobs=2)) == [(0, 2), (1, 6)]
    with pytest.raises(C.UserError, match="died"):
        list(run_processes([(work, "die"), (work, 1)], jobs=2))
    with pytest.raises(C.UserError, match="cores"):
        list(run_processes([(work, 1)], jobs=10_000))


def test_results_survive_a_round_trip(tmp_path, rng):
    def one(run, targets, *scores):
        predictions = {name: Predictions(targets, rng.permutation(targets)) for name in scores}
        return {"run": run, "status": "done", "value": 0.1, "predictions": predictions}

    digits, letters = rng.integers(0, 10, 7), rng.integers(0, 300, 5)
    rows = [one("a", digits, "x", "y"), one("b", letters, "x"), one("c", digits, "x")]
    write_results(tmp_path, rows)
    for before, after in zip(rows, read_results(tmp_path), strict=True):
        assert before["run"] == after["run"] and after["value"] == 0.1
        assert before["predictions"].keys() == after["predictions"].keys()
        for name, values in before["predictions"].items():
            np.testing.assert_array_equal(values, after["predictions"][name])
    write_predictions(tmp_path / "none.npz", [{"run": "failed"}])
    assert read_predictions(tmp_path / "none.npz", [{"run": "failed"}])[0]["predictions"] == {}


def test_evaluation_defaults_have_a_stable_key(tmp_path):
    (run,) = made("a")
    assert run.key == Run(run.config, {}, Evaluation()).key


def test_missing_images_end_a_sweep_before_training(tmp_path, trained):
    runs = made("a") + made("b", data=str(tmp_path / "nowhere"))
    with pytest.raises(C.UserError, match="nowhere"):
        run_all(lambda rows: runs, SweepOptions(tmp_path))
    assert trained["names"] == []
