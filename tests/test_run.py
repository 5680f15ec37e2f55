"""Training from Python with custom parts: as plain JAX, on any devices, and resumed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import own_parts
import pytest
from own_parts import IMAGES, LABELS, NETWORK, RATE, config, half, noisy, spread, supervised
from run_states import killed
from tiny_runs import needs_devices, parse_pretrain

import hypersphere_jax as hj
from hypersphere_jax import augment


class Pairs:
    """A data set of (float image, label)."""

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, i):
        return IMAGES[i, ..., 0] / 255, int(LABELS[i])


def test_steps_are_gradient_descent_in_plain_jax(tmp_path):
    """A batch is all images, in an order that does not change the loss."""
    run = hj.train(config(tmp_path), data=Pairs(), network=NETWORK, augment=half, loss=supervised)
    params = run.load(0).params
    views = IMAGES / np.float32(510)

    def value(params):
        layers = {"output": hj.l2_normalize(own_parts.apply(params, views))}
        return supervised(layers, layers, jnp.asarray(LABELS), None)

    for record in run.metrics:
        expected, slope = jax.value_and_grad(value)(params)
        np.testing.assert_allclose(record["loss"], expected, rtol=1e-5)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, slope)
    assert len(run.metrics) == 4
    np.testing.assert_allclose(run.encoder.params["w"], params["w"], rtol=1e-3, atol=1e-5)


@needs_devices(2)
@pytest.mark.slow
def test_two_devices_train_as_one_and_resume_to_the_same_bits(tmp_path):
    parts = {"images": IMAGES, "network": NETWORK, "augment": noisy}
    parts["loss"] = own_parts.against_queue
    options = {"batch_size": 16, "epochs": 2, "queue_size": 24}
    one = hj.train(config(tmp_path, "one", **options), **parts)
    two = hj.train(config(tmp_path, "two", devices=2, **options), **parts)
    losses = [[record["loss"] for record in run.metrics] for run in (one, two)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    np.testing.assert_allclose(one.encoder.params["w"], two.encoder.params["w"], atol=1e-5)
    killed(two.folder, 4, tmp_path / "killed")
    resumed = config(tmp_path / "killed", "two", devices=2, **options)
    again = hj.train(resumed, **parts)
    np.testing.assert_array_equal(again.encoder.params["w"], two.encoder.params["w"])
    assert [record["loss"] for record in again.metrics] == losses[1]


def test_custom_parts_are_recorded_and_required(tmp_path):
    parts = {"data": Pairs(), "network": NETWORK, "augment": noisy, "loss": spread}
    run = hj.train(config(tmp_path, epochs=1), **parts)
    record = json.loads((run.folder / "config.json").read_text())["config"]
    assert (record["augment"], record["function"]) == ("own_parts.noisy", "own_parts.spread")
    assert record["source"] == "test_run.Pairs" and record["recipe"] == "none"
    z = run.encoder(IMAGES[:3])
    raw = own_parts.apply(run.encoder.params, IMAGES[:3] / np.float32(255))
    np.testing.assert_allclose(z, hj.l2_normalize(raw), rtol=1e-5)
    for folder in (run.folder, run.encoder.save(tmp_path / "saved")):
        np.testing.assert_array_equal(hj.load(folder, network=NETWORK)(IMAGES[:3]), z)
    for name in parts:
        rest = {other: part for other, part in parts.items() if other != name}
        with pytest.raises(hj.UserError, match=f"{name}="):
            hj.train(config(tmp_path, epochs=1), **rest)
    with pytest.raises(hj.UserError, match="network="):
        hj.load(run.folder)
    with pytest.raises(hj.UserError, match="network"):
        hj.train(parse_pretrain("--name", "own", "--runs-dir", str(tmp_path)))


def test_recipe_of_names_and_functions(tmp_path):
    def invert(key, image, *, size):
        return 1 - image

    operations = (("center_crop", {}), (invert, {}))
    recipe = hj.Recipe(train=operations, evaluate=operations)
    run = hj.train(config(tmp_path, epochs=1), images=IMAGES, network=NETWORK, augment=recipe)
    inverted = 1 - IMAGES[:3] / np.float32(255)
    expected = hj.l2_normalize(own_parts.apply(run.encoder.params, inverted))
    np.testing.assert_allclose(run.encoder(IMAGES[:3]), expected, rtol=1e-5)
    view = augment.make_augment(recipe, 8)(jax.random.key(0), IMAGES[0])
    np.testing.assert_allclose(view, inverted[0], rtol=1e-6)
    with pytest.raises(hj.UserError, match="preprocess="):
        hj.load(run.folder, network=NETWORK)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"data": Pairs()}, "images.*data"),
        ({"loss": supervised}, "labels"),
        ({"loss": "nt_xent"}, "loss="),
        ({"loss": lambda x: x}, "loss="),
        ({"loss": lambda x, y: x[:, 0]}, "loss="),
        ({"network": "resnet18"}, "network="),
        ({"network": (own_parts.init, lambda params, x: x)}, "network="),
        ({"network": (own_parts.init, lambda params, x: x.reshape(len(x), -1)[::2])}, "network="),
        ({"augment": "moco"}, "augment="),
        ({"augment": lambda image: image}, "augment="),
        ({"augment": lambda key, image: image[:4]}, "augment="),
        ({"augment": [("center_crop", {"unknown": 1})]}, "augment="),
        ({"config": {"epochs": 3}}, "config"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_the_folder_exists(given, match, tmp_path):
    parts = {"images": IMAGES, "network": NETWORK, "augment": half, "loss": spread}
    with pytest.raises(hj.UserError, match=match):
        hj.train(**({"config": config(tmp_path)} | parts | given))
    assert not list(tmp_path.iterdir())


def test_overwrite_removes_the_run_once_all_arguments_are_checked(tmp_path):
    parts = {"images": IMAGES, "network": NETWORK, "augment": half, "loss": spread}
    hj.train(config(tmp_path, epochs=2), **parts)
    before = sorted(tmp_path.rglob("*"))
    for wrong in ({"loss": lambda x, y: x}, {"labels": [1]}, {"augment": lambda key: key}):
        with pytest.raises(hj.UserError):
            hj.train(config(tmp_path, epochs=1), overwrite=True, **(parts | wrong))
    with pytest.raises(hj.UserError, match="missing"):
        hj.train(config(tmp_path, epochs=1, init_from="missing"), overwrite=True, **parts)
    assert sorted(tmp_path.rglob("*")) == before
    changed = config(tmp_path, epochs=1, seed=3)
    with pytest.raises(hj.UserError, match="seed"):
        hj.train(changed, **parts)
    new = hj.train(changed, overwrite=True, **parts)
    assert [record["step"] for record in new.metrics] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_evaluation_never_classifies_images_whose_labels_are_trained_on(tmp_path):
    parts = {"images": IMAGES, "labels": LABELS, "network": NETWORK, "augment": half}
    evaluated = config(tmp_path, epochs=60, eval_every_epochs=60, evaluators=("knn",))
    with pytest.raises(hj.UserError, match="eval_split"):
        hj.train(evaluated, loss=supervised, **parts)
    noise = np.random.default_rng(0).integers(0, 10, 48)
    run = hj.train(evaluated, loss=supervised, test=[IMAGES, noise], **parts)
    assert run.metrics[-1]["eval/knn_top1"] < 40
    z = run.encoder(IMAGES)
    assert hj.knn_probe(z, LABELS, z, LABELS)["top1"] > 60
