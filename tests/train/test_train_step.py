"""The step: its objective and update by hand, and the same on any number of devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
import tiny_runs
from jax.sharding import Mesh, PartitionSpec
from points import sphere
from steps_by_hand import IMAGES, KEY, LABELS, assert_close, noisy, rows, slope, unit, views_of

from hypersphere_jax import runs, training
from hypersphere_jax.assembly import NUMBERS
from hypersphere_jax.config import ModelConfig, ObjectiveConfig, OptimizerConfig, RuntimeConfig
from hypersphere_jax.packing import ELSEWHERE, Packed
from hypersphere_jax.train_step import (
    init_state,
    make_objective,
    make_sentence_objective,
    make_sentence_step,
    make_step,
)

STEPS, RATE, BETA = 3, 0.5, 0.9
CONFIG = ObjectiveConfig(0.5, 0.3, 0.7, 1.5, 1.2, 3.0, supervised_weight=0.4)


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
    optimizer = optax.chain(optax.trace(BETA), optax.scale_by_learning_rate(RATE))
    keys = jax.random.split(jax.random.key(1))
    params = {"c": jax.random.normal(keys[0], (3, 2)), "w": jax.random.normal(keys[1], (6, 3))}
    state = init_state(params, {"mean": jnp.float32(2)}, optimizer)
    return make_step(network, telling, optimizer, noisy, axis_name=axis_name), state


@pytest.fixture(scope="module")
def alone():
    """The start; then state and metrics of each step on one device."""
    step, state = make()
    step, path = jax.jit(step), [(state, None)]
    for number in range(STEPS):
        path.append(step(path[-1][0], IMAGES, LABELS, rows(number), KEY))
    return path


def terms(x, y, logits=None, labels=None, alpha=1.5, t=3.0, tau=0.3):
    """The objective's, from the papers; logits are both views'."""
    found = {
        "align": oracles.align_oracle(x, y, alpha),
        "uniform": (oracles.uniform_oracle(x, t) + oracles.uniform_oracle(y, t)) / 2,
        "contrastive": oracles.contrastive_oracle(x, y, tau),
    }
    if logits is not None:
        entropies = [np.log(np.exp(z).sum(1)) - z[range(len(z)), labels] for z in logits]
        found["supervised"] = np.mean(entropies)
    return found


def weighed(terms, config=CONFIG):
    return sum(getattr(config, f"{name}_weight") * term for name, term in terms.items())


def test_step_by_hand(alone):
    start = alone[0][0].params
    flat = np.concatenate([np.ravel(start[name]) for name in ("c", "w")]).astype(np.float64)
    velocity, mean, drawn = np.zeros_like(flat), 2.0, set()
    for number, (state, found) in enumerate(alone[1:]):
        views = np.stack(views_of(number), axis=1)  # side by side: views of an image in one group
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
        velocity = BETA * velocity + gradient
        flat, mean = flat - RATE * velocity, (mean + views.mean()) / 2
        assert_close(np.concatenate([np.ravel(state.params[n]) for n in ("c", "w")]), flat)
        assert_close(state.stats["mean"], mean)
        # The loss draws for itself: anew each step, and nothing that a sample's view drew.
        key = jax.random.fold_in(KEY, number)
        assert not drawn & {float(jax.random.uniform(jax.random.fold_in(key, i))) for i in range(8)}
    assert int(state.step) == STEPS == len(drawn)


def test_devices_change_nothing(alone):
    step, state = make("data")
    mapped = jax.pmap(step, "data", in_axes=(None, None, None, 0, None), devices=jax.devices()[:4])
    for number, after in enumerate(alone[1:]):
        found = mapped(state, IMAGES, LABELS, rows(number).reshape(4, -1), KEY)
        each = [jax.tree.map(lambda x, i=device: np.asarray(x[i]), found) for device in range(4)]
        for one in each:
            assert_close(one, after)
        state = each[0][0]


def test_shard_map_knows_that_the_state_is_everywhere_the_same(alone):
    step, state = make("data")
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    whole, part = PartitionSpec(), PartitionSpec("data")
    specs = {"in_specs": (whole, whole, whole, part, whole), "out_specs": whole}
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, **specs))
    assert_close(mapped(state, IMAGES, LABELS, rows(0), KEY), alone[1])


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
        shapes = {"alpha": one.align_alpha, "t": one.uniform_t, "tau": one.contrastive_tau}
        expected = terms(x, y, np.float64(logits), labels, **shapes)
        mine = jax.tree.map(lambda values, i=i: values[i], found)
        np.testing.assert_allclose(mine[0], weighed(expected, one), rtol=1e-4, err_msg=str(one))
        for name, value in expected.items():
            np.testing.assert_allclose(mine[1][name], value, rtol=1e-4, err_msg=f"{name} {one}")
    _, plain = make_objective(ObjectiveConfig())({"output": x}, {"output": y}, None, None)
    assert plain.keys() == {"align", "uniform"}  # a term without weight stays out


def test_objective_of_sentences(rng):
    """Alignment and uniformity are of unit features, the contrastive loss of them as they are."""
    f, g = rng.standard_normal((2, 6, 4)).astype(np.float32)
    numbers = {"contrastive_weight": 0.6, "align_alpha": 1.2, "uniform_t": 1.5}
    config = dataclasses.replace(CONFIG, supervised_weight=0)
    made = make_sentence_objective(config, numbers)
    loss, found = jax.jit(lambda f, g: made(f, g, None))(f, g)
    expected = {
        "contrastive": oracles.quick_thought_contrastive_oracle(f, g, 0.3),
        "align": oracles.quick_thought_align_oracle(unit(f), unit(g), 1.2),
        "uniform": oracles.quick_thought_uniform_oracle(unit(f), unit(g), 1.5),
    }
    assert found.keys() == expected.keys()
    assert_close(found, expected)
    assert_close(loss, weighed(expected, dataclasses.replace(config, contrastive_weight=0.6)))


def test_step_of_sentences():
    """Of a sentence's features those count that the device made which has it, whichever it is."""
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

    def step(axis_name):
        objective = make_sentence_objective(ObjectiveConfig(contrastive_weight=0.5))
        return make_sentence_step(encoders, objective, optax.sgd(0.5), axis_name=axis_name)

    params = {"w": jax.random.normal(KEY, (10, 3))}
    state = init_state(params, {}, optax.sgd(0.5))
    expected = jax.jit(step(None))(state, one, None, None, KEY)
    mapped = jax.pmap(
        step("data"), "data", in_axes=(None, 0, None, None, None), devices=jax.devices()[:2]
    )
    found = mapped(state, many, None, None, KEY)
    for device in range(2):
        assert_close(jax.tree.map(lambda x, i=device: x[i], found), expected)
    assert expected[1]["padding"] == 5 / 16
    moved = np.any(expected[0].params["w"] != params["w"], axis=1)
    np.testing.assert_array_equal(np.flatnonzero(moved), [3, 4, 6, 7])


@pytest.mark.slow
@pytest.mark.parametrize("norm", [{}, {"batch_norm": "split", "bn_groups": 4}], ids=str)
def test_runs_on_1_2_and_4_devices_agree(norm, tmp_path):
    """24 steps of an encoder with batch norm on augmented digits."""
    found = []
    for devices in (1, 2, 4):
        made = tiny_runs.short(
            tmp_path,
            f"{devices}",
            model=ModelConfig(dim=3, width=0.1, **norm),
            objective=ObjectiveConfig(contrastive_weight=0.5, supervised_weight=0.3),
            optimizer=OptimizerConfig(epochs=4, batch_size=220),
            runtime=RuntimeConfig(devices=devices, log_every_steps=1),
        )
        found.append([record["loss"] for record in runs.read_metrics(training.train(made))])
    np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=1e-4)
    assert found[0][-1] < found[0][0] - 0.1
