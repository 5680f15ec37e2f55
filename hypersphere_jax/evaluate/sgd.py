"""Linear classifiers trained by minibatches on frozen features: the protocols of the papers.

Each minimizes, over weights W `[num_classes, d]` and a bias,

    mean cross-entropy + weight decay / 2 |W|^2        (the bias is not penalized)

on the features as they are, neither centred nor scaled, in the epochs, batches and steps of its
paper. What `PROTOCOLS` holds is printed there except where this list says otherwise. No paper
prints a weight decay for its classifier: it is 0 in the first cell of every grid. The other cells
are this project's, since one rate does not suit every encoder.

- "stl10": Wang & Isola, B.1 (CIFAR-10 and STL-10). Adam (0.5, 0.999) with batches of 128, 100
  epochs at 0.001, times 0.2 at epochs 60 and 80. Assumed: a start from zero. The images' random
  crop and flip come in through `epoch_features`.
- "moco": Wang & Isola, B.2.2 (ImageNet). SGD with batches of 256, 100 epochs at 30, times 0.1 at
  epochs 60 and 80. Assumed: momentum 0.9 and no weight decay, as in MoCo.
- "moco_imagenet100": Wang & Isola, B.2.1. The same, but 60 epochs at 10, times 0.2 at epochs 30, 40
  and 50.
- "simclr": the balanced paper, A.3.1 (ImageNet). LARS with batches of 4096, 90 epochs. Assumed, as
  in SimCLR: Nesterov momentum 0.9, no warm-up, rate 0.1 batch / 256 = 1.6. Also assumed: a cosine
  to zero, and LARS as in `make_optimizer` (trust 0.001, not for the bias). Chen et al. say only
  that they follow SimCLR.
- "balanced": the balanced paper, A.4.1 (CIFAR-10). SGD with momentum 0.9 and batches of 256, 90
  epochs at 30, a cosine to zero.

Where a start is not zero, it is normal with deviation 0.01, assumed as in MoCo and SimCLR. The
cosine falls with every step.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from hypersphere_jax.config import OptimizerConfig, require
from hypersphere_jax.evaluate.checks import as_float32, check_features
from hypersphere_jax.evaluate.classifier import Classifier, logits
from hypersphere_jax.train import sharding
from hypersphere_jax.train.optimizers import make_optimizer, make_schedule
from hypersphere_jax.train.progress import track

# Features that take a larger share of a device's memory stay on the host, and about this many bytes
# of them at a time go to the devices.
RESIDENT_SHARE = 0.25
CHUNK_BYTES = 2**23


class Protocol(NamedTuple):
    """How a linear classifier is trained; for the rules see `make_optimizer`."""

    optimizer: str  # "sgd", "lars" or "adam"
    epochs: int
    batch_size: int  # the short last batch of an epoch is kept
    grid: tuple[tuple[float, float], ...]  # (learning rate, weight decay), the paper's own first
    schedule: str = "step"  # or "cosine"
    decay_at: tuple[float, ...] = ()  # shares of the epochs after which the rate decays
    decay_factor: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    adam_betas: tuple[float, float] = (0.9, 0.999)
    init_std: float = 0.01  # of the normal distribution that the weights start from


def _grid(rates: Sequence[float], decays: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple((rate, decay) for decay in decays for rate in rates)


PROTOCOLS = {
    "stl10": Protocol(
        "adam",
        epochs=100,
        batch_size=128,
        grid=_grid((1e-3, 1e-2), (0.0, 1e-5, 1e-4, 1e-3)),
        decay_at=(0.6, 0.8),
        decay_factor=0.2,
        adam_betas=(0.5, 0.999),
        init_std=0.0,
    ),
    "moco": Protocol(
        "sgd",
        epochs=100,
        batch_size=256,
        grid=_grid((30.0, 10.0, 3.0, 1.0), (0.0, 1e-5)),
        decay_at=(0.6, 0.8),
    ),
    "moco_imagenet100": Protocol(
        "sgd",
        epochs=60,
        batch_size=256,
        grid=_grid((10.0, 30.0, 3.0, 1.0), (0.0, 1e-5)),
        decay_at=(1 / 2, 2 / 3, 5 / 6),
        decay_factor=0.2,
    ),
    "simclr": Protocol(
        "lars",
        epochs=90,
        batch_size=4096,
        grid=_grid((1.6, 0.32, 6.4, 25.6), (0.0, 1e-5)),
        schedule="cosine",
        nesterov=True,
    ),
    "balanced": Protocol(
        "sgd",
        epochs=90,
        batch_size=256,
        grid=_grid((30.0, 10.0, 3.0, 1.0), (0.0, 1e-5)),
        schedule="cosine",
    ),
}


def fit_grid(
    protocol: Protocol,
    x,
    y,
    rows,
    grid: Sequence[tuple[float, float]],
    *,
    num_classes: int,
    seed: int,
    epoch_features: Callable[[int], Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> tuple[list[Classifier], dict[str, Any]]:
    """Trains a classifier for each cell of a grid, all at once on the same batches.

    A step reads its batch once for all cells. Several devices share the cells, each with its own
    copy of the features: no cell depends on how many there are. Features that do not fit into the
    devices' memory are gathered on the host, a few batches ahead, with the same result.

    Args:
      protocol: one of `PROTOCOLS`, or another. Its own grid does not count here.
      x: `[n, d]` finite features of any real dtype, such as a memory map; computed in float32.
      y: `[n]` integers below `num_classes`.
      rows: which rows to train on. With the seed and the epoch they decide the batches.
      grid: (learning rate, weight decay) of each cell.
      num_classes: number of classes.
      seed: of the start and the batches.
      epoch_features: called once an epoch with its number, from 0; gives the `[n, d]` features of
        that epoch, of freshly augmented images, in place of x.
      devices: of this host, to compute on. None: JAX's first.

    Returns:
      A classifier for each cell, and what a result says of the protocol. There, `finite` holds
      False for each cell whose training diverged: its classifier holds NaN or infinity and must not
      be chosen.

    Raises:
      UserError: for an empty grid, values in it that cannot be used, no rows, or features of an
        epoch that do not fit.
    """
    grid = [(float(rate), float(decay)) for rate, decay in grid]
    require(len(grid) > 0, "grid: give at least one pair of learning rate and weight decay")
    for rate, decay in grid:
        usable = 0 < rate < math.inf and 0 <= decay < math.inf
        require(usable, f"grid: learning rate {rate} must be > 0, weight decay {decay} >= 0")
    rows, y = np.asarray(rows), np.asarray(y, np.int32)
    require(len(rows) > 0, "no rows to train on")

    devices = tuple(jax.local_devices()[:1] if devices is None else devices)[: len(grid)]
    # Each device has as many cells: the last one is trained again where they do not divide.
    each = -(-len(grid) // len(devices))
    cells = np.float32([*grid, *[grid[-1]] * (each * len(devices) - len(grid))])
    rates, decays = sharding.split(list(cells.T.reshape(2, len(devices), each)), devices)
    batch_size = min(protocol.batch_size, len(rows))
    steps = protocol.epochs * -(-len(rows) // batch_size)
    begin, train = _compiled(protocol._replace(grid=()), steps, devices)
    classifiers, states = begin(
        *sharding.replicate(_start(protocol, num_classes, x.shape[1], seed), devices), rates
    )

    resident = 4 * math.prod(x.shape) <= RESIDENT_SHARE * sharding.memory(devices)
    held = None
    for epoch in track(range(protocol.epochs), "linear classifiers"):
        if epoch_features is not None:
            jax.block_until_ready(classifiers)  # the features may come in the same memory again
            held, x = None, _checked(epoch, epoch_features(epoch), tuple(x.shape))
        batches = _batches(rows, batch_size, seed, epoch)
        if not resident:
            pieces = _gathered(x, y, *batches, devices)
        else:
            if held is None:
                held = sharding.replicate((as_float32(x), y), devices)
            pieces = [(*held, *sharding.replicate(batches, devices))]
        for piece in pieces:
            # The next piece is made while the devices work on this one, and none after it.
            jax.block_until_ready(classifiers)
            classifiers, states = train(classifiers, states, rates, decays, *piece)

    leaves = [np.asarray(leaf).reshape(-1, *leaf.shape[2:])[: len(grid)] for leaf in classifiers]
    found = [Classifier(*map(jnp.asarray, pair)) for pair in zip(*leaves, strict=True)]
    finite = [all(bool(np.isfinite(leaf).all()) for leaf in classifier) for classifier in found]
    return found, {**_described(protocol), "finite": finite}


def _start(protocol: Protocol, num_classes: int, d: int, seed: int) -> Classifier:
    """Where every cell starts."""
    weights = protocol.init_std * jax.random.normal(jax.random.key(seed), (num_classes, d))
    return Classifier(weights, jnp.zeros(num_classes))


@functools.lru_cache(maxsize=8)
def _compiled(protocol: Protocol, steps: int, devices: tuple) -> tuple[Callable, Callable]:
    """The first classifiers and states of a device's cells, and some training steps of them."""
    config = OptimizerConfig(
        optimizer=protocol.optimizer,
        epochs=protocol.epochs,
        batch_size=protocol.batch_size,
        learning_rate=1.0,
        scaling="none",
        schedule=protocol.schedule,
        decay_at=protocol.decay_at,
        decay_factor=protocol.decay_factor,
        momentum=protocol.momentum,
        nesterov=protocol.nesterov,
        weight_decay=0.0,
        adam_betas=protocol.adam_betas,
    )
    # At a peak of 1: every rule is linear in the rate, so each cell multiplies its updates by its
    # own; weight decay, also its own, goes into the gradient as the rules would do it.
    optimizer = make_optimizer(config, make_schedule(config, steps))

    def begin(weights, bias, rates):
        classifiers = Classifier(*(jnp.stack([leaf] * len(rates)) for leaf in (weights, bias)))
        return classifiers, jax.vmap(optimizer.init)(classifiers)

    def update(gradient, state, classifier, rate, decay):
        weights = gradient.weights + decay * classifier.weights
        updates, state = optimizer.update(gradient._replace(weights=weights), state, classifier)
        updates = jax.tree.map(lambda leaf: rate * leaf, updates)
        return optax.apply_updates(classifier, updates), state

    def train(classifiers, states, rates, decays, x, y, order, weights):
        def step(carry, batch):
            rows, weight = batch
            gradients = jax.grad(_cross_entropies)(carry[0], x[rows], y[rows], weight)
            return jax.vmap(update)(gradients, carry[1], carry[0], rates, decays), None

        return lax.scan(step, (classifiers, states), (order, weights))[0]

    return sharding.pmap(begin, devices), sharding.pmap(train, devices, donate=(0, 1))


def _cross_entropies(classifiers: Classifier, x, y, weight) -> jax.Array:
    """Sum of the cells' mean cross-entropies: its gradient is that of each cell.

    Args:
      classifiers: `[cells, num_classes, d]` and `[cells, num_classes]`.
      x: `[b, d]` features of a batch.
      y: `[b]` labels.
      weight: `[b]`, each row's weight in the means.
    """
    # One product for all cells, on a matrix [cells * num_classes, d]: the batch is read once.
    cells, num_classes, d = classifiers.weights.shape
    stacked = Classifier(classifiers.weights.reshape(-1, d), classifiers.bias.reshape(-1))
    outputs = logits(stacked, x).reshape(-1, cells, num_classes)
    labels = jnp.broadcast_to(y[:, None], outputs.shape[:2])
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
    return jnp.sum(weight[:, None] * losses)


def _batches(rows, batch_size: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each batch of an epoch `[steps, b]`, and their weights in its mean cross-entropy.

    The last batch is filled up with rows of weight 0.
    """
    order = np.random.default_rng([seed, epoch]).permutation(rows).astype(np.int32)
    short = -len(order) % batch_size
    order = np.concatenate([order, order[:short]]).reshape(-1, batch_size)
    weights = np.full(order.shape, 1 / batch_size, np.float32)
    weights[-1, : batch_size - short] = 1 / (batch_size - short)
    weights[-1, batch_size - short :] = 0
    return order, weights


def _gathered(x, y, order, weights, devices: Sequence[jax.Device]) -> Iterator[tuple]:
    """The batches of an epoch in pieces: their rows of x and y, in order, on every device."""
    steps, batch_size = order.shape
    count = max(1, CHUNK_BYTES // (4 * batch_size * x.shape[1]))
    for first in range(0, steps, count):
        some = order[first : first + count]
        places = np.arange(some.size, dtype=np.int32).reshape(some.shape)
        gathered = as_float32(x[some.ravel()]), y[some.ravel()]
        yield sharding.replicate((*gathered, places, weights[first : first + count]), devices)


def _checked(epoch: int, x, shape: tuple[int, int]):
    x = check_features(f"epoch {epoch}", x)
    found = tuple(x.shape)
    require(found == shape, f"epoch {epoch} features: expected shape {shape}, got {found}")
    return x


def _described(protocol: Protocol) -> dict[str, Any]:
    """The settings that its optimizer and schedule use."""
    unused = {"grid"}
    unused |= {"momentum", "nesterov"} if protocol.optimizer == "adam" else {"adam_betas"}
    unused |= {"decay_at", "decay_factor"} if protocol.schedule == "cosine" else set()
    return {name: value for name, value in protocol._asdict().items() if name not in unused}
