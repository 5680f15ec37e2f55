"""Linear classifiers trained by minibatches on frozen features: the protocols of the papers.

Each minimizes, over weights W `[num_classes, d]` and a bias,

    mean cross-entropy + weight decay / 2 |W|^2        (the bias is not penalized)

on the features as they are, neither centred nor scaled. The first cell of a grid has the paper's
learning rate, without weight decay, which no paper prints; docs/evaluation.md lists what else is
assumed.
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

from hypersphere_jax.configs import OptimizerConfig, require
from hypersphere_jax.evaluate.checks import as_float32, check_features
from hypersphere_jax.evaluate.scores import Classifier, logits
from hypersphere_jax.training import distributed
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.utils.terminal import track

RESIDENT_SHARE = 0.25  # of a device's memory; larger features stay on the host, and these many
CHUNK_BYTES = 2**23  # of their bytes at a time go to the devices


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


def _grid(*rates: float, decays: tuple[float, ...] = (0.0, 1e-5)) -> tuple:
    return tuple((rate, decay) for decay in decays for rate in rates)


ADAM_GRID = _grid(1e-3, 1e-2, decays=(0.0, 1e-5, 1e-4, 1e-3))
SGD_GRID = _grid(30.0, 10.0, 3.0, 1.0)
PROTOCOLS = {
    # Wang & Isola, B.1, B.2.2 and B.2.1.
    "stl10": Protocol(
        *("adam", 100, 128, ADAM_GRID),
        decay_at=(0.6, 0.8),
        decay_factor=0.2,
        adam_betas=(0.5, 0.999),
        init_std=0.0,
    ),
    "moco": Protocol("sgd", 100, 256, SGD_GRID, decay_at=(0.6, 0.8)),
    "moco_imagenet100": Protocol(
        *("sgd", 60, 256, _grid(10.0, 30.0, 3.0, 1.0)),
        decay_at=(1 / 2, 2 / 3, 5 / 6),
        decay_factor=0.2,
    ),
    # The balanced paper, A.3.1 and A.4.1.
    "simclr": Protocol(
        *("lars", 90, 4096, _grid(1.6, 0.32, 6.4, 25.6)), schedule="cosine", nesterov=True
    ),
    "balanced": Protocol("sgd", 90, 256, SGD_GRID, schedule="cosine"),
}


@distributed.isolated()
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

    Several devices share the cells, each with its own copy of the features. Features that do not
    fit into the devices' memory are gathered on the host, with the same result.

    Args:
      protocol: such as one of `PROTOCOLS`; its grid is not used.
      x: `[n, d]` finite features of any real dtype, such as a memory map; computed in float32.
      y: `[n]` integers below `num_classes`.
      rows: which rows to train on.
      grid: (learning rate, weight decay) of each cell.
      num_classes: number of classes.
      seed: of the start and, with the epoch and the rows, of the batches.
      epoch_features: epoch, from 0, to features `[n, d]` to take in place of x.
      devices: of this process. None: JAX's first.

    Returns:
      A classifier for each cell, and the entries of a result; there, `finite` is False for each
      cell whose training diverged.
    """
    grid = checked_grid(grid)
    rows, y = np.asarray(rows), np.asarray(y, np.int32)
    devices = tuple(distributed.local_devices(1, devices))[: len(grid)]
    # Each device has as many cells: the last one is trained again where they do not divide.
    each = -(-len(grid) // len(devices))
    cells = np.float32([*grid, *[grid[-1]] * (each * len(devices) - len(grid))])
    rates, decays = distributed.split(list(cells.T.reshape(2, len(devices), each)), devices)
    batch_size = min(protocol.batch_size, len(rows))
    steps = protocol.epochs * -(-len(rows) // batch_size)
    begin, train = _compiled(protocol._replace(grid=()), steps, devices)
    shape = tuple(x.shape)
    weights = jax.random.normal(jax.random.key(seed), (num_classes, shape[1]))
    start = Classifier(protocol.init_std * weights, jnp.zeros(num_classes))
    classifiers, states = begin(*distributed.replicate(start, devices), rates)

    resident = 4 * math.prod(x.shape) <= RESIDENT_SHARE * distributed.device_memory(devices)
    on_devices = None
    for epoch in track(range(protocol.epochs), "linear classifiers"):
        if epoch_features is not None:
            jax.block_until_ready(classifiers)  # the features may come in the same memory again
            on_devices, x = None, check_features(f"epoch {epoch}", epoch_features(epoch))
            require(x.shape == shape, f"epoch {epoch} features: {x.shape}, expected {shape}")
        batches = _batches(rows, batch_size, seed, epoch)
        if not resident:
            pieces = _gathered(x, y, *batches, devices)
        else:
            if on_devices is None:
                on_devices = distributed.replicate((as_float32(x), y), devices)
            pieces = [(*on_devices, *distributed.replicate(batches, devices))]
        for piece in pieces:
            # The next piece is made while the devices work on this one, and none after it.
            jax.block_until_ready(classifiers)
            classifiers, states = train(classifiers, states, rates, decays, *piece)

    leaves = [np.asarray(leaf).reshape(-1, *leaf.shape[2:])[: len(grid)] for leaf in classifiers]
    trained = [Classifier(*map(jnp.asarray, pair)) for pair in zip(*leaves, strict=True)]
    finite = [all(bool(np.isfinite(leaf).all()) for leaf in classifier) for classifier in trained]
    return trained, {**_settings(protocol), "finite": finite}


def checked_grid(grid: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The pairs as numbers; raises `UserError` for values that cannot be used, or none."""
    expected = "pairs (learning rate > 0, weight decay >= 0)"
    try:
        pairs = [(float(rate), float(decay)) for rate, decay in grid]
    except (TypeError, ValueError):
        pairs = []
    usable = all(0 < rate < math.inf and 0 <= decay < math.inf for rate, decay in pairs)
    require(len(pairs) > 0 and usable, f"grid {grid}: must be {expected}")
    return pairs


@functools.lru_cache(maxsize=8)
def _compiled(protocol: Protocol, steps: int, devices: tuple) -> tuple[Callable, Callable]:
    """What starts a device's cells, and what trains them."""
    settings = protocol._asdict()
    del settings["grid"], settings["init_std"]
    config = OptimizerConfig(**settings, learning_rate=1.0, scaling="none", weight_decay=0.0)
    # Every rule is linear in the rate: each cell multiplies the updates at a rate of 1 by its own.
    # Weight decay, also its own, goes into the gradient as the rules would do it.
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

    return distributed.pmap(begin, devices), distributed.pmap(train, devices, donate=(0, 1))


def _cross_entropies(classifiers: Classifier, x, y, weight) -> jax.Array:
    """Sum of the mean cross-entropies of `[cells, ...]`: its gradient is that of each cell."""
    # One product for all cells, on a matrix [cells * num_classes, d]: the batch is read once.
    cells, num_classes, d = classifiers.weights.shape
    stacked = Classifier(classifiers.weights.reshape(-1, d), classifiers.bias.reshape(-1))
    outputs = logits(stacked, x).reshape(-1, cells, num_classes)
    labels = jnp.broadcast_to(y[:, None], outputs.shape[:2])
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
    return jnp.sum(weight[:, None] * losses)


def _batches(rows, batch_size: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows `[steps, b]` of an epoch's batches, and their weights; 0: fills up the last batch."""
    order = np.random.default_rng([seed, epoch]).permutation(rows).astype(np.int32)
    short = -len(order) % batch_size
    order = np.concatenate([order, order[:short]]).reshape(-1, batch_size)
    weights = np.full(order.shape, 1 / batch_size, np.float32)
    weights[-1, : batch_size - short] = 1 / (batch_size - short)
    weights[-1, batch_size - short :] = 0
    return order, weights


def _gathered(x, y, order, weights, devices: Sequence[jax.Device]) -> Iterator[tuple]:
    """The batches of an epoch in pieces, with their rows of x and y on every device."""
    steps, batch_size = order.shape
    count = max(1, CHUNK_BYTES // (4 * batch_size * x.shape[1]))
    for first in range(0, steps, count):
        some = order[first : first + count]
        places = np.arange(some.size, dtype=np.int32).reshape(some.shape)
        gathered = as_float32(x[some.ravel()]), y[some.ravel()]
        yield distributed.replicate((*gathered, places, weights[first : first + count]), devices)


def _settings(protocol: Protocol) -> dict[str, Any]:
    """The settings that its optimizer and schedule use."""
    unused = {"grid"}
    unused |= {"momentum", "nesterov"} if protocol.optimizer == "adam" else {"adam_betas"}
    unused |= {"decay_at", "decay_factor"} if protocol.schedule == "cosine" else set()
    return {name: value for name, value in protocol._asdict().items() if name not in unused}
