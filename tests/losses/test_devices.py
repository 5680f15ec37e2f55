"""Losses over devices: the value and gradients of one device, in every form of sharding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from loss_cases import CASES, LABELS, D, N, inputs

import hypersphere_jax as hj

DEVICES = 4
EVERYWHERE = PartitionSpec()
KEY = jax.random.key(3)
pytestmark = pytest.mark.skipif(jax.device_count() < DEVICES, reason="needs four devices")


def make_mesh(shape, names, kind=AxisType.Auto):
    return jax.make_mesh(shape, names, (kind,) * len(shape), devices=jax.devices()[:DEVICES])


def differentiate(loss, **options):
    """`batch, replicated, rows -> value, gradients of batch and replicated arrays`."""

    def call(batch, replicated, rows):
        return loss(*batch, *replicated, **rows, **options)

    return jax.value_and_grad(call, (0, 1))


def by_pmap(loss, batch, replicated, rows, **options):
    """Each device differentiates the global value, so that gradients are sums over devices."""
    step = differentiate(loss, axis_name="data", **options)
    step = jax.pmap(step, "data", devices=jax.devices()[:DEVICES])
    batch, rows = jax.tree.map(lambda a: a.reshape(DEVICES, -1, *a.shape[1:]), (batch, rows))
    replicated = [np.stack([array] * DEVICES) for array in replicated]
    values, (slopes, replicated_slopes) = step(batch, replicated, rows)
    assert (values == values[0]).all()
    slopes = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]) / DEVICES, slopes)
    return values[0], (slopes, [a.sum(0) / DEVICES for a in replicated_slopes])


def by_shard_map(loss, *arguments, **options):
    """Use both axes of a mesh; types say what varies over devices."""
    split = PartitionSpec(("a", "b"))

    def call(batch, replicated, rows):
        return loss(*batch, *replicated, **rows, axis_name=("a", "b"), **options)

    mapped = jax.shard_map(
        call,
        mesh=make_mesh((2, 2), ("a", "b")),
        in_specs=(split, EVERYWHERE, split),
        out_specs=EVERYWHERE,
    )
    return jax.jit(jax.value_and_grad(mapped, (0, 1)))(*arguments)


def on_mesh(loss, batch, replicated, rows, kind=AxisType.Explicit, **options):
    """Use global arrays, whose types show their sharding along `Explicit` axes only."""
    mesh = make_mesh((DEVICES,), ("data",), kind)
    batch, rows = jax.device_put((batch, rows), NamedSharding(mesh, PartitionSpec("data")))
    replicated = jax.device_put(replicated, NamedSharding(mesh, EVERYWHERE))
    with jax.set_mesh(mesh):
        found = jax.jit(differentiate(loss, **options))(batch, replicated, rows)
        assert found[0].sharding.is_fully_replicated
        return jax.device_get(found)


FORMS = {
    "pmap": by_pmap,
    "pmap ring": functools.partial(by_pmap, ring=True, block_size=2),
    "shard_map": by_shard_map,
    "shard_map ring": functools.partial(by_shard_map, ring=True),
    "explicit mesh": on_mesh,
    "auto mesh": functools.partial(on_mesh, kind=AxisType.Auto, mesh_axis="data"),
}
FAST = {
    ("align", "pmap"),
    ("uniform", "explicit mesh"),
    ("contrastive", "auto mesh"),
    ("contrastive", "pmap ring"),
    ("nt_xent", "shard_map ring"),
    ("info_nce", "pmap"),
    ("queue and batch", "shard_map"),
    ("sliced_wasserstein", "pmap"),
    ("quick_thought_contrastive", "pmap"),
    ("align masked", "explicit mesh"),
    ("supervised masked", "pmap"),
}


SLOW = {
    *((name, "pmap") for name in CASES if "," not in name),
    *(
        (name, form)
        for name in ("uniform masked", "contrastive", "nt_xent masked")
        for form in FORMS
    ),
} - FAST


@pytest.mark.parametrize(
    ("name", "form"),
    [*sorted(FAST), *(pytest.param(*case, marks=pytest.mark.slow) for case in sorted(SLOW))],
)
def test_devices_share_one_batch(name, form, rng):
    """One device has logits whose exponentials underflow. With a mask it has masked points only."""
    case = CASES[name.removesuffix(" masked")]
    loss = functools.partial(case.loss, **case.numbers[0])
    rows = {}
    if "masked" in name:
        mask = (np.arange(N) % 5 != 2) & (np.arange(N) < N - 3)
        weights = np.where(mask, rng.uniform(0.5, 2.0, N), np.nan)
        rows = {"mask": mask, "weights": np.float32(weights)}
    if "supervised" in name:
        loss = functools.partial(case.loss.func, **case.numbers[0])
        rows["labels"] = LABELS
    arrays = inputs(rng, case.shapes)
    if "t" in case.numbers[0]:
        arrays[0][-N // DEVICES :] *= 6
    batch = arrays[: case.shapes.count("n")]
    assert_devices_change_nothing(form, loss, batch, arrays[len(batch) :], rows)


def assert_devices_change_nothing(form, loss, *arguments):
    expected = jax.jit(differentiate(loss))(*arguments)
    found = FORMS[form](loss, *arguments)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    compare = functools.partial(np.testing.assert_allclose, rtol=3e-4, atol=3e-6)
    jax.tree.map(compare, found[1], expected[1])


@pytest.mark.parametrize("name", ["uniform", "dcl", "balanced", "logsumexp"])
def test_one_pair_per_device_is_enough(name, rng):
    case = CASES[name]
    arrays = inputs(rng, case.shapes, n=DEVICES)
    loss = functools.partial(case.loss, **case.numbers[0], axis_name="data")
    mapped = jax.pmap(loss, "data", devices=jax.devices()[:DEVICES])
    found = mapped(*(array[:, None] for array in arrays))
    np.testing.assert_allclose(found, [case.oracle(*arrays, **case.numbers[0])] * DEVICES, 1e-5)


RANDOM = {
    "generalized": functools.partial(hj.generalized_contrastive_loss, prior="normal"),
    "lejepa": functools.partial(hj.lejepa_loss, num_slices=6),
    "visreg": functools.partial(hj.visreg_loss, num_slices=6),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("form", ["pmap", pytest.param("shard_map", marks=pytest.mark.slow)])
def test_devices_draw_the_same_samples_and_directions(name, form, rng):
    def loss(z1, z2, **options):
        return RANDOM[name](KEY, z1, z2, **options)

    assert_devices_change_nothing(form, loss, inputs(rng, "nn"), [], {})


def test_axes_that_do_not_fit_are_refused():
    x = jnp.ones((21, D))
    with pytest.raises(ValueError, match="mesh_axis"):
        hj.uniform_loss(x, mesh_axis="data")
    with pytest.raises(ValueError, match="mesh_axis"):
        hj.uniform_loss(x, axis_name="data", mesh_axis="data")
    with jax.set_mesh(make_mesh((DEVICES,), ("data",))):
        with pytest.raises(ValueError, match="model"):
            hj.uniform_loss(x, mesh_axis="model")
        with pytest.raises(ValueError, match=r"\(21, 5\)"):
            hj.uniform_loss(x, mesh_axis="data")
