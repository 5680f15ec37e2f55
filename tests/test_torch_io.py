"""Encoders from PyTorch (NumPy in its place) become runs, and go back unchanged."""

import contextlib
import errno
import hashlib
import json
import os
import signal
from dataclasses import replace

import jax
import numpy as np
import processes
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch_networks import (
    ALEXNET,
    HEADLESS,
    RESNET,
    assert_same,
    layers_of,
    random_state,
    torch_file,
    without,
)

import hypersphere_jax as hj
from hypersphere_jax import cli, models, torch_io
from hypersphere_jax import configs as C
from hypersphere_jax.encoder import named_arrays
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.models.torch_names import from_torch
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.utils.files import read_json


@pytest.fixture
def import_state(tmp_path, rng):
    arrays = rng.integers(0, 256, (20, 32, 32, 3), np.uint8), np.arange(20) % 4
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(tmp_path / "images.npz", **dict(zip(names, arrays * 2, strict=True)))
    images = {"data": str(tmp_path / "images.npz"), "recipe": "cifar10"}

    def import_state(state, image_size=None, options=None, kind=".npz", **others):
        file = tmp_path / f"a{kind}"
        if kind == ".pth":
            file.write_bytes(torch_file(state))
        else:
            save_file(state, file) if kind == ".safetensors" else np.savez(file, **state)
        where = {"name": "made", "runs_dir": str(tmp_path / "runs")} | others
        model = {"image_size": image_size, **(options or {})}
        return torch_io.import_torch(C.ImportConfig(file=file, **images, **model, **where))

    return import_state


def test_import_and_export_change_no_bit(import_state, tmp_path, rng):
    """Of MoCo's query encoder, with a stem for large images, and the classifier of labels."""
    model = replace(RESNET, stem="imagenet", num_classes=4)
    state = random_state(model, rng)
    given = {f"module.encoder_q.{name}": array for name, array in state.items()}
    given |= {"module.encoder_q.bn1.num_batches_tracked": np.array(7), "queue": np.zeros(3)}
    folder = import_state(given, 16)
    encoder = run_dir.load_encoder(folder)
    assert encoder.step == 0
    assert (encoder.config.num_classes, encoder.config.stem) == (4, "imagenet")
    made = encoder.params, encoder.stats
    assert_same(made, from_torch(model, state))
    origin = read_json(folder / "config.json")["sessions"][0]["imported"]
    assert origin["file"] == str(tmp_path / "a.npz") and origin["left_aside"] == ["queue"]
    assert origin["sha256"] == hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()
    twice = dict(zip(("params", "stats"), jax.tree.map(lambda a: 2 * a, made), strict=True))
    with contextlib.closing(checkpoints.Checkpointer(folder / "checkpoints")) as checkpointer:
        checkpointer.save(5, twice)
    for step, factor in ((0, 1), (5, 2), (None, 2)):
        export = C.ExportConfig(run=str(folder), out=tmp_path / f"back{step}.npz", step=step)
        back = dict(np.load(torch_io.export(export)))
        assert_same(back, {name: factor * array for name, array in state.items()})
    with pytest.raises(C.UserError, match=r"holds a run already.*name="):
        import_state(given, 16)


@pytest.mark.slow
def test_fresh_head(import_state, rng, caplog):
    """In place of the file's head, or of none: the body is the file's, the head the seed's."""
    old, made = {"bias": np.ones(9), "weight": np.ones((9, 205))}, []
    for model, head, layer, kept, seed in (
        (RESNET, "fc", "backbone", {"bias": np.ones(9), "weight": np.ones((9, 64))}, 3),
        *(
            (ALEXNET, "blocks.7.0", "fc7", kept, seed)
            for kept, seed in ((old, 3), ({}, 3), ({}, 0))
        ),
    ):
        state = random_state(model, np.random.default_rng(7))
        entries = without(state, head) | {f"{head}.{name}": array for name, array in kept.items()}
        caplog.clear()
        name = f"{model.model}{len(kept)}{seed}"
        folder = import_state(
            entries, model.image_size, {"dim": 5}, fresh_head=True, name=name, seed=seed
        )
        assert f"the head is random: probe layers={layer}" in caplog.text
        assert run_dir.read_config(folder).seed == seed
        encoder, (body, stats) = run_dir.load_encoder(folder), from_torch(model, state)
        assert_same((encoder.params | {"head": 0}, encoder.stats), (body | {"head": 0}, stats))
        made.append(encoder.params["head"]["output"]["kernel"])
    np.testing.assert_array_equal(made[1], made[2])
    assert np.std(made[0]) > 0.01 and np.std(made[2] - made[3]) > 0.01


def test_what_does_not_fit_makes_no_run(import_state, tmp_path, rng):
    state = random_state(RESNET, rng)
    less = {name: array for name, array in state.items() if name != "layer2.1.bn1.bias"}
    for entries, pattern, fresh_head in (
        (less, r"a\.npz: .* missing are layer2\.1\.bn1\.bias, unexpected none", False),
        (less, r"missing are layer2\.1\.bn1\.bias", True),
        (state | {"bn1.weight": np.ones(9)}, r"bn1\.weight has shape \(9,\), .* \(8,\)", False),
        (state | {"bn1.bias": np.full(8, np.inf)}, r"NaN or infinity is in bn1\.bias", False),
        (state | {"bn1.running_mean": np.full(8, np.nan)}, r"NaN .* bn1\.running_mean", False),
        (
            state | {"bn1.running_var": np.r_[np.ones(7), -1e-9]},
            r"a variance below zero is in bn1\.running_var",
            False,
        ),
    ):
        with pytest.raises(C.UserError, match=pattern):
            import_state(entries, 16, fresh_head=fresh_head)
    for flags, match in (
        ({"dim": 6}, r"dim=6: the file has 5"),
        ({"model": "small_alexnet"}, r"model=small_alexnet: the file has resnet18"),
    ):
        with pytest.raises(C.UserError, match=rf"a\.npz: {match}; leave that option out"):
            import_state(state, 16, flags)
    assert not (tmp_path / "runs").exists()


def test_features_of_a_run_are_those_of_the_weights(import_state, rng):
    state = random_state(ALEXNET, rng)
    folder = import_state(state)
    test, encoder = run_dir.load_data(folder).test, run_dir.load_encoder(folder)
    x = (test.images / 255.0 - (0.4914, 0.4822, 0.4465)) / (0.2470, 0.2435, 0.2616)
    expected, _ = layers_of(ALEXNET, state, x)
    split = split_features(encoder, test, ["fc7", "output"], distributed.local_devices(2))
    for layer in ("fc7", "output"):
        atol = 1e-4 * np.abs(expected[layer]).max()
        np.testing.assert_allclose(split.features[layer].x, expected[layer], rtol=0, atol=atol)


def test_export_of_runs_and_saved_encoders(image_run, tmp_path, rng, capsys):
    """Under our own names also without a counterpart in PyTorch; under PyTorch's, to the bit."""
    out = tmp_path / "own.safetensors"
    assert cli.main(["export", str(image_run), "--out", str(out)]) == 0
    encoder = hj.load(image_run)
    assert_same(load_file(out), named_arrays(encoder.params, encoder.stats))
    out = tmp_path / "torch.safetensors"
    assert cli.main(["export", str(image_run), "--out", str(out), "--names", "torch"]) == 2
    assert "small_cnn has no counterpart" in capsys.readouterr().err
    state = random_state(ALEXNET, rng)
    save_file(state, tmp_path / "a.safetensors")
    folder = hj.load(tmp_path / "a.safetensors").save(tmp_path / "saved")
    again = hj.load(folder)
    assert (
        again.origin == "a.safetensors" and "`a.safetensors`" in (folder / "README.md").read_text()
    )
    assert_same((again.params, again.stats), from_torch(ALEXNET, state))
    assert cli.main(["export", str(folder), "--out", str(tmp_path / "back.npz")]) == 0
    assert_same(dict(np.load(tmp_path / "back.npz")), state)
    export = C.ExportConfig(run=str(folder), out=out)
    assert_same(load_file(torch_io.export(export)), state)
    assert_same(load_file(torch_io.export(export)), state)  # anew, in place of its own file
    with safe_open(out, framework="numpy") as file:
        assert file.metadata()["format"] == "pt"
    damaged = bytearray(out.read_bytes())
    damaged[-5] ^= 1  # of a number
    (tmp_path / "damaged.safetensors").write_bytes(damaged)
    with pytest.raises(C.UserError, match="its checksum differs"):
        hj.load(tmp_path / "damaged.safetensors")
    own = dict(np.load(torch_io.export(replace(export, out=tmp_path / "own.npz", names="own"))))
    assert_same(own, named_arrays(again.params, again.stats))


def test_without_a_head_nothing_is_lost(import_state, short_resnets, rng):
    state = random_state(HEADLESS, rng)
    assert not [name for name in state if name.startswith("fc")]
    headed = state | {"fc.weight": np.ones((3, 64)), "fc.bias": np.ones(3)}
    for given, kind, options in (
        (state, ".safetensors", {}),
        ({"model_ema": headed, "epoch": 3}, ".pth", {"head": "none"}),
    ):
        folder = import_state(given, 16, options, kind, name=f"made{kind}")
        encoder = hj.load(folder)
        assert_same((encoder.params, encoder.stats), from_torch(HEADLESS, state))
        assert encoder.layers["output"] == encoder.layers["backbone"] == (64,)
    with pytest.raises(C.UserError, match="take dim=64"):
        models.abstract(replace(HEADLESS, dim=32))


def test_an_import_that_did_not_end_is_begun_anew(import_state, monkeypatch, rng):
    state = random_state(ALEXNET, rng)

    def save(self, step, tree):
        (self.folder / "0.orbax-checkpoint-tmp-1").mkdir(parents=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.Checkpointer, "save", save)
        with pytest.raises(OSError, match="No space left"):
            import_state(state)
    folder = import_state(state)
    encoder = run_dir.load_encoder(folder)
    assert_same((encoder.params, encoder.stats), from_torch(encoder.config, state))
    record = read_json(folder / "config.json")
    assert len(record["sessions"]) == 1
    # What may be the user's stays: results beside the record, a run that has not saved yet.
    mine = (folder / "checkpoints/0").rename(folder / "mine")
    with pytest.raises(C.UserError, match="holds an imported encoder"):
        import_state(state)
    mine.rename(folder.parent / "mine")
    record["sessions"][0].pop("imported")
    (folder / "config.json").write_text(json.dumps(record))
    torch_io._clear_unfinished(folder)
    assert read_json(folder / "config.json") == record


@pytest.mark.slow
def test_an_import_that_was_killed_is_begun_anew(tmp_path, rng):
    save_file(random_state(ALEXNET, rng), tmp_path / "a.safetensors")
    np.save(tmp_path / "x.npy", rng.integers(0, 256, (20, 32, 32, 3), np.uint8))
    command = f"import-torch {tmp_path}/a.safetensors --name a --runs-dir {tmp_path} --data"
    command += f" {tmp_path}/x.npy --image-size 32"
    kill = (
        "import os, sys; from hypersphere_jax import cli; from hypersphere_jax.training import "
        "checkpoints; checkpoints.Checkpointer.save = lambda *_: os.kill(os.getpid(), 9); "
        "cli.main(sys.argv[1:])"
    )
    killed = processes.python("-c", kill, *command.split())
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "a/config.json").is_file()
    done = processes.python("run.py", *command.split())
    assert done.returncode == 0, done.stderr
    assert " metrics " in done.stdout and " probe " not in done.stdout  # there are no labels
    assert hj.load(tmp_path / "a").step == 0
