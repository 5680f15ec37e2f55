"""The depth predictor on frozen features: its training, and the measures of its errors."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax.config import DepthConfig, OptimizerConfig, require
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.models import depth_predictor
from hypersphere_jax.train import optimizers
from hypersphere_jax.train.progress import track

# The measures that are ratios take a smaller (or negative) prediction for this, metres.
LEAST_DEPTH = 0.01
CHUNK = 256  # images that are predicted at a time


class Split(NamedTuple):
    """`x` float32 `[n, h * w * c]` and `depths` float32 `[n, size, size]`, metres, 0: unknown."""

    x: np.ndarray
    depths: np.ndarray


Predict = Callable[[np.ndarray], np.ndarray]


def fit(
    split: Split, rows: np.ndarray, shape: tuple[int, int, int], config: DepthConfig
) -> Predict:
    """A depth predictor, trained to the least mean squared error over the known pixels.

    Args:
      split: of which it sees
      rows: these, integers `[m]`.
      shape: of the features of one image, `(side, side, channels)`.
      config: of the training.

    Returns:
      The function from features `[m, h * w * c]` to depths `[m, size, size]`, metres.

    Raises:
      UserError: when it diverges.
    """
    sampler = Sampler(len(rows), min(config.batch_size, len(rows)), config.seed)
    steps = config.epochs * sampler.steps_per_epoch
    key, mean, size = jax.random.key(config.seed), mean_depth(split, rows), split.depths.shape[-1]
    apply, params, stats = depth_predictor.create(shape, size, key, mean)
    optimizer, step, predict = _compiled(apply, shape, config.optimizer, steps)
    state = optimizer.init(params)
    for number in track(range(steps), "depth predictor"):
        batch = np.sort(rows[sampler(number)])  # in the order of the file
        x, depths = split.x[batch], split.depths[batch]
        params, stats, state, value = step(params, stats, state, x, depths)
    require(bool(jnp.isfinite(value)), "the depth predictor diverged: lower --learning-rate")
    return lambda x: np.asarray(predict(params, stats, x))


@functools.lru_cache(maxsize=8)  # once for all folds of a size
def _compiled(apply: Callable, shape: tuple[int, int, int], rule: OptimizerConfig, steps: int):
    """The optimizer, its step, and the prediction."""
    optimizer = optimizers.make_optimizer(rule, optimizers.make_schedule(rule, steps))

    @jax.jit
    def step(params, stats, state, x, depths):
        def loss(params):
            predicted, new = apply(params, stats, x.reshape(-1, *shape), True)
            squares = jnp.where(depths > 0, jnp.square(predicted - depths), 0.0)
            return jnp.sum(squares) / jnp.maximum(1, jnp.sum(depths > 0)), new

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        update, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, update), new, state, value

    @jax.jit
    def predict(params, stats, x):
        return apply(params, stats, x.reshape(-1, *shape), False)[0]

    return optimizer, step, predict


def errors(predict: Predict, split: Split, rows: np.ndarray, constant: float) -> dict[str, float]:
    """The usual measures of depth maps, over all pixels of known depth of all images.

    With the predicted depth p and the true one t, metres: the mean squared error `mse` (square
    metres), its root `rmse`, the mean of |p - t| / t `abs_rel`, the mean of |log10 p - log10 t|
    `log10`, and the percentage of pixels where max(p / t, t / p) is below 1.25, 1.25^2 and 1.25^3,
    `delta1` to `delta3` (Eigen et al. 2014). Beside them `mse_constant`, the mean squared error of
    one depth for all pixels.

    Args:
      predict: as `fit` gives it.
      split: of which are scored
      rows: these, integers `[m]`.
      constant: that one depth.

    Raises:
      UserError: when no depth is known.
    """
    chunks = (rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK))
    predicted = np.concatenate([predict(split.x[chunk]) for chunk in chunks])
    depths = split.depths[rows]
    known = depths > 0
    require(known.any(), "no pixel of these images has a known depth")
    true, predicted = depths[known].astype(np.float64), predicted[known].astype(np.float64)
    positive = np.maximum(predicted, LEAST_DEPTH)
    ratio = np.maximum(positive / true, true / positive)
    values = {
        "mse": np.mean(np.square(predicted - true)),
        "rmse": np.sqrt(np.mean(np.square(predicted - true))),
        "abs_rel": np.mean(np.abs(predicted - true) / true),
        "log10": np.mean(np.abs(np.log10(positive / true))),
        **{f"delta{power}": 100 * np.mean(ratio < 1.25**power) for power in (1, 2, 3)},
        "mse_constant": np.mean(np.square(constant - true)),
    }
    return {name: float(value) for name, value in values.items()}


def mean_depth(split: Split, rows: np.ndarray) -> float:
    """The mean known depth of some rows, metres; UserError when no depth is known."""
    depths = split.depths[rows]
    known = np.count_nonzero(depths)
    require(known > 0, "no pixel of the training images has a known depth")
    return float(depths.sum(dtype=np.float64) / known)
