"""Pretrained weights: files of other libraries, runs made from them, and exported encoders."""

import contextlib
import hashlib
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from run_states import full_disk
from safetensors.numpy import load_file, save_file
from torch_networks import (
    ALEXNET,
    RESNET,
    VIT,
    assert_same,
    hugging_face,
    layers_of,
    random_state,
    without,
)

import hypersphere_jax as hj
from hypersphere_jax import cli, pretrained
from hypersphere_jax import configs as C
from hypersphere_jax.encoder import named_arrays
from hypersphere_jax.models.torch_names import from_torch
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.utils.files import read_json

# Normalization of the recipe cifar10.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@pytest.fixture
def import_state(tmp_path, rng):
    """Import a state dict, with arrays for data."""
    images = rng.integers(0, 256, (20, 32, 32, 3), np.uint8)
    labels = np.arange(20) % 4
    train = {"train_images": images, "train_labels": labels}
    np.savez(tmp_path / "images.npz", **train, test_images=images, test_labels=labels)

    def import_state(state, **options):
        if state is not None:  # otherwise the file of the last import
            np.savez(tmp_path / "a.npz", **state)
        options = {"name": "made", "runs_dir": str(tmp_path / "runs")} | options
        options |= {"data": str(tmp_path / "images.npz"), "recipe": "cifar10"}
        return pretrained.import_torch(C.ImportConfig(file=tmp_path / "a.npz", **options))

    return import_state


@pytest.mark.parametrize(
    ("library", "config"),
    [
        pytest.param(
            "Hugging Face",
            replace(RESNET, model="resnet50", image_size=32),
            marks=pytest.mark.slow,
        ),
        ("Wang & Isola", ALEXNET),
        ("timm", replace(VIT, image_size=32)),
    ],
)
def test_features_match_numpy(library, config, short_networks, tmp_path, rng):
    state = random_state(config, rng)
    entries = state
    if library == "Hugging Face":
        entries = hugging_face(state)
    save_file(entries, tmp_path / "a.safetensors")
    encoder = hj.load(tmp_path / "a.safetensors", image_size=32)
    images = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    expected, _ = layers_of(config, state, (images / 255.0 - MEAN) / STD)
    assert list(encoder.layers) == list(expected)
    np.testing.assert_allclose(encoder(images), expected["output"], rtol=0, atol=1e-4)
    if library == "Hugging Face":
        headless = hj.load(tmp_path / "a.safetensors", head=False)
        backbone = expected["backbone"] / np.linalg.norm(expected["backbone"], axis=1)[:, None]
        np.testing.assert_allclose(headless(images), backbone, rtol=0, atol=1e-4)


def test_unsupported_networks_are_refused(tmp_path, rng):
    state = random_state(RESNET, rng)
    file = tmp_path / "a.npz"
    for entries in (
        without(state, "conv1") | {"conv1.0.weight": state["conv1.weight"]},
        without(state, "layer3.1."),
        state | {"conv1.weight": np.zeros((8, 3, 5, 5))},
        state | {"layer1.0.se.fc1.weight": np.zeros(3)},
        without(state, "fc") | {"fc.1.weight": np.zeros((2, 3))},
    ):
        np.savez(file, **entries)
        with pytest.raises(hj.UserError, match=f"{file}"):
            hj.load(file)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int64"])
def test_safetensors_become_float32(dtype, tmp_path):
    values = np.linspace(-1, 1, 6).reshape(2, 3).astype(dtype)
    save_file({"a": values}, tmp_path / "a.safetensors")
    state = pretrained.read_state(tmp_path / "a.safetensors")
    assert state["a"].dtype == np.float32
    np.testing.assert_array_equal(state["a"], values.astype(np.float32))


def test_pth_files_need_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pth").touch()
    with pytest.raises(C.UserError, match="torch"):
        hj.load(tmp_path / "a.pth")


def test_import_and_export_are_exact(import_state, tmp_path, rng):
    config = replace(RESNET, stem="imagenet", num_classes=4)
    state = random_state(config, rng)
    moco = {f"module.encoder_q.{name}": array for name, array in state.items()}
    moco |= {"module.encoder_q.bn1.num_batches_tracked": np.array(7), "queue": np.zeros(3)}
    folder = import_state(moco, image_size=16)
    encoder = run_dir.load_encoder(folder)
    assert (encoder.step, encoder.config.num_classes, encoder.config.stem) == (0, 4, "imagenet")
    assert_same((encoder.params, encoder.stats), from_torch(config, state))
    origin = read_json(folder / "config.json")["sessions"][0]["imported"]
    assert origin["ignored"] == ["queue"]
    assert origin["sha256"] == hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()
    doubled = {"params": encoder.params, "stats": encoder.stats}
    doubled = jax.tree.map(lambda array: 2 * array, doubled)
    with contextlib.closing(checkpoints.Checkpointer(folder / "checkpoints")) as checkpointer:
        checkpointer.save(5, doubled)
    for step, factor in ((0, 1), (None, 2)):
        export = C.ExportConfig(run=str(folder), out=tmp_path / f"back{step}.npz", step=step)
        exported = dict(np.load(pretrained.export(export)))
        assert_same(exported, {name: factor * array for name, array in state.items()})
    with pytest.raises(C.UserError, match="name="):
        import_state(moco, image_size=16)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layer2.1.bn1.bias": None}, r"layer2\.1\.bn1\.bias"),
        ({"bn1.weight": np.ones(9)}, r"bn1\.weight"),
        ({"bn1.bias": np.full(8, np.inf)}, r"bn1\.bias"),
        ({"bn1.running_var": np.r_[np.ones(7), -1e-9]}, r"bn1\.running_var"),
    ],
)
def test_refused_import_makes_no_run(changes, match, import_state, tmp_path, rng):
    entries = random_state(RESNET, rng) | changes
    entries = {name: array for name, array in entries.items() if array is not None}
    with pytest.raises(C.UserError, match=rf"a\.npz.*{match}"):
        import_state(entries, image_size=16)
    assert not (tmp_path / "runs").exists()


def test_interrupted_import_is_repeated(import_state, rng):
    state = random_state(ALEXNET, rng)
    import_state(state, name="other")
    with full_disk(10_000, (OSError, C.UserError)):
        import_state(None)
    folder = import_state(None)
    encoder = run_dir.load_encoder(folder)
    assert_same((encoder.params, encoder.stats), from_torch(encoder.config, state))
    assert len(read_json(folder / "config.json")["sessions"]) == 1


def test_export_names_arrays_as_asked(image_run, tmp_path, rng, capsys):
    out = tmp_path / "own.safetensors"
    assert cli.main(["export", str(image_run), "--out", str(out)]) == 0
    encoder = hj.load(image_run)
    assert_same(load_file(out), named_arrays(encoder.params, encoder.stats))
    assert cli.main(["export", str(image_run), "--out", str(out), "--names", "torch"]) == 2
    assert "small_cnn" in capsys.readouterr().err


def test_saved_encoder_is_exported_as_it_was_loaded(tmp_path, rng):
    state = random_state(ALEXNET, rng)
    save_file(state, tmp_path / "a.safetensors")
    folder = hj.load(tmp_path / "a.safetensors").save(tmp_path / "saved")
    encoder = hj.load(folder)
    assert_same((encoder.params, encoder.stats), from_torch(ALEXNET, state))
    out = tmp_path / "out.safetensors"
    export = C.ExportConfig(run=str(folder), out=out)
    for _ in range(2):  # the second one replaces the file
        assert_same(load_file(pretrained.export(export)), state)
    damaged = bytearray(out.read_bytes())
    damaged[-5] ^= 1  # in a number
    out.write_bytes(damaged)
    with pytest.raises(C.UserError, match=f"{out}"):
        hj.load(out)
