"""Runs of sentence encoders: training, resumption, probes and metrics."""

import shutil

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, killed_after_checkpoint, state_of

from hypersphere_jax import configs as C
from hypersphere_jax.evaluation.measure_runs import run_metrics
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.text.neighbours import neighbour_metrics
from hypersphere_jax.text.prepare import load_text
from hypersphere_jax.text.sentence_training import run_vocabulary
from hypersphere_jax.theory import uniformity_optimum
from hypersphere_jax.training import run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.setup import initial_state, set_up


@pytest.fixture
def books(texts):
    return load_text(C.DataConfig(str(texts / "books")))


@pytest.fixture(scope="module")
def run(text_run, tmp_path_factory):
    """Return a copy of the finished run, to which results and caches are added."""
    return shutil.copytree(text_run, tmp_path_factory.mktemp("runs") / "text")


def test_run_knows_its_words_and_learns(text_run, books):
    assert run_vocabulary(text_run) == books.train.vocabulary
    records = read_metrics(text_run)
    assert [record["step"] for record in records] == list(range(1, 11))
    for record in records:
        parts = record["contrastive"] + 0.5 * record["align"] + 0.1 * record["uniform"]
        assert record["loss"] == pytest.approx(parts, rel=1e-4)
    assert records[-1]["contrastive"] < records[0]["contrastive"] - 0.1


def test_run_killed_within_an_epoch_resumes(text_run, texts, tmp_path):
    with killed_after_checkpoint(6):  # an epoch has 5 steps
        training.train(tiny_runs.text(tmp_path, texts))
    assert_same_run(training.train(tiny_runs.text(tmp_path, texts)), text_run)


@pytest.mark.slow
def test_probe_of_labelled_sentences(run, texts):
    """The two classes have no noun in common, so a small encoder distinguishes them."""
    task = str(texts / "labelled" / "topics")
    options = {"data": (task,), "protocols": ("quick_thought", "knn"), "folds": 3}
    found = run_probe(C.ProbeConfig((str(run),), layers=("output", "bag"), **options))
    assert [result["d"] for result in found] == [16, 16, 12, 12]
    for result in found:
        assert result["n"] == len(result["predicted"]) == 80 and result["top1"] > 65
    assert min(result["top1"] for result in found[2:]) > 80


def test_metrics_are_those_of_held_out_neighbours(run, books):
    found = run_metrics(C.MetricsConfig(str(run), step=6, parts=()))
    words = np.stack([books.test[i]["image"] for i in range(len(books.test))])
    encoder = run_dir.load_encoder(run, 6)
    apply = jax.jit(encoder.apply, static_argnums=3)
    outputs, _ = apply(encoder.params, encoder.stats, words, False)
    expected = neighbour_metrics(outputs["f"], outputs["g"], books.test.documents)
    for name in ("align", "uniform"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
    assert found["uniform_optimum"] == 2 * uniformity_optimum(expected["d"], 2.0)


def test_run_starts_from_one_with_the_same_vocabulary(text_run, texts, tmp_path):
    config = tiny_runs.text(tmp_path, texts, init_from=str(text_run))
    _, state, _ = initial_state(set_up(config))
    jax.tree.map(np.testing.assert_array_equal, state.params, state_of(text_run)["params"])
    for file in tiny_runs.books(tmp_path / "others").iterdir():
        file.write_text(file.read_text().replace("ship", "boat"))
    with pytest.raises(C.UserError, match="init_from="):
        training.train(config.replace(data=str(tmp_path / "others")))
