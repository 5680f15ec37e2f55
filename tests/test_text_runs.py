"""Runs of sentence encoders: the one loop, batches of consecutive sentences, exact resumption."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from run_cases import assert_same_run, state_of
from test_cli import fails, run_py
from text_cases import books, opinions, sentence

from experiments import sweeps
from experiments.measures import Measures
from hypersphere_jax import assembly, data, feed, models, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    EvaluateConfig,
    MetricsConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.data.sampling import Consecutive
from hypersphere_jax.evaluation.measure import measure
from hypersphere_jax.evaluation.probe import probe
from hypersphere_jax.optimizers import make_optimizer, make_schedule
from hypersphere_jax.packing import ELSEWHERE, END, PADDING
from hypersphere_jax.train_step import init_state

BATCH = 24


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with books, and one with opinions."""
    top = tmp_path_factory.mktemp("text")
    books(top / "books")
    opinions(top / "labelled" / "topics")
    return top


def config(text, runs_dir, name="run", **changes):
    """10 steps of a tiny encoder."""
    base = PretrainConfig(
        name=name,
        runs_dir=str(runs_dir),
        data=DataConfig(str(text / "books")),
        model=ModelConfig("sentence_gru", dim=8, embedding=6),
        objective=ObjectiveConfig(
            contrastive_weight=1, contrastive_tau=0.2, align_weight=0.5, uniform_weight=0.1
        ),
        optimizer=OptimizerConfig(
            epochs=2,
            batch_size=BATCH,
            optimizer="adam",
            learning_rate=0.03,
            scaling="none",
            decay_at=(),
            weight_decay=0,
            clip_norm=0.5,
        ),
        runtime=RuntimeConfig(devices=2, log_every_steps=1, checkpoint_every_steps=3),
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    return training.train(config(text, tmp_path_factory.mktemp("runs")))


def test_batches_are_of_consecutive_sentences_of_one_document():
    documents = np.array([0, 50, 58, 90])
    sampler = Consecutive(documents, 8, seed=3)
    assert sampler.steps_per_epoch == 6 + 1 + 4
    for epoch in range(2):
        steps = range(epoch * 11, epoch * 11 + 11)
        starts = sorted(int(sampler(step)[0]) for step in steps)
        assert starts == [*range(0, 48, 8), 50, *range(58, 90, 8)]
        for step in steps:
            assert (np.diff(sampler(step)) == 1).all() and len(sampler(step)) == 8
    assert [sampler(s)[0] for s in range(11)] != [sampler(s)[0] for s in range(11, 22)]
    again = Consecutive(documents, 8, seed=3)
    assert again(17).tolist() == sampler(17).tolist()
    with pytest.raises(UserError, match=r"--batch-size 51 is more than .*document \(50\)"):
        Consecutive(documents, 51, seed=0)


def test_a_run_of_text(finished, text):
    saved = json.loads((finished / "config.json").read_text())["config"]
    corpus = data.load(DataConfig(str(text / "books"))).train
    assert saved["model"]["vocabulary"] == len(corpus.vocabulary)
    assert runs.read_vocabulary(finished) == corpus.vocabulary
    records = runs.read_metrics(finished)
    assert [record["step"] for record in records] == list(range(1, 11))
    for record in records:
        assert record["loss"] == pytest.approx(
            record["contrastive"] + 0.5 * record["align"] + 0.1 * record["uniform"], rel=1e-4
        )
        assert 0 <= record["padding"] < 1
    assert "sentences_per_s" in records[-1] and "images_per_s" not in records[-1]
    assert records[-1]["contrastive"] < records[0]["contrastive"] - 0.1


@pytest.mark.parametrize("kill", [4, 7])
def test_stopped_in_an_epoch_and_resumed_is_the_same_run(
    finished, text, tmp_path, monkeypatch, kill
):
    write = runs.MetricsWriter.write

    def write_and_stop(self, record):
        write(self, record)
        if record["step"] == kill:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(runs.MetricsWriter, "write", write_and_stop)
    with pytest.raises(Stopped, match=f"saved at step {kill} of 10"):
        training.train(config(text, tmp_path))
    monkeypatch.undo()
    assert_same_run(training.train(config(text, tmp_path)), finished)


def steps(text, devices, count=3):
    """Parameters and metrics of the first steps on so many devices."""
    asked = config(text, "runs")
    dataset = data.load(asked.data)
    asked = assembly.resolve(asked, dataset)
    apply, params, stats = models.create(asked.model, jax.random.key(0))
    optimizer = make_optimizer(asked.optimizer, make_schedule(asked.optimizer, 10))
    devices = sharding.local_devices(devices)
    step = assembly.step_of(asked, apply, optimizer, dataset, 10, resident=False)
    step = sharding.pmap(step, devices)
    state = sharding.replicate(init_state(params, stats, optimizer), devices)
    key = sharding.replicate(jax.random.key(0), devices)
    sampler = Consecutive(dataset.train.documents, BATCH, 0)
    for batch in feed.feed(asked, dataset, sampler, range(count), devices):
        state, metrics = step(state, *batch, key)
    return sharding.unreplicate((state.params, metrics))


def test_the_number_of_devices_changes_no_number(text):
    params, metrics = steps(text, 1)
    others, its = steps(text, 4)
    for name in set(metrics) - {"padding"}:
        assert its[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-5), name
    for name, value in params.items():
        np.testing.assert_allclose(others[name], value, atol=2e-4, err_msg=name)


def test_what_the_devices_get(text):
    corpus = data.load(DataConfig(str(text / "books"))).train
    numbers = np.arange(30, 30 + BATCH)
    packed = feed.packed(corpus, numbers, sharding.local_devices(4))
    assert packed.words.shape[0] == 4 and packed.first.shape == (4, BATCH)
    words = packed.words.reshape(4, -1)
    for place, number in enumerate(numbers):
        (device,) = np.flatnonzero(packed.first[:, place] != ELSEWHERE)
        its = corpus[number]["image"]
        found = words[device, packed.first[device, place] : packed.last[device, place] + 1]
        np.testing.assert_array_equal(found, its[its != PADDING])
        assert found[-1] == END


def test_probe_of_labelled_sentences(finished, text, tmp_path):
    """The two classes have no noun in common: also a small encoder tells them apart."""
    topics = str(text / "labelled" / "topics")
    common = {"data": (topics,), "protocols": ("quick_thought",), "layers": ("output", "bag")}
    output, bag = probe(ProbeConfig((str(finished),), **common, out=tmp_path / "found.csv"))
    assert (output["layer"], output["d"], bag["d"]) == ("output", 16, 12)
    assert output["task"] == "topics" and output["split"] == "folds" and output["n"] == 80
    assert bag["top1"] > 80
    assert (tmp_path / "found.csv").read_text().count("\n") == 3
    assert len(list((finished / "eval").glob("quick_thought-*-tasktopics-*.json"))) == 2


def test_other_protocols_need_a_test_split(finished, text):
    topics = str(text / "labelled" / "topics")
    with pytest.raises(UserError, match=r"--protocols lbfgs knn: .* has no test split"):
        probe(ProbeConfig((str(finished),), data=(topics,)))
    rng = np.random.default_rng(0)
    folder = text / "split"
    folder.mkdir()
    for name in ("train", "test"):
        lines = [f"{topic}\t{sentence(rng, topic)}" for topic in (0, 1) for _ in range(20)]
        (folder / f"{name}.tsv").write_text("\n".join(lines))
    found = probe(
        ProbeConfig(
            (str(finished),), data=(str(folder),), protocols=("lbfgs", "knn", "quick_thought")
        )
    )
    assert {result["protocol"] for result in found} == {"lbfgs", "knn", "quick_thought"}
    assert all(result["split"] == "test" and result["n"] == 40 for result in found)


def test_metrics_are_of_held_out_neighbours(finished, text):
    found = measure(MetricsConfig(str(finished)))
    held_out = data.load(DataConfig(str(text / "books"))).test
    encoder = runs.load_encoder(finished)
    words = np.stack([held_out[i]["image"] for i in range(len(held_out))])
    outputs, _ = encoder.apply(encoder.params, encoder.stats, words, False)
    f, g = np.asarray(outputs["f"]), np.asarray(outputs["g"])
    powers = []
    for start, end in itertools.pairwise(held_out.documents):
        for i in range(start, end):
            others = [j for j in (i - 1, i + 1) if start <= j < end]
            powers += [np.mean([np.sum((f[i] - g[j]) ** 2) for j in others])] if others else []
    assert found["align"] == pytest.approx(np.mean(powers), rel=1e-5)
    for name, x in (("uniform_f", f), ("uniform_g", g)):
        squares = np.sum((x[:, None] - x[None]) ** 2, axis=-1)[np.triu_indices(len(x), 1)]
        assert found[name] == pytest.approx(np.log(np.mean(np.exp(-2 * squares))), rel=1e-4)
    assert found["n"] == len(held_out) and found["uniform_optimum"] < found["uniform"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ModelConfig()}, "holds sentences, and --model small_cnn is for images: take"),
        ({"moco": MocoConfig(queue_size=64)}, "--queue-size is for images"),
        ({"evaluate": EvaluateConfig(eval_every_epochs=1)}, "--eval-every-epochs is for images"),
        ({"runtime": RuntimeConfig(pipeline="streaming")}, "--pipeline is for images"),
        ({"runtime": RuntimeConfig(workers=1)}, "--workers is for images"),
    ],
)
def test_what_is_for_images(text, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        training.train(config(text, tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_sentence_encoders_are_not_for_images(tmp_path):
    asked = PretrainConfig(
        runs_dir=str(tmp_path), model=ModelConfig("sentence_gru"), runtime=RuntimeConfig(devices=1)
    )
    with pytest.raises(UserError, match="holds images, and --model sentence_gru is for sentences"):
        training.train(asked)


def test_divergence_ends_the_run(text, tmp_path):
    rate = dataclasses.replace(
        config(text, tmp_path).optimizer, optimizer="sgd", learning_rate=3e38, clip_norm=None
    )
    with pytest.raises(UserError, match=r"the run diverged: .* choose another --name"):
        training.train(config(text, tmp_path, optimizer=rate))


def test_a_sweep_measures_its_tasks(finished, text):
    topics = str(text / "labelled" / "topics")
    measures = Measures(protocol="quick_thought", tasks=(topics,), initial=True)
    one = sweeps.Planned(config(text, finished.parent), {"kind": "contrastive"}, measures)
    assert sweeps.carry_out(one) is None  # trained it is already
    first, last = sweeps.rows_of(one)
    assert (first["step"], last["step"]) == (0, 10)
    found = measure(MetricsConfig(str(finished)))
    for row in (first, last):
        assert row["topics_low"] <= row["topics"] <= row["topics_high"] and row["topics_cv"] > 0
    assert last["align"] == pytest.approx(found["align"]) != first["align"]
    with pytest.raises(UserError, match="nowhere"):
        missing = measures._replace(tasks=("nowhere",))
        sweeps.sweep([one._replace(measures=missing)])


def test_a_run_begins_from_one_of_the_same_words(finished, text, tmp_path):
    start = training.train(config(text, tmp_path, init_from=str(finished)))
    first = state_of(start, 0)["params"]
    last = state_of(finished)["params"]
    jax.tree.map(np.testing.assert_array_equal, first, last)
    # As many words, and others.
    for file in (books(text / "others") / "book0.txt",):
        file.write_text(file.read_text().replace("ship", "boat"))
    other = DataConfig(str(text / "others"))
    with pytest.raises(UserError, match="it knows other words"):
        training.train(config(text, tmp_path, "other", data=other, init_from=str(finished)))


def test_many_short_documents_are_said_to_be_left_out(text, tmp_path, caplog):
    made = books(text / "short", sizes=[30] + [12] * 10)
    with pytest.raises(UserError, match="--devices 99"):
        training.train(config(text, tmp_path, runtime=RuntimeConfig(devices=99)))
    asked = config(text, tmp_path, data=DataConfig(str(made)))
    assembly.resolve(asked, data.load(asked.data))
    assert "84% of the 149 sentences are left out" in caplog.text


def test_pages_and_pictures_of_a_run(finished, text, capsys):
    assert run_py.main(["metrics", str(finished)]) == 0
    out = capsys.readouterr().out
    assert "L_uniform of g" in out and (finished / "figures" / "metrics-test.png").is_file()
    topics = str(text / "labelled" / "topics")
    assert (
        run_py.main(["probe", str(finished), "--data", topics, "--protocols", "quick_thought"]) == 0
    )
    assert run_py.main(["report", str(finished)]) == 0
    page = (finished / "report.html").read_text()
    assert "--protocols quick_thought" in page and "finetune" not in page and "topics" in page


def test_verbs_of_images_refuse_it(finished, tmp_path, capsys):
    run = str(finished)
    for arguments, message in (
        (["finetune", run], "finetune is for encoders of images"),
        (["depth", run], "depth is for encoders of images"),
        (["export-npz", run, "--out", str(tmp_path / "x.npz")], "has no counterpart in PyTorch"),
    ):
        assert message in fails(capsys, *arguments)


def test_mistakes_in_one_line(finished, text, capsys):
    run = str(finished)
    for arguments, message in (
        ([run], "its text has no labels: say with --data what to classify"),
        ([run, "--data", "mr"], "mr needs the folder of rt-polarity.pos and .neg"),
        ([run, "--data", "nowhere"], "nowhere"),
        ([run, "--protocols", "quick_thought"], "--protocols quick_thought needs --data"),
    ):
        assert message in fails(capsys, "probe", *arguments)
