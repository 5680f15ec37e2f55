"""Independence of the caller's settings: meshes, logging, matplotlib's backend."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import hypersphere_jax as hj

NETWORK = (
    lambda key, x: {"w": 0.1 * jax.random.normal(key, (x[0].size, 4))},
    lambda params, x: jnp.tanh(x.reshape(len(x), -1) @ params["w"]),
)


def all_of_python(folder, placed=lambda x: x):
    """Numbers of each function of the package; `placed` puts its arrays somewhere."""
    rng = np.random.default_rng(0)
    images = placed(rng.integers(0, 256, (32, 8, 8, 1), np.uint8))
    labels = placed(np.arange(32) % 2)
    config = hj.PretrainConfig(runs_dir=str(folder), epochs=1, batch_size=16, eval_every_epochs=1)
    own = {"images": images, "labels": labels, "network": NETWORK}
    run = hj.train(config, test=(images, labels), **own)
    encoder = hj.load(run.folder, network=NETWORK)
    z = encoder(images)
    split = placed(z), labels, placed(z), labels
    scores = [hj.linear_probe(*split)["top1"], hj.knn_probe(*split)["top1"]]
    geometry = hj.measure(placed(z), placed(z))["uniform"]
    assert encoder.layers["output"] == (4,)
    return [run.metrics[-1]["loss"], *scores, geometry, *z.ravel()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return all_of_python(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    ("kind", "devices", "axis"),
    [
        (AxisType.Auto, 2, "model"),
        pytest.param(AxisType.Explicit, 0, "data", marks=pytest.mark.slow),
    ],
)
def test_the_callers_mesh_changes_nothing(kind, devices, axis, tmp_path, expected):
    """Meshes of some or all (0) devices, with host arrays and with sharded arrays."""
    some = jax.devices()[: devices or None]
    if len(some) < devices or 32 % len(some):
        pytest.skip("too few devices")
    mesh = jax.make_mesh((len(some),), (axis,), (kind,), devices=some)

    def placed(x):
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(axis)))

    with jax.set_mesh(mesh):
        for number, place in enumerate((lambda x: x, placed)):
            found = all_of_python(tmp_path / str(number), place)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
        assert jax.sharding.get_mesh() == mesh


LOGGED = """
import json, logging, sys
import jax, numpy as np
if sys.argv[1] == "configured":
    logging.basicConfig(level=logging.ERROR, format="mine %(message)s")
def state():
    roots = [logging.getLogger(name) for name in ("", "absl", "jax")]
    return [[each.level, list(map(str, each.handlers)), each.propagate] for each in roots]
jax.devices()
before = state()
import hypersphere_jax as hj
images = np.zeros((16, 8, 8, 1), np.uint8)
network = (lambda key, x: {"w": x[0].ravel() + 0.5}, lambda p, x: x.reshape(len(x), -1) * p["w"])
config = hj.PretrainConfig(epochs=1, batch_size=16, runs_dir=sys.argv[2], pipeline=sys.argv[3])
run = hj.train(config, images=images, network=network)
hj.load(run.folder, network=network)(images)
print(json.dumps([before, state()]))
"""


@pytest.mark.parametrize(
    ("configured", "pipeline"),
    [
        pytest.param("bare", "streaming", marks=pytest.mark.slow),
        pytest.param("configured", "resident", marks=pytest.mark.slow),
    ],
)
def test_the_users_logging_stays_as_it_is(configured, pipeline, tmp_path):
    """Resident images import Orbax, streamed images Grain as well."""
    done = processes.python("-c", LOGGED, configured, str(tmp_path), pipeline, check=True)
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert before == after
