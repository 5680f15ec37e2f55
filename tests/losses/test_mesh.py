"""Losses of global arrays: the values and the communication of the mapped form; and exported."""

import collections
import functools
import re

import jax
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from loss_cases import CASES, ONE_FORM, gradients, inputs, value

import hypersphere_jax as hj

FAST = ["uniform", "contrastive", "sliced_wasserstein"]
names = pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in ONE_FORM if n not in FAST)]
)


def collectives(program) -> dict[str, int]:
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return collections.Counter(re.findall(rf" ({kinds})(?:-start)?\(", program.compile().as_text()))


def on_devices(mesh, shapes, arrays):
    specs = [P("data") if s == "n" else P() for s in shapes]
    pairs = zip(arrays, specs, strict=True)
    return [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in pairs]


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        *((name, 4) for name in FAST),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in ONE_FORM if name not in FAST),
        *(pytest.param("contrastive", n, marks=pytest.mark.slow) for n in (1, 8)),
    ],
)
def test_on_a_mesh_as_under_pmap(name, devices, rng):
    """Sharding in types, or along a named axis: value, gradients, and communication."""
    loss, _, shapes, (numbers, *_) = CASES[name]
    arrays = inputs(rng, shapes, n=24)
    spread = tuple(i for i, s in enumerate(shapes) if s == "n")
    expected = gradients(name, arrays, **numbers)[0], gradients(name, arrays, **numbers)[1][0]

    def program(**options):
        call = functools.partial(loss, **numbers, **options)
        return jax.value_and_grad(lambda arrays: call(*arrays))

    parts = [a.reshape(devices, -1, a.shape[1]) if s == "n" else a
             for a, s in zip(arrays, shapes, strict=True)]  # fmt: skip
    axes = ([0 if i in spread else None for i in range(len(arrays))],)
    mapped = jax.pmap(program(axis_name="data"), "data", in_axes=axes,
                      devices=jax.devices()[:devices]).lower(parts)  # fmt: skip
    for kind, options in ((AxisType.Explicit, {}), (AxisType.Auto, {"mesh_axis": "data"})):
        mesh = jax.make_mesh((devices,), ("data",), (kind,), devices=jax.devices()[:devices])
        placed = on_devices(mesh, shapes, arrays)
        with jax.set_mesh(mesh):
            step = jax.jit(program(**options))
            found, slopes = step(placed)
            np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-6)
            assert found.sharding.is_fully_replicated
            for i in spread:
                np.testing.assert_allclose(slopes[i], expected[1][i], rtol=1e-4, atol=2e-6)
                assert slopes[i].sharding.spec[0] == "data"
            counted = collectives(step.lower(placed))
        for what, count in collectives(mapped).items():
            # One sum more says that the value is the same on every device.
            assert counted.pop(what, 0) <= count + (what == "all-reduce"), what
        assert counted["all-reduce"] <= 1 and set(counted) <= {"all-reduce"}


@pytest.mark.slow
def test_other_places_of_arrays(rng):
    """Along two axes, along features, replicated; outside of `jit`; numbers that are traced."""
    x, y = inputs(rng, "nn", n=24, d=6)
    expected = hj.contrastive_loss(x, y)
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    for spec in (P("data", "model"), P(("data", "model")), P(None, "model"), P("model")):
        sides = [jax.device_put(side, NamedSharding(mesh, spec)) for side in (x, y)]
        np.testing.assert_allclose(hj.contrastive_loss(*sides), expected, rtol=1e-5)
    with jax.set_mesh(mesh):
        slope = jax.grad(lambda tau: hj.contrastive_loss(*sides, tau))(0.5)
        np.testing.assert_allclose(slope, jax.grad(hj.contrastive_loss, 2)(x, y, 0.5), rtol=1e-4)
        with pytest.raises(ValueError, match=r"\(24, 6\).*\(3, 6\)"):
            hj.contrastive_loss(sides[0], y[:3])
    auto = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])
    with jax.set_mesh(auto):
        for given, match in (
            ((x[:21], y[:21], "data"), "does not divide over the 4"),
            ((x, y, "model"), "is not in the mesh"),
        ):
            with pytest.raises(ValueError, match=match):
                hj.contrastive_loss(*given[:2], mesh_axis=given[2])
    with pytest.raises(ValueError, match="mapped functions"):
        hj.align_loss(x, y, axis_name="data", mesh_axis="data")


@names
def test_exported_with_a_symbolic_number_of_points(name, rng):
    loss, _, shapes, (numbers, *_) = CASES[name]
    (n,) = export.symbolic_shape("n", constraints=["n >= 2"])
    arrays = inputs(rng, shapes)
    specs = [jax.ShapeDtypeStruct((n if s == "n" else len(a), a.shape[1]), np.float32)
             for a, s in zip(arrays, shapes, strict=True)]  # fmt: skip
    made = export.export(jax.jit(jax.value_and_grad(functools.partial(loss, **numbers))))(*specs)
    found, _ = made.call(*arrays)
    np.testing.assert_allclose(found, value(name, *arrays, **numbers), rtol=2e-5)
