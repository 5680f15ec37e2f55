"""Features about their mean and in units of their spread: by copies, or through the weights."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.evaluate.checks import as_float32
from hypersphere_jax.training import distributed

FOLDED = 4.0  # deviations that a centre may be away from 0 where weights are scaled, not features
PADDING = -2  # the part of rows that are in no fit, and the label of rows that fill up a block


mapped = functools.cache(distributed.pmap)  # problems of one shape share a compiled program


class Scaling(NamedTuple):
    """Features are moved by `-centre [d]` and divided by `scale`, one number or one a dimension."""

    centre: np.ndarray
    scale: float | np.ndarray

    @property
    def penalized(self) -> float:
        """Times l2: the same penalty on features as they are, or on standardized ones."""
        return float(self.scale**2) if np.ndim(self.scale) == 0 else float(np.size(self.scale))

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `scaled` takes: half of the centre, and two factors of 2 / scale, `[d]` each."""
        factor = np.broadcast_to(2 / np.asarray(self.scale, np.float64), self.centre.shape)
        first = 2.0 ** np.floor(np.log2(factor) / 2)
        half, second = self.centre / 2, factor / first
        return half.astype(np.float32), first.astype(np.float32), second.astype(np.float32)

    @property
    def folds(self) -> bool:
        """Whether float32 loses little where weights are scaled in the place of the features."""
        centre, scale = np.float64(self.centre), np.asarray(self.scale)
        away = np.linalg.norm(centre) if scale.ndim == 0 else len(centre) ** 0.5 * np.abs(centre)
        return bool(np.all((away <= FOLDED * scale) & (scale > 1e-15) & (scale < 1e15)))

    def apply(self, x) -> jax.Array:
        return _scaled_once(as_float32(x), *self.frame)


def scaling_of(
    blocks: Sequence[Any], near: np.ndarray, n: int, standardize: bool, devices
) -> Scaling:
    """The mean of n rows in blocks, and the root mean square norm of the centred ones.

    To standardize, each dimension has a scale of its own, after which its variance is 1 / d; a
    constant one becomes 0. `near [d]` is the mean of some rows: of a constant dimension exactly.
    """
    sums_of, squares_of = mapped(_sums, devices), mapped(_squares, devices)

    def sums(function, *frame):
        frame = distributed.replicate(frame, devices)
        for block in blocks:
            yield jax.tree.map(np.asarray, function(*block, *frame))

    d, centre, reach = len(near), np.float32(near), np.zeros(len(near))
    offset = np.zeros(d)
    for means, largest in sums(sums_of, centre / 2):
        offset += means.sum(axis=0, dtype=np.float64)
        reach = np.maximum(reach, largest.max(axis=0))
    rows = blocks[0].y.size / len(devices)
    centre = np.float32(centre + 2 * offset * rows / n)
    # Squares of what is near 1 fit into float32, those of the features may not.
    reach = reach if standardize else np.full(d, reach.max())
    unit = Scaling(centre, np.where(reach > 0, 2 * reach, 1.0))
    squares = sum(part.sum(axis=0, dtype=np.float64) for part in sums(squares_of, *unit.frame))
    variances = squares / n * unit.scale**2
    if standardize:
        return Scaling(centre, np.where(variances > 0, (variances * d) ** 0.5, 1.0))
    # 0: all features coincide.
    return Scaling(centre, variances.sum() ** 0.5 if variances.any() else 1.0)


def _sums(x, y, half) -> tuple[jax.Array, jax.Array]:
    """Of a block about a point: sums over its rows / their number, and largest magnitudes `[d]`."""
    moved = jnp.where((y != PADDING)[:, None], x / 2 - half[None], 0)
    return jnp.sum(moved / len(x), axis=0), jnp.abs(moved).max(axis=0)


def _squares(x, y, *frame) -> jax.Array:
    return jnp.sum(jnp.where((y != PADDING)[:, None], scaled(x, *frame), 0) ** 2, axis=0)


def scaled(x, half, first, second) -> jax.Array:
    """Rows by the frame of a scaling; a difference of large float32 may not fit, its half does."""
    return (x / 2 - half[None]) * first[None] * second[None]


_scaled_once = jax.jit(scaled)


def folded(points, centre, factor) -> jax.Array:
    """Points `[g, num_classes, d + 1]` of scaled features for the features as they are."""
    weights = points[..., :-1] * factor[None, None]
    moved = jnp.einsum("gcd,d->gc", weights, centre, precision="highest")
    return jnp.concatenate([weights, (points[..., -1] - moved)[..., None]], axis=-1)
