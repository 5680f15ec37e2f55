"""Linear classifiers trained by minibatches on frozen features: the protocols of the papers.

Each minimizes, over weights W `[num_classes, d]` and a bias that is not penalized,

    mean cross-entropy + weight decay / 2 |W|^2

on the original features, neither centred nor scaled. docs/evaluation.md lists which settings the
papers do not print.
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

from hypersphere_jax.configs import OptimizerConfig, UserError, require
from hypersphere_jax.evaluation.checks import as_float32, check_features
from hypersphere_jax.evaluation.scores import Classifier, linear_logits
from hypersphere_jax.training import distributed
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.utils.terminal import track

FEATURES_SHARE = 0.25  # share of an accelerator's memory up to which the features stay there
CHUNK_BYTES = 2**24  # features of minibatches that are gathered at once


class MinibatchProtocol(NamedTuple):
    """Training of a linear classifier; see `optimizers.make_optimizer` for the update rules."""

    optimizer: str  # "sgd", "lars" or "adam"
    epochs: int
    batch_size: int  # the short last batch of an epoch is kept
    grid: tuple[tuple[float, float], ...]  # (learning rate, weight decay), the paper's rate first
    schedule: str = "step"  # or "cosine"
    decay_at: tuple[float, ...] = ()  # shares of the epochs after which the rate decays
    decay_factor: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    adam_betas: tuple[float, float] = (0.9, 0.999)
    init_std: float = 0.01  # standard deviation of the initial weights


def _grid(*rates: float, decays: tuple[float, ...] = (0.0, 1e-5)) -> tuple:
    return tuple((rate, decay) for decay in decays for rate in rates)


_SGD = MinibatchProtocol("sgd", 100, 256, _grid(30.0, 10.0, 3.0, 1.0))
MINIBATCH_PROTOCOLS = {
    # Wang & Isola, B.1, B.2.2 and B.2.1.
    "stl10": MinibatchProtocol(
        optimizer="adam",
        epochs=100,
        batch_size=128,
        grid=_grid(1e-3, 1e-2, decays=(0.0, 1e-5, 1e-4, 1e-3)),
        decay_at=(0.6, 0.8),
        decay_factor=0.2,
        adam_betas=(0.5, 0.999),
        init_std=0.0,
    ),
    "moco": _SGD._replace(decay_at=(0.6, 0.8)),
    "moco_imagenet100": _SGD._replace(
        epochs=60,
        grid=_grid(10.0, 30.0, 3.0, 1.0),
        decay_at=(1 / 2, 2 / 3, 5 / 6),
        decay_factor=0.2,
    ),
    # The balanced paper, A.3.1 and A.4.1.
    "simclr": MinibatchProtocol(
        optimizer="lars",
        epochs=90,
        batch_size=4096,
        grid=_grid(1.6, 0.32, 6.4, 25.6),
        schedule="cosine",
        nesterov=True,
    ),
    "balanced": _SGD._replace(epochs=90, schedule="cosine"),
}


@distributed.isolated()
def fit_grid(
    protocol: MinibatchProtocol,
    x: Any,
    y: Any,
    rows: Any,
    grid: Sequence[tuple[float, float]],
    *,
    num_classes: int,
    seed: int,
    epoch_features: Callable[[int], Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> tuple[list[Classifier], dict[str, Any]]:
    """Train a classifier for each cell of a grid, all at once on the same batches.

    Args:
      protocol: such as a value of `MINIBATCH_PROTOCOLS`; its grid is not used.
      x: `[n, d]` finite features of any real dtype, such as a memory map; computed in float32.
      y: `[n]` integers below `num_classes`.
      rows: indices of the rows to train on.
      grid: (learning rate, weight decay) of each cell.
      num_classes: number of classes.
      seed: seed of the initial weights and, with epoch and rows, of the batches.
      epoch_features: maps an epoch, from 0, to the features `[n, d]` that replace x.
      devices: local devices, of which the first computes. Defaults to JAX's first.

    Returns:
      A classifier for each cell, and the protocol's settings as entries of a result. `finite` in
      them is False for each cell whose training diverged.

    Raises:
      UserError: for an invalid grid, or features of an epoch that do not fit.
    """
    rows = np.asarray(rows)
    y = np.asarray(y, np.int32)
    shape = tuple(x.shape)
    device = distributed.local_devices(1, devices)[0]
    batch_size = min(protocol.batch_size, len(rows))
    rule = protocol._replace(grid=())
    steps = protocol.epochs * -(-len(rows) // batch_size)
    weights = protocol.init_std * jax.random.normal(jax.random.key(seed), (num_classes, shape[1]))
    rates, decays = jax.device_put(tuple(np.float32(check_grid(grid)).T), device)
    state = _start(Classifier(weights, jnp.zeros(num_classes)), rates, rule, steps)
    source = _resident(x, device)
    for epoch in track(range(protocol.epochs), "linear classifiers"):
        if epoch_features is not None:
            jax.block_until_ready(state)  # the next features may be in the same memory
            x = check_features(f"epoch {epoch}", epoch_features(epoch))
            require(x.shape == shape, f"epoch {epoch} features: {x.shape}, expected {shape}")
            source = _resident(x, device)
        for batches in _chunks(source, y, rows, batch_size, seed, epoch):
            jax.block_until_ready(state)  # one chunk is gathered ahead
            batches = jax.device_put(batches, device)
            state = _train(state, rates, decays, batches, rule, steps)
    leaves = jax.tree.map(np.asarray, state[0])
    classifiers = [Classifier(*pair) for pair in zip(*leaves, strict=True)]
    finite = [bool(np.isfinite(c.weights).all() and np.isfinite(c.bias).all()) for c in classifiers]
    return classifiers, _used_settings(protocol) | {"finite": finite}


def _used_settings(protocol: MinibatchProtocol) -> dict[str, Any]:
    """Return the settings that the protocol's optimizer and schedule use."""
    unused = ["grid", "adam_betas"]
    if protocol.optimizer == "adam":
        unused = ["grid", "momentum", "nesterov"]
    if protocol.schedule == "cosine":
        unused += ["decay_at", "decay_factor"]
    return {name: value for name, value in protocol._asdict().items() if name not in unused}


def check_grid(grid: Sequence[Any]) -> list[tuple[float, float]]:
    """Return pairs (learning rate > 0, weight decay >= 0) of floats; UserError for others."""
    message = f"grid {grid} must be pairs (learning rate > 0, weight decay >= 0)"
    try:
        pairs = np.asarray(grid, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(message) from error
    require(pairs.ndim == 2 and pairs.shape[1] == 2 and len(pairs) > 0, message)
    is_valid = (pairs[:, 0] > 0) & (pairs[:, 1] >= 0) & np.isfinite(pairs).all(axis=1)
    require(bool(is_valid.all()), message)
    return [(rate, decay) for rate, decay in pairs.tolist()]


def _resident(x: Any, device: jax.Device) -> Any:
    """Return features on an accelerator if they fit, otherwise as they are."""
    limit = FEATURES_SHARE * distributed.device_memory([device])
    if device.platform == "cpu" or 4 * math.prod(x.shape) > limit:
        return x
    return jax.device_put(as_float32(x[:]), device)


def _chunks(
    source: Any, y: np.ndarray, rows: np.ndarray, batch_size: int, seed: int, epoch: int
) -> Iterator[tuple]:
    """Yield the minibatches of an epoch, several at a time: x, y, and the weights of rows.

    The last batch is padded with rows of weight 0.
    """
    order = np.random.default_rng([seed, epoch]).permutation(rows).astype(np.int32)
    padding = -len(order) % batch_size
    order = np.concatenate([order, order[:padding]]).reshape(-1, batch_size)
    weights = np.full(order.shape, 1 / batch_size, np.float32)
    weights[-1, : batch_size - padding] = 1 / (batch_size - padding)
    weights[-1, batch_size - padding :] = 0
    count = max(1, CHUNK_BYTES // (4 * batch_size * source.shape[1]))
    for first in range(0, len(order), count):
        some = order[first : first + count]
        x = jnp.asarray(source[some.ravel()], jnp.float32)
        yield x.reshape(*some.shape, -1), y[some], weights[first : first + count]


@functools.cache
def _optimizer(rule: MinibatchProtocol, steps: int) -> optax.GradientTransformation:
    """Return the optimizer at a learning rate of 1: each cell multiplies the updates by its rate.

    Every rule is linear in the learning rate. Weight decay is added to the gradient.
    """
    settings = rule._asdict()
    del settings["grid"], settings["init_std"]
    config = OptimizerConfig(**settings, learning_rate=1.0, scaling="none", weight_decay=0.0)
    return make_optimizer(config, make_schedule(config, steps))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _start(initial: Classifier, rates: jax.Array, rule: MinibatchProtocol, steps: int) -> tuple:
    """Return the classifiers and optimizer states of all cells."""
    cells = len(rates)
    classifiers = jax.tree.map(lambda leaf: jnp.stack([leaf] * cells), initial)
    return classifiers, jax.vmap(_optimizer(rule, steps).init)(classifiers)


@functools.partial(jax.jit, static_argnums=(4, 5), donate_argnums=0)
def _train(state, rates, decays, batches, rule: MinibatchProtocol, steps: int) -> tuple:
    """Train all cells on batches `[steps, b, …]`."""
    optimizer = _optimizer(rule, steps)

    def update(gradient, state, classifier, rate, decay):
        weights = gradient.weights + decay * classifier.weights
        updates, state = optimizer.update(gradient._replace(weights=weights), state, classifier)
        updates = jax.tree.map(lambda leaf: rate * leaf, updates)
        return optax.apply_updates(classifier, updates), state

    def step(state, batch):
        gradients = jax.grad(_cross_entropies)(state[0], *batch)
        return jax.vmap(update)(gradients, state[1], state[0], rates, decays), None

    return lax.scan(step, state, batches)[0]


def _cross_entropies(classifiers: Classifier, x, y, row_weights) -> jax.Array:
    """Return the sum of the mean cross-entropies of all cells; its gradient is each cell's."""
    # A single product for all cells reads the batch once.
    cells, num_classes, d = classifiers.weights.shape
    stacked = Classifier(classifiers.weights.reshape(-1, d), classifiers.bias.reshape(-1))
    outputs = linear_logits(stacked, x).reshape(-1, cells, num_classes)
    labels = jnp.broadcast_to(y[:, None], outputs.shape[:2])
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
    return jnp.sum(row_weights[:, None] * losses)
