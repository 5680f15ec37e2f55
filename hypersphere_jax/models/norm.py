"""Batch normalization over the global batch, a device's part of the batch, or groups.

The normalization has a custom derivative. Automatic differentiation of mean and variance takes
six passes over the activations, this one two. On an H100 the passes of batch norm are most of the
time of a ResNet's step.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.models import ops

MOMENTUM = 0.9  # of the running statistics; PyTorch's default, which the papers used
EPSILON = 1e-5


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


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def normalize(
    x: jax.Array, scale: jax.Array, bias: jax.Array | float, relu: bool, axis_name: str | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize `[m, ..., features]`, float32, by its own mean and variance over `axis_name`.

    Returns the normalized activations, after ReLU if `relu`, with the mean and the biased variance
    `[1, ..., features]`, which have no derivative. Scale and bias have their shape.
    """
    mean, var = statistics(x, axis_name)
    return affine(x, mean, var, scale, bias, relu), mean, var


@normalize.defjvp
def _(relu, axis_name, primals, tangents):
    """Differentiate: with y = (x - mean) / s, dy = (dx - mean(dx) - y mean(y dx)) / s.

    Factors and signs come after the means. In reverse mode the means thereby become sums that scale
    and bias need as well. ReLU's mask is computed again from x.
    """
    x, scale, bias = primals
    dx, dscale, dbias = tangents
    normed, mean, var = normalize(x, scale, bias, relu, axis_name)
    inverse = jax.lax.rsqrt(var + EPSILON)
    y = (x - mean) * inverse
    factor = inverse * scale
    slope = -factor * _mean(y * dx, axis_name) + dscale
    offset = -factor * _mean(dx, axis_name) + dbias
    tangent = dx * factor + _multiply_add(y, slope, offset)
    if relu:
        # XLA would keep a boolean mask from the forward pass, one byte per activation. It computes
        # this mask of 0.0 and 1.0 again.
        tangent *= jnp.clip((y * scale + bias) * 1e30, 0.0, 1.0)
    constant = jnp.zeros_like(mean)
    return (normed, mean, var), (tangent, constant, constant)


def statistics(x: jax.Array, axis_name: str | None) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance of `[m, ..., features]`, in one pass.

    The sums are of x and x^2 around the first sample's mean. Around zero, the difference of the
    squares would cancel in channels that hardly vary, and the rounding error, which depends on the
    number of devices, would grow by the division. The mean of one of m samples is within sqrt(m)
    standard deviations of the mean of all.
    """
    center = _mean(x[:1], None)
    first = _mean(x - center, None)
    second = _mean(jnp.square(x - center), None)
    mean = center + first
    var = jnp.maximum(second - jnp.square(first), 0.0)
    if axis_name is None:
        return mean, var
    global_mean = jax.lax.pmean(mean, axis_name)
    return global_mean, jax.lax.pmean(var + jnp.square(mean - global_mean), axis_name)


def affine(x, mean, var, scale, bias, relu: bool) -> jax.Array:
    """Return `(x - mean) / sqrt(var + EPSILON) * scale + bias`, after ReLU if `relu`."""
    normed = (x - mean) * (jax.lax.rsqrt(var + EPSILON) * scale) + bias
    return jnp.maximum(normed, 0.0) if relu else normed


def _mean(x: jax.Array, axis_name: str | None) -> jax.Array:
    """Return the mean of `[m, ..., features]` over all axes but the last: `[1, ..., features]`."""
    mean = jnp.mean(x, axis=tuple(range(x.ndim - 1)), keepdims=True)
    return mean if axis_name is None else jax.lax.pmean(mean, axis_name)


def _multiply_add(y: jax.Array, slope: jax.Array, offset: jax.Array) -> jax.Array:
    """Return `y * slope + offset`, whose transpose is two sums over the gradient.

    On GPUs, the two sums are one sum of complex numbers. XLA estimates that two sums read the
    gradient twice; it then writes the gradient in a separate pass instead of fusing it.
    """

    def complex_product(y, slope, offset):
        return jnp.real(jax.lax.complex(offset, slope) * jax.lax.complex(jnp.ones_like(y), -y))

    def plain(y, slope, offset):
        return y * slope + offset

    if ops.on_cpu():  # `platform_dependent` takes longer to trace than the rest of batch norm
        return plain(y, slope, offset)
    return jax.lax.platform_dependent(y, slope, offset, cuda=complex_product, default=plain)
