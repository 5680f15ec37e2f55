"""Encoders from PyTorch become runs that are probed like others, and go back unchanged."""

import builtins
import dataclasses
import json
import logging
import pickle
import warnings

import jax
import numpy as np
import pytest
from test_cli import fails, run_py
from test_torch_weights import ALEXNET, RESNET, stated, torchs_alexnet, torchs_resnet

from hypersphere_jax import data, interchange, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    ExportConfig,
    ImportConfig,
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
    UserError,
)
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.models.torch_names import from_torch, to_torch, torch_names

CONFIGS = pytest.mark.parametrize("model", [RESNET, ALEXNET], ids=["resnet18", "small_alexnet"])


@pytest.fixture
def images(tmp_path, rng):
    """A data set of 40 random images with 32x32 pixels, in 4 classes."""
    arrays = {}
    for split, n in (("train", 24), ("test", 16)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (n, 32, 32, 3), np.uint8)
        arrays[f"{split}_labels"] = np.arange(n) % 4
    np.savez(tmp_path / "images.npz", **arrays)
    return DataConfig(name=str(tmp_path / "images.npz"), recipe="cifar10")


def weights(model, rng):
    """A random state dict, in the precision in which weights are kept."""
    return {name: np.float32(array) for name, array in stated(model, rng).items()}


def saved(path, state, prefix="", others=()):
    np.savez(path, **{prefix + name: array for name, array in state.items()} | dict(others))
    return path


def asked(file, model, images, **options):
    """The import of a file beside it; channels and stem are for the import to find."""
    model = dataclasses.replace(model, channels=None, stem=None)
    options = {"name": "made", "runs_dir": str(file.parent / "runs")} | options
    return ImportConfig(file=file, data=images, model=model, **options)


def assert_same(made, expected):
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, made, expected)


@CONFIGS
@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder_q.", "backbone."])
def test_import_and_export_change_no_bit(model, prefix, images, tmp_path, rng):
    state = weights(model, rng)
    tracked = {f"{prefix}bn1.num_batches_tracked": np.array(7)}
    file = saved(tmp_path / "encoder.npz", state, prefix, tracked)
    folder = interchange.import_torch(asked(file, model, images))
    encoder = runs.load_encoder(folder)
    assert encoder.step == 0
    assert_same((encoder.params, encoder.stats), from_torch(model, state))

    out = interchange.export_npz(ExportConfig(run=str(folder), out=tmp_path / "back.npz"))
    assert_same(dict(np.load(out)), state)
    again = interchange.import_torch(asked(out, model, images, name="again"))
    assert_same(runs.load_encoder(again).params, encoder.params)


def test_the_classifier_of_a_supervised_run_comes_along(images, tmp_path, rng):
    model = dataclasses.replace(RESNET, num_classes=4)
    state = weights(model, rng)
    file = saved(tmp_path / "encoder.npz", state)
    asking = asked(file, dataclasses.replace(model, num_classes=0), images)
    encoder = runs.load_encoder(interchange.import_torch(asking))
    assert encoder.config.model.num_classes == 4
    assert_same(encoder.params, from_torch(model, state)[0])


def test_the_record(images, tmp_path, rng):
    file = saved(tmp_path / "a.npz", weights(RESNET, rng), "encoder_q.", {"queue": np.zeros(3)})
    folder = interchange.import_torch(asked(file, RESNET, images), command="python run.py …")
    record = json.loads((folder / "config.json").read_text())
    (session,) = record["sessions"]
    assert session["imported"]["file"] == str(file)
    assert session["imported"]["sha256"] == interchange._sha256(file)
    assert session["imported"]["head"] == "of the file"
    assert session["imported"]["left_aside"] == ["queue"]
    assert session["command"] == "python run.py …"
    with pytest.raises(UserError, match=r"holds a run already.*--name"):
        interchange.import_torch(asked(file, RESNET, images))


def test_moco_holds_two_encoders(rng):
    query, key = weights(RESNET, rng), weights(RESNET, rng)
    both = {f"module.encoder_q.{name}": query[name] for name in query}
    both |= {f"module.encoder_k.{name}": key[name] for name in key}
    both["module.queue"] = np.zeros((3, 4))
    mine, left = interchange.encoder_of(both, "resnet18")
    assert_same(mine, query)
    assert len(left) == len(key) + 1 and "module.queue" in left
    for prefix in ("module.encoder_k", "module.encoder_k."):
        assert_same(interchange.encoder_of(both, "resnet18", prefix)[0], key)
    with pytest.raises(UserError, match=r"--prefix encoder_k\..*'module.encoder_k.', 'module"):
        interchange.encoder_of(both, "resnet18", "encoder_k")
    others = {name.replace("encoder_", "net_"): array for name, array in both.items()}
    with pytest.raises(UserError, match=r"several encoders, under 'module\.net_k\.'.*--prefix"):
        interchange.encoder_of(others, "resnet18")


@CONFIGS
def test_fresh_head(model, images, tmp_path, rng, caplog):
    """A head that does not fit, or none at all: the body is the file's, the head the seed's."""
    state = weights(model, rng)
    head = "fc" if model is RESNET else "blocks.7.0"
    classifier = state | {f"{head}.weight": np.zeros((1000, 3)), f"{head}.bias": np.zeros(1000)}
    bare = {name: array for name, array in state.items() if not name.startswith(head)}
    made = []
    for name, entries in (("classifier", classifier), ("bare", bare)):
        file = saved(tmp_path / f"{name}.npz", entries)
        with pytest.raises(UserError, match=r"its head is .* --dim 5 is .*--fresh-head"):
            interchange.import_torch(asked(file, model, images, name=name))
        assert not (tmp_path / "runs" / name).exists()
        asking = asked(file, model, images, name=name, fresh_head=True)
        with caplog.at_level(logging.WARNING):
            folder = interchange.import_torch(asking)
        assert "the head is random" in caplog.text
        imported = json.loads((folder / "config.json").read_text())["sessions"][0]["imported"]
        assert imported["head"] == "random"
        left = [f"{head}.bias", f"{head}.weight"] if name == "classifier" else []
        assert imported["left_aside"] == left
        made.append(runs.load_encoder(folder))
    body, _ = from_torch(model, state)
    for encoder in made:
        assert_same(encoder.params | {"head": None}, body | {"head": None})
    assert_same(made[0].params["head"], made[1].params["head"])
    assert np.std(made[0].params["head"]["output"]["kernel"]) > 0.01


def test_stem_of_the_file(images, tmp_path, rng):
    """An encoder for large images keeps its stem on small ones."""
    large = dataclasses.replace(RESNET, stem="imagenet")
    file = saved(tmp_path / "a.npz", weights(large, rng))
    folder = interchange.import_torch(asked(file, large, images))
    assert runs.read_config(folder).model.stem == "imagenet"


def test_what_does_not_fit(images, tmp_path, rng):
    state = weights(RESNET, rng)

    def refused(entries, pattern, **options):
        file = saved(tmp_path / "a.npz", entries)
        with pytest.raises(UserError, match=pattern) as error:
            interchange.import_torch(asked(file, RESNET, images, **options))
        assert "\n" not in str(error.value)

    less = {name: array for name, array in state.items() if name != "layer2.1.bn1.bias"}
    refused(less, r"a\.npz: .* missing are layer2\.1\.bn1\.bias, unexpected none")
    refused(less, r"missing are layer2\.1\.bn1\.bias", fresh_head=True)
    refused(state | {"extra": np.zeros(2)}, r"missing are none, unexpected extra")
    refused(state | {"bn1.weight": np.ones(9)}, r"bn1\.weight has shape \(9,\), .* \(8,\)")
    refused(state | {"bn1.weight": np.full(8, np.nan)}, r"NaN or infinity in bn1\.weight")
    refused(state | {"bn1.weight": np.zeros(8, "V2")}, r"no real numbers .*bn1\.weight")
    refused({"weight": np.zeros(2)}, r"missing are bn1\.bias, .* unexpected weight")
    refused(weights(ALEXNET, rng), r"missing are bn1\.bias.* unexpected blocks")
    small = ModelConfig(image_size=32)
    file = saved(tmp_path / "a.npz", state)
    with pytest.raises(UserError, match="small_cnn has no counterpart"):
        interchange.import_torch(asked(file, small, images))
    assert not (tmp_path / "runs").exists()


def test_files_that_are_none(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"not a readable \.npz"):
        file = tmp_path / "text.npz"
        file.write_text("no archive")
        interchange.read_state(file)
    with pytest.raises(UserError, match=r"not a readable \.npz"):
        np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
        interchange.read_state(tmp_path / "objects.npz")
    imported = builtins.__import__

    def without_torch(name, *rest):
        if name == "torch":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(UserError, match="pip install 'torch>="):
        interchange.read_state(tmp_path / "encoder.pth")


@pytest.mark.slow
def test_from_the_command_line(capsys, tmp_path, rng):
    """Imported, probed, measured, reported, exported; and one line for each mistake."""
    model = dataclasses.replace(ALEXNET, image_size=16, channels=1)
    file = saved(tmp_path / "encoder.npz", weights(model, rng), "module.encoder_q.")
    options = ["--model", "small_alexnet", "--width", "0.05", "--image-size", "16"]
    options += ["--name", "a", "--data", "digits", "--runs-dir", str(tmp_path)]
    assert "--dim 32" in fails(capsys, "import-torch", str(file), *options)
    assert "no such file" in fails(capsys, "import-torch", str(tmp_path / "b.npz"), *options)
    assert "--name" in fails(capsys, "import-torch", str(file))
    assert run_py.main(["import-torch", str(file), *options, "--dim", "5"]) == 0
    folder = str(tmp_path / "a")
    assert f"probe {folder}" in capsys.readouterr().out
    for verb in (["probe", folder, "--layer", "fc7"], ["metrics", folder]):
        assert run_py.main([*verb, "--devices", "2"]) == 0
    found = json.loads((tmp_path / "a" / "eval" / "lbfgs-fc7.json").read_text())
    assert found["step"] == 0 and found["top1"] > 50
    assert run_py.main(["report", folder]) == 0
    out = tmp_path / "out.npz"
    assert run_py.main(["export-npz", folder, "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert_same(dict(np.load(out)), weights(model, np.random.default_rng(0)))
    assert "ends in .npz" in fails(capsys, "export-npz", folder, "--out", "a.pth")
    options = ["pretrain", *options, "--dim", "5"]
    assert f"--init-from {folder}" in fails(capsys, *options)
    assert "`import-torch` makes one" in fails(
        capsys, *options, "--name", "b", "--init-from", str(file)
    )


@CONFIGS
def test_features_are_pytorchs(model, images, tmp_path, rng):
    """From a file of PyTorch to the features that `probe` classifies."""
    torch = pytest.importorskip("torch")
    network = (torchs_alexnet if model is ALEXNET else torchs_resnet)(torch, model)
    network.load_state_dict({n: torch.tensor(a) for n, a in weights(model, rng).items()})
    entries = {f"module.encoder_q.{n}": tensor for n, tensor in network.state_dict().items()}
    entries["module.queue_ptr"] = torch.tensor([3])
    file = tmp_path / "checkpoint.pth.tar"
    torch.save({"epoch": 3, "state_dict": entries, "optimizer": {"state": {}}}, file)
    model = dataclasses.replace(model, image_size=32)
    folder = interchange.import_torch(asked(file, model, images))

    pixels = data.load(images).test.images / 255.0
    mean, std = np.array([(0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)])
    x = torch.tensor(((pixels - mean) / std).transpose(0, 3, 1, 2))
    with torch.no_grad():
        expected = {name: layer.numpy() for name, layer in network.double().eval()(x).items()}
    test = runs.load_data(folder).test
    encoder, devices = runs.load_encoder(folder), sharding.local_devices(2)
    features = split_features(encoder, test, ["output"], devices)["output"].x
    np.testing.assert_allclose(features, expected["output"], rtol=0, atol=1e-4)


def test_exported_weights_load_in_pytorch(tmp_path, rng):
    torch = pytest.importorskip("torch")
    for model, make in ((RESNET, torchs_resnet), (ALEXNET, torchs_alexnet)):
        params, stats = from_torch(model, weights(model, rng))
        state = to_torch(model, params, stats)
        assert state.keys() == {entry.name for entry in torch_names(model).values()}
        given = {name: torch.from_numpy(array) for name, array in state.items()}
        make(torch, model).load_state_dict(given, strict=True)


class Harmful:
    """Unpickled without care, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_no_code_of_a_file_is_run(tmp_path):
    torch = pytest.importorskip("torch")
    mark, file = tmp_path / "mark", tmp_path / "bad.pth"
    for save in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))):
        save({"state_dict": {"conv1.weight": Harmful(mark)}}, file)
        with pytest.raises(UserError, match="cannot be read as arrays alone") as error:
            interchange.read_state(file)
        assert "\n" not in str(error.value) and not mark.exists()
    with pytest.raises(UserError, match="cannot be read"):
        file.write_bytes(b"PK\x03\x04 cut short")
        interchange.read_state(file)
    with pytest.raises(UserError, match="holds no state dict"):
        torch.save([torch.zeros(2)], file)
        interchange.read_state(file)


def test_files_with_odd_contents(tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "a.pth"
    around = {"epoch": 3}
    around["model"] = around
    with warnings.catch_warnings(action="ignore"):  # PyTorch means to drop them
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    for content, message in (
        (around, "holds no state dict"),
        ({"a": torch.eye(3).to_sparse()}, "a is no dense array of real numbers"),
        ({"a": quantized}, "a is no dense array"),
        ({"a": torch.ones(3, dtype=torch.complex64)}, "a is no dense array"),
    ):
        torch.save(content, file)
        with pytest.raises(UserError, match=message):
            interchange.read_state(file)
    file.write_text("some words")
    with pytest.raises(UserError, match=r"is it a checkpoint|of another kind"):
        interchange.read_state(file)


def test_older_pytorch_is_refused(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pth")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(UserError, match=r"pip install 'torch>=2\.6'"):
        interchange.read_state(tmp_path / "a.pth")


@pytest.mark.slow
def test_training_goes_on_from_an_imported_encoder(images, tmp_path, rng):
    model = dataclasses.replace(ALEXNET, image_size=32)
    file = saved(tmp_path / "a.npz", weights(model, rng))
    folder = interchange.import_torch(asked(file, model, images))
    made = runs.read_config(folder)
    optimizer = OptimizerConfig(epochs=1, batch_size=4, learning_rate=0.0, weight_decay=0.0)
    runtime = RuntimeConfig(devices=1)
    again = dataclasses.replace(
        made, name="again", init_from=str(folder), optimizer=optimizer, runtime=runtime
    )
    trained = runs.load_encoder(training.train(again))
    assert trained.step > 0
    assert_same(trained.params, runs.load_encoder(folder).params)


def test_half_precision_and_containers(tmp_path):
    torch = pytest.importorskip("torch")
    values = torch.linspace(-1, 1, 7)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        state = {"a": values.to(dtype), "note": "text"}
        for content in (state, {"model": state, "epoch": 1}, {"model_state": {"model": state}}):
            torch.save(content, tmp_path / "a.pt")
            found = interchange.read_state(tmp_path / "a.pt")
            assert found.keys() == {"a"} and found["a"].dtype == np.float32
            np.testing.assert_array_equal(found["a"], state["a"].float())
