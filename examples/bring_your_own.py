"""Train a custom network on custom data, views and loss, with checkpoints, log and resumption.

python examples/bring_your_own.py [FOLDER]
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from sklearn.datasets import load_digits

import hypersphere_jax as hj


class Digits:
    """Data: any object with a length and items (image, label)."""

    def __init__(self):
        self.digits = load_digits()

    def __len__(self):
        return len(self.digits.target)

    def __getitem__(self, i):
        return self.digits.images[i] / 16, self.digits.target[i]


class Network(nnx.Module):
    """A network: from float32 `[n, h, w, c]` to an array, or to a dict of layers with "output"."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.head = nnx.Linear(128, 16, rngs=rngs)

    def __call__(self, x):
        hidden = nnx.relu(self.norm(self.hidden(x.reshape(len(x), -1))))
        return {"hidden": hidden, "output": self.head(hidden)}


def view(key, image):
    """A view: from a random key and a uint8 image to an image."""
    shift, noise = jax.random.split(key)
    image = jnp.roll(image, jax.random.randint(shift, (2,), -1, 2), axis=(0, 1)) / 255.0
    return image + 0.1 * jax.random.normal(noise, image.shape)


def loss(x, y):
    """A loss: a function of the features of both views, of all devices."""
    return hj.nt_xent_loss(x, y, tau=0.2) + 0.1 * hj.align_loss(x, y)


def main(folder: Path, epochs: int = 5) -> None:
    config = hj.PretrainConfig(
        name="own", runs_dir=str(folder), epochs=epochs, eval_every_epochs=epochs, batch_size=128
    )
    network = Network(nnx.Rngs(0))
    # The same call resumes an interrupted run.
    run = hj.train(config, data=Digits(), network=network, augment=view, loss=loss)
    print(run, run.metrics[-1])
    encoder = hj.load(run.folder, network=network)
    print(encoder.layers, encoder(Digits()[0][0][None]).shape)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples"))
