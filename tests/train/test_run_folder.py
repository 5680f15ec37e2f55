"""A run's folder: of one run, of one process at a time, and never with half a file."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tiny_runs
from run_states import state_of

from hypersphere_jax import runs, training
from hypersphere_jax.config import ModelConfig, ObjectiveConfig, UserError
from hypersphere_jax.data import arrays


@pytest.fixture
def copy(short_run, tmp_path):
    return shutil.copytree(short_run, tmp_path / "short")


def test_folder_with_another_run(short_run):
    before = (short_run / "config.json").read_bytes()
    never = dataclasses.replace(tiny_runs.short(short_run).runtime, resume="never")
    objective = ObjectiveConfig(align_weight=2)
    for changes, parts in (
        ({"seed": 1}, ["seed: 0 -> 1", "--name short-2"]),
        ({"objective": objective}, ["objective.align_weight: 1.0 -> 2", "--name short-2"]),
        ({"runtime": never}, ["--resume is 'never'"]),
    ):
        with pytest.raises(UserError) as error:
            training.train(tiny_runs.short(short_run.parent, **changes))
        assert all(part in str(error.value) for part in parts)
    assert (short_run / "config.json").read_bytes() == before


def test_folder_that_is_no_whole_run(copy):
    config = tiny_runs.short(copy.parent)
    (copy / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no record of a run"):
        training.train(config)
    (copy / "config.json").write_text('{"config"')
    with pytest.raises(UserError, match="is not JSON"):
        training.train(config)
    (copy / "config.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints but no config\.json.*short-2"):
        training.train(config)


def test_two_processes_in_one_folder(tmp_path):
    with runs.lock(tmp_path / "short"), pytest.raises(UserError, match="another process"):
        training.train(tiny_runs.short(tmp_path))
    assert not (tmp_path / "short" / "config.json").exists()
    with runs.lock(tmp_path / "short"):  # which is free again
        pass


def test_changed_data(short_run, monkeypatch):
    train, test = arrays.digits()
    train.images[0, 0, 0] ^= 1
    monkeypatch.setattr(arrays, "digits", lambda: (train, test))
    with pytest.raises(UserError, match="no longer those"):
        training.train(tiny_runs.short(short_run.parent))
    with pytest.raises(UserError, match="no longer those"):
        runs.load_data(short_run)


def test_without_synchronized_batch_norm_devices_shape_the_run(copy):
    record = json.loads((copy / "config.json").read_text())
    record["config"]["model"]["batch_norm"] = "local"
    (copy / "config.json").write_text(json.dumps(record))
    model = ModelConfig(dim=3, width=0.1, batch_norm="local")
    config = tiny_runs.short(copy.parent, model=model)
    four = dataclasses.replace(config.runtime, devices=4)
    with pytest.raises(UserError, match=r"begun on 2 device.*--devices 2"):
        training.train(dataclasses.replace(config, runtime=four))
    assert training.train(config) == copy


def test_what_shapes_a_run(tmp_path):
    """All but where it lies, how it is carried out, and what is evaluated."""

    def shape(**data):
        made = tiny_runs.short(tmp_path)
        return runs.shaping(dataclasses.replace(made, data=dataclasses.replace(made.data, **data)))

    assert shape().keys() == {
        *("seed", "init_from", "init_step", "data", "model", "objective", "moco", "optimizer")
    }
    same = shape(name="/a/b.npz", data_dir="/a", bad_images="skip")
    assert same == shape(name="/c.npz", data_dir="/c", bad_images="error")
    for change in ({"name": "cifar10"}, {"fraction": 0.5}, {"recipe": "none"}, {"folds": 5}):
        assert shape(**change) != shape()


def test_encoder_of_a_step(short_run):
    for step in (None, 6):
        encoder = runs.load_encoder(short_run, step)
        assert (encoder.step, encoder.folder) == (step or 12, short_run)
        saved = state_of(short_run, step)["params"]["conv1"]["layer"]["kernel"]
        np.testing.assert_array_equal(encoder.params["conv1"]["layer"]["kernel"], saved)


def test_finding_runs(short_run, tmp_path, monkeypatch):
    for name in ("runs/alpha", "runs/group/one", "runs/group/two"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(short_run / "config.json", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert runs.find("alpha") == runs.find("runs/alpha").relative_to(".")
    assert [folder.name for folder in runs.find_all("group")] == ["one", "two"]
    assert runs.find_all("alpha") == [runs.find("alpha")]
    (tmp_path / "weights.pth").touch()
    for name, message in (
        ("alpa", r"no run 'alpa'.*did you mean 'runs/alpha'\?"),
        ("group", "a folder of runs: name one of runs/group/one, runs/group/two"),
        ("weights.pth", "is a file, and a run is a folder"),
    ):
        with pytest.raises(UserError, match=message):
            runs.find(name)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "made" / "result.json"
    runs.write_json(file, {"a": 1})
    with pytest.raises(KeyboardInterrupt), runs.whole_file(file) as written:
        written.write(b"half")
        written.flush()
        assert runs.read_json(file) == {"a": 1}
        raise KeyboardInterrupt
    assert runs.read_json(file) == {"a": 1}
    assert list(file.parent.iterdir()) == [file]


def test_a_line_is_on_disk_once_it_is_written(tmp_path):
    writer = runs.MetricsWriter(tmp_path, 0)
    for step in (1, 2):
        writer.write({"step": step, "loss": 0.5})
        assert [record["step"] for record in runs.read_metrics(tmp_path)] == [1, 2][:step]
    writer.close()


def test_words_that_a_run_of_text_knows(text_run, tmp_path):
    words = runs.read_vocabulary(text_run)
    assert len(set(words)) == len(words) == runs.read_config(text_run).model.vocabulary
    shutil.copy(text_run / "config.json", tmp_path)
    with pytest.raises(UserError, match="is missing"):
        runs.read_vocabulary(tmp_path)
    for known in (words[:-1], (*words, "more")):
        runs.write_vocabulary(tmp_path, known)
        with pytest.raises(UserError, match=f"has {len(known)} words, .* knows {len(words)}"):
            runs.read_vocabulary(tmp_path)
    runs.write_vocabulary(tmp_path, words)
    assert runs.read_vocabulary(tmp_path) == words
    with pytest.raises(UserError, match="linear is for encoders of images"):
        runs.require_images(text_run, "linear")
