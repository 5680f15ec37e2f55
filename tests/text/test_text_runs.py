"""Runs of sentence encoders: training, resumption, probes and metrics."""

import functools
import itertools
import json
import shutil

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, killed_after_checkpoint, state_of

from experiments.lib import sweep
from experiments.lib.evaluation import Evaluation
from hypersphere_jax import configs as C
from hypersphere_jax.text import quick_thought_probe
from hypersphere_jax.text.corpus import write_vocabulary
from hypersphere_jax.text.neighbours import neighbour_metrics
from hypersphere_jax.text.packing import OTHER_DEVICE, PADDING
from hypersphere_jax.text.quick_thought_probe import sentence_probe
from hypersphere_jax.text.sentence_training import pack_batch, run_vocabulary
from hypersphere_jax.text.text_data import load_text
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.metrics import read_metrics


@pytest.fixture
def books(texts):
    return load_text(C.DataConfig(str(texts / "books")))


@pytest.fixture(scope="module")
def measured(text_run, texts, tmp_path_factory):
    """A copy of the run to evaluate, and the rows of a sweep that evaluates it."""
    folder = shutil.copytree(text_run, tmp_path_factory.mktemp("measured") / "text")
    tasks = (str(texts / "labelled" / "topics"),)
    measures = Evaluation(("output", "bag"), "quick_thought", tasks=tasks, initial=True)
    one = sweep.Run(tiny_runs.text(folder.parent, texts), {"kind": "contrastive"}, measures)
    with pytest.MonkeyPatch.context() as patch:
        few = functools.partial(sentence_probe, folds=4, inner_folds=3, strengths=(1 / 16, 1 / 256))
        patch.setattr(quick_thought_probe, "sentence_probe", few)
        sweep.carry_out(one)  # the run is trained already
    return folder, sweep.known_rows([one])


def test_a_run_of_text(text_run, books):
    assert run_dir.read_config(text_run).vocabulary_size == len(books.train.vocabulary)
    assert run_vocabulary(text_run) == books.train.vocabulary
    records = read_metrics(text_run)
    assert [record["step"] for record in records] == list(range(1, 11))
    for record in records:
        parts = record["contrastive"] + 0.5 * record["align"] + 0.1 * record["uniform"]
        assert record["loss"] == pytest.approx(parts, rel=1e-4)
    assert records[-1]["contrastive"] < records[0]["contrastive"] - 0.1


def test_a_run_killed_within_an_epoch_resumes(text_run, texts, tmp_path):
    with killed_after_checkpoint(6):  # an epoch has 5 steps
        training.train(tiny_runs.text(tmp_path, texts))
    assert_same_run(training.train(tiny_runs.text(tmp_path, texts)), text_run)


def test_a_damaged_vocabulary_of_a_run_is_refused(text_run, tmp_path):
    words = run_vocabulary(text_run)
    assert len(set(words)) == len(words) == run_dir.read_config(text_run).vocabulary_size
    shutil.copy(text_run / "config.json", tmp_path)
    for known in (words[:-1], (*words, "more")):
        write_vocabulary(tmp_path / "vocabulary.txt", known)
        with pytest.raises(C.UserError, match=r"vocabulary\.txt"):
            run_vocabulary(tmp_path)


def test_each_sentence_of_a_batch_is_on_one_device(books):
    words, first, last = pack_batch(books.train, np.arange(30, 54), distributed.local_devices(4))
    for position in range(24):
        (device,) = np.flatnonzero(first[:, position] != OTHER_DEVICE)
        found = words[device].ravel()[first[device, position] : last[device, position] + 1]
        sentence = books.train[30 + position]["image"]
        np.testing.assert_array_equal(found, sentence[sentence != PADDING])


@pytest.mark.slow
def test_probe_of_labelled_sentences(measured):
    """The two classes have no noun in common, so a small encoder distinguishes them."""
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
            is_bag = result["layer"] == "bag"
            assert result["d"] == (12 if is_bag else 16) and result["n"] == 80
            score = "topics" + "_bag" * is_bag + ending
            assert result["top1"] == rows[result["step"] == 10][score]
        assert len(files) == 4


@pytest.mark.slow
def test_metrics_are_those_of_held_out_neighbours(measured, books):
    folder, rows = measured
    words = np.stack([books.test[i]["image"] for i in range(len(books.test))])
    apply = jax.jit(run_dir.load_encoder(folder).apply, static_argnums=3)
    for row in rows:
        outputs, _ = apply(run_dir.load_encoder(folder, row["step"]).params, {}, words, False)
        f = np.asarray(outputs["f"])
        g = np.asarray(outputs["g"])
        expected = neighbour_metrics(f, g, books.test.documents)
        for name in ("align", "uniform"):
            assert row[name] == pytest.approx(expected[name], rel=1e-4)


def test_a_run_starts_from_one_with_the_same_vocabulary(text_run, texts, tmp_path):
    config = tiny_runs.text(tmp_path, texts, init_from=str(text_run))
    model = C.section(run_dir.read_config(text_run), C.ModelConfig)
    params, _ = run_dir.initial_encoder(config.replace(**vars(model)), {})
    jax.tree.map(np.testing.assert_array_equal, params, state_of(text_run)["params"])
    # As many words, but other ones.
    for file in tiny_runs.books(tmp_path / "others").iterdir():
        file.write_text(file.read_text().replace("ship", "boat"))
    with pytest.raises(C.UserError, match="init_from="):
        training.train(config.replace(data=str(tmp_path / "others")))
