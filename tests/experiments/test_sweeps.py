"""Sweeps: nothing is done twice, a failure is recorded and the others go on, and what is measured.

Training is in name only, but for one real sweep in the slow tier.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny_runs

from experiments import measures, sweeps
from experiments.items import matching
from experiments.measures import Measures
from experiments.sweeps import Planned
from hypersphere_jax import config as C
from hypersphere_jax import data, runs, training

LINEAR = (("", 80.0), ("_low", 78.0), ("_high", 83.0), ("_cv", 81.0), ("_top5", 95.0))
NUMBERS = {"step": 5, "align": 0.5, "uniform": -2.0, "output_linear": 90.0}


def planned(folder, name, **changes):
    return Planned(tiny_runs.short(folder, name, **changes), {"weight": 2})


def out_of_memory():
    return jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB")


@pytest.fixture
def trained(monkeypatch):
    """Training in name only: what was asked for, and what it raises by the name of the run."""
    found = {"names": [], "raises": {}}

    def train(config, command):
        found["names"].append(config.name)
        if config.name in found["raises"]:
            raise found["raises"][config.name]
        return runs.folder_of(config)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(sweeps, "measured", lambda folder, measures: [dict(NUMBERS)])
    return found


def statuses(sweep):
    return [row["status"] for row in sweeps.known(sweep)]


def test_failures_are_recorded_and_the_others_go_on(tmp_path, trained):
    sweep = [planned(tmp_path, name) for name in ("a", "nan", "memory", "wrong", "b")]
    trained["raises"] = {
        "nan": C.Diverged("loss nan at step 3", "take a lower rate"),
        "memory": out_of_memory(),
        "wrong": C.UserError("no such thing"),
    }
    said = []
    assert sweeps.sweep(sweep, say=said.append) == ["wrong: no such thing"] and len(said) == 5
    a, nan, memory, b = sweeps.known(sweep)
    assert (a["run"], b["run"], a["status"], b["status"]) == ("a", "b", "done", "done")
    assert a["align"] == 0.5 and a["weight"] == nan["weight"] == 2
    assert nan["status"] == "failed" and nan["reason"] == "loss nan at step 3"
    assert memory["status"] == "failed" and "out of memory" in memory["reason"]
    # What is done, or has failed, is not done again, unless that is asked for; a mistake is no
    # failure: once it is mended, the run is done.
    del trained["raises"]["nan"], trained["raises"]["wrong"]
    assert sweeps.sweep(sweep) == [] and trained["names"][5:] == ["wrong"]
    assert sweeps.sweep(sweep, retry=True) == [] and trained["names"][6:] == ["nan", "memory"]
    assert statuses(sweep) == ["done", "done", "failed", "done", "done"]


def test_a_bug_ends_the_sweep_and_an_interruption_is_gone_on_from(tmp_path, trained):
    sweep = [planned(tmp_path, name) for name in ("a", "b", "c")]
    for error in (ZeroDivisionError("a bug"), jax.errors.JaxRuntimeError("INTERNAL: else")):
        trained["raises"] = {"a": error}
        with pytest.raises(type(error)):
            sweeps.sweep(sweep)
    assert trained["names"] == ["a", "a"]
    trained["raises"] = {"b": C.Stopped("saved")}
    with pytest.raises(C.Stopped):
        sweeps.sweep(sweep)
    trained["raises"] = {}
    assert sweeps.sweep(sweep) == [] and trained["names"][2:] == ["a", "b", "b", "c"]
    assert statuses(sweep) == ["done"] * 3


def test_together(tmp_path, trained, monkeypatch):
    """Those that train in one program are measured one by one; one that diverges is recorded."""
    asked = []

    def train_together(configs, command):
        asked.append([config.name for config in configs])
        return [
            C.Diverged("nan", "advice") if c.name == "b" else tmp_path / c.name for c in configs
        ]

    monkeypatch.setattr(training, "train_together", train_together)
    sweep = [planned(tmp_path, name) for name in ("a", "b", "c")]
    for _ in range(2):
        assert sweeps.sweep(sweep, together=True) == []
    assert asked == [["a", "b", "c"]] and trained["names"] == ["a", "c"]
    assert statuses(sweep) == ["done", "failed", "done"]
    # On CPU not unless it is asked for.
    monkeypatch.setattr(training, "train_together", lambda *_: 1 / 0)
    assert sweeps.sweep([planned(tmp_path, "alone")]) == []


def test_a_result_is_of_a_config_and_of_what_was_measured(tmp_path, trained):
    one = planned(tmp_path, "a")
    sweeps.sweep([one])
    for other in (
        planned(tmp_path, "a", seed=1),
        *(one._replace(measures=m) for m in (Measures(folds=None), Measures(neighbours=(1,)))),
    ):
        assert sweeps.rows_of(other) is None
    # How a run is carried out, and where its data lie, shape nothing.
    runtime = C.RuntimeConfig(devices=1, log_every_steps=7)
    moved = dataclasses.replace(
        one.config, runtime=runtime, data=C.DataConfig(data_dir="elsewhere")
    )
    assert sweeps.rows_of(one._replace(config=moved)) == sweeps.rows_of(one)
    # Results of earlier versions are found: an option that came later does not change their names.
    assert sweeps._key(Planned(C.PretrainConfig())) == "559827d4bdd6fe23"


def test_a_run_that_others_begin_from_comes_first(tmp_path, trained):
    start, other = planned(tmp_path, "start"), planned(tmp_path, "other")
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
    moved = dataclasses.replace(late.config, init_from="elsewhere/start")
    assert sweeps.rows_of(late._replace(config=moved)) == sweeps.rows_of(late)
    assert matching([late, start, other], ["la*"]) == [late, start]  # of a part of the plan, too


def test_data_must_be_there_and_the_same(tmp_path, trained):
    lost = planned(tmp_path, "a", data=C.DataConfig(str(tmp_path / "nothing")))
    with pytest.raises(C.UserError, match="nothing"):
        sweeps.sweep([planned(tmp_path, "b"), lost])
    assert trained["names"] == []
    one = planned(tmp_path, "a")
    sweeps.sweep([one])
    config = tmp_path / "a" / "config.json"
    runs.write_json(config, {"data_digest": data.load(one.config.data).digest()})
    assert sweeps.sweep([one]) == []
    runs.write_json(config, {"data_digest": "another"})
    with pytest.raises(C.UserError, match="images of digits are no longer those"):
        sweeps.sweep([one])


def test_what_is_measured(tmp_path, monkeypatch):
    """Which checkpoints, and which number of the verbs becomes which of a row."""
    asked = []

    def measure(config):
        asked.append((config.parts, config.split, config.step))
        found = {"step": config.step, "align": 0.5, "align_standard_error": 0.01}
        found |= {"uniform": -2.0, "uniform_standard_error": 0.02}
        return found | {"prototype_bias": 0.3, "prototype_bias_standard_error": 0.03}

    def probe(config):
        assert config.runs == (str(tmp_path),) and config.as_printed
        assert (config.protocols, config.folds) == (("stl10", "knn"), 5)
        for layer in config.layers:
            linear = {"protocol": "stl10", "layer": layer, "top1": 80.0, "top5": 95.0}
            yield linear | {"top1_interval": [78.0, 83.0], "valid_top1": 81.0}
            for k in config.k:
                nearest = {"protocol": "knn", "layer": layer, "k": k, "top1": 70.0 + k}
                yield nearest | {"top1_interval": [60.0, 90.0]}

    monkeypatch.setattr(measures, "measure", measure)
    monkeypatch.setattr(measures, "probe", probe)
    made = C.PretrainConfig(runtime=C.RuntimeConfig(keep_every_steps=5))
    monkeypatch.setattr(runs, "read_config", lambda folder: made)
    for step in (0, 5, 8, 10, 12):  # where the run was interrupted there is one more
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    (tmp_path / "features").mkdir()
    layers = ("output", "fc7")
    found = measures.measured(tmp_path, Measures(layers, neighbours=(1,)))[0]
    nearest = (("", 71.0), ("_low", 60.0), ("_high", 90.0))
    assert found == {
        **{"step": None, "align": 0.5, "align_error": 0.01, "uniform": -2.0, "uniform_error": 0.02},
        **{f"{layer}_linear{end}": value for layer in layers for end, value in LINEAR},
        **{f"{layer}_knn1{end}": value for layer in layers for end, value in nearest},
    }
    assert asked == [((), "test", None)] and not (tmp_path / "features").exists()
    (row,) = measures.measured(tmp_path, Measures(prototype=True))
    assert (row["prototype_bias"], row["prototype_bias_error"]) == (0.3, 0.03)
    assert asked[1:] == [((), "test", None), (("prototype",), "train", None)]
    for more, steps in (({"all_steps": True}, [0, 5, 10, 12]), ({"initial": True}, [0, None])):
        found = measures.measured(tmp_path, Measures(**more))
        assert [row["step"] for row in found] == steps


def test_the_logged_loss_is_the_mean_of_the_last_tenth(tmp_path):
    losses = [100.0 - step for step in range(100)]
    lines = [json.dumps({"step": step + 1, "loss": loss}) for step, loss in enumerate(losses)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (row,) = measures.measured(tmp_path, Measures(logged=True))
    assert row == {"step": 100, "final_loss": pytest.approx(np.mean(losses[90:]))}


@pytest.mark.slow
def test_a_real_sweep_in_two_processes(tmp_path):
    """An encoder and a finetuned one; one that diverges; and each number as the verbs say it."""
    # The processes have one device each.
    runtime = C.RuntimeConfig(devices=1, checkpoint_every_steps=5, keep_every_steps=5)
    start, wild = (planned(tmp_path, name, runtime=runtime) for name in ("start", "wild"))
    fine = planned(tmp_path, "fine", init_from=str(tmp_path / "start"), runtime=runtime)
    fine = fine._replace(measures=Measures(folds=None, initial=True))
    rule = dataclasses.replace(wild.config.optimizer, learning_rate=1e30)
    wild = wild._replace(config=dataclasses.replace(wild.config, optimizer=rule))
    assert sweeps.sweep([fine, start, wild], jobs=2, logs=tmp_path / "logs") == []
    first, _, alone, diverged = sweeps.known([fine, start, wild])
    assert diverged["status"] == "failed" and "step" in diverged["reason"]
    # Where the finetuned one begins, the other ended.
    assert first["output_knn5"] == alone["output_knn5"]
    assert first["uniform"] == pytest.approx(alone["uniform"], abs=1e-4)
    folder = tmp_path / "start"
    assert not (folder / "features").exists() and (folder / "metrics.jsonl").is_file()
    assert runs.read_json(folder / "eval" / "knn5-output.json")["top1"] == alone["output_knn5"]
    assert np.isfinite(alone["output_linear_cv"]) and alone["seconds_training"] > 0
