"""The step: its objective, update and batch norm by hand, the same on any number of devices."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import steps_by_hand
import tiny_runs
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from points import sphere
from steps_by_hand import IMAGES, KEY, LABELS, OPTIMIZER, assert_close, noisy, rows, slope, unit

from hypersphere_jax import configs as C
from hypersphere_jax import models
from hypersphere_jax.configs.objective import WEIGHTS
from hypersphere_jax.models import ops
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.training import step as train_step
from hypersphere_jax.training import train as training
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.objectives import make_objective
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import init_state

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


@pytest.mark.slow
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


def test_scalars_as_arguments(rng):
    """As of vmapped runs: each scalar of a weighted sum takes the config's place."""
    x, y = sphere(rng, 12, 4).reshape(2, 6, 4)
    logits, labels = rng.standard_normal((2, 6, 3)).astype(np.float32), np.arange(6) % 3
    names = ["align_alpha", "uniform_t", "contrastive_tau", *WEIGHTS]
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


# Batch norm of groups, of devices and of the global batch, against NumPy and each other.

SCALE, BIAS = np.float32([1.5, -0.5, 2.0]), np.float32([0.1, 0.2, -0.3])


def samples(rng, n=16):
    """`[n, 2, 3]`, no two of one distribution, so that statistics of other groups are others."""
    scale = 1 + rng.random((n, 1, 1))
    return (scale * rng.standard_normal((n, 2, 3)) + 3 * scale).astype(np.float32)


def layer(x, *, groups=1, axis_name=None, train=True):
    """Output and running statistics, which begin at (1, 1, 1) and (4, 4, 4)."""
    norm = BatchNorm(3, groups=groups, axis_name=axis_name)
    norm.scale, norm.bias = nnx.Param(jnp.array(SCALE)), nnx.Param(jnp.array(BIAS))
    norm.mean, norm.var = nnx.BatchStat(jnp.ones(3)), nnx.BatchStat(4 * jnp.ones(3))
    return norm(x, train), norm.mean[...], norm.var[...]


def by_hand(x, groups):
    wide = np.float64(x).reshape(groups, -1, 2, 3)
    mean, var = (f(wide, axis=(1, 2), keepdims=True) for f in (np.mean, np.var))
    normed = ((wide - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * SCALE + BIAS
    return normed, 0.9 + 0.1 * mean.mean((0, 1, 2)), 3.6 + 0.1 * var.mean((0, 1, 2))


def test_groups_have_statistics_of_their_own(rng):
    x, split = samples(rng), jax.jit(functools.partial(layer, groups=4))
    assert_close(split(x), by_hand(x, 4))
    # Channels that hardly vary about a large mean: E[x^2] - E[x]^2 would cancel.
    flat = (1000 + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    np.testing.assert_allclose(split(flat)[0], by_hand(flat, 4)[0], atol=0.02)
    # The first sample, around which the squares are, may be far from the others.
    flat[::4] -= 500
    np.testing.assert_allclose(split(flat)[0], by_hand(flat, 4)[0], atol=1e-4)
    # Statistics are float32's, whatever comes; the output is as wide as what came.
    half = jnp.asarray(x, jnp.bfloat16)
    (found, *running), (expected, *statistics) = split(half), by_hand(np.float32(half), 4)
    assert found.dtype == jnp.bfloat16 and running[0].dtype == jnp.float32
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.02)
    assert_close(running, statistics)
    # In evaluation there are no groups, and the running statistics stay.
    expected = (np.float64(x[:3]) - 1) / np.sqrt(4 + 1e-5) * SCALE + BIAS
    found = jax.jit(functools.partial(layer, groups=4, train=False))(x[:3])
    assert_close(found, (expected, np.ones(3), 4 * np.ones(3)))


def test_devices_are_groups_or_one_batch(rng):
    """Value and gradient: with the axis as of the whole batch, without as of groups."""
    x, weights = samples(rng), rng.standard_normal((16, 2, 3)).astype(np.float32)

    def part(axis_name, x, weights, groups=1):
        def loss(x):
            output, *stats = layer(x, groups=groups, axis_name=axis_name)
            return jnp.sum(output * weights), (output, stats)

        slope, (output, stats) = jax.grad(loss, has_aux=True)(x)
        return output, slope, stats

    for axis_name, groups in (("data", 1), (None, 4)):
        alone = jax.jit(functools.partial(part, None, groups=groups))(x, weights)
        mapped = jax.pmap(functools.partial(part, axis_name), "data", devices=jax.devices()[:4])
        *found, stats = mapped(x.reshape(4, 4, 2, 3), weights.reshape(4, 4, 2, 3))
        found = [one.reshape(x.shape) for one in found]
        assert_close((*found, [stat.mean(axis=0) for stat in stats]), alone)
    # And of groups as by a difference quotient in float64.
    along = rng.standard_normal(x.shape)
    quotient = oracles.numeric_slope(lambda x: np.sum(by_hand(x, 4)[0] * weights), [x], [along])
    np.testing.assert_allclose(np.vdot(alone[1], along), quotient, rtol=1e-3)


def test_batch_norm_with_relu(rng, monkeypatch):
    """Value and gradients as of ReLU after it, and in the form that GPUs take."""
    x, weights = samples(rng), rng.standard_normal((16, 2, 3)).astype(np.float32)

    def of(relu, x, scale, bias):
        norm = BatchNorm(3, groups=2)
        norm.scale, norm.bias = nnx.Param(scale), nnx.Param(bias)
        y = norm(x, True, relu=True) if relu else jnp.maximum(norm(x, True), 0)
        return jnp.sum(y * weights)

    def gradients(relu):
        return jax.value_and_grad(functools.partial(of, relu), argnums=(0, 1, 2))(x, SCALE, BIAS)

    expected = gradients(relu=False)
    assert_close(gradients(relu=True), expected)
    on_gpus = lambda *inputs, cuda, default: cuda(*inputs)  # noqa: E731
    monkeypatch.setattr(ops, "on_cpu", lambda: False)
    monkeypatch.setattr(jax.lax, "platform_dependent", on_gpus)
    assert_close(gradients(relu=True), expected)


@pytest.mark.slow
def test_the_config_says_over_what(rng):
    """Outputs and averaged statistics of a CNN on so many devices."""
    x = samples(rng, 8 * 32).reshape(8, 8, 8, -1)[..., :1]
    plain = C.ModelConfig(image_size=8, in_channels=1, width=0.1, dim=3)
    _, params, stats = models.create(plain, jax.random.key(0))

    def on_devices(batch_norm, devices, **options):
        config = dataclasses.replace(plain, batch_norm=batch_norm, **options)
        part = functools.partial(models.abstract(config)[0], params, stats)
        mapped = jax.pmap(lambda x: part(x, True, "data"), "data", devices=jax.devices()[:devices])
        outputs, new = mapped(x.reshape(devices, -1, 8, 8, 1))
        return np.reshape(outputs["output"], (8, 3)), jax.tree.map(lambda a: a.mean(0), new)

    sync, split = on_devices("sync", 1), on_devices("split", 1, bn_groups=4)
    assert_close(on_devices("sync", 2), sync)
    assert_close(on_devices("split", 2, bn_groups=4), split)
    assert_close(on_devices("local", 4), split)
    assert np.abs(sync[0] - split[0]).max() > 0.01
    with pytest.raises(C.UserError, match="bn_groups=4 does not divide over 8 devices"):
        on_devices("split", 8, bn_groups=4)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [{"batch_norm": "split", "bn_groups": 4}], ids=str)
def test_runs_on_1_2_and_4_devices_agree(norm, tmp_path):
    """Of an encoder with batch norm on augmented digits."""
    found, parts = [], {"dim": 3, "width": 0.1, **norm}
    parts["objective"] = C.ObjectiveConfig(contrastive_weight=0.5, supervised_weight=0.3)
    for devices in (1, 2, 4):
        runtime = C.RuntimeConfig(devices=devices, log_every_steps=1)
        folder = training.train(tiny_runs.short(tmp_path, f"{devices}", runtime=runtime, **parts))
        found.append([record["loss"] for record in read_metrics(folder)])
    np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=1e-4)
    assert found[0][-1] < found[0][0] - 0.1


@pytest.mark.parametrize("asked", [None, "high", "highest"])
def test_precision_of_the_products_of_a_step(asked):
    """The network's have what is asked for, in both directions; those of the loss their own."""
    config = C.PretrainConfig(
        dim=3,
        width=0.1,
        image_size=8,
        in_channels=1,
        recipe="digits",
        matmul_precision=asked,
    )
    apply, params, stats = models.abstract(config)
    optimizer = make_optimizer(config, make_schedule(config, 10))
    state = jax.eval_shape(functools.partial(init_state, optimizer=optimizer), params, stats)
    step = train_step.make_step_of(config, apply, 10, axis_name=None)
    images, labels = jnp.zeros((6, 8, 8, 1), jnp.uint8), jnp.zeros(6, jnp.int32)
    arguments = state, images, labels, jnp.arange(4), KEY, train_step.scalars_of(config)
    text = str(jax.make_jaxpr(step)(*arguments))
    found = re.findall(r"precision=\(Precision.(\w+), Precision.\w+\)", text)
    assert set(found) == {"HIGHEST"} | ({asked.upper()} if asked else set())
    assert (len(found) == text.count("dot_general[")) == bool(asked)
