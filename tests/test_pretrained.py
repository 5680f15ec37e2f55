"""Pretrained weights: files of other libraries, runs made from them, and exported encoders."""

import contextlib
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch_networks import (
    ALEXNET,
    HEADLESS,
    RESNET,
    assert_same,
    hugging_face,
    layers_of,
    random_state,
    without,
)

import hypersphere_jax as hj
from hypersphere_jax import cli, models, pretrained
from hypersphere_jax import configs as C
from hypersphere_jax.encoder import named_arrays
from hypersphere_jax.models.torch_names import from_torch
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.utils.files import read_json

# Normalization by the recipe cifar10.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@pytest.fixture
def import_state(tmp_path, rng):
    """Import a state dict, with arrays for data."""
    images = rng.integers(0, 256, (20, 32, 32, 3), np.uint8)
    splits = {"train_images": images, "test_images": images}
    splits |= {"train_labels": np.arange(20) % 4, "test_labels": np.arange(20) % 4}
    np.savez(tmp_path / "images.npz", **splits)

    def import_state(state, **options):
        file = tmp_path / "a.npz"
        np.savez(file, **state)
        options = {"name": "made", "runs_dir": str(tmp_path / "runs")} | options
        data = {"data": str(tmp_path / "images.npz"), "recipe": "cifar10"}
        return pretrained.import_torch(C.ImportConfig(file=file, **data, **options))

    return import_state


@pytest.mark.parametrize(
    ("library", "config"),
    [
        ("Hugging Face", replace(RESNET, model="resnet50", image_size=32)),
        ("SwAV", replace(HEADLESS, stem="imagenet", image_size=32)),
        ("Wang & Isola", ALEXNET),
    ],
)
def test_features_match_numpy(library, config, short_resnets, tmp_path, rng):
    state = random_state(config, rng)
    entries = state
    if library == "Hugging Face":
        entries = hugging_face(state)
    elif library == "SwAV":
        entries = {f"module.{name}": array for name, array in state.items()}
        entries |= {"module.prototypes.weight": np.ones((2, 3), "f")}
    save_file(entries, tmp_path / "a.safetensors")
    encoder = hj.load(tmp_path / "a.safetensors", image_size=32)
    images = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    expected, _ = layers_of(config, state, (images / 255.0 - MEAN) / STD)
    assert list(encoder.layers) == list(expected)
    np.testing.assert_allclose(encoder(images), expected["output"], rtol=0, atol=1e-4)
    if library == "Hugging Face":
        encoder = hj.load(tmp_path / "a.safetensors", head=False)
        assert encoder.layers["output"] == encoder.layers["backbone"] == (256,)
        unit = expected["backbone"] / np.linalg.norm(expected["backbone"], axis=1, keepdims=True)
        np.testing.assert_allclose(encoder(images), unit, rtol=0, atol=1e-4)


def test_unsupported_networks_are_refused(tmp_path, rng):
    state = random_state(RESNET, rng)
    pooled = {name.replace("downsample.1", "downsample.2"): a for name, a in state.items()}
    file = tmp_path / "a.npz"
    for entries, match in (
        (without(state, "conv1") | {"conv1.0.weight": state["conv1.weight"]}, "stem"),
        (pooled, "shortcuts"),
        (without(state, "layer3.1."), r"\[2, 2, 1, 2\]"),
        (state | {"conv1.weight": np.zeros((8, 3, 5, 5))}, r"\[5, 5\]"),
        (without(state, "conv1"), r"conv1\.weight"),
        (state | {"layer1.0.se.fc1.weight": np.zeros(3)}, r"layer1\.0\.se\.fc1"),
        (state | {"conv2.weight": np.zeros((8, 8, 3, 3))}, r"conv2\.weight"),
        (without(state, "fc") | {"fc.1.weight": np.zeros((2, 3))}, r"fc\.1\.weight"),
        ({"params/conv1": np.zeros(1)}, r"Encoder\.save"),
    ):
        np.savez(file, **entries)
        with pytest.raises(hj.UserError, match=f"^{file}.*{match}"):
            hj.load(file)


def test_config_json_beside_the_file(tmp_path, rng):
    save_file(random_state(RESNET, rng), tmp_path / "model.safetensors")
    for config in (
        {"architecture": "resnetblur18.tv_in1k"},
        {"downsample_in_bottleneck": True},
        {"downsample_in_first_stage": True},
        {"architecture": "resnet18", "hidden_act": "gelu"},
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(hj.UserError, match=r"config\.json"):
            hj.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18.tv_in1k"}))
    encoder = hj.load(tmp_path, recipe="none")  # a folder from Hugging Face
    assert encoder.config.name == tmp_path.name
    assert encoder.config.recipe == "none"


def test_options_of_load_are_checked(tmp_path, image_run, rng):
    np.savez(tmp_path / "a.npz", **random_state(ALEXNET, rng))
    for where, options, match in (
        ("a.npz", {"recipe": "cifar"}, "recipe='cifar'"),
        ("a.npz", {"step": 3}, "step"),
        ("a.npz", {"prefix": "encoder"}, "prefix=encoder"),
        ("b.safetensors", {}, r"b\.safetensors"),
        (image_run, {"head": False, "image_size": 3}, "image_size, head=False"),
    ):
        with pytest.raises(hj.UserError, match=match):
            hj.load(tmp_path / where, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "uint8", "int64"])
def test_safetensors_numbers_become_float32(dtype, tmp_path):
    values = np.linspace(-1, 1, 6).reshape(2, 3).astype(dtype)
    save_file({"a": values}, tmp_path / "a.safetensors")
    state = pretrained.read_state(tmp_path / "a.safetensors")
    assert state["a"].dtype == np.float32
    np.testing.assert_array_equal(state["a"], values.astype(np.float32))


def test_unreadable_safetensors(tmp_path):
    file = tmp_path / "a.safetensors"
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    header = json.dumps({"__metadata__": None, "a": entry}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\7")
    assert pretrained.read_state(file)["a"] == 7  # a file without metadata
    file.write_bytes(b"damaged, at least 8 bytes")
    with pytest.raises(C.UserError, match=f"^{file}"):
        pretrained.read_state(file)
    save_file({"scaled": np.ones(3, ml_dtypes.float8_e4m3fn)}, file)
    with pytest.raises(C.UserError, match="scaled"):
        pretrained.read_state(file)


def assert_one_line(error, file):
    assert str(error.value).startswith(f"{file}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("is_zip", [True, False])
def test_state_dicts_in_pth_files(is_zip, tmp_path):
    """A state dict is found wherever it is nested, in the format since PyTorch 1.6 and before."""
    torch = pytest.importorskip("torch")
    file = tmp_path / "a.pth.tar"
    wide = torch.arange(24.0)
    state = {"blocks.0.0.weight": wide[3:15].reshape(2, 3, 2).permute(2, 0, 1), "wide": wide}
    state |= {"half": torch.linspace(-1, 1, 5, dtype=torch.bfloat16), "n": torch.tensor(7)}
    state["parameter"] = torch.nn.Parameter(wide)
    expected = {name: tensor.detach().float().numpy() for name, tensor in state.items()}
    optimizer = {"state": {0: {"exp_avg": wide}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    for content in (
        state,
        {"state_dict": state, "again": state, "optimizer": optimizer, "epoch": 3},
        [3, optimizer, {"a": [{"model_ema": state}]}],
    ):
        torch.save(content, file, _use_new_zipfile_serialization=is_zip)
        assert_same(pretrained.read_state(file), expected)
    twin = {name: tensor + 1 for name, tensor in state.items()}
    content = {"student": state, "teacher": twin, "optimizer": optimizer}
    torch.save(content, file, _use_new_zipfile_serialization=is_zip)
    both = pretrained.read_state(file)
    assert both.keys() == {f"{net}.{name}" for net in ("student", "teacher") for name in state}
    np.testing.assert_array_equal(both["teacher.wide"], expected["wide"] + 1)


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_pth_files_execute_nothing(is_zip, tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "a.pt"
    for content in (Touch(tmp_path / "touched"), torch.nn.Linear(2, 3), {"epoch": 3}):
        torch.save({"content": content}, file, _use_new_zipfile_serialization=is_zip)
        with pytest.raises(C.UserError) as error:
            pretrained.read_state(file)
        assert_one_line(error, file)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("is_zip", [True, False])
def test_damaged_pth_files(is_zip, tmp_path, rng):
    """A changed bit of a zip file is an error or has no effect; older files have no checksums."""
    torch = pytest.importorskip("torch")
    file = tmp_path / "a.pt"
    torch.save({"wide": torch.ones(200)}, file, _use_new_zipfile_serialization=is_zip)
    intact = file.read_bytes()
    for cut in range(0, len(intact), 150):
        file.write_bytes(intact[:cut])
        with pytest.raises(C.UserError) as error:
            pretrained.read_state(file)
        assert_one_line(error, file)
    for position in rng.choice(len(intact), 60, replace=False):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        with contextlib.suppress(C.UserError):
            state = pretrained.read_state(file)
            assert not is_zip or (state["wide"] == 1).all()


def test_pth_files_without_torch(tmp_path, monkeypatch):
    file = tmp_path / "a file.pth"
    file.touch()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "torch", None)
        with pytest.raises(C.UserError, match="pip install torch") as error:
            hj.load(file)
    assert_one_line(error, file)
    torch = pytest.importorskip("torch")
    state = {"a": torch.ones(3, 2).T, "b": torch.ones(3)}
    torch.save({"state_dict": state | {"view": state["b"][1:]}, "epoch": 3}, file)
    command = re.search("`(python .*)`", str(error.value))[1]
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    converted = pretrained.read_state(tmp_path / "a file.safetensors")
    assert_same(converted, {"a": np.ones((2, 3)), "b": np.ones(3), "view": np.ones(2)})


def test_import_and_export_are_exact(import_state, tmp_path, rng):
    config = replace(RESNET, stem="imagenet", num_classes=4)
    state = random_state(config, rng)
    moco = {f"module.encoder_q.{name}": array for name, array in state.items()}
    moco |= {"module.encoder_q.bn1.num_batches_tracked": np.array(7), "queue": np.zeros(3)}
    folder = import_state(moco, image_size=16)
    encoder = run_dir.load_encoder(folder)
    assert encoder.step == 0
    assert (encoder.config.num_classes, encoder.config.stem) == (4, "imagenet")
    assert_same((encoder.params, encoder.stats), from_torch(config, state))
    origin = read_json(folder / "config.json")["sessions"][0]["imported"]
    assert origin["file"] == str(tmp_path / "a.npz")
    assert origin["ignored"] == ["queue"]
    assert origin["sha256"] == hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()
    doubled = {"params": encoder.params, "stats": encoder.stats}
    doubled = jax.tree.map(lambda array: 2 * array, doubled)
    with contextlib.closing(checkpoints.Checkpointer(folder / "checkpoints")) as checkpointer:
        checkpointer.save(5, doubled)
    for step, factor in ((0, 1), (5, 2), (None, 2)):
        export = C.ExportConfig(run=str(folder), out=tmp_path / f"back{step}.npz", step=step)
        exported = dict(np.load(pretrained.export(export)))
        assert_same(exported, {name: factor * array for name, array in state.items()})
    with pytest.raises(C.UserError, match="name="):
        import_state(moco, image_size=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "head", "features", "layer"),
    [(RESNET, "fc", 64, "backbone"), (ALEXNET, "blocks.7.0", 205, "fc7")],
)
def test_random_head(config, head, features, layer, import_state, caplog, rng):
    """The body is the file's; the head depends only on the seed."""
    state = random_state(config, rng)
    other_head = {f"{head}.bias": np.ones(9), f"{head}.weight": np.ones((9, features))}
    headless = without(state, head)
    body, stats = from_torch(config, state)
    options = {"image_size": config.image_size, "head": "linear", "dim": 5}
    kernels = []
    for entries, seed in ((headless | other_head, 3), (headless, 3), (headless, 0)):
        folder = import_state(entries, name=f"made{len(kernels)}", seed=seed, **options)
        encoder = run_dir.load_encoder(folder)
        assert_same((encoder.params | {"head": 0}, encoder.stats), (body | {"head": 0}, stats))
        kernels.append(encoder.params["head"]["output"]["kernel"])
    assert layer in caplog.text
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert np.std(kernels[0]) > 0.01
    assert np.std(kernels[1] - kernels[2]) > 0.01


def test_a_refused_import_makes_no_run(import_state, tmp_path, rng):
    state = random_state(RESNET, rng)
    incomplete = without(state, "layer2.1.bn1.bias")
    negative = np.r_[np.ones(7), -1e-9]
    for entries, options, match in (
        (incomplete, {}, r"layer2\.1\.bn1\.bias"),
        (incomplete, {"head": "linear"}, r"layer2\.1\.bn1\.bias"),
        (state | {"bn1.weight": np.ones(9)}, {}, r"bn1\.weight .*\(9,\).*\(8,\)"),
        (state | {"bn1.bias": np.full(8, np.inf)}, {}, r"bn1\.bias"),
        (state | {"bn1.running_mean": np.full(8, np.nan)}, {}, r"bn1\.running_mean"),
        (state | {"bn1.running_var": negative}, {}, r"bn1\.running_var"),
    ):
        with pytest.raises(C.UserError, match=rf"a\.npz: .*{match}"):
            import_state(entries, image_size=16, **options)
    assert not (tmp_path / "runs").exists()


def test_export_of_a_run_without_torch_names(image_run, tmp_path, capsys):
    out = tmp_path / "own.safetensors"
    assert cli.main(["export", str(image_run), "--out", str(out)]) == 0
    encoder = hj.load(image_run)
    assert_same(load_file(out), named_arrays(encoder.params, encoder.stats))
    out = tmp_path / "torch.safetensors"
    assert cli.main(["export", str(image_run), "--out", str(out), "--names", "torch"]) == 2
    assert "small_cnn" in capsys.readouterr().err


def test_export_of_a_saved_encoder(tmp_path, rng):
    state = random_state(ALEXNET, rng)
    save_file(state, tmp_path / "a.safetensors")
    folder = hj.load(tmp_path / "a.safetensors").save(tmp_path / "saved")
    encoder = hj.load(folder)
    assert encoder.origin == "a.safetensors"
    assert_same((encoder.params, encoder.stats), from_torch(ALEXNET, state))
    out = tmp_path / "out.safetensors"
    export = C.ExportConfig(run=str(folder), out=out)
    for _ in range(2):  # the second export replaces the file of the first
        assert_same(load_file(pretrained.export(export)), state)
    with safe_open(out, framework="numpy") as file:
        assert file.metadata()["format"] == "pt"
    export = replace(export, out=tmp_path / "own.npz", names="own")
    own = dict(np.load(pretrained.export(export)))
    assert_same(own, named_arrays(encoder.params, encoder.stats))
    damaged = bytearray(out.read_bytes())
    damaged[-5] ^= 1  # in a number
    out.write_bytes(damaged)
    with pytest.raises(C.UserError, match=f"^{out}"):
        hj.load(out)


def test_import_without_a_head(import_state, short_resnets, rng):
    state = random_state(HEADLESS, rng)
    headed = state | {"fc.weight": np.ones((3, 64)), "fc.bias": np.ones(3)}
    for name, entries, options in (("a", state, {}), ("b", headed, {"head": "none"})):
        encoder = hj.load(import_state(entries, name=name, image_size=16, **options))
        assert_same((encoder.params, encoder.stats), from_torch(HEADLESS, state))
        assert encoder.layers["output"] == encoder.layers["backbone"] == (64,)
    with pytest.raises(C.UserError, match="dim=64"):
        models.abstract(replace(HEADLESS, dim=32))


def test_an_interrupted_import_is_repeated(import_state, monkeypatch, rng):
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
    # The record stays if the folder contains other files, or if a training run wrote it.
    checkpoint = (folder / "checkpoints/0").rename(folder / "mine")
    with pytest.raises(C.UserError, match="name="):
        import_state(state)
    checkpoint.rename(folder.parent / "mine")
    del record["sessions"][0]["imported"]
    (folder / "config.json").write_text(json.dumps(record))
    with contextlib.suppress(C.UserError):
        import_state(state)
    assert read_json(folder / "config.json")["sessions"][0] == record["sessions"][0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of these packages
@pytest.mark.parametrize("library", ["torchvision", "timm", "transformers"])
@pytest.mark.parametrize("depth", [18, 50])
def test_features_match_the_library(library, depth, tmp_path, rng):
    """Skipped unless the library and PyTorch are installed."""
    torch = pytest.importorskip("torch")
    module = pytest.importorskip(library)
    if library == "torchvision":
        network = getattr(module.models, f"resnet{depth}")(weights=None, num_classes=7)
    elif library == "timm":
        network = module.create_model(f"resnet{depth}", pretrained=False, num_classes=7)
    else:
        options = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
        options["layer_type"] = "basic"
        if depth == 50:
            options = {}  # the default
        config = module.ResNetConfig(num_labels=7, **options)
        network = module.ResNetForImageClassification(config)
    state = network.eval().state_dict()
    for name, tensor in state.items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif tensor.ndim == 1:
            tensor.add_(0.1 * torch.randn(tensor.shape))
    images = rng.integers(0, 256, (3, 64, 64, 3), np.uint8)
    x = torch.from_numpy(np.float32(images.transpose(0, 3, 1, 2) / 255))
    with torch.no_grad():
        logits = network(x)
    logits = getattr(logits, "logits", logits).numpy()
    torch.save({"state_dict": state}, tmp_path / "a.pth.tar")
    encoder = hj.load(tmp_path / "a.pth.tar", image_size=64, recipe="none")
    assert encoder.config.model == f"resnet{depth}"
    atol = 1e-5 * np.abs(logits).max()
    np.testing.assert_allclose(encoder(images, "unnormalized"), logits, rtol=0, atol=atol)
