"""Sweeps: nothing is done twice, a failure is recorded and the others go on."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from depth_cases import scenes, write_mat

from experiments import measures, sweeps, tables
from experiments.items import matching
from experiments.measures import Measures
from experiments.sweeps import Planned
from experiments.wang_isola import rows
from hypersphere_jax import runs, training
from hypersphere_jax.config import (
    DataConfig,
    Diverged,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)

NUMBERS = {"step": 5, "align": 0.5, "uniform": -2.0, "output_linear": 90.0}


def planned(tmp_path, name, **options):
    config = PretrainConfig(
        name=name,
        runs_dir=str(tmp_path),
        model=ModelConfig(dim=8, width=0.25),
        optimizer=OptimizerConfig(epochs=1, **options),
        runtime=RuntimeConfig(devices=1),
    )
    return Planned(config, {"weight": 2})


@pytest.fixture
def happens(monkeypatch):
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


def test_failures_are_recorded_and_the_others_go_on(tmp_path, happens):
    sweep = [planned(tmp_path, name) for name in ("a", "nan", "memory", "wrong", "b")]
    happens["raises"] = {
        "nan": Diverged("loss nan at step 3", "take a lower rate"),
        "memory": jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB"),
        "wrong": UserError("no such thing"),
    }
    said = []
    assert sweeps.sweep(sweep, say=said.append) == ["wrong: no such thing"]
    found = sweeps.known(sweep)
    assert [row["run"] for row in found] == ["a", "nan", "memory", "b"]
    assert [row["status"] for row in found] == ["done", "failed", "failed", "done"]
    reasons = [row["reason"] for row in found if row["status"] == "failed"]
    assert reasons[0] == "loss nan at step 3" and reasons[1].startswith("out of memory: RESOURCE")
    assert found[0]["align"] == 0.5 and all(row["weight"] == 2 for row in found)
    assert len(said) == 5 and said[1].startswith("2 of 5: nan: failed: loss nan")

    # What is done, or has failed, is not done again, unless that is asked for; a mistake is no
    # failure: once it is mended, the run is done.
    del happens["raises"]["nan"], happens["raises"]["wrong"]
    assert sweeps.sweep(sweep) == [] and happens["names"][5:] == ["wrong"]
    assert sweeps.sweep(sweep, retry=True) == [] and happens["names"][6:] == ["nan", "memory"]
    assert [row["status"] for row in sweeps.known(sweep)] == ["done"] * 2 + ["failed"] + [
        "done"
    ] * 2


def test_together(tmp_path, happens, monkeypatch):
    """Those that train in one program are measured one by one; one that diverges is recorded."""
    asked = []

    def train_together(configs, command):
        asked.append([config.name for config in configs])
        return [Diverged("nan", "advice") if c.name == "b" else tmp_path / c.name for c in configs]

    monkeypatch.setattr(training, "train_together", train_together)
    sweep = [planned(tmp_path, name) for name in ("a", "b", "c")]
    assert sweeps.sweep(sweep, together=True) == []
    found = sweeps.known(sweep)
    assert asked == [["a", "b", "c"]] and happens["names"] == ["a", "c"]
    assert [row["status"] for row in found] == ["done", "failed", "done"]
    sweeps.sweep(sweep, together=True)
    assert len(asked) == 1
    # A mistake in one of them is that one's, and too little memory no reason to end.
    errors = [UserError("a mistake"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB")]
    for number, error in enumerate(errors):

        def fails(*_, error=error):
            raise error

        monkeypatch.setattr(training, "train_together", fails)
        said, later = [], [planned(tmp_path, f"later{number}")]
        assert sweeps.sweep(later, together=True, say=said.append) == []
        assert "in one program" in said[0] and sweeps.known(later)[0]["status"] == "done"
    # On CPU not unless it is asked for.
    monkeypatch.setattr(training, "train_together", lambda *_: 1 / 0)
    assert sweeps.sweep([planned(tmp_path, "alone")]) == []


def test_a_bug_ends_the_sweep(tmp_path, happens):
    happens["raises"] = {"a": ZeroDivisionError("a bug")}
    with pytest.raises(ZeroDivisionError):
        sweeps.sweep([planned(tmp_path, "a"), planned(tmp_path, "b")])
    other = jax.errors.JaxRuntimeError("INTERNAL: something else")
    happens["raises"] = {"a": other}
    with pytest.raises(jax.errors.JaxRuntimeError):
        sweeps.sweep([planned(tmp_path, "a")])


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path, happens):
    sweep = [planned(tmp_path, name) for name in ("a", "b", "c")]
    happens["raises"] = {"b": Stopped("saved")}
    with pytest.raises(Stopped):
        sweeps.sweep(sweep)
    assert happens["names"] == ["a", "b"]
    happens["raises"] = {}
    assert sweeps.sweep(sweep) == [] and happens["names"] == ["a", "b", "b", "c"]
    assert [row["status"] for row in sweeps.known(sweep)] == ["done"] * 3


def test_another_config_or_measure_is_another_result(tmp_path, happens):
    one = planned(tmp_path, "a")
    sweeps.sweep([one])
    for other in (
        planned(tmp_path, "a", learning_rate=0.01),
        one._replace(measures=Measures(folds=None)),
    ):
        assert sweeps.rows_of(other) is None
    # How a run is carried out, and where its data lie, shape nothing.
    runtime = RuntimeConfig(devices=1, log_every_steps=7)
    moved = dataclasses.replace(one.config, runtime=runtime, data=DataConfig(data_dir="elsewhere"))
    assert sweeps.rows_of(one._replace(config=moved)) == sweeps.rows_of(one)


def test_a_run_that_others_begin_from_comes_first(tmp_path, happens):
    late, start = planned(tmp_path, "late"), planned(tmp_path, "start")
    config = dataclasses.replace(late.config, init_from=str(tmp_path / "start"))
    late = late._replace(config=config)
    sweep = [late, planned(tmp_path, "other"), start]
    happens["raises"] = {"start": Diverged("nan", "advice")}
    sweeps.sweep(sweep)
    # What begins from one that failed has no beginning.
    assert happens["names"] == ["start", "other"]
    assert "from which it begins, failed" in sweeps.rows_of(late)[0]["reason"]
    happens["raises"] = {}
    sweeps.sweep(sweep, retry=True)
    assert happens["names"][2:] == ["start", "late"]
    assert [row["run"] for row in sweeps.known(sweep)] == ["late", "other", "start"]
    # The same runs in a folder that was moved are the same.
    moved = dataclasses.replace(late.config, init_from="elsewhere/start")
    assert sweeps.rows_of(late._replace(config=moved)) == sweeps.rows_of(late)
    # Of a part of the plan, too.
    assert matching([late, start, planned(tmp_path, "other")], ["la*"]) == [late, start]
    assert matching([late, start], []) == [late, start] and matching([late, start], ["x"]) == []


def test_data_that_are_not_there_end_it_before_it_begins(tmp_path, happens):
    one = planned(tmp_path, "a")
    config = dataclasses.replace(one.config, data=DataConfig(str(tmp_path / "nothing")))
    with pytest.raises(UserError, match="nothing"):
        sweeps.sweep([planned(tmp_path, "b"), one._replace(config=config)])
    assert happens["names"] == []


def test_results_of_other_images_are_not_taken(tmp_path, happens):
    one = planned(tmp_path, "a")
    sweeps.sweep([one])
    runs.write_json(tmp_path / "a" / "config.json", {"data_digest": "another"})
    with pytest.raises(UserError, match="images of digits are no longer those"):
        sweeps.sweep([one])


def test_checkpoints_on_the_way_are_those_of_every_run(tmp_path, monkeypatch):
    """Where it was interrupted there is one more, which counts for nothing."""
    config = PretrainConfig(runtime=RuntimeConfig(keep_every_steps=5))
    monkeypatch.setattr(runs, "read_config", lambda folder: config)
    for step in (0, 5, 8, 10, 12):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    assert measures._steps(tmp_path) == [0, 5, 10, 12]


@pytest.mark.slow
def test_a_real_sweep_in_two_processes(tmp_path):
    """Two encoders and a finetuned one; one that diverges; and each number as the verbs say it."""
    start = planned(tmp_path, "start")
    fine = planned(tmp_path, "fine")
    config = dataclasses.replace(fine.config, init_from=str(tmp_path / "start"))
    config = dataclasses.replace(config, runtime=RuntimeConfig(devices=1, keep_every_steps=5))
    fine = fine._replace(config=config, measures=Measures(all_steps=True))
    wild = planned(tmp_path, "wild", learning_rate=1e30)
    assert sweeps.sweep([fine, start, wild], jobs=2, logs=tmp_path / "logs") == []
    found = sweeps.known([fine, start, wild])
    by_run = {name: [row for row in found if row["run"] == name] for name in ("fine", "wild")}
    assert [row["step"] for row in by_run["fine"]] == [0, 5]
    assert by_run["wild"][0]["status"] == "failed" and "step" in by_run["wild"][0]["reason"]
    (alone,) = (row for row in found if row["run"] == "start")
    # Where the finetuned one begins, the other ended.
    assert by_run["fine"][0]["output_knn5"] == alone["output_knn5"]
    assert by_run["fine"][0]["uniform"] == pytest.approx(alone["uniform"], abs=1e-4)
    folder = tmp_path / "start"
    assert not (folder / "features").exists() and (folder / "metrics.jsonl").is_file()
    saved = json.loads((folder / "eval" / "knn5-output.json").read_text())
    assert saved["top1"] == alone["output_knn5"]
    assert np.isfinite(alone["output_linear_cv"]) and alone["seconds_training"] > 0


@pytest.mark.slow
def test_depth_and_the_protocol_of_imagenet100_are_measured(tmp_path):
    """As Tables 2, 9 and Figure 5b ask, and Tables 3, 10 and Figure 9a, on small data."""
    images, depths = scenes(60)
    mat = write_mat(tmp_path / "nyu.mat", images, depths, [f"scene_{n // 3}" for n in range(60)])
    small = ModelConfig("small_alexnet", dim=4, width=0.05, image_size=32)
    config = dataclasses.replace(
        planned(tmp_path, "nyu", batch_size=16).config,
        data=DataConfig("nyu_depth_v2", str(mat)),
        model=small,
    )
    nyu = Planned(config, {}, rows.NYU._replace(layers=("conv5",), folds=2))
    imagenet100 = planned(tmp_path, "digits")._replace(measures=rows.IMAGENET100)
    assert sweeps.sweep([nyu, imagenet100]) == []
    depth, classes = sweeps.known([nyu, imagenet100])
    assert depth["conv5_mse"] > 0 and depth["conv5_mse_cv"] > 0
    assert np.isfinite([depth["align"], depth["uniform"]]).all()
    assert 10 < classes["backbone_linear_cv"] < 100 and classes["backbone_linear_top5"] > 50
    # Each printed result of these tables has one of ours beside it.
    for table, found in (("table9", depth), ("table10", classes)):
        printed = tables.expected(tables.row_of(f"wang-isola/{table}", 1))
        ours = {rows.OURS[name] for name in printed if name in rows.OURS}
        assert len(ours) >= 3 and {name for name in ours if "conv4" not in name} <= set(found)
