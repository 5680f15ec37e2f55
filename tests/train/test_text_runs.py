"""Runs of sentence encoders: the one loop, batches of consecutive sentences, exact resumption."""

import dataclasses
import functools
import itertools
import json
import runpy
import shutil

import jax
import numpy as np
import processes
import pytest
import tiny_runs
from run_states import assert_same_run, killed_after_checkpoint, state_of

from experiments import sweeps
from experiments.measures import Measures
from hypersphere_jax import assembly, data, feed, runs, sharding, training
from hypersphere_jax.config import DataConfig, ModelConfig, UserError
from hypersphere_jax.data.sampling import Consecutive
from hypersphere_jax.evaluation.sentences import neighbour_metrics, sentence_probe
from hypersphere_jax.packing import ELSEWHERE, PADDING


@pytest.fixture(scope="module")
def run_py():
    """The command line: `run_py([verb, ...])` returns its exit status."""
    return runpy.run_path(str(processes.ROOT / "run.py"))["main"]


@pytest.fixture(scope="module")
def books(texts):
    return data.load(DataConfig(str(texts / "books")))


@pytest.fixture(scope="module")
def measured(text_run, texts, tmp_path_factory):
    """A copy of the run to evaluate, and its rows of a sweep that measures it."""
    folder = tmp_path_factory.mktemp("measured") / "text"
    shutil.copytree(text_run, folder)
    tasks = (str(texts / "labelled" / "topics"),)
    measures = Measures(("output", "bag"), "quick_thought", tasks=tasks, initial=True)
    one = sweeps.Planned(tiny_runs.text(folder.parent, texts), {"kind": "contrastive"}, measures)
    with pytest.MonkeyPatch.context() as patch:
        few = functools.partial(sentence_probe, folds=4, inner_folds=3, strengths=(1 / 16, 1 / 256))
        patch.setattr("hypersphere_jax.evaluation.probe.sentence_probe", few)
        assert sweeps.carry_out(one) is None  # trained it is already
    return folder, sweeps.rows_of(one)


def test_batches_are_of_consecutive_sentences_of_one_document():
    documents = np.array([0, 50, 58, 90])
    sampler = Consecutive(documents, 8, seed=3)
    assert sampler.steps_per_epoch == 6 + 1 + 4
    epochs = [[sampler(step) for step in range(start, start + 11)] for start in (0, 11)]
    for batches in epochs:
        assert all((np.diff(batch) == 1).all() and len(batch) == 8 for batch in batches)
        assert sorted(batch[0] for batch in batches) == [*range(0, 48, 8), 50, *range(58, 90, 8)]
    first, second = ([batch[0] for batch in batches] for batches in epochs)
    assert first != second and first != sorted(first)
    assert Consecutive(documents, 8, seed=3)(17).tolist() == epochs[1][6].tolist()
    assert [Consecutive(documents, 8, seed=4)(step)[0] for step in range(11)] != first
    with pytest.raises(UserError, match=r"--batch-size 51 is more than .*document \(50\)"):
        Consecutive(documents, 51, seed=0)


def test_a_run_of_text(text_run, books):
    model = json.loads((text_run / "config.json").read_text())["config"]["model"]
    assert model["vocabulary"] == len(books.train.vocabulary)
    assert runs.read_vocabulary(text_run) == books.train.vocabulary
    records = runs.read_metrics(text_run)
    assert [record["step"] for record in records] == list(range(1, 11))
    for record in records:
        parts = record["contrastive"] + 0.5 * record["align"] + 0.1 * record["uniform"]
        assert record["loss"] == pytest.approx(parts, rel=1e-4)
    assert records[-1]["contrastive"] < records[0]["contrastive"] - 0.1


def test_stopped_in_an_epoch_and_resumed_is_the_same_run(text_run, texts, tmp_path):
    with killed_after_checkpoint(6):  # of 5 steps an epoch
        training.train(tiny_runs.text(tmp_path, texts))
    assert_same_run(training.train(tiny_runs.text(tmp_path, texts)), text_run)


def test_what_the_devices_get(books):
    packed = feed.packed(books.train, np.arange(30, 54), sharding.local_devices(4))
    for place in range(24):
        (device,) = np.flatnonzero(packed.first[:, place] != ELSEWHERE)
        whole = slice(packed.first[device, place], packed.last[device, place] + 1)
        its = books.train[30 + place]["image"]
        np.testing.assert_array_equal(packed.words[device].ravel()[whole], its[its != PADDING])


def test_probe_of_labelled_sentences(measured, run_py):
    """The two classes have no noun in common: also a small encoder tells them apart."""
    folder, rows = measured
    assert [row["step"] for row in rows] == [0, 10]
    for row, name in itertools.product(rows, ("topics", "topics_bag")):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] and row[f"{name}_cv"] > 65
    assert rows[1]["topics_bag"] > 80
    files = (folder / "eval").glob("quick_thought-*-tasktopics-*.json")
    results = [json.loads(file.read_text()) for file in files]
    found = {(result["layer"], result["step"]): result for result in results}
    assert set(found) == set(itertools.product(("output", "bag"), (0, 10)))
    for (layer, step), result in found.items():
        assert result["d"] == {"output": 16, "bag": 12}[layer]
        assert (result["task"], result["split"], result["n"]) == ("topics", "folds", 80)
        assert result["top1"] == rows[step == 10]["topics" + "_bag" * (layer == "bag")]
    assert run_py(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "--protocols quick_thought" in page and "finetune" not in page and "topics" in page


def test_metrics_are_of_held_out_neighbours(measured, books):
    folder, rows = measured
    words = np.stack([books.test[i]["image"] for i in range(len(books.test))])
    apply = jax.jit(runs.load_encoder(folder).apply, static_argnums=3)
    for row in rows:
        outputs, _ = apply(runs.load_encoder(folder, row["step"]).params, {}, words, False)
        f, g = np.asarray(outputs["f"]), np.asarray(outputs["g"])
        expected = neighbour_metrics(f, g, books.test.documents)
        assert row["align"] == pytest.approx(expected["align"], rel=1e-5)
        assert row["uniform"] == pytest.approx(expected["uniform"], rel=1e-4)


def test_a_run_begins_from_one_of_the_same_words(text_run, texts, tmp_path):
    asked = tiny_runs.text(tmp_path, texts, init_from=str(text_run))
    config = dataclasses.replace(asked, model=runs.read_config(text_run).model)
    params, _ = assembly.from_run(config, {}, {}, runs.read_vocabulary(text_run))
    jax.tree.map(np.testing.assert_array_equal, params, state_of(text_run)["params"])
    # As many words, and others.
    for file in tiny_runs.books(tmp_path / "others").iterdir():
        file.write_text(file.read_text().replace("ship", "boat"))
    other = dataclasses.replace(asked, data=DataConfig(str(tmp_path / "others")))
    with pytest.raises(UserError, match="it knows other words"):
        training.train(other)


def test_what_is_for_images(text_run, texts, tmp_path, run_py, capsys):
    images = tiny_runs.short(tmp_path, model=ModelConfig("sentence_gru"))
    with pytest.raises(UserError, match="holds images, and --model sentence_gru"):
        training.train(images)
    with pytest.raises(UserError, match="holds sentences, and --model small_cnn"):
        training.train(tiny_runs.text(tmp_path, texts, model=ModelConfig()))
    assert not list(tmp_path.iterdir())
    for verb, message in (("finetune", "is for encoders of images"), ("probe", "has no labels")):
        assert run_py([verb, str(text_run)]) == 2 and message in capsys.readouterr().err
