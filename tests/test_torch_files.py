"""Files of weights that others trained: the network is inferred, and gives what it gave there."""

import argparse
import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from torch_networks import (
    ALEXNET,
    HEADLESS,
    RESNET,
    hugging_face,
    layers_of,
    random_state,
    torch_file,
    without,
)

import hypersphere_jax as hj
from hypersphere_jax import configs as C
from hypersphere_jax import models, torch_files
from hypersphere_jax.models.torch_names import torch_names


def test_which_encoder_of_a_file(rng):
    for config in (RESNET, ALEXNET):
        query, key = ({name: object() for name in random_state(config, rng)} for _ in range(2))
        for prefix in ("", "module.", "backbone."):
            alone = {f"{prefix}{name}": array for name, array in query.items()} | {"other": 1}
            mine, left = torch_files.encoder_of(alone)
            assert (mine, left) == ((query, ["other"]) if prefix else (alone, []))
        both = {f"module.encoder_q.{name}": array for name, array in query.items()}
        both |= {f"module.encoder_k.{name}": array for name, array in key.items()}
        assert torch_files.encoder_of(both)[0] == query
        assert torch_files.encoder_of(both, "module.encoder_k")[0] == key
        others = {name.replace("encoder_", "net_"): array for name, array in both.items()}
        for file, prefix in ((others, None), (both, "encoder_k")):
            with pytest.raises(C.UserError, match=r"'module\.(encoder|net)_k\.', 'module"):
                torch_files.encoder_of(file, prefix)
    query = {name: object() for name in random_state(RESNET, rng)}
    for prefix in ("resnet.", "", "model.resnet."):
        assert torch_files.encoder_of(hugging_face(query, prefix)) == (query, [])
    # Of SwAV's, linear layers beside the network; and modules by their numbers in a sequence.
    state = without(random_state(RESNET, rng), "fc")
    beside = ("projection_head.0.weight", "projection_head.1.running_mean", "prototypes.weight")
    beside = {f"module.{n}": np.ones((3, 3)[: 1 + n.endswith("weight")]) for n in beside}
    swav = {f"module.{name}": array for name, array in state.items()} | beside
    assert torch_files.encoder_of(swav) == (state, sorted(beside))
    for first in (2, 3, 4):
        numbers = {f"layer{1 + n}": str(first + n) for n in range(4)} | {"conv1": "0", "bn1": "1"}
        named = {name: name.partition(".")[::2] for name in state}
        named = {f"backbone.{numbers[m]}.{rest}": state[n] for n, (m, rest) in named.items()}
        assert torch_files.encoder_of(named) == (state, [])
    with pytest.raises(C.UserError, match=r"no ResNet .* its entries are cls_token"):
        torch_files.encoder_of({"cls_token": 1})


@pytest.mark.parametrize(
    "family", ["Hugging Face", "no head", pytest.param("MoCo v2", marks=pytest.mark.slow)]
)
def test_features_of_a_file_are_those_of_the_weights(family, short_resnets, tmp_path, rng):
    """Of random weights and sizes, against NumPy; whatever can be inferred is not said."""
    model = {
        "Hugging Face": replace(RESNET, model="resnet50", image_size=32),
        "no head": replace(HEADLESS, stem="imagenet"),
        "MoCo v2": replace(RESNET, head="moco_v2", head_hidden=7, image_size=32),
    }[family]
    state, file = random_state(model, rng), tmp_path / "a.safetensors"
    given = state
    if family == "no head":  # SwAV's
        file, given = tmp_path / "a.pth.tar", {f"module.{n}": array for n, array in state.items()}
        file.write_bytes(
            torch_file(given | {"module.prototypes.weight": np.ones((2, 3), "f")}, False)
        )
    if family == "Hugging Face":
        given = hugging_face(state)
    if family == "MoCo v2":
        file = tmp_path / "a.npz"
        given = {f"module.encoder_q.{name}": array for name, array in state.items()}
        given |= {f"module.encoder_k.{name}": -array for name, array in state.items()}
        np.savez(file, **given)
    if family == "Hugging Face":
        save_file(given, file)
    large = {"image_size": 16, "recipe": "none"} if family == "no head" else {}
    encoder = hj.load(file, **large)
    images = rng.integers(0, 256, (3, *[model.image_size] * 2, 3), np.uint8)
    x = images / 255.0
    if not large:  # the recipe of CIFAR-10
        x = (x - (0.4914, 0.4822, 0.4465)) / (0.2470, 0.2435, 0.2616)
    expected, _ = layers_of(model, state, x)
    assert list(encoder.layers) == list(expected)
    np.testing.assert_allclose(encoder(images), expected["output"], rtol=0, atol=1e-4)
    if family == "Hugging Face":
        encoder = hj.load(file, head=False)  # as if the classifier were not there
        assert encoder.layers["output"] == encoder.layers["backbone"] == (256,)
        unit = expected["backbone"] / np.linalg.norm(expected["backbone"], axis=1, keepdims=True)
        np.testing.assert_allclose(encoder(images), unit, rtol=0, atol=1e-4)


def test_the_network_is_inferred_from_shapes():
    """Also at full size, where the shapes are torchvision's and those of the authors."""
    narrow = replace(ALEXNET, width=0.0625)
    for config, size, recipe in (
        (C.ModelConfig("resnet18", dim=1000, image_size=224, in_channels=3), 224, "moco"),
        (C.ModelConfig("resnet50", dim=1000, image_size=224, in_channels=3), 224, "moco"),
        (replace(RESNET, model="resnet34", head="simclr3", head_hidden=7), 32, "cifar10"),
        (C.ModelConfig("small_alexnet", dim=128, image_size=64, in_channels=3), 64, "stl10"),
        (replace(narrow, head="none", dim=256), 32, "cifar10"),
        (replace(narrow, head="balanced", head_hidden=9, in_channels=1), 32, "cifar10"),
        (replace(narrow, head="simclr2", head_hidden=7, num_classes=4), 32, "cifar10"),
        (replace(narrow, num_classes=4, classifier_layer="fc7"), 32, "cifar10"),
    ):
        entries = torch_names(config).values()
        state = {entry.name: np.broadcast_to(0.0, entry.shape) for entry in entries}
        assert torch_files.infer(state, config.image_size) == models.resolved(config)
        alone = torch_files.infer(state)
        assert (alone.image_size, torch_files.recipe_of(alone)) == (size, recipe)
    with pytest.raises(C.UserError, match="those of 31 to 38 pixels"):
        torch_files.infer(state, 64)


def test_networks_that_are_not_plain_are_refused(tmp_path, rng):
    state, pattern = random_state(RESNET, rng), "of ResNets only the plain 18, 34 and 50"
    renamed = {n.replace("downsample.1", "downsample.2"): a for n, a in state.items()}
    for entries, match in (
        (without(state, "conv1") | {"conv1.0.weight": state["conv1.weight"]}, rf"stem.*{pattern}"),
        (renamed, rf"shortcuts pool .*{pattern}"),
        (without(state, "layer3.1."), rf"\(2, 2, 1, 2\) basic blocks, and {pattern}"),
        (state | {"conv1.weight": np.zeros((8, 3, 5, 5))}, rf"\[5, 5\].*{pattern}"),
        (without(state, "conv1"), r"missing is conv1\.weight"),
        (state | {"layer1.0.se.fc1.weight": np.zeros(3)}, r"unexpected layer1\.0\.se\.fc1"),
        (state | {"conv2.weight": np.zeros((8, 8, 3, 3))}, r"unexpected conv2\.weight"),
        (state | {"norm.weight": np.zeros(64)}, r"unexpected norm\.weight"),
        (without(state, "fc") | {"fc.1.weight": np.zeros((2, 3))}, r"fc\.1\.weight: .*head=False"),
        ({"params/conv1": np.zeros(1)}, "own names.*Encoder.save"),
    ):
        np.savez(tmp_path / "a.npz", **entries)
        with pytest.raises(hj.UserError, match=f"^{tmp_path}/a.npz.*{match}"):
            hj.load(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **state)
    for said, match in (
        ({"architecture": "resnetblur18.tv_in1k"}, "anti-aliasing"),
        ({"downsample_in_bottleneck": True}, "1x1 convolution"),
        ({"architecture": "resnet18", "hidden_act": "gelu"}, "ReLU"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(said))
        with pytest.raises(hj.UserError, match=match):
            hj.load(tmp_path / "a.npz")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18.tv_in1k"}))
    save_file(state, tmp_path / "model.safetensors")
    encoder = hj.load(tmp_path, recipe="none")  # a folder as Hugging Face has it
    assert (encoder.config.name, encoder.config.recipe) == (tmp_path.name, "none")


def test_arguments_that_do_not_fit(tmp_path, image_run, rng):
    np.savez(tmp_path / "a.npz", **random_state(ALEXNET, rng))
    for where, options, match in (
        ("a.npz", {"recipe": "cifar"}, "recipe='cifar'.*did you mean"),
        ("a.npz", {"step": 3}, "not for files"),
        ("a.npz", {"prefix": "encoder"}, "no name begins so; the prefixes are ''"),
        ("b.safetensors", {}, "b.safetensors is not a file"),
        (image_run, {"head": False, "image_size": 3}, "^image_size, head=False: for files"),
    ):
        with pytest.raises(hj.UserError, match=match):
            hj.load(tmp_path / where, **options)
    (tmp_path / "c.safetensors").write_bytes(b"damaged, at least 8 bytes")
    with pytest.raises(hj.UserError, match=r"cannot be read as \.safetensors"):
        hj.load(tmp_path / "c.safetensors")


def test_narrow_floats_become_float32(tmp_path):
    values = np.linspace(-1, 1, 7, dtype=np.float32)
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float64):
        save_file({"a": values.astype(dtype), "n": np.array(3)}, tmp_path / "a.safetensors")
        state = torch_files.read_state(tmp_path / "a.safetensors")
        assert state["a"].dtype == np.float32 and state["n"] == 3
        np.testing.assert_array_equal(state["a"], values.astype(dtype).astype(np.float32))
    header = json.dumps(
        {"__metadata__": None, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    )
    content = len(header).to_bytes(8, "little") + header.encode() + b"\7"
    (tmp_path / "a.safetensors").write_bytes(content)
    assert torch_files.read_state(tmp_path / "a.safetensors")["a"] == 7
    save_file({"a": values.astype(ml_dtypes.float8_e4m3fn)}, tmp_path / "a.safetensors")
    with pytest.raises(C.UserError, match="not plain real numbers are a"):
        torch_files.read_state(tmp_path / "a.safetensors")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize("library", ["torchvision", "timm", "transformers"])
@pytest.mark.parametrize("depth", [18, 50])
def test_features_are_those_of_the_libraries(library, depth, tmp_path, rng):
    """Of random weights, where the library and PyTorch are installed."""
    torch, module = pytest.importorskip("torch"), pytest.importorskip(library)
    deep = depth == 50
    if library == "torchvision":
        network = getattr(module.models, f"resnet{depth}")(weights=None, num_classes=7)
    elif library == "timm":
        network = module.create_model(f"resnet{depth}", pretrained=False, num_classes=7)
    else:
        config = module.ResNetConfig(
            depths=[3, 4, 6, 3] if deep else [2, 2, 2, 2],
            hidden_sizes=[256, 512, 1024, 2048] if deep else [64, 128, 256, 512],
            layer_type="bottleneck" if deep else "basic",
            num_labels=7,
        )
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
    old = {"_use_new_zipfile_serialization": False}  # as before 2020
    torch.save([argparse.Namespace(a=1), {"model_ema": state}], tmp_path / "a.pth", **old)
    save_file({name: a.numpy() for name, a in state.items()}, tmp_path / "a.safetensors")
    for file in ("a.pth.tar", "a.pth", "a.safetensors"):
        encoder = hj.load(tmp_path / file, image_size=64, recipe="none")
        assert encoder.config.model == f"resnet{depth}"
        found = encoder(images, "unnormalized")
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5 * np.abs(logits).max())
        unit = logits / np.linalg.norm(logits, axis=1, keepdims=True)
        np.testing.assert_allclose(encoder(images), unit, rtol=0, atol=1e-5)
