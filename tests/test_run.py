"""Training from Python: with everything of one's own, the same as plain JAX, and resumed."""

import functools
import itertools
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_states
from sklearn.datasets import load_digits
from tiny_runs import parse_pretrain

import hypersphere_jax as hj
from hypersphere_jax import augment
from hypersphere_jax.configs import to_dict
from hypersphere_jax.data import Arrays
from hypersphere_jax.reporting import pictures

DIGITS = load_digits()
IMAGES, LABELS = np.round(DIGITS.images[:48] * 15).astype(np.uint8)[..., None], DIGITS.target[:48]
NETWORK = (
    lambda key, x: {"w": 0.1 * jax.random.normal(key, (x[0].size, 4))},
    lambda params, x: jnp.tanh(x.reshape(len(x), -1) @ params["w"]),
)
RATE = 0.5


class Pairs:
    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, i):
        return IMAGES[i, ..., 0] / 255, int(LABELS[i])


def half(key, image):
    """A view that draws nothing."""
    return image.astype(jnp.float32) / 510


def noisy(key, image):
    return image.astype(jnp.float32) / 255 + 0.1 * jax.random.normal(key, image.shape)


def spread(x, y):
    squares = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
    return jnp.mean(jnp.sum((x - y) ** 2, axis=-1)) + jnp.log(jnp.mean(jnp.exp(-squares)))


def supervised(view1, view2, labels, key):
    same = labels[:, None] == labels[None]
    scores = jax.nn.log_softmax(view1["output"] @ view2["output"].T / 0.5)
    return -jnp.mean(jnp.sum(scores * same, axis=1) / jnp.sum(same, axis=1))


def against_queue(query, key, queue):
    return jnp.mean(jax.nn.logsumexp(query @ queue.T, axis=1) - jnp.sum(query * key, axis=1))


def config(folder, name="own", **changes):
    rule = {"optimizer": "sgd", "learning_rate": RATE, "scaling": "none", "momentum": 0.0}
    rule |= {"weight_decay": 0.0, "decay_at": (), "epochs": 4, "batch_size": 48}
    rule |= {"log_every_steps": 1, "checkpoint_every_steps": 1, "devices": 1}
    return hj.PretrainConfig(name=name, runs_dir=str(folder), **(rule | changes))


@pytest.mark.parametrize("loss", [pytest.param(spread, marks=pytest.mark.slow), supervised])
def test_steps_are_those_of_plain_jax(loss, tmp_path):
    """Batches of all images, in an order that no loss sees: gradient descent by hand."""
    run = hj.train(config(tmp_path), data=Pairs(), network=NETWORK, augment=half, loss=loss)
    params = run.load(0).params
    views, labels = IMAGES / np.float32(510), jnp.asarray(LABELS)

    def value(params):
        layers = {"output": hj.l2_normalize(NETWORK[1](params, views))}
        both = (layers["output"],) * 2 if loss is spread else (layers, layers, labels, None)
        return loss(*both)

    for record in run.metrics:
        expected, slope = jax.value_and_grad(value)(params)
        np.testing.assert_allclose(record["loss"], expected, rtol=1e-5)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, slope)
    np.testing.assert_allclose(run.encoder.params["w"], params["w"], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_devices_change_nothing_and_runs_go_on(tmp_path):
    """Two devices, killed and continued: the losses of one device, and the same parameters."""
    own = {"images": IMAGES, "labels": LABELS, "network": NETWORK, "augment": noisy}
    small = {"batch_size": 16, "epochs": 2}
    for loss, more in ((supervised, {}), (against_queue, {"queue_size": 24})):
        name = loss.__name__
        one = hj.train(config(tmp_path, f"{name}1", **small, **more), loss=loss, **own)
        two = config(tmp_path, f"{name}2", devices=2, **small, **more)
        with run_states.killed_after_checkpoint(3):
            hj.train(two, loss=loss, **own)
        run = hj.train(two, loss=loss, **own)
        assert [record["step"] for record in run.metrics] == list(range(1, 7))
        losses = [[record["loss"] for record in r.metrics] for r in (one, run)]
        np.testing.assert_allclose(*losses, rtol=1e-4)
        np.testing.assert_allclose(one.encoder.params["w"], run.encoder.params["w"], atol=1e-5)


def test_what_is_ones_own_is_named_and_asked_for(tmp_path, monkeypatch):
    own = {"data": Pairs(), "network": NETWORK, "augment": noisy, "loss": spread}
    run = hj.train(config(tmp_path, epochs=1), **own)
    record = json.loads((run.folder / "config.json").read_text())["config"]
    assert record["source"] == "test_run.Pairs"
    assert record["augment"] == "test_run.noisy" and record["recipe"] == "none"
    assert record["function"] == "test_run.spread"
    z = run.encoder(IMAGES[:3])
    expected = hj.l2_normalize(NETWORK[1](run.encoder.params, IMAGES[:3] / np.float32(255)))
    np.testing.assert_allclose(z, expected, rtol=1e-5)
    drawn = []
    monkeypatch.setattr(pictures, "draw_pictures", lambda *a: drawn.append(a))
    assert run.report() == run.folder / "report.html" and run.report().is_file()
    assert drawn[0][1].augment.value is noisy and drawn[0][1].network.value is NETWORK
    saved = run.encoder.save(tmp_path / "saved")
    for place in (run.folder, saved):
        np.testing.assert_array_equal(hj.load(place, network=NETWORK)(IMAGES[:3]), z)
    for name in own:
        rest = {other: value for other, value in own.items() if other != name}
        with pytest.raises(hj.UserError, match=rf"your own {name}.*{name}=…\)"):
            hj.train(config(tmp_path, epochs=1), **rest)
    with pytest.raises(hj.UserError, match="network="):
        hj.load(run.folder)
    named = ["--name", run.folder.name, "--runs-dir", str(tmp_path)]
    with pytest.raises(hj.UserError, match="your own network and loss and augment and data"):
        hj.train(parse_pretrain(*named))


def test_a_recipe_of_ones_own(tmp_path):
    """Operations by name and as functions, in training and in evaluation."""

    def invert(key, image, *, size):
        return 1 - image

    recipe = hj.Recipe(
        train=(("center_crop", {}), (invert, {})), evaluate=(("center_crop", {}), (invert, {}))
    )
    run = hj.train(config(tmp_path, epochs=1), images=IMAGES, network=NETWORK, augment=recipe)
    found = run.encoder(IMAGES[:3])
    inverted = 1 - IMAGES[:3] / np.float32(255)
    np.testing.assert_allclose(
        found, hj.l2_normalize(NETWORK[1](run.encoder.params, inverted)), rtol=1e-5
    )
    view = augment.make_augment(recipe, 8)(jax.random.key(0), IMAGES[0])
    np.testing.assert_allclose(view, inverted[0], rtol=1e-6)
    with pytest.raises(hj.UserError, match="preprocess="):
        hj.load(run.folder, network=NETWORK)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"images": IMAGES, "data": Pairs()}, "images or data, not both"),
        ({"labels": LABELS}, "labels go with"),
        ({"loss": supervised}, "takes labels, and the images of the data have none"),
        ({"loss": "nt_xent"}, "must be a function"),
        ({"augment": "moco"}, r"PretrainConfig\(recipe=…\)"),
        ({"network": "resnet18"}, r"PretrainConfig\(model=…\)"),
        ({"config": {"epochs": 3}}, "config is a dict"),
        *[({"config": empty}, "config is a") for empty in ([], {}, 0, "", False)],
        ({"test": Pairs()}, "test goes with"),
        ({"loss": lambda x: x}, "loss="),
        ({"loss": lambda a, b, c: 0.0}, "loss="),
        ({"network": 3}, "must be a module"),
    ],
)
def test_what_does_not_fit(given, match, tmp_path):
    rest = {} if {"images", "data", "test", "labels"} & set(given) else {"images": IMAGES}
    with pytest.raises((hj.UserError, ValueError), match=match):
        hj.train(**{"config": config(tmp_path)} | rest | given)


WRONG_LOSSES = (
    *(lambda x, y: (jnp.sum(x), 1), lambda x, y: x[:, 0], lambda x, y: x[:1, 0], lambda x, y: None),
    *(lambda x, y: 3, lambda x, y: 3.0, lambda x, y: "a", lambda x, y: {"loss": jnp.sum(x)}),
    *(lambda x, y: jnp.sum(x) + 1j, lambda x, y: jnp.int32(3), lambda x: 0.0),
)
WRONG_OUTPUTS = (
    *(lambda z: None, lambda z: [z], lambda z: (z, z), lambda z: z[:, 0], lambda z: z[:, :, None]),
    *(lambda z: z[::2], lambda z: z[:1], lambda z: {"z": z}, lambda z: {"output": z, "h": [z]}),
    *(lambda z: z.astype(int), lambda z: z + 1j),
)
WRONG_VIEWS = (
    *(lambda image: image, lambda key, image, more: image, lambda key, image: None),
    *(lambda key, image: [image], lambda key, image: image[:4], lambda key, image: image[..., 0]),
    *(lambda key, image: jnp.concatenate([image, image], axis=-1), lambda key, image: image + 1j),
)


def with_output(change):
    return (NETWORK[0], lambda params, x: change(NETWORK[1](params, x)))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("loss", loss) for loss in WRONG_LOSSES),
        *(("network", with_output(change)) for change in WRONG_OUTPUTS),
        *(("augment", function) for function in WRONG_VIEWS),
        ("augment", [(lambda key, image: image, {})]),
        ("augment", [("center_crop", {"unknown": 1})]),
        ("network", (lambda key, x: None, lambda params, x: x.reshape(len(x), -1))),
        ("network", (NETWORK[0], lambda params: params)),
        ("network", (NETWORK[0], lambda params, stats, x, train: (x, stats))),
    ],
)
def test_wrong_parts_are_one_line_before_anything_is_written(name, part, tmp_path):
    own = {"images": IMAGES, "network": NETWORK, "augment": half, name: part}
    with pytest.raises(hj.UserError) as error:
        hj.train(config(tmp_path), **own)
    assert "\n" not in str(error.value) and f"{name}=" in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["loss", "network", "augment", "preprocess"])
def test_errors_in_the_users_code_keep_their_type(name, tmp_path):
    for kind in (ValueError, TypeError, AttributeError, KeyError):

        def fails(*_, kind=kind):
            raise kind("mine")

        parts = {
            "loss": lambda x, y, fails=fails: fails(),
            "network": (NETWORK[0], lambda params, x, fails=fails: fails()),
            "augment": lambda key, image, fails=fails: fails(),
            "preprocess": lambda image, fails=fails: fails(),
        }
        own = {"images": IMAGES, "network": NETWORK, "augment": half, name: parts[name]}
        with pytest.raises(kind, match="mine"):
            hj.train(config(tmp_path), **own)


def test_overwrite_starts_anew_once_all_is_checked(tmp_path):
    own = {"images": IMAGES, "network": NETWORK, "augment": half, "loss": spread}
    old = hj.train(config(tmp_path, epochs=3), **own)
    before = sorted(tmp_path.rglob("*"))
    for wrong in ({"loss": lambda x, y: x}, {"labels": [1]}, {"augment": lambda key: key}):
        with pytest.raises(hj.UserError):
            hj.train(config(tmp_path, epochs=1), overwrite=True, **own | wrong)
    with pytest.raises(hj.UserError, match="missing"):
        hj.train(config(tmp_path, epochs=1, init_from="missing"), overwrite=True, **own)
    assert sorted(tmp_path.rglob("*")) == before
    changed = config(tmp_path, epochs=1, seed=3)
    with pytest.raises(hj.UserError, match="seed: 0 -> 3"):
        hj.train(changed, **own)
    new = hj.train(changed, overwrite=True, **own)
    assert new.folder == old.folder and [record["step"] for record in new.metrics] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert len(hj.train(changed, **own).metrics) == 1  # continues: no step is left


def test_overwrite_removes_runs_alone(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    with pytest.raises(hj.UserError, match="own"):
        hj.train(config(tmp_path), images=IMAGES, network=NETWORK, overwrite=True)
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("moment", ["data", "trace", "step"])
def test_ctrl_c_raises_a_keyboard_interrupt_and_saves_during_the_steps(moment, tmp_path):
    calls = itertools.count()

    def interrupt(now):
        if now == moment:
            signal.raise_signal(signal.SIGINT)

    class Data(Pairs):
        def __getitem__(self, i):
            interrupt("data")
            return super().__getitem__(i)

    def loss(x, y):
        interrupt("trace")
        jax.debug.callback(lambda: interrupt("step") if next(calls) == 9 else None)
        return spread(x, y)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as raised:
        hj.train(config(tmp_path, epochs=50), data=Data(), network=NETWORK, loss=loss)
    assert raised.type is (hj.Stopped if moment == "step" else KeyboardInterrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    if moment == "step":
        assert hj.load(tmp_path / "own", network=NETWORK).step > 0


def test_evaluation_sees_no_label_that_trained(tmp_path):
    """Of a loss that takes labels: on the test images alone, whose labels are noise here."""
    own = {"network": NETWORK, "loss": supervised, "augment": half}
    evaluated = config(tmp_path, "own", epochs=60, eval_every_epochs=60, evaluators=("knn",))
    with pytest.raises(hj.UserError, match="trains on the training labels"):
        hj.train(evaluated, images=IMAGES, labels=LABELS, **own)
    noise = np.random.default_rng(0).integers(0, 10, 48)
    run = hj.train(evaluated, images=IMAGES, labels=LABELS, test=[IMAGES, noise], **own)
    assert run.metrics[-1]["eval/knn_top1"] < 40
    assert hj.knn_probe(run.encoder(IMAGES), LABELS, run.encoder(IMAGES), LABELS)["top1"] > 60


def test_images_and_labels_of_other_types(tmp_path):
    """Images in bfloat16, labels as strings or with gaps: the run of uint8 images and class ids."""

    def labelled(view1, view2, labels, key):
        return spread(view1["output"], view2["output"]) + jnp.mean(labels)

    names = np.array([f"class {label}" for label in range(10)])
    own = {"network": NETWORK, "loss": labelled, "augment": half}
    evaluated = {"epochs": 2, "eval_every_epochs": 2, "evaluators": ("knn",)}
    logs, tested = [], LABELS > 3  # other classes than in training
    for name, images, labels in (
        ("numbers", IMAGES, LABELS),
        ("names", jnp.asarray(IMAGES / 255, jnp.bfloat16), names[LABELS]),
        ("gaps", IMAGES, LABELS * 100_000 + 1),
    ):
        own |= {"images": images, "labels": labels, "test": (images[tested], labels[tested])}
        run = hj.train(config(tmp_path, name, **evaluated), **own)
        logs.append([(record["loss"], record.get("eval/knn_top1")) for record in run.metrics])
    assert logs[0] == logs[1] == logs[2] and logs[0][-1][1] > 30


def test_labels_of_test_images_are_class_ids_of_a_named_source(tmp_path):
    """Also where the test images lack a class; a label that is no class id is refused."""
    own = {"network": NETWORK, "loss": spread, "augment": half}
    evaluated = config(tmp_path, epochs=1, eval_every_epochs=1, evaluators=("knn",))
    named, tested = Arrays(IMAGES, LABELS, tuple("abcdefghij"), "made here"), LABELS > 3
    scores = []
    for name, test in (
        ("ids", (IMAGES[tested], LABELS[tested])),
        ("named", Arrays(IMAGES[tested], LABELS[tested], named.class_names, "made here")),
    ):
        run = hj.train(evaluated.replace(name=name), data=named, test=test, **own)
        scores.append(run.metrics[-1]["eval/knn_top1"])
    assert scores[0] == scores[1] > 30
    for wrong in (LABELS + 1, LABELS.astype(str)):
        with pytest.raises(hj.UserError, match="labels"):
            hj.train(evaluated, data=named, test=(IMAGES, wrong), **own)


@pytest.mark.parametrize(
    "options", [{"network": NETWORK, "width": 0.5}, {"function": spread, "loss": "nt_xent"}]
)
def test_options_of_this_packages_parts_exclude_ones_own(options):
    with pytest.raises(hj.UserError, match=r"width|loss"):
        hj.PretrainConfig(**options)


def test_ones_own_parts_are_recorded_by_name():
    loss = functools.partial(hj.nt_xent_loss, tau=0.1)
    record = to_dict(hj.PretrainConfig(function=loss, network=NETWORK))
    assert record["function"].endswith("nt_xent_loss(tau=0.1)")
    assert record["network"] == "test_run.<lambda>, test_run.<lambda>"
