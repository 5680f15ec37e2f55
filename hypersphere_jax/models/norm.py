"""Batch normalization over the global batch, a device's part of the batch, or groups."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.models.normalize import affine, normalize

MOMENTUM = 0.9  # of the running statistics; PyTorch's default, which the papers used


class BatchNorm(nnx.Module):
    """Batch normalization (Ioffe & Szegedy 2015) of `[n, ..., features]`, statistics in float32.

    The n samples are `groups` runs of `n / groups` consecutive samples. Each group is normalized by
    its own mean and variance, averaged over the mapped axis `axis_name` if there is one. Running
    statistics follow the average over the groups. Epsilon is PyTorch's default. The running
    variance is biased, like the variance that normalizes the batch; PyTorch's is `m / (m - 1)`
    times as large for m values of a channel.
    """

    def __init__(self, features: int, *, groups=1, axis_name=None, scale=1.0, use_bias=True):
        self.groups = groups
        self.axis_name = axis_name
        self.scale = nnx.Param(jnp.full(features, scale, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(features, jnp.float32)) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(features, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(features, jnp.float32))

    def __call__(self, x: jax.Array, train: bool, relu: bool = False) -> jax.Array:
        wide = x.astype(jnp.float32)
        per_feature = (1,) * (x.ndim - 1) + (-1,)
        scale = self.scale[...].reshape(per_feature)
        bias = 0.0
        if self.bias is not None:
            bias = self.bias[...].reshape(per_feature)
        if train:
            normed, mean, var = self._by_groups(wide, scale, bias, relu)
            # NNX takes long to trace `self.mean[...] =`.
            mean = MOMENTUM * self.mean[...] + (1 - MOMENTUM) * mean.reshape(-1)
            var = MOMENTUM * self.var[...] + (1 - MOMENTUM) * var.reshape(-1)
            self.mean.set_value(mean)
            self.var.set_value(var)
        else:
            mean = self.mean[...].reshape(per_feature)
            var = self.var[...].reshape(per_feature)
            normed = affine(wide, mean, var, scale, bias, relu)
        return normed.astype(x.dtype)

    def _by_groups(self, x, scale, bias, relu: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return normalized activations, and mean and variance averaged over the groups."""
        if len(x) % self.groups:
            raise ValueError(f"a batch of {len(x)} does not divide into {self.groups} groups")
        if self.groups == 1:
            return normalize(x, scale, bias, relu, self.axis_name)
        grouped = x.reshape(self.groups, -1, *x.shape[1:])
        one_group = functools.partial(normalize, relu=relu, axis_name=self.axis_name)
        normed, mean, var = jax.vmap(one_group, in_axes=(0, None, None))(grouped, scale, bias)
        return normed.reshape(x.shape), jnp.mean(mean, axis=0), jnp.mean(var, axis=0)
