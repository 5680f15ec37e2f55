"""Sweeps: what is done again, what is recorded, what is measured; training is in name only."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_runs

from experiments import protocols, sweeps
from experiments.plans import matching
from experiments.protocols import Evaluation, evaluate
from experiments.sweeps import Planned
from hypersphere_jax import configs as C
from hypersphere_jax.evaluate.feature_files import Features
from hypersphere_jax.training import run_dir
from hypersphere_jax.training import train as training

NUMBERS = {"step": 5, "align": 0.5, "uniform": -2.0, "output_linear": 90.0}


def planned(folder, *names, **changes):
    made = [Planned(tiny_runs.short(folder, name, **changes), {"weight": 2}) for name in names]
    return made if len(made) > 1 else made[0]


def changed(one, **values):
    return one._replace(config=dataclasses.replace(one.config, **values))


def statuses(sweep):
    return [row["status"] for row in sweeps.known(sweep)]


@pytest.fixture
def trained(monkeypatch):
    """Training in name only: what was asked for, and what it raises by the name of the run."""
    calls = {"names": [], "raises": {}}

    def train(config, command):
        calls["names"].append(config.name)
        if config.name in calls["raises"]:
            raise calls["raises"][config.name]
        return run_dir.folder_of(config)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(sweeps, "evaluate", lambda folder, how: [dict(NUMBERS)])
    return calls


def test_failures_are_recorded_and_the_others_go_on(tmp_path, trained):
    sweep = planned(tmp_path, "a", "nan", "memory", "wrong", "b")
    trained["raises"] = {
        "nan": C.Diverged("loss nan at step 3", "take a lower rate"),
        "memory": jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB"),
        "wrong": C.UserError("no such thing"),
    }
    assert sweeps.sweep(sweep) == ["wrong: no such thing"]
    a, nan, memory, b = sweeps.known(sweep)
    assert [a["run"], b["run"], *statuses(sweep)] == ["a", "b", "done", "failed", "failed", "done"]
    assert a["align"] == 0.5 and a["weight"] == nan["weight"] == 2
    assert nan["reason"] == "loss nan at step 3" and "out of memory" in memory["reason"]
    # Failures are done again when that is asked for, invalid input once it is corrected.
    del trained["raises"]["nan"], trained["raises"]["wrong"]
    assert sweeps.sweep(sweep) == [] and trained["names"][5:] == ["wrong"]
    assert sweeps.sweep(sweep, retry=True) == [] and trained["names"][6:] == ["nan", "memory"]
    assert statuses(sweep) == ["done", "done", "failed", "done", "done"]


def test_a_bug_ends_the_sweep_and_an_interruption_is_gone_on_from(tmp_path, trained):
    sweep = planned(tmp_path, "a", "b", "c")
    bugs = ZeroDivisionError("a bug"), jax.errors.JaxRuntimeError("INTERNAL: else")
    for name, error in (("a", bugs[0]), ("a", bugs[1]), ("b", C.Stopped("saved"))):
        trained["raises"] = {name: error}
        with pytest.raises(type(error)):
            sweeps.sweep(sweep)
    trained["raises"] = {}
    assert sweeps.sweep(sweep) == [] and trained["names"] == ["a", "a", "a", "b", "b", "c"]
    assert statuses(sweep) == ["done"] * 3


def test_vmapped(tmp_path, trained, monkeypatch):
    """Those that train in one program are measured one by one; one that diverges is recorded."""
    asked = []

    def train_vmapped(configs, command):
        asked.append([config.name for config in configs])
        lost = C.Diverged("nan", "advice")
        return [lost if config.name == "b" else run_dir.folder_of(config) for config in configs]

    monkeypatch.setattr(sweeps, "train_vmapped", train_vmapped)
    sweep = planned(tmp_path, "a", "b", "c")
    for _ in range(2):
        assert sweeps.sweep(sweep, vmapped=True) == []
    # On CPU not unless it is asked for.
    assert sweeps.sweep([planned(tmp_path, "alone")]) == []
    assert asked == [["a", "b", "c"]] and trained["names"] == ["a", "c", "alone"]
    assert statuses(sweep) == ["done", "failed", "done"]


def test_the_time_of_training_is_that_of_a_run_that_begins_here(tmp_path, trained):
    """Measured anew, a run that an earlier command began or finished has none."""
    new, old = planned(tmp_path, "new", "old")
    run_dir.folder_of(old.config).mkdir(parents=True)
    sweeps.sweep([new, old])
    of_new, of_old = sweeps.known([new, old])
    assert {"seconds_training", "seconds_measuring"} < {*of_new}
    assert {*of_new} - {*of_old} == {"seconds_training"}


def test_a_result_is_of_a_config_and_of_what_was_measured(tmp_path, trained):
    one = planned(tmp_path, "a")
    sweeps.sweep([one])
    hows = Evaluation(folds=None), Evaluation(probe_size=9), Evaluation(tasks=("mr",))
    others = [one._replace(evaluation=how) for how in hows]
    assert [sweeps.rows_of(other) for other in (changed(one, seed=1), *others)] == [None] * 4
    # How a run is carried out, and where its data lie, shape nothing.
    moved = changed(one, devices=1, log_every_steps=7, data_dir="elsewhere")
    assert sweeps.rows_of(moved) == sweeps.rows_of(one)


def test_a_run_that_others_begin_from_comes_first(tmp_path, trained):
    start, other = planned(tmp_path, "start", "other")
    late = planned(tmp_path, "late", init_from=str(tmp_path / "start"))
    sweep = [late, other, start]
    trained["raises"] = {"start": C.Diverged("nan", "advice")}
    sweeps.sweep(sweep)
    # What begins from one that failed has no beginning.
    assert trained["names"] == ["start", "other"] and statuses([late]) == ["failed"]
    trained["raises"] = {}
    sweeps.sweep(sweep, retry=True)
    assert trained["names"][2:] == ["start", "late"] and statuses(sweep) == ["done"] * 3
    assert [row["run"] for row in sweeps.known(sweep)] == ["late", "other", "start"]
    # The same runs in a folder that was moved are the same.
    moved = changed(late, init_from="elsewhere/start")
    assert sweeps.rows_of(moved) == sweeps.rows_of(late)
    assert matching([late, start, other], ["la*"]) == [late, start]  # of a part of the plan, too


def test_data_must_be_there(tmp_path, trained):
    one = planned(tmp_path, "a")
    lost = changed(one, data=str(tmp_path / "nothing"))
    with pytest.raises(C.UserError, match="nothing"):
        sweeps.sweep([planned(tmp_path, "b"), lost])
    assert trained["names"] == []


def test_what_is_measured(tmp_path, monkeypatch):
    """Which checkpoints, and which number of the verbs becomes which of a row."""
    asked = []

    def measure(config):
        asked.append((config.parts, config.split, config.step))
        metrics = {"align": 0.5, "uniform": -2.0, "prototype_bias": 0.3}
        errors = {f"{name}_standard_error": abs(value) / 10 for name, value in metrics.items()}
        names = "sliced_wasserstein", "projection_ks_sphere", "uniform_optimum"
        parts = dict.fromkeys((*names, "projection_half_width"), 0.1)
        parts["projections"] = [{"counts": [1, 2]}, {"counts": [3, 4]}]
        return {"step": config.step} | metrics | errors | parts

    def probe(config):
        assert config.runs == (str(tmp_path),) and config.standardize
        assert config.as_printed == ("stl10" in config.protocols)
        assert (config.protocols[:2], config.folds) == (("lbfgs", "knn"), 5)
        linear = {"top1": 80.0, "top5": 95.0, "top1_interval": [78.0, 83.0], "valid_top1": 81.0}
        samples = {"targets": [0, 1, 1], "predicted": [0, 1, 2]}
        for layer in config.layers:
            for protocol in {*config.protocols} - {"knn"}:
                yield {"protocol": protocol, "layer": layer} | linear | samples
            for k in config.k:
                nearest = {"protocol": "knn", "layer": layer, "k": k, "top1": 70.0 + k}
                yield nearest | {"top1_interval": [60.0, 90.0]} | samples

    monkeypatch.setattr(protocols, "run_metrics", measure)
    monkeypatch.setattr(protocols, "run_probe", probe)
    made = C.PretrainConfig(keep_every_steps=5)
    monkeypatch.setattr(run_dir, "read_config", lambda folder: made)
    # Where the run was interrupted, at step 8, there is one more.
    for folder in ("features", *(f"checkpoints/{step}" for step in (0, 5, 8, 10, 12))):
        (tmp_path / folder).mkdir(parents=True)
    rows = evaluate(tmp_path, Evaluation(("output", "fc7"), neighbours=(1,)))[0]
    linear = {"": 80.0, "_low": 78.0, "_high": 83.0, "_cv": 81.0, "_top5": 95.0}
    scores = {f"{name}{end}": linear[end] for name in ("linear", "logistic") for end in linear}
    scores |= {"knn1": 71.0, "knn1_low": 60.0, "knn1_high": 90.0}
    of_samples = rows.pop("predictions")
    names = {f"{layer}_{n}" for layer in ("output", "fc7") for n in ("linear", "logistic", "knn1")}
    assert of_samples.keys() == names
    assert all(of.right.tolist() == [True, True, False] for of in of_samples.values())
    assert rows == {
        **{"step": None, "align": 0.5, "align_error": 0.05, "uniform": -2.0, "uniform_error": 0.2},
        **{f"{layer}_{n}": value for layer in ("output", "fc7") for n, value in scores.items()},
    }
    assert asked == [((), "test", None)] and not (tmp_path / "features").exists()
    without_papers = evaluate(tmp_path, Evaluation(protocol=None))[0]
    assert "output_logistic" in without_papers and "output_linear" not in without_papers
    asked.pop()
    (row,) = evaluate(tmp_path, Evaluation(prototype=True))
    assert (row["prototype_bias"], row["prototype_bias_error"]) == (0.3, 0.03)
    assert asked[1:] == [((), "test", None), (("prototype",), "train", None)]
    (row,) = evaluate(tmp_path, Evaluation(projections=True))
    assert row["projection_counts"] == "1 2; 3 4" and row["projection_ks_sphere"] == 0.1
    assert asked[-1] == (("projections",), "test", None)
    for more, steps in (({"all_steps": True}, [0, 5, 10, 12]), ({"initial": True}, [0, None])):
        rows = evaluate(tmp_path, Evaluation(**more))
        assert [row["step"] for row in rows] == steps
    lines = [f'{{"step": {step}, "loss": {101 - step}}}\n' for step in range(1, 101)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    (row,) = evaluate(tmp_path, Evaluation(logged=True))  # the mean of the last tenth
    assert row == {"step": 100, "final_loss": pytest.approx(5.5)}


def test_a_probe_with_balanced_images_of_its_own(tmp_path, monkeypatch):
    """Of an encoder of a long-tailed part of a fifth of the digits, and the same for any other."""
    config = C.PretrainConfig(subset="long_tailed", subset_size=70, fraction=0.2)
    encoder = SimpleNamespace(config=config)
    monkeypatch.setattr(run_dir, "load_encoder", lambda folder, step: encoder)

    def features(encoder, source, layers, devices):
        x = source.labels[:, None] * np.ones(3, np.float32)
        return SimpleNamespace(features={layer: Features(x, source.labels) for layer in layers})

    monkeypatch.setattr(protocols, "split_features", features)
    metrics = dict.fromkeys(("align", "uniform"), 0.5)
    metrics |= {f"{name}_standard_error": 0.1 for name in metrics}
    monkeypatch.setattr(protocols, "run_metrics", lambda config: {"step": 1} | metrics)
    how = Evaluation(("backbone", "output"), None, None, probe_size=100)
    (tmp_path / "features").mkdir()
    read = []
    monkeypatch.setattr(
        protocols, "run_probe", lambda config: read.append(dict(np.load(config.runs[0]))) or []
    )
    evaluate(tmp_path, how)
    assert len(read) == 2 and all((of["train_x"][:, 0] == of["train_y"]).all() for of in read)
    for of in read:
        assert np.bincount(of["train_y"]).tolist() == [10] * 10 and len(of["test_y"]) == 397
