"""Training of a depth predictor, and the errors of depth maps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax.configs import OptimizerConfig, require
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.depth.config import DepthConfig
from hypersphere_jax.depth.predictor import make_predictor
from hypersphere_jax.training import optimizers
from hypersphere_jax.utils.terminal import track

KNOWN = 0.5  # share of known depths that a pixel of a resized depth map needs
LEAST_DEPTH = 0.01  # metres, the lower limit of predictions in ratios
CHUNK = 256  # images per prediction

Predict = Callable[[np.ndarray], np.ndarray]


class DepthData(NamedTuple):
    """Features and depth maps of a split."""

    x: np.ndarray  # float32 [n, h * w * c]
    depths: np.ndarray  # float32 [n, size, size] in metres, 0 if unknown

    def mean_depth(self, rows: np.ndarray) -> float:
        """Return the mean known depth of some rows; UserError if no depth is known."""
        depths = self.depths[rows]
        known = np.count_nonzero(depths)
        require(known > 0, "the training images have no pixel of known depth")
        return float(depths.sum(dtype=np.float64) / known)


def resize_depth(depth: np.ndarray, crop: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Resize and crop a depth map `[h, w]` in metres by a function of images `[h, w, c]`.

    Depths that are 0, negative or not finite are unknown. The result, float32 `[size, size]`, is
    the mean over known depths, and 0 if less than half is known.
    """
    is_known = np.isfinite(depth) & (depth > 0)
    share = crop(is_known.astype(np.float32)[..., None])[..., 0]
    total = crop(np.where(is_known, depth, 0).astype(np.float32)[..., None])[..., 0]
    return np.where(share >= KNOWN, total / np.maximum(share, KNOWN), 0).astype(np.float32)


def fit(
    data: DepthData, rows: np.ndarray, shape: tuple[int, int, int], config: DepthConfig
) -> Predict:
    """Train a depth predictor with the mean squared error over known pixels.

    Args:
      data: features and depth maps.
      rows: rows of `data` to train on.
      shape: `(side, side, channels)` of the features of one image.
      config: options of the training.

    Returns:
      Function from features `[m, h * w * c]` to depths `[m, size, size]` in metres.
    """
    sampler = Sampler(len(rows), min(config.batch_size, len(rows)), config.seed)
    total_steps = config.epochs * sampler.steps_per_epoch
    size = data.depths.shape[-1]
    initial, optimizer, train_step, predict = _compiled(shape, size, config.optimizer, total_steps)
    params, stats = initial(jax.random.key(config.seed))
    # Adam at the paper's rate would take some hundred steps to reach the mean depth from 0.
    params["depth"]["bias"] = jnp.full(1, data.mean_depth(rows), jnp.float32)
    state = (params, stats, optimizer.init(params))
    for step in track(range(total_steps), "depth predictor"):
        batch = np.sort(rows[sampler(step)])  # in the order of the file
        state, loss = train_step(state, data.x[batch], data.depths[batch])
    require(bool(jnp.isfinite(loss)), "the depth predictor diverged: lower learning_rate=")
    params, stats, _ = state
    return lambda x: np.asarray(predict(params, stats, x))


@functools.lru_cache(maxsize=8)  # all folds of a size share compiled programs
def _compiled(
    shape: tuple[int, int, int], size: int, config: OptimizerConfig, total_steps: int
) -> tuple[Callable, optax.GradientTransformation, Callable, Callable]:
    """Return the initialization, the optimizer, the training step, and the prediction."""
    apply, initial = make_predictor(shape, size)
    schedule = optimizers.make_schedule(config, total_steps)
    optimizer = optimizers.make_optimizer(config, schedule)

    @jax.jit
    def train_step(state, x, depths):
        params, stats, opt_state = state

        def loss_of(params):
            predicted, new_stats = apply(params, stats, x.reshape(-1, *shape), True)
            squares = jnp.where(depths > 0, jnp.square(predicted - depths), 0.0)
            return jnp.sum(squares) / jnp.maximum(1, jnp.sum(depths > 0)), new_stats

        (loss, stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), stats, opt_state), loss

    @jax.jit
    def predict(params, stats, x):
        return apply(params, stats, x.reshape(-1, *shape), False)[0]

    return initial, optimizer, train_step, predict


def depth_errors(
    predict: Predict, data: DepthData, rows: np.ndarray, constant: float
) -> dict[str, Any]:
    """Return the errors of depth maps over all known pixels (Eigen et al. 2014).

    The measures are defined in docs/depth.md. `rows` are the rows of the data to predict, and
    `constant` is the depth in metres of the baseline `mse_constant`.
    """
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    predicted = np.concatenate([predict(data.x[chunk]) for chunk in chunks])
    depths = data.depths[rows]
    is_known = depths > 0
    require(is_known.any(), "the images have no pixel of known depth")
    true = depths[is_known].astype(np.float64)
    predicted = predicted[is_known].astype(np.float64)
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
