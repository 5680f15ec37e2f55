"""Runs of sentence encoders: the one loop, batches of consecutive sentences, exact resumption."""

import dataclasses
import functools
import itertools
import json
import os
import runpy
import shutil
import signal

import jax
import numpy as np
import processes
import pytest
import tiny_runs
from run_states import assert_same_run, state_of

from experiments import sweeps
from experiments.measures import Measures
from hypersphere_jax import assembly, data, feed, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    EvaluateConfig,
    MocoConfig,
    ModelConfig,
    ProbeConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.data.sampling import Consecutive
from hypersphere_jax.evaluation.probe import probe
from hypersphere_jax.evaluation.sentences import sentence_probe
from hypersphere_jax.packing import ELSEWHERE, PADDING


@pytest.fixture(scope="module")
def run_py():
    """The command line: `run_py([verb, ...])` returns its exit status."""
    return runpy.run_path(str(processes.ROOT / "run.py"))["main"]


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


def test_a_run_of_text(text_run, texts):
    saved = json.loads((text_run / "config.json").read_text())["config"]
    corpus = data.load(DataConfig(str(texts / "books"))).train
    assert saved["model"]["vocabulary"] == len(corpus.vocabulary)
    assert runs.read_vocabulary(text_run) == corpus.vocabulary
    records = runs.read_metrics(text_run)
    assert [record["step"] for record in records] == list(range(1, 11))
    for record in records:
        assert record["loss"] == pytest.approx(
            record["contrastive"] + 0.5 * record["align"] + 0.1 * record["uniform"], rel=1e-4
        )
    assert "sentences_per_s" in records[-1] and "images_per_s" not in records[-1]
    assert records[-1]["contrastive"] < records[0]["contrastive"] - 0.1


def test_stopped_in_an_epoch_and_resumed_is_the_same_run(text_run, texts, tmp_path, monkeypatch):
    write = runs.MetricsWriter.write

    def write_and_stop(self, record):
        write(self, record)
        if record["step"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(runs.MetricsWriter, "write", write_and_stop)
    with pytest.raises(Stopped, match="saved at step 7 of 10"):
        training.train(tiny_runs.text(tmp_path, texts))
    monkeypatch.undo()
    assert_same_run(training.train(tiny_runs.text(tmp_path, texts)), text_run)


def test_what_the_devices_get(texts):
    corpus = data.load(DataConfig(str(texts / "books"))).train
    packed = feed.packed(corpus, np.arange(30, 54), sharding.local_devices(4))
    assert packed.words.shape[0] == 4 and packed.first.shape == packed.last.shape == (4, 24)
    for place in range(24):
        (device,) = np.flatnonzero(packed.first[:, place] != ELSEWHERE)
        whole = slice(packed.first[device, place], packed.last[device, place] + 1)
        its = corpus[30 + place]["image"]
        found = packed.words[device].reshape(-1)[whole]
        np.testing.assert_array_equal(found, its[its != PADDING])


def test_probe_of_labelled_sentences(measured):
    """The two classes have no noun in common: also a small encoder tells them apart."""
    folder, rows = measured
    assert [row["step"] for row in rows] == [0, 10]
    for row, name in itertools.product(rows, ("topics", "topics_bag")):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        assert row[f"{name}_cv"] > 65
    assert rows[1]["topics_bag"] > 80
    found = {}
    for file in (folder / "eval").glob("quick_thought-*-tasktopics-*.json"):
        result = json.loads(file.read_text())
        found[result["layer"], result["step"]] = result
    assert set(found) == set(itertools.product(("output", "bag"), (0, 10)))
    for (layer, step), result in found.items():
        assert result["d"] == {"output": 16, "bag": 12}[layer]
        assert (result["task"], result["split"], result["n"]) == ("topics", "folds", 80)
        if layer == "output":
            assert result["top1"] == rows[step == 10]["topics"]


def test_other_protocols_need_a_test_split(measured, texts, tmp_path):
    run = str(measured[0])
    with pytest.raises(UserError, match=r"--protocols lbfgs knn: .* has no test split"):
        probe(ProbeConfig((run,), data=(str(texts / "labelled" / "topics"),)))
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        lines = [f"{t}\t{tiny_runs.sentence(rng, t)}" for t in (0, 1) for _ in range(20)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines))
    out = tmp_path / "found.csv"
    asked = ProbeConfig((run,), data=(str(tmp_path),), protocols=("knn",), layers=("bag",), out=out)
    (result,) = probe(asked)
    assert (result["split"], result["n"]) == ("test", 40) and result["top1"] > 65
    assert out.read_text().count("\n") == 2


def test_metrics_are_of_held_out_neighbours(measured, texts):
    folder, rows = measured
    held_out = data.load(DataConfig(str(texts / "books"))).test
    words = np.stack([held_out[i]["image"] for i in range(len(held_out))])
    apply = jax.jit(runs.load_encoder(folder).apply, static_argnums=3)
    for row in rows:
        outputs, _ = apply(runs.load_encoder(folder, row["step"]).params, {}, words, False)
        f, g = np.asarray(outputs["f"]), np.asarray(outputs["g"])
        powers = []
        for start, end in itertools.pairwise(held_out.documents):
            for i in range(start, end):
                others = [j for j in (i - 1, i + 1) if start <= j < end]
                powers += [np.mean([np.sum((f[i] - g[j]) ** 2) for j in others])] if others else []
        assert row["align"] == pytest.approx(np.mean(powers), rel=1e-5)
        pairs = np.triu_indices(len(f), 1)
        squares = [np.sum((x[:, None] - x[None]) ** 2, axis=-1)[pairs] for x in (f, g)]
        uniform = sum(np.log(np.mean(np.exp(-2 * each))) for each in squares)
        assert row["uniform"] == pytest.approx(uniform, rel=1e-4)


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


def test_many_short_documents_are_said_to_be_left_out(texts, tmp_path, caplog):
    made = tiny_runs.books(tmp_path / "short", sizes=[30] + [12] * 10)
    asked = tiny_runs.text(tmp_path, texts, data=DataConfig(str(made)))
    assembly.resolve(asked, data.load(asked.data))
    assert "84% of the 149 sentences are left out" in caplog.text


def test_what_is_for_images(texts, tmp_path):
    for message, name, value in (
        ("holds sentences, and --model small_cnn is for images: take", "model", ModelConfig()),
        ("--queue-size is for images", "moco", MocoConfig(queue_size=64)),
        ("--eval-every-epochs is for images", "evaluate", EvaluateConfig(eval_every_epochs=1)),
        ("--pipeline is for images", "runtime", RuntimeConfig(pipeline="streaming")),
        ("--workers is for images", "runtime", RuntimeConfig(workers=1)),
    ):
        with pytest.raises(UserError, match=message):
            training.train(tiny_runs.text(tmp_path, texts, **{name: value}))
    runtime = RuntimeConfig(devices=1)
    images = tiny_runs.images(tmp_path, model=ModelConfig("sentence_gru"), runtime=runtime)
    with pytest.raises(UserError, match="holds images, and --model sentence_gru is for sentences"):
        training.train(images)
    assert not list(tmp_path.iterdir())


def test_verbs_that_refuse_it_do_so_in_one_line(text_run, tmp_path, run_py, capsys):
    folder = str(text_run)
    for arguments, message in (
        (["finetune", folder], "finetune is for encoders of images"),
        (["depth", folder], "depth is for encoders of images"),
        (["export-npz", folder, "--out", str(tmp_path / "x.npz")], "no counterpart in PyTorch"),
        (["probe", folder], "its text has no labels: say with --data what to classify"),
        (["probe", folder, "--data", "mr"], "mr needs the folder of rt-polarity.pos and .neg"),
        (["probe", folder, "--data", "nowhere"], "nowhere"),
        (["probe", folder, "--protocols", "quick_thought"], "quick_thought needs --data"),
    ):
        assert run_py(arguments) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ") and message in line


def test_page_of_a_run(measured, run_py):
    folder = measured[0]
    assert run_py(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "--protocols quick_thought" in page and "finetune" not in page and "topics" in page
