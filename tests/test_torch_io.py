"""Encoders from PyTorch (NumPy in its place) become runs, and go back unchanged."""

import contextlib
import hashlib
import sys
import types
from dataclasses import replace
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from torch_networks import ALEXNET, RESNET, layers_of, random_state

from hypersphere_jax import config as C
from hypersphere_jax import torch_io
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.files import read_json
from hypersphere_jax.models.torch_names import from_torch
from hypersphere_jax.training import checkpoint, run_folder, sharding


@pytest.fixture
def import_state(tmp_path, rng):
    arrays = rng.integers(0, 256, (20, 32, 32, 3), np.uint8), np.arange(20) % 4
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(tmp_path / "images.npz", **dict(zip(names, arrays * 2, strict=True)))
    images = C.DataConfig(name=str(tmp_path / "images.npz"), recipe="cifar10")

    def import_state(state, model, **options):
        np.savez(tmp_path / "a.npz", **state)
        model = replace(model, channels=None, stem=None)  # they are for the import to find
        where = {"name": "made", "runs_dir": str(tmp_path / "runs")} | options
        config = C.ImportConfig(file=tmp_path / "a.npz", data=images, model=model, **where)
        return torch_io.import_torch(config)

    return import_state


def assert_same(made, expected):
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, made, expected)


def test_import_and_export_change_no_bit(import_state, tmp_path, rng):
    """Of MoCo's query encoder, with a stem for large images, and the classifier of labels."""
    model = replace(RESNET, stem="imagenet", num_classes=4)
    state = random_state(model, rng)
    given = {f"module.encoder_q.{name}": array for name, array in state.items()}
    given |= {"module.encoder_q.bn1.num_batches_tracked": np.array(7), "queue": np.zeros(3)}
    folder = import_state(given, RESNET)
    encoder = run_folder.load_encoder(folder)
    assert encoder.step == 0
    assert (encoder.config.model.num_classes, encoder.config.model.stem) == (4, "imagenet")
    made = encoder.params, encoder.stats
    assert_same(made, from_torch(model, state))
    origin = read_json(folder / "config.json")["sessions"][0]["imported"]
    assert origin["file"] == str(tmp_path / "a.npz") and origin["left_aside"] == ["queue"]
    assert origin["sha256"] == hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()
    twice = dict(zip(("params", "stats"), jax.tree.map(lambda a: 2 * a, made), strict=True))
    with contextlib.closing(checkpoint.Checkpoints(folder / "checkpoints")) as checkpoints:
        checkpoints.save(5, twice)
    for step, factor in ((0, 1), (5, 2), (None, 2)):
        export = C.ExportConfig(run=str(folder), out=tmp_path / "back.npz", step=step)
        back = dict(np.load(torch_io.export_npz(export)))
        assert_same(back, {name: factor * array for name, array in state.items()})
    with pytest.raises(C.UserError, match=r"holds a run already.*--name"):
        import_state(given, RESNET)


def test_which_encoder_of_a_file(rng):
    for model, config in (("resnet18", RESNET), ("small_alexnet", ALEXNET)):
        query, key = ({name: object() for name in random_state(config, rng)} for _ in range(2))
        for prefix in ("", "module.", "backbone."):
            alone = {f"{prefix}{name}": array for name, array in query.items()} | {"other": 1}
            mine, left = torch_io.encoder_of(alone, model)
            assert (mine, left) == ((query, ["other"]) if prefix else (alone, []))
        both = {f"module.encoder_q.{name}": array for name, array in query.items()}
        both |= {f"module.encoder_k.{name}": array for name, array in key.items()}
        assert torch_io.encoder_of(both, model)[0] == query
        assert torch_io.encoder_of(both, model, "module.encoder_k")[0] == key
        others = {name.replace("encoder_", "net_"): array for name, array in both.items()}
        for file, prefix in ((others, None), (both, "encoder_k")):
            with pytest.raises(C.UserError, match=r"'module\.(encoder|net)_k\.', 'module"):
                torch_io.encoder_of(file, model, prefix)


def test_fresh_head(import_state, rng, caplog):
    """A head that does not fit, or none at all: the body is the file's, the head the seed's."""
    old, heads = {"bias": np.ones(1000), "weight": np.ones((1000, 3))}, []
    alexnet = ALEXNET, "blocks.7.0", "fc7"
    for model, head, layer, kept, seed in (
        (RESNET, "fc", "backbone", old, 3),
        *((*alexnet, old, 3), (*alexnet, {}, 3), (*alexnet, {}, 0)),
    ):
        state = random_state(model, np.random.default_rng(7))
        entries = {name: array for name, array in state.items() if not name.startswith(head)}
        entries |= {f"{head}.{name}": array for name, array in kept.items()}
        with pytest.raises(C.UserError, match=r"--dim 5 as the file has .*--fresh-head"):
            import_state(entries, model)
        caplog.clear()
        name = f"{model.name}{len(kept)}{seed}"
        folder = import_state(entries, model, fresh_head=True, name=name, seed=seed)
        assert f"the head is random: probe --layers {layer}" in caplog.text
        assert run_folder.read_config(folder).seed == seed
        made, (body, stats) = run_folder.load_encoder(folder), from_torch(model, state)
        assert_same((made.params | {"head": 0}, made.stats), (body | {"head": 0}, stats))
        heads.append(made.params["head"]["output"]["kernel"])
    np.testing.assert_array_equal(heads[1], heads[2])
    assert np.std(heads[0]) > 0.01 and np.std(heads[2] - heads[3]) > 0.01


def test_what_does_not_fit_makes_no_run(import_state, tmp_path, rng):
    state = random_state(RESNET, rng)
    less = {name: array for name, array in state.items() if name != "layer2.1.bn1.bias"}
    for entries, pattern, fresh_head in (
        (less, r"a\.npz: .* missing are layer2\.1\.bn1\.bias, unexpected none", False),
        (less, r"missing are layer2\.1\.bn1\.bias", True),
        (state | {"bn1.weight": np.ones(9)}, r"bn1\.weight has shape \(9,\), .* \(8,\)", False),
        (state | {"bn1.bias": np.full(8, np.inf)}, r"NaN or infinity in bn1\.bias", False),
    ):
        with pytest.raises(C.UserError, match=pattern):
            import_state(entries, RESNET, fresh_head=fresh_head)
    assert not (tmp_path / "runs").exists()


def test_features_are_those_of_the_weights(import_state, rng):
    state = random_state(ALEXNET, rng)
    folder = import_state(state, ALEXNET)
    test, encoder = run_folder.load_data(folder).test, run_folder.load_encoder(folder)
    x = (test.images / 255.0 - (0.4914, 0.4822, 0.4465)) / (0.2470, 0.2435, 0.2616)
    expected, _ = layers_of(ALEXNET, state, x)
    split = split_features(encoder, test, ["fc7", "output"], sharding.local_devices(2))
    for layer in ("fc7", "output"):
        atol = 1e-4 * np.abs(expected[layer]).max()
        np.testing.assert_allclose(split.features[layer].x, expected[layer], rtol=0, atol=atol)


def test_pytorch_is_asked_for_arrays_alone(tmp_path, monkeypatch):
    weights = np.linspace(-1, 1, 7).astype("f")
    tensor = Mock(layout="strided", is_quantized=False, **{"is_complex.return_value": False})
    tensor.detach.return_value.float.return_value.numpy.return_value = weights
    state, asked = {"a": tensor, "note": "text"}, []
    torch = types.SimpleNamespace(__version__="2.10.1+cpu", Tensor=Mock, strided="strided")
    monkeypatch.setitem(sys.modules, "torch", torch)
    for content in (state, {"model": state, "epoch": 1}, {"state_dict": {"model": state}}):
        torch.load = lambda file, content=content, **how: asked.append(how) or content
        assert_same(torch_io.read_state(tmp_path / "a.pt"), {"a": weights})
    assert asked == [{"map_location": "cpu", "weights_only": True}] * 3
    torch.__version__ = "2.5.1+cpu"  # runs what is in a file, in spite of `weights_only`
    for module in (torch, None):
        monkeypatch.setitem(sys.modules, "torch", module)
        with pytest.raises(C.UserError, match=r"pip install 'torch>=2\.6'"):
            torch_io.read_state(tmp_path / "a.pt")
