"""The training step and batch norm: computed by hand, and the same on any number of devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import steps_by_hand
import tiny_runs
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from steps_by_hand import IMAGES, KEY, LABELS, OPTIMIZER, assert_close, noisy, rows, slope, unit

from hypersphere_jax import configs as C
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.training import step as train_step
from hypersphere_jax.training.objectives import make_objective
from hypersphere_jax.training.step import init_state

CONFIG = C.ObjectiveConfig(0.5, 0.3, 0.7, 1.5, 1.2, 3.0, supervised_weight=0.4)


def network(params, stats, x, train, axis_name=None):
    """Normalize over the views of each two images; statistics cover the device's part."""
    z = jnp.reshape(x, (-1, 4, 6)) @ params["w"]
    z = (z - z.mean(1, keepdims=True)).reshape(-1, 3)
    output = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    updated = {"mean": 0.5 * stats["mean"] + 0.5 * jnp.mean(x)}
    return {"output": output, "logits": z @ params["c"]}, updated if train else stats


def objective(view1, view2, labels, axis_name, key, logit_scale):
    """The objective of the config, and a number drawn from its key."""
    loss, metrics = make_objective(CONFIG)(view1, view2, labels, axis_name, key, logit_scale)
    return loss, metrics | {"drawn": jax.random.uniform(key)}


def make(axis_name=None):
    keys = jax.random.split(jax.random.key(1))
    params = {"c": jax.random.normal(keys[0], (3, 2)), "w": jax.random.normal(keys[1], (6, 3))}
    step = train_step.make_step(network, objective, OPTIMIZER, noisy, axis_name=axis_name)
    return step, init_state(params, {"mean": jnp.float32(2)}, OPTIMIZER)


@pytest.fixture(scope="module")
def one_device():
    return steps_by_hand.on_one_device(*make(), 3)


def terms(x, y, logits, labels, alpha=1.5, t=3.0, tau=0.3):
    """Return the terms of the objective, from the papers; `logits` compare both views."""
    entropies = [np.log(np.exp(z).sum(1)) - z[range(len(z)), labels] for z in logits]
    return {
        "align": oracles.align_oracle(x, y, alpha),
        "uniform": (oracles.uniform_oracle(x, t) + oracles.uniform_oracle(y, t)) / 2,
        "contrastive": oracles.contrastive_oracle(x, y, tau),
        "supervised": np.mean(entropies),
    }


def weighted_sum(terms, config=CONFIG):
    return sum(getattr(config, f"{name}_weight") * term for name, term in terms.items())


def terms_by_hand(flat, number):
    """Return the terms of a step; `flat` contains the classifier, then the weights."""
    classifier = flat[:6].reshape(3, 2)
    weights = flat[6:].reshape(6, 3)
    views = steps_by_hand.views_of(number).swapaxes(0, 1)  # both views of an image in one group
    z = views.reshape(-1, 4, 6) @ weights
    z = (z - z.mean(1, keepdims=True)).reshape(-1, 3)
    first = z[0::2]
    second = z[1::2]
    logits = [first @ classifier, second @ classifier]
    return terms(unit(first), unit(second), logits, LABELS[rows(number)])


def flatten(params):
    return np.concatenate([np.ravel(params[name]) for name in ("c", "w")])


def test_step_is_gradient_descent_by_hand(one_device):
    flat = np.float64(flatten(one_device[0][0].params))
    velocity = 0
    mean = 2.0
    for number, (state, metrics) in enumerate(one_device[1:]):
        gradient = slope(lambda at, n=number: weighted_sum(terms_by_hand(at, n)), flat)
        expected = terms_by_hand(flat, number)
        expected |= {"loss": weighted_sum(expected), "grad_norm": np.linalg.norm(gradient)}
        assert_close({name: metrics[name] for name in expected}, expected)
        velocity = steps_by_hand.BETA * velocity + gradient
        flat = flat - steps_by_hand.RATE * velocity
        mean = (mean + steps_by_hand.views_of(number).mean()) / 2
        assert_close([flatten(state.params), state.stats["mean"]], [flat, mean])
        assert int(state.step) == number + 1


def test_loss_draws_anew_in_each_step_and_unlike_the_views(one_device):
    drawn = {float(metrics["drawn"]) for _, metrics in one_device[1:]}
    assert len(drawn) == 3
    for number in range(3):
        key = jax.random.fold_in(KEY, number)
        assert not drawn & {float(jax.random.uniform(jax.random.fold_in(key, i))) for i in range(8)}


@tiny_runs.needs_devices(4)
def test_step_under_pmap_equals_one_device(one_device):
    step, state = make("data")
    mapped = jax.pmap(step, "data", in_axes=(None, None, None, 0, None), devices=jax.devices()[:4])
    for number, after in enumerate(one_device[1:]):
        on_devices = mapped(state, IMAGES, LABELS, rows(number).reshape(4, -1), KEY)
        for device in range(4):
            result = jax.tree.map(lambda x, i=device: np.asarray(x[i]), on_devices)
            assert_close(result, after)
        state = result[0]


@pytest.mark.slow
@tiny_runs.needs_devices(4)
def test_step_under_shard_map_equals_one_device(one_device):
    step, state = make("data")
    whole = PartitionSpec()
    in_specs = (whole, whole, whole, PartitionSpec("data"), whole)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=whole))
    assert_close(mapped(state, IMAGES, LABELS, rows(0), KEY), one_device[1])


SCALE = np.float32([1.5, -0.5, 2.0])
BIAS = np.float32([0.1, 0.2, -0.3])


def samples(rng, n=16):
    """Return `[n, 2, 3]`, each sample of another distribution."""
    scale = 1 + rng.random((n, 1, 1))
    return (scale * rng.standard_normal((n, 2, 3)) + 3 * scale).astype(np.float32)


def batch_norm(x, *, groups=1, axis_name=None, train=True, relu=False):
    """Return output and running statistics, initially (1, 1, 1) and (4, 4, 4)."""
    norm = BatchNorm(3, groups=groups, axis_name=axis_name)
    norm.scale = nnx.Param(jnp.array(SCALE))
    norm.bias = nnx.Param(jnp.array(BIAS))
    norm.mean = nnx.BatchStat(jnp.ones(3))
    norm.var = nnx.BatchStat(4 * jnp.ones(3))
    return norm(x, train, relu=relu), norm.mean[...], norm.var[...]


def batch_norm_by_hand(x, groups):
    wide = np.float64(x).reshape(groups, -1, 2, 3)
    mean = wide.mean(axis=(1, 2), keepdims=True)
    var = wide.var(axis=(1, 2), keepdims=True)
    normalized = ((wide - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * SCALE + BIAS
    return normalized, 0.9 + 0.1 * mean.mean((0, 1, 2)), 3.6 + 0.1 * var.mean((0, 1, 2))


def test_batch_norm_of_groups(rng):
    x = samples(rng)
    grouped = jax.jit(functools.partial(batch_norm, groups=4))
    assert_close(grouped(x), batch_norm_by_hand(x, 4))
    # A large mean: E[x^2] - E[x]^2 would cancel, also if the first sample is far from the others.
    flat = (1000 + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    np.testing.assert_allclose(grouped(flat)[0], batch_norm_by_hand(flat, 4)[0], atol=0.02)
    flat[::4] -= 500
    np.testing.assert_allclose(grouped(flat)[0], batch_norm_by_hand(flat, 4)[0], atol=1e-4)
    # In evaluation there are no groups, and the running statistics stay.
    evaluated = jax.jit(functools.partial(batch_norm, groups=4, train=False))(x)
    expected = (np.float64(x) - 1) / np.sqrt(4 + 1e-5) * SCALE + BIAS
    assert_close(evaluated, (expected, np.ones(3), 4 * np.ones(3)))


@tiny_runs.needs_devices(4)
def test_batch_norm_over_devices_and_with_relu(rng):
    """Outputs and gradients equal the whole batch with an axis, and groups without one."""
    x = samples(rng)
    weights = rng.standard_normal(x.shape).astype(np.float32)

    def part(x, weights, relu=True, **options):
        def loss(x):
            output, *stats = batch_norm(x, relu=relu, **options)
            output = jnp.maximum(output, 0)
            return jnp.sum(output * weights), (output, stats)

        gradient, (output, stats) = jax.grad(loss, has_aux=True)(x)
        return output, gradient, stats

    split = [array.reshape(4, 4, 2, 3) for array in (x, weights)]
    for axis_name, groups in (("data", 1), (None, 4)):
        one = jax.jit(functools.partial(part, groups=groups, relu=False))(x, weights)
        on_device = functools.partial(part, axis_name=axis_name)
        *arrays, stats = jax.pmap(on_device, "data", devices=jax.devices()[:4])(*split)
        arrays = [array.reshape(x.shape) for array in arrays]
        assert_close((*arrays, [stat.mean(axis=0) for stat in stats]), one)

    def relu_sum(x):
        return np.sum(np.maximum(batch_norm_by_hand(x, 4)[0], 0) * weights)

    direction = rng.standard_normal(x.shape)
    quotient = oracles.numeric_slope(relu_sum, [x], [direction])
    np.testing.assert_allclose(np.vdot(one[1], direction), quotient, rtol=1e-3)
