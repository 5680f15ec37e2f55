"""What fine-tuning builds on: layers to classify, crop and flip alone, and labels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_finetune import asked
from test_training import config

from hypersphere_jax import finetune, models, runs, training
from hypersphere_jax.augment.recipes import find
from hypersphere_jax.config import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    UserError,
)
from hypersphere_jax.data import arrays
from hypersphere_jax.data.source import Arrays


@pytest.mark.parametrize("layer", ["backbone", "projection1", "output"])
@pytest.mark.slow
def test_classifier_on_a_layer(layer, rng):
    model = ModelConfig(
        image_size=8, channels=1, width=0.1, dim=3, head="moco_v2", head_hidden=7, num_classes=4
    )
    apply, params, stats = models.create(
        dataclasses.replace(model, classifier_layer=layer), jax.random.key(0)
    )
    x = jnp.asarray(rng.standard_normal((5, 8, 8, 1)), jnp.float32)
    outputs, _ = apply(params, stats, x, False)
    classifier = params["head"]["classifier"]
    assert classifier["kernel"].shape == ({"backbone": 52, "projection1": 7, "output": 3}[layer], 4)
    expected = np.asarray(outputs[layer]) @ np.asarray(classifier["kernel"])
    expected += np.asarray(classifier["bias"])
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, atol=1e-5)


def test_before_the_head():
    of_images = set(models.MODELS) - {"sentence_gru"}
    found = {name: models.before_head(name) for name in of_images}
    assert found.pop("small_alexnet") == "fc7" and set(found.values()) == {"backbone"}


def test_crop_and_flip_alone():
    for name in ("moco_v2", "simclr_cifar", "balanced_cutout", "stl10"):
        whole, part = find(name), find(f"{name}:crop_flip")
        kept = {"rgb", "random_resized_crop", "random_horizontal_flip", "normalize"}
        assert part.train == tuple(step for step in whole.train if step[0] in kept)
        assert {"random_resized_crop", "random_horizontal_flip"} <= set(dict(part.train))
        assert part.evaluate == whole.evaluate
    assert [name for name, _ in find("digits:crop_flip").train] == [
        "random_affine",
        "normalize",
    ]
    assert find("none:crop_flip") == find("none")
    with pytest.raises(ValueError, match="did you mean 'moco_v2'"):
        find("moco_v3:crop_flip")


@pytest.mark.slow
def test_images_without_label_are_left_out(tmp_path, monkeypatch):
    train, test = arrays.digits()
    labels = np.where(np.arange(1400) < 1000, np.asarray(train.labels), -1)
    some = Arrays(train.images, labels, train.class_names, train.origin)
    monkeypatch.setattr(arrays, "digits", lambda: (some, test))
    supervised = ObjectiveConfig(align_weight=0, uniform_weight=0, supervised_weight=1)
    folder = training.train(config(tmp_path, objective=supervised))
    assert runs.read_metrics(folder)[-1]["step"] == 2 * (1000 // 220)
    assert runs.load_data(folder).digest()  # of the data as they are
    tuned = asked(folder, tmp_path, name="tuned", epochs=1)
    assert finetune.finetune(tuned)[1]["labels"] == 1000


def save_npz(tmp_path, train_images, train_labels, test_images, test_labels):
    names = ("train_images", "train_labels", "test_images", "test_labels")
    parts = (train_images, train_labels, test_images, test_labels)
    np.savez(tmp_path / "data.npz", **dict(zip(names, map(np.asarray, parts), strict=True)))
    return str(tmp_path / "data.npz")


@pytest.mark.slow
def test_data_that_cannot_be_fine_tuned_on(tmp_path, rng):
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    model, optimizer = ModelConfig(dim=3, width=0.1), OptimizerConfig(epochs=1, batch_size=20)
    supervised = ObjectiveConfig(supervised_weight=1)

    def source(name, file):
        where = DataConfig(name=file, recipe="digits")
        made = config(tmp_path, name, data=where, model=model, optimizer=optimizer)
        again = dataclasses.replace(made, name=f"{name}-supervised", objective=supervised)
        return training.train(made), again

    np.save(tmp_path / "images.npy", images)
    folder, again = source("bare", str(tmp_path / "images.npy"))
    with pytest.raises(UserError, match=r"images\.npy have no labels"):
        finetune.finetune(asked(folder, tmp_path))
    with pytest.raises(UserError, match=r"--supervised-weight: .* have no labels"):
        training.train(again)
    ones = np.ones(40, np.int32)
    folder, again = source("one", save_npz(tmp_path, images, ones, images, ones))
    for train in (
        lambda: finetune.finetune(asked(folder, tmp_path)),
        lambda: training.train(again),
    ):
        with pytest.raises(UserError, match="are all of one class, and two are needed"):
            train()
    names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {"bare", "one"}
