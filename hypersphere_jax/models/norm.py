"""Batch normalization: of the global batch, of a device's part, or of groups of either."""

import jax
import jax.numpy as jnp
from flax import nnx


class BatchNorm(nnx.Module):
    """Batch normalization (Ioffe & Szegedy 2015) of `[n, ..., features]`, statistics in float32.

    Of n samples, each of `groups` consecutive runs of `n / groups` is normalized by its own mean
    and variance (averaged over the mapped axis `axis_name`, if any); the running statistics follow
    the average over the groups. Momentum (0.9 of the old statistics) and epsilon are PyTorch's
    defaults, which the papers used. The running variance is the biased one, by which the batch was
    normalized; PyTorch's is `m / (m - 1)` times that for m values of a channel.

    The variance takes two passes: E[x^2] - E[x]^2 cancels in channels that hardly vary, and then
    rounding, which differs with the number of devices, is blown up by the division.
    """

    def __init__(self, features: int, *, groups=1, axis_name=None, scale=1.0, use_bias=True):
        self.groups = groups
        self.axis_name = axis_name
        self.scale = nnx.Param(jnp.full(features, scale, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(features, jnp.float32)) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(features, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(features, jnp.float32))

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        groups = self.groups if train else 1
        if len(x) % groups:
            raise ValueError(f"a batch of {len(x)} does not divide into {groups} groups")
        wide = x.astype(jnp.float32).reshape(groups, len(x) // groups, *x.shape[1:])
        if train:
            mean = self._averaged(wide)
            var = self._averaged(jnp.square(wide - mean))
            self._follow(self.mean, mean)
            self._follow(self.var, var)
        else:
            mean, var = self.mean[...], self.var[...]
        normed = (wide - _row(mean, wide)) * (
            jax.lax.rsqrt(_row(var, wide) + 1e-5) * _row(self.scale[...], wide)
        )
        if self.bias is not None:
            normed += _row(self.bias[...], wide)
        return normed.reshape(x.shape).astype(x.dtype)

    def _averaged(self, wide):
        """Of `[groups, m, ..., features]` the mean over all but the first and the last axis."""
        mean = jnp.mean(wide, axis=tuple(range(1, wide.ndim - 1)), keepdims=True)
        return mean if self.axis_name is None else jax.lax.pmean(mean, self.axis_name)

    def _follow(self, running, value):
        mean = jnp.mean(value, axis=tuple(range(value.ndim - 1)))
        running[...] = 0.9 * running[...] + 0.1 * mean


def _row(values: jax.Array, like: jax.Array) -> jax.Array:
    """`[features]`, or what has as many axes as `like` already, to be broadcast against it."""
    return values.reshape(values.shape[:-1] + (1,) * (like.ndim - values.ndim) + values.shape[-1:])
