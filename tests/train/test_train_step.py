"""The step: its objective and update by hand, and the same on any number of devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import steps_by_hand
import tiny_runs
from jax.sharding import Mesh, PartitionSpec
from points import sphere
from steps_by_hand import IMAGES, KEY, LABELS, OPTIMIZER, assert_close, noisy, rows, slope, unit

from hypersphere_jax import config as C
from hypersphere_jax import runs, train_step, training
from hypersphere_jax.assembly import NUMBERS
from hypersphere_jax.packing import ELSEWHERE, Packed
from hypersphere_jax.train_step import init_state, make_objective, make_sentence_objective

CONFIG = C.ObjectiveConfig(0.5, 0.3, 0.7, 1.5, 1.2, 3.0, supervised_weight=0.4)


def network(params, stats, x, train, axis_name=None):
    """Its norm takes the mean of each two images' views, its statistics are of its own part."""
    z = jnp.reshape(x, (-1, 4, 6)) @ params["w"]
    z = (z - z.mean(1, keepdims=True)).reshape(-1, 3)
    output = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    moved = {"mean": 0.5 * stats["mean"] + 0.5 * jnp.mean(x)}
    return {"output": output, "logits": z @ params["c"]}, moved if train else stats


def telling(view1, view2, labels, axis_name, key):
    """The objective, and a number that is drawn from its key."""
    loss, metrics = make_objective(CONFIG)(view1, view2, labels, axis_name, key)
    return loss, metrics | {"drawn": jax.random.uniform(key)}


def make(axis_name=None):
    keys = jax.random.split(jax.random.key(1))
    params = {"c": jax.random.normal(keys[0], (3, 2)), "w": jax.random.normal(keys[1], (6, 3))}
    step = train_step.make_step(network, telling, OPTIMIZER, noisy, axis_name=axis_name)
    return step, init_state(params, {"mean": jnp.float32(2)}, OPTIMIZER)


@pytest.fixture(scope="module")
def alone():
    return steps_by_hand.on_one_device(*make(), 3)


def terms(x, y, logits, labels, alpha=1.5, t=3.0, tau=0.3):
    """The objective's, from the papers; logits are both views'."""
    entropies = [np.log(np.exp(z).sum(1)) - z[range(len(z)), labels] for z in logits]
    return {
        "align": oracles.align_oracle(x, y, alpha),
        "uniform": (oracles.uniform_oracle(x, t) + oracles.uniform_oracle(y, t)) / 2,
        "contrastive": oracles.contrastive_oracle(x, y, tau),
        "supervised": np.mean(entropies),
    }


def weighed(terms, config=CONFIG):
    return sum(getattr(config, f"{name}_weight") * term for name, term in terms.items())


def test_step_by_hand(alone):
    def flatten(params):
        return np.concatenate([np.ravel(params[name]) for name in ("c", "w")])

    flat, velocity, mean, drawn = np.float64(flatten(alone[0][0].params)), 0, 2.0, set()
    for number, (state, found) in enumerate(alone[1:]):
        views = steps_by_hand.views_of(number).swapaxes(0, 1)  # an image's views in one group
        labels = LABELS[rows(number)]

        def its_terms(flat, views=views, labels=labels):
            c, w = flat[:6].reshape(3, 2), flat[6:].reshape(6, 3)
            z = views.reshape(-1, 4, 6) @ w
            z = (z - z.mean(1, keepdims=True)).reshape(-1, 3)
            first, second = z[0::2], z[1::2]
            return terms(unit(first), unit(second), [first @ c, second @ c], labels)

        gradient = slope(lambda flat: weighed(its_terms(flat)), flat)
        expected = its_terms(flat)
        expected |= {"loss": weighed(expected), "grad_norm": np.linalg.norm(gradient)}
        drawn.add(float(found["drawn"]))
        assert_close(found, expected | {"drawn": found["drawn"]})
        velocity = steps_by_hand.BETA * velocity + gradient
        flat, mean = flat - steps_by_hand.RATE * velocity, (mean + views.mean()) / 2
        assert_close([flatten(state.params), state.stats["mean"]], [flat, mean])
        # The loss draws for itself: anew each step, and nothing that a sample's view drew.
        key = jax.random.fold_in(KEY, number)
        assert not drawn & {float(jax.random.uniform(jax.random.fold_in(key, i))) for i in range(8)}
    assert int(state.step) == 3 == len(drawn)


def test_devices_change_nothing(alone):
    step, state = make("data")
    mapped = jax.pmap(step, "data", in_axes=(None, None, None, 0, None), devices=jax.devices()[:4])
    for number, after in enumerate(alone[1:]):
        found = mapped(state, IMAGES, LABELS, rows(number).reshape(4, -1), KEY)
        for device in range(4):
            one = jax.tree.map(lambda x, i=device: np.asarray(x[i]), found)
            assert_close(one, after)
        state = one[0]
    # `shard_map` knows that the state is everywhere the same.
    whole, part = PartitionSpec(), PartitionSpec("data")
    specs = {"in_specs": (whole, whole, whole, part, whole), "out_specs": whole}
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, **specs))
    assert_close(mapped(alone[0][0], IMAGES, LABELS, rows(0), KEY), alone[1])


def test_numbers_as_arguments(rng):
    """Of encoders that train together: each number of a weighted sum takes the config's place."""
    x, y = sphere(rng, 12, 4).reshape(2, 6, 4)
    logits, labels = rng.standard_normal((2, 6, 3)).astype(np.float32), np.arange(6) % 3
    names = [name for name in NUMBERS["objective"] if not name.startswith("loss_")]
    asked = [CONFIG] + [dataclasses.replace(CONFIG, **{name: 2.2}) for name in names]
    numbers = {name: np.float32([getattr(one, name) for one in asked]) for name in names}

    @jax.jit
    @jax.vmap
    def together(numbers):
        views = ({"output": z, "logits": of} for z, of in zip((x, y), logits, strict=True))
        return make_objective(CONFIG, numbers)(*views, labels, None)

    found = together(numbers)
    for i, one in enumerate(asked):
        shapes = one.align_alpha, one.uniform_t, one.contrastive_tau
        expected = terms(x, y, np.float64(logits), labels, *shapes)
        mine = jax.tree.map(lambda values, i=i: values[i], found)
        assert_close(mine, (weighed(expected, one), expected))
    _, plain = make_objective(C.ObjectiveConfig())({"output": x}, {"output": y}, None, None)
    assert plain.keys() == {"align", "uniform"}  # a term without weight stays out


def test_step_of_sentences():
    """Alignment and uniformity are of unit features, the contrastive loss of them as they are.

    Of a sentence's features those count that the device made which has it, whichever it is.
    """
    words = np.array([[5, 6, 1, 0], [7, 1, 0, 0], [8, 9, 3, 1], [4, 1, 0, 0]])
    last = np.array([2, 1, 3, 1])  # the places of 1, the end
    has = np.array([[0, 3], [1, 2]])  # of two devices
    parts = np.full((2, 4), ELSEWHERE)
    for device, rows_here in enumerate(has):
        parts[device, rows_here] = [last[row] + 4 * i for i, row in enumerate(rows_here)]
    many, one = Packed(words[has], parts, parts), Packed(words, *[last + 4 * np.arange(4)] * 2)

    def encoders(params, stats, sentences, train, axis_name):
        features = params["w"][jnp.ravel(sentences.words)[sentences.last - 1]]
        return {"f": features, "g": features[:, ::-1]}, stats

    config = dataclasses.replace(CONFIG, supervised_weight=0)
    numbers = {"contrastive_weight": 0.6, "align_alpha": 1.2, "uniform_t": 1.5}
    objective = make_sentence_objective(config, numbers)
    make_sentence_step = train_step.make_sentence_step
    step = functools.partial(make_sentence_step, encoders, objective, OPTIMIZER)
    params = {"w": jax.random.normal(KEY, (10, 3))}
    state = init_state(params, {}, OPTIMIZER)
    expected = jax.jit(step(axis_name=None))(state, one, None, None, KEY)
    axes = {"in_axes": (None, 0, None, None, None), "devices": jax.devices()[:2]}
    found = jax.pmap(step(axis_name="data"), "data", **axes)(state, many, None, None, KEY)
    for device in range(2):
        assert_close(jax.tree.map(lambda x, i=device: x[i], found), expected)
    f = np.array(params["w"])[[6, 7, 3, 4]]
    g = f[:, ::-1]
    losses = {
        "contrastive": oracles.quick_thought_contrastive_oracle(f, g, 0.3),
        "align": oracles.quick_thought_align_oracle(unit(f), unit(g), 1.2),
        "uniform": oracles.quick_thought_uniform_oracle(unit(f), unit(g), 1.5),
    }
    loss = weighed(losses, dataclasses.replace(config, contrastive_weight=0.6))
    others = {"padding": 5 / 16, "grad_norm": expected[1]["grad_norm"]}
    assert_close(expected[1], losses | others | {"loss": loss})
    moved = np.any(expected[0].params["w"] != params["w"], axis=1)
    np.testing.assert_array_equal(np.flatnonzero(moved), [3, 4, 6, 7])


@pytest.mark.slow
@pytest.mark.parametrize("norm", [{}, {"batch_norm": "split", "bn_groups": 4}], ids=str)
def test_runs_on_1_2_and_4_devices_agree(norm, tmp_path):
    """24 steps of an encoder with batch norm on augmented digits."""
    found, parts = [], {"model": C.ModelConfig(dim=3, width=0.1, **norm)}
    parts["objective"] = C.ObjectiveConfig(contrastive_weight=0.5, supervised_weight=0.3)
    parts["optimizer"] = C.OptimizerConfig(epochs=4, batch_size=220)
    for devices in (1, 2, 4):
        runtime = C.RuntimeConfig(devices=devices, log_every_steps=1)
        folder = training.train(tiny_runs.short(tmp_path, f"{devices}", runtime=runtime, **parts))
        found.append([record["loss"] for record in runs.read_metrics(folder)])
    np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=1e-4)
    assert found[0][-1] < found[0][0] - 0.1
