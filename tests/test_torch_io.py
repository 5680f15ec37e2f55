"""Encoders from PyTorch become runs that are probed like others, and go back unchanged.

NumPy stands in for PyTorch, in the .npz files and in the forward pass; what only PyTorch can show
is seen where it is installed.
"""

import builtins
import dataclasses
import json
import logging
import pickle
import sys
import types
import warnings

import jax
import numpy as np
import pytest
from torch_networks import ALEXNET, RESNET, Network, layers_of, random_state

from hypersphere_jax import checkpoint, data, interchange, runs, sharding
from hypersphere_jax.config import (
    DataConfig,
    ExportConfig,
    ImportConfig,
    ModelConfig,
    UserError,
)
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.models.torch_names import from_torch
from run import main


@pytest.fixture
def images(tmp_path, rng):
    """A data set of 40 random images with 32x32 pixels, in 4 classes."""
    arrays = {}
    for split, n in (("train", 24), ("test", 16)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (n, 32, 32, 3), np.uint8)
        arrays[f"{split}_labels"] = np.arange(n) % 4
    np.savez(tmp_path / "images.npz", **arrays)
    return DataConfig(name=str(tmp_path / "images.npz"), recipe="cifar10")


@pytest.fixture
def import_state(tmp_path, images):
    """`import_state(state, model, **options)`: the folder of a state dict's run."""

    def import_state(state, model, command="", **options):
        np.savez(tmp_path / "a.npz", **state)
        # Channels and stem are for the import to find.
        model = dataclasses.replace(model, channels=None, stem=None)
        options = {"name": "made", "runs_dir": str(tmp_path / "runs")} | options
        config = ImportConfig(file=tmp_path / "a.npz", data=images, model=model, **options)
        return interchange.import_torch(config, command)

    return import_state


def assert_same(made, expected):
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, made, expected)


def imported(folder):
    (session,) = json.loads((folder / "config.json").read_text())["sessions"]
    return session["imported"]


def test_import_and_export_change_no_bit(import_state, tmp_path, rng):
    """Of MoCo's query encoder, with a stem for large images, and the classifier of labels."""
    model = dataclasses.replace(RESNET, stem="imagenet", num_classes=4)
    state = random_state(model, rng)
    given = {f"module.encoder_q.{name}": array for name, array in state.items()}
    given |= {"module.encoder_q.bn1.num_batches_tracked": np.array(7), "queue": np.zeros(3)}
    asking = dataclasses.replace(model, num_classes=0)
    folder = import_state(given, asking, command="python run.py …")
    encoder = runs.load_encoder(folder)
    assert encoder.step == 0 and encoder.config.model.num_classes == 4
    assert runs.read_config(folder).model.stem == "imagenet"
    made = encoder.params, encoder.stats
    assert_same(made, from_torch(model, state))
    assert imported(folder) == {
        "file": str(tmp_path / "a.npz"),
        "sha256": interchange._sha256(tmp_path / "a.npz"),
        "head": "of the file",
        "left_aside": ["queue"],
    }
    assert json.loads((folder / "config.json").read_text())["sessions"][0]["command"]

    twice = jax.tree.map(lambda a: 2 * a, made)
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints")
    checkpoints.save(5, dict(zip(("params", "stats"), twice, strict=True)))
    checkpoints.close()
    for step, factor in ((0, 1), (5, 2), (None, 2)):
        export = ExportConfig(run=str(folder), out=tmp_path / "back.npz", step=step)
        back = dict(np.load(interchange.export_npz(export)))
        assert_same(back, {name: factor * array for name, array in state.items()})
    with pytest.raises(UserError, match=r"holds a run already.*--name"):
        import_state(given, asking)


def test_which_encoder_of_a_file(rng):
    for model, config in (("resnet18", RESNET), ("small_alexnet", ALEXNET)):
        query, key = random_state(config, rng), random_state(config, rng)
        for prefix in ("", "module.", "backbone."):
            alone = {f"{prefix}{name}": array for name, array in query.items()} | {"other": 1}
            mine, left = interchange.encoder_of(alone, model)
            assert left == (["other"] if prefix else []), prefix
            assert_same({name: mine[name] for name in query}, query)
        both = {f"module.encoder_q.{name}": array for name, array in query.items()}
        both |= {f"module.encoder_k.{name}": array for name, array in key.items()}
        assert_same(interchange.encoder_of(both, model)[0], query)
        for prefix in ("module.encoder_k", "module.encoder_k."):
            assert_same(interchange.encoder_of(both, model, prefix)[0], key)
        with pytest.raises(UserError, match=r"--prefix encoder_k\..*'module.encoder_k.', 'module"):
            interchange.encoder_of(both, model, "encoder_k")
        others = {name.replace("encoder_", "net_"): array for name, array in both.items()}
        with pytest.raises(UserError, match=r"several encoders, under 'module\.net_k\.'.*--prefix"):
            interchange.encoder_of(others, model)


@pytest.mark.parametrize(
    ("model", "head", "layer", "asked"),
    [
        (RESNET, "fc", "backbone", [("classifier", 3)]),
        (ALEXNET, "blocks.7.0", "fc7", [("classifier", 3), ("bare", 3), ("bare", 0)]),
    ],
    ids=["resnet18", "small_alexnet"],
)
def test_fresh_head(model, head, layer, asked, import_state, rng, caplog, tmp_path):
    """A head that does not fit, or none at all: the body is the file's, the head the seed's."""
    state, heads = random_state(model, rng), []
    bare = {name: array for name, array in state.items() if not name.startswith(head)}
    old = {f"{head}.bias": np.ones(1000), f"{head}.weight": np.ones((1000, 3))}
    for name, seed in asked:
        options = {"name": f"{name}{seed}", "seed": seed}
        entries = bare | (old if name == "classifier" else {})
        with pytest.raises(UserError, match=r"its head is .* --dim 5 is .*--fresh-head"):
            import_state(entries, model, **options)
        assert not (tmp_path / "runs" / options["name"]).exists()
        with caplog.at_level(logging.WARNING):
            folder = import_state(entries, model, fresh_head=True, **options)
        assert f"the head is random: probe --layers {layer}" in caplog.text
        assert imported(folder)["head"] == "random" and runs.read_config(folder).seed == seed
        assert imported(folder)["left_aside"] == [*(old if name == "classifier" else ())]
        made, (body, stats) = runs.load_encoder(folder), from_torch(model, state)
        assert_same(made.params | {"head": None}, body | {"head": None})
        assert_same(made.stats, stats)
        heads.append(made.params["head"]["output"]["kernel"])
    assert np.std(heads[0]) > 0.01
    if len(asked) == 3:
        np.testing.assert_array_equal(heads[0], heads[1])
        assert np.std(heads[1] - heads[2]) > 0.01


def test_what_does_not_fit(import_state, tmp_path, rng):
    state = random_state(RESNET, rng)
    less = {name: array for name, array in state.items() if name != "layer2.1.bn1.bias"}
    for entries, pattern, options in (
        (less, r"a\.npz: .* missing are layer2\.1\.bn1\.bias, unexpected none", {}),
        (less, r"missing are layer2\.1\.bn1\.bias", {"fresh_head": True}),
        (state | {"extra": np.zeros(2)}, r"missing are none, unexpected extra", {}),
        (state | {"bn1.weight": np.ones(9)}, r"bn1\.weight has shape \(9,\), .* \(8,\)", {}),
        (state | {"bn1.weight": np.full(8, np.nan)}, r"NaN or infinity in bn1\.weight", {}),
        (state | {"bn1.bias": np.full(8, np.inf)}, r"NaN or infinity in bn1\.bias", {}),
        (state | {"bn1.weight": np.zeros(8, "V2")}, r"no real numbers .*bn1\.weight", {}),
        (random_state(ALEXNET, rng), r"missing are bn1\.bias.* unexpected blocks", {}),
    ):
        with pytest.raises(UserError, match=pattern) as error:
            import_state(entries, RESNET, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="small_cnn has no counterpart"):
        import_state(state, ModelConfig(image_size=32))
    assert not (tmp_path / "runs").exists()


def test_features_are_those_of_the_weights(images, import_state, rng):
    """From a file to the features that `probe` classifies, by the data's normalization."""
    state = random_state(ALEXNET, rng)
    folder = import_state(state, ALEXNET)
    pixels = data.load(images).test.images / 255.0
    x = (pixels - (0.4914, 0.4822, 0.4465)) / (0.2470, 0.2435, 0.2616)
    expected, _ = layers_of(ALEXNET, state, x)
    test, encoder = runs.load_data(folder).test, runs.load_encoder(folder)
    found = split_features(encoder, test, ["fc7", "output"], sharding.local_devices(2))
    for layer in ("fc7", "output"):
        scale = np.abs(expected[layer]).max()
        np.testing.assert_allclose(found[layer].x / scale, expected[layer] / scale, atol=1e-4)


# Files


def test_files_that_are_none(tmp_path, monkeypatch):
    file = tmp_path / "a.npz"
    file.write_text("no archive")
    with pytest.raises(UserError, match=r"not a readable \.npz"):
        interchange.read_state(file)
    np.savez(file, a=np.array([{}], object))
    with pytest.raises(UserError, match=r"not a readable \.npz"):
        interchange.read_state(file)
    imported = builtins.__import__

    def without_torch(name, *rest):
        if name == "torch":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(UserError, match="pip install 'torch>="):
        interchange.read_state(tmp_path / "encoder.pth")


class Tensor(np.ndarray):
    """What of PyTorch's tensors the import asks for."""

    layout, is_quantized = "strided", False
    is_complex, detach, numpy = (
        (lambda self: False),
        (lambda self: self),
        (lambda self: np.array(self)),
    )

    def float(self):
        return self.astype(np.float32)


def test_pytorch_is_asked_for_arrays_alone(tmp_path, monkeypatch):
    """And its state dict is found in what a training script saves beside it."""
    weights = np.linspace(-1, 1, 7).astype(np.float16).view(Tensor)
    state, asked = {"a": weights, "note": "text"}, []
    torch = types.SimpleNamespace(__version__="2.10.1+cpu", Tensor=Tensor, strided="strided")
    monkeypatch.setitem(sys.modules, "torch", torch)
    for content in (state, {"model": state, "epoch": 1}, {"state_dict": {"model": state}}):
        torch.load = lambda file, content=content, **how: asked.append(how) or content
        found = interchange.read_state(tmp_path / "a.pt")
        assert found.keys() == {"a"} and found["a"].dtype == np.float32
        np.testing.assert_array_equal(found["a"], np.asarray(weights))
    assert asked == [{"map_location": "cpu", "weights_only": True}] * 3
    around = {"epoch": 3}
    around["model"] = around
    for content in (around, [1], {"model": 1}):
        torch.load = lambda file, content=content, **how: content
        with pytest.raises(UserError, match="holds no state dict"):
            interchange.read_state(tmp_path / "a.pt")
    torch.__version__ = "2.5.1+cpu"
    with pytest.raises(UserError, match=r"pip install 'torch>=2\.6'"):
        interchange.read_state(tmp_path / "a.pt")


class Harmful:
    """Unpickled without care, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_pytorchs_files(tmp_path):
    torch = pytest.importorskip("torch")
    mark, file = tmp_path / "mark", tmp_path / "a.pth"
    values = torch.linspace(-1, 1, 7)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        torch.save({"state_dict": {"a": values.to(dtype)}, "optimizer": {"state": {}}}, file)
        found = interchange.read_state(file)["a"]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values.to(dtype).float())
    for save in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))):
        save({"state_dict": {"conv1.weight": Harmful(mark)}}, file)
        with pytest.raises(UserError, match="cannot be read as arrays alone"):
            interchange.read_state(file)
        assert not mark.exists()
    with warnings.catch_warnings(action="ignore"):  # PyTorch means to drop them
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    for odd in (torch.eye(3).to_sparse(), quantized, torch.ones(3, dtype=torch.complex64)):
        torch.save({"a": odd}, file)
        with pytest.raises(UserError, match="a is no dense array of real numbers"):
            interchange.read_state(file)
    for content in (b"PK\x03\x04 cut short", b"some words"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"cannot be read") as error:
            interchange.read_state(file)
        assert "\n" not in str(error.value)


def test_numpys_networks_are_pytorchs(rng):
    torch = pytest.importorskip("torch")
    bottleneck = dataclasses.replace(RESNET, name="resnet50", image_size=65, head="simclr3")
    for config in (ALEXNET, RESNET, dataclasses.replace(RESNET, head="moco_v2"), bottleneck):
        state, size = random_state(config, rng), config.image_size
        x = rng.standard_normal((4, size, size, 3))
        for train in (False, True):
            expected, _ = layers_of(config, state, x, train)
            tensors = {name: torch.tensor(array).double() for name, array in state.items()}
            network = Network(config, tensors, train, torch.nn.functional)
            for layer, value in network(torch.tensor(x.transpose(0, 3, 1, 2))).items():
                what = f"{config.name} {train} {layer}"
                np.testing.assert_allclose(value, expected[layer], 1e-6, 1e-8, err_msg=what)


@pytest.mark.slow
def test_from_the_command_line(capsys, tmp_path, rng):
    """Imported, probed, measured, reported, exported; and one line for each mistake."""
    model = dataclasses.replace(ALEXNET, image_size=16, channels=1)
    state, file = random_state(model, rng), tmp_path / "encoder.npz"
    np.savez(file, **{f"module.encoder_q.{name}": array for name, array in state.items()})
    folder, out = str(tmp_path / "a"), tmp_path / "out.npz"
    options = ["--model", "small_alexnet", "--width", "0.05", "--image-size", "16"]
    options += ["--name", "a", "--data", "digits", "--runs-dir", str(tmp_path)]

    def fails(*arguments):
        capsys.readouterr()
        assert main(list(arguments)) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    assert "--dim 32" in fails("import-torch", str(file), *options)
    assert "no such file" in fails("import-torch", str(tmp_path / "b.npz"), *options)
    assert "--name" in fails("import-torch", str(file))
    options += ["--dim", "5"]
    assert main(["import-torch", str(file), *options]) == 0
    assert f"probe {folder}" in capsys.readouterr().out
    for verb in (["probe", folder, "--layer", "fc7"], ["metrics", folder]):
        assert main([*verb, "--devices", "2"]) == 0
    found = json.loads((tmp_path / "a" / "eval" / "lbfgs-fc7.json").read_text())
    assert found["step"] == 0 and found["top1"] > 50
    assert main(["report", folder]) == 0
    assert main(["export-npz", folder, "--out", str(out)]) == 0
    assert_same(dict(np.load(out)), state)
    assert "ends in .npz" in fails("export-npz", folder, "--out", "a.pth")
    assert f"--init-from {folder}" in fails("pretrain", *options)
    init = ["--name", "b", "--init-from", str(file)]
    assert "`import-torch` makes one" in fails("pretrain", *options, *init)
