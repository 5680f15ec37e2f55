"""Independence of the caller's mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tiny_runs import needs_devices

import hypersphere_jax as hj

NETWORK = (
    lambda key, x: {"w": 0.1 * jax.random.normal(key, (x[0].size, 4))},
    lambda params, x: jnp.tanh(x.reshape(len(x), -1) @ params["w"]),
)


def results(folder, placed=lambda x: x):
    """Return numbers of each function of the package; `placed` puts its arrays somewhere."""
    rng = np.random.default_rng(0)
    images = placed(rng.integers(0, 256, (32, 8, 8, 1), np.uint8))
    labels = placed(np.arange(32) % 2)
    config = hj.PretrainConfig(runs_dir=str(folder), epochs=1, batch_size=16, eval_every_epochs=1)
    own = {"images": images, "labels": labels, "network": NETWORK}
    run = hj.train(config, test=(images, labels), **own)
    z = hj.load(run.folder, network=NETWORK)(images)
    split = placed(z), labels, placed(z), labels
    scores = [hj.linear_probe(*split)["top1"], hj.knn_probe(*split)["top1"]]
    return [run.metrics[-1]["loss"], *scores, hj.measure(split[0], split[2])["uniform"], *z.ravel()]


@pytest.mark.slow
@needs_devices(8)
def test_the_callers_mesh_changes_nothing(tmp_path):
    """A mesh of some devices with host arrays, and a mesh of all devices with sharded arrays."""
    expected = results(tmp_path / "plain")
    some = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])
    whole = jax.make_mesh((8,), ("data",), (AxisType.Explicit,), devices=jax.devices()[:8])
    sharding = NamedSharding(whole, PartitionSpec("data"))
    with jax.set_mesh(some):
        found = results(tmp_path / "some")
        assert jax.sharding.get_mesh() == some
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with jax.set_mesh(whole):
        found = results(tmp_path / "whole", lambda x: jax.device_put(x, sharding))
        assert jax.sharding.get_mesh() == whole
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
