"""The losses in a custom training loop: plain JAX, Flax and optax, on all devices of a mesh.

python examples/own_training_loop.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

from hypersphere_jax import align_loss, l2_normalize, uniform_loss


def main(steps: int = 100, devices: int | None = None) -> float:
    mesh = jax.make_mesh((devices or jax.device_count(),), ("data",))
    images = jnp.asarray(load_digits().images[:1792], jnp.float32).reshape(-1, 64) / 16
    images = jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))

    network = nnx.Sequential(
        nnx.Linear(64, 128, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(128, 16, rngs=nnx.Rngs(1))
    )
    graph, params = nnx.split(network, nnx.Param)
    optimizer = optax.adam(3e-3)

    def loss(params, key):
        encoder = nnx.merge(graph, params)
        noise = 0.3 * jax.random.normal(key, (2, *images.shape))
        x = l2_normalize(encoder(images + noise[0]))
        y = l2_normalize(encoder(images + noise[1]))
        # The arrays are sharded over the mesh: each device computes its share of the pairs.
        return align_loss(x, y) + (uniform_loss(x) + uniform_loss(y)) / 2

    @jax.jit
    def step(params, state, key):
        value, gradient = jax.value_and_grad(loss)(params, key)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    with jax.set_mesh(mesh):
        state = optimizer.init(params)
        for number in range(steps):
            params, state, value = step(params, state, jax.random.key(number))
            if number % 20 == 0 or number == steps - 1:
                print(f"step {number}: loss {value:.3f}")
    return float(value)


if __name__ == "__main__":
    main()
