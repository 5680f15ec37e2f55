"""Runs of sentence encoders: their batches, what they leave, what is measured of them."""

import functools
import itertools
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, killed_after_checkpoint, state_of

from experiments import sweeps
from experiments.protocols import Evaluation
from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.data.sampling import Consecutive, make_sampler
from hypersphere_jax.data.text.packing import OTHER_DEVICE, PADDING
from hypersphere_jax.evaluate.sentences import neighbour_metrics, sentence_probe
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.batches import packed
from hypersphere_jax.training.metrics import read_metrics


@pytest.fixture(scope="module")
def books(texts):
    return data.load(C.DataConfig(str(texts / "books")))


@pytest.fixture(scope="module")
def measured(text_run, texts, tmp_path_factory):
    """A copy of the run to evaluate, and its rows of a sweep that measures it."""
    folder = shutil.copytree(text_run, tmp_path_factory.mktemp("measured") / "text")
    tasks = (str(texts / "labelled" / "topics"),)
    measures = Evaluation(("output", "bag"), "quick_thought", tasks=tasks, initial=True)
    one = sweeps.Planned(tiny_runs.text(folder.parent, texts), {"kind": "contrastive"}, measures)
    with pytest.MonkeyPatch.context() as patch:
        few = functools.partial(sentence_probe, folds=4, inner_folds=3, strengths=(1 / 16, 1 / 256))
        patch.setattr("hypersphere_jax.evaluate.sentences.sentence_probe", few)
        assert sweeps.carry_out(one) is None  # trained it is already
    return folder, sweeps.with_predictions([one])


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
    source = SimpleNamespace(documents=documents)
    for seed, alike in ((3, True), (4, False)):
        order = make_sampler(source, 8, seed)
        assert ([order(step)[0] for step in range(11)] == first) == alike
    with pytest.raises(C.UserError, match=r"batch_size=51 is more than .*document \(50\)"):
        Consecutive(documents, 51, seed=0)


def test_a_run_of_text(text_run, books):
    assert run_dir.read_config(text_run).vocabulary_size == len(books.train.vocabulary)
    assert run_dir.read_vocabulary(text_run) == books.train.vocabulary
    records = read_metrics(text_run)
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
    words, first, last = packed(books.train, np.arange(30, 54), distributed.local_devices(4))
    for place in range(24):
        (device,) = np.flatnonzero(first[:, place] != OTHER_DEVICE)
        whole = slice(first[device, place], last[device, place] + 1)
        its = books.train[30 + place]["image"]
        np.testing.assert_array_equal(words[device].ravel()[whole], its[its != PADDING])


@pytest.mark.slow
def test_probe_of_labelled_sentences(measured):
    """The two classes have no noun in common: also a small encoder tells them apart."""
    folder, rows = measured
    assert [row["step"] for row in rows] == [0, 10]
    for row, name in itertools.product(rows, ("topics", "topics_bag")):
        assert row[f"{name}_cv"] > 65
        for score in (name, f"{name}_knn5"):
            assert row[f"{score}_low"] <= row[score] <= row[f"{score}_high"]
            assert len(row["predictions"][score].predicted) == 80
    assert rows[1]["topics_bag"] > 80 and rows[1]["topics_bag_knn5"] > 80
    for protocol, ending in (("quick_thought", ""), ("knn5", "_knn5")):
        files = list((folder / "eval").glob(f"{protocol}-*-tasktopics*.json"))
        for result in (json.loads(file.read_text()) for file in files):
            bag = result["layer"] == "bag"
            assert result["d"] == (12 if bag else 16) and result["n"] == 80
            assert result["top1"] == rows[result["step"] == 10]["topics" + "_bag" * bag + ending]
        assert len(files) == 4


@pytest.mark.slow
def test_metrics_are_of_held_out_neighbours(measured, books):
    folder, rows = measured
    words = np.stack([books.test[i]["image"] for i in range(len(books.test))])
    apply = jax.jit(run_dir.load_encoder(folder).apply, static_argnums=3)
    for row in rows:
        outputs, _ = apply(run_dir.load_encoder(folder, row["step"]).params, {}, words, False)
        f, g = np.asarray(outputs["f"]), np.asarray(outputs["g"])
        expected = neighbour_metrics(f, g, books.test.documents)
        for name in ("align", "uniform"):
            assert row[name] == pytest.approx(expected[name], rel=1e-4)


def test_a_run_begins_from_one_of_the_same_words(text_run, texts, tmp_path):
    asked = tiny_runs.text(tmp_path, texts, init_from=str(text_run))
    model = C.section(run_dir.read_config(text_run), C.ModelConfig)
    config = asked.replace(**vars(model))
    params, _ = run_dir.initial_encoder(config, {}, run_dir.read_vocabulary(text_run))
    jax.tree.map(np.testing.assert_array_equal, params, state_of(text_run)["params"])
    # As many words, and others.
    for file in tiny_runs.books(tmp_path / "others").iterdir():
        file.write_text(file.read_text().replace("ship", "boat"))
    other = asked.replace(data=str(tmp_path / "others"))
    with pytest.raises(C.UserError, match="it knows other words"):
        training.train(other)
