"""Batch normalization: of the global batch, of a device's part, or of groups of either."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.models import convolution

EPSILON = 1e-5


class BatchNorm(nnx.Module):
    """Batch normalization (Ioffe & Szegedy 2015) of `[n, ..., features]`, statistics in float32.

    Of n samples, each of `groups` consecutive runs of `n / groups` is normalized by its own mean
    and variance (averaged over the mapped axis `axis_name`, if any); the running statistics follow
    the average over the groups. Momentum (0.9 of the old statistics) and epsilon are PyTorch's
    defaults, which the papers used. The running variance is the biased one, by which the batch was
    normalized; PyTorch's is `m / (m - 1)` times that for m values of a channel.

    Mean and variance take one pass over the batch: sums of x and x^2 around the first sample's
    mean. Around zero the difference of the squares would cancel in channels that hardly vary, and
    rounding, which differs with the number of devices, would be blown up by the division. The mean
    of one of n samples is within sqrt(n) standard deviations of that of all.
    """

    def __init__(self, features: int, *, groups=1, axis_name=None, scale=1.0, use_bias=True):
        self.groups = groups
        self.axis_name = axis_name
        self.scale = nnx.Param(jnp.full(features, scale, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(features, jnp.float32)) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(features, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(features, jnp.float32))

    def __call__(self, x: jax.Array, train: bool, relu: bool = False) -> jax.Array:
        wide, row = x.astype(jnp.float32), (1,) * (x.ndim - 1) + (-1,)
        scale = self.scale[...].reshape(row)
        bias = 0.0 if self.bias is None else self.bias[...].reshape(row)
        if train:
            normed, mean, var = self._by_groups(wide, scale, bias, relu)
            # Not `self.mean[...] =`, which takes NNX long to trace.
            self.mean.set_value(0.9 * self.mean[...] + 0.1 * mean.reshape(-1))
            self.var.set_value(0.9 * self.var[...] + 0.1 * var.reshape(-1))
        else:
            mean, var = (stat[...].reshape(row) for stat in (self.mean, self.var))
            normed = _scaled(wide, mean, var, scale, bias, relu)
        return normed.astype(x.dtype)

    def _by_groups(self, x, scale, bias, relu: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """As `_normalized`; mean and variance are those of the groups on average."""
        if len(x) % self.groups:
            raise ValueError(f"a batch of {len(x)} does not divide into {self.groups} groups")
        if self.groups == 1:
            return _normalized(x, scale, bias, relu, self.axis_name)
        grouped = x.reshape(self.groups, -1, *x.shape[1:])
        of_one = functools.partial(_normalized, relu=relu, axis_name=self.axis_name)
        normed, mean, var = jax.vmap(of_one, in_axes=(0, None, None))(grouped, scale, bias)
        return normed.reshape(x.shape), jnp.mean(mean, axis=0), jnp.mean(var, axis=0)


def _averaged(x: jax.Array, axis_name: str | None) -> jax.Array:
    """Of `[m, ..., features]` the mean over all axes but the last: `[1, ..., features]`."""
    mean = jnp.mean(x, axis=tuple(range(x.ndim - 1)), keepdims=True)
    return mean if axis_name is None else jax.lax.pmean(mean, axis_name)


def _statistics(x: jax.Array, axis_name: str | None) -> tuple[jax.Array, jax.Array]:
    """Mean and variance, likewise, in one pass."""
    about = _averaged(x[:1], None)
    first, second = (_averaged(power, None) for power in (x - about, jnp.square(x - about)))
    mean, var = about + first, jnp.maximum(second - jnp.square(first), 0.0)
    if axis_name is None:
        return mean, var
    whole = jax.lax.pmean(mean, axis_name)
    return whole, jax.lax.pmean(var + jnp.square(mean - whole), axis_name)


def _scaled(x, mean, var, scale, bias, relu: bool) -> jax.Array:
    normed = (x - mean) * (jax.lax.rsqrt(var + EPSILON) * scale) + bias
    return jnp.maximum(normed, 0.0) if relu else normed


def _line(y: jax.Array, along: jax.Array, level: jax.Array) -> jax.Array:
    """`y * along + level`, whose transpose is two sums; on GPUs, one sum of complex numbers.

    Two sums XLA estimates to read the gradient twice, and then does not compute it within them but
    writes it in a pass of its own.
    """

    def of_complex(y, along, level):
        return jnp.real(jax.lax.complex(level, along) * jax.lax.complex(jnp.ones_like(y), -y))

    def plain(y, along, level):
        return y * along + level

    if convolution.on_cpu():  # the choice takes longer to trace than all else here
        return plain(y, along, level)
    return jax.lax.platform_dependent(y, along, level, cuda=of_complex, default=plain)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _normalized(
    x: jax.Array, scale: jax.Array, bias: jax.Array | float, relu: bool, axis_name: str | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`[m, ..., features]` normalized, scaled and moved; and its mean and variance."""
    mean, var = _statistics(x, axis_name)
    return _scaled(x, mean, var, scale, bias, relu), mean, var


@_normalized.defjvp
def _(relu, axis_name, primals, tangents):
    """In two passes over the activations, where differentiating mean and variance takes six.

    With y = (x - mean) / s: dy = (dx - mean(dx) - y mean(y dx)) / s. Factors and signs come after
    the means, so that in reverse these are sums that scale and bias need, too, and where ReLU is
    zero is found again from x. The statistics have no tangent.
    """
    x, scale, bias = primals
    dx, dscale, dbias = tangents
    normed, mean, var = _normalized(x, scale, bias, relu, axis_name)
    root = jax.lax.rsqrt(var + EPSILON)
    y, factor = (x - mean) * root, root * scale
    along = -factor * _averaged(y * dx, axis_name) + dscale
    level = -factor * _averaged(dx, axis_name) + dbias
    moved, nothing = dx * factor + _line(y, along, level), jnp.zeros_like(mean)
    if relu:
        # A step, as 0.0 and 1.0: booleans XLA would keep from the forward pass, a byte a number.
        moved *= jnp.clip((y * scale + bias) * 1e30, 0.0, 1.0)
    return (normed, mean, var), (moved, nothing, nothing)
