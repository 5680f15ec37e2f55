"""NNX modules as pure functions of their parameters and batch statistics."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.utils import xla

Tree = dict[str, Any]

_LEVEL = "xla_backend_optimization_level"


def split(module: nnx.Module) -> tuple[nnx.GraphDef, Tree, Tree]:
    """The definition, the parameters and the running statistics of a module."""
    parts: Any = nnx.split(module, nnx.Param, nnx.BatchStat)
    graphdef, params, stats = parts
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(stats)


class Builder:
    """The definition of a module that is built from a key, and its parameters by the key.

    On CPU they are compiled at LLVM's level 1, unless the user has named another one: that takes
    less than half the time, for the same numbers to the bit, and a program that runs as long. As a
    part of another program, which JAX allows no options, they are compiled as that is.
    """

    def __init__(self, build: Callable[[jax.Array], nnx.Module]):
        self._split = lambda key: split(build(key))

    def abstract(self) -> tuple[nnx.GraphDef, Tree, Tree]:
        """As `split`, with shapes (`jax.ShapeDtypeStruct`) for arrays: nothing is computed."""
        return jax.jit(self._split).eval_shape(jax.eval_shape(jax.random.key, 0))

    def __call__(self, key: jax.Array) -> tuple[Tree, Tree]:
        """Parameters and running statistics."""
        # Also of a key that was made outside: what is computed of it belongs to the program.
        is_part = isinstance(jax.random.key_data(key), jax.core.Tracer)
        return (self._split if is_part else self._program)(key)[1:]

    @functools.cached_property
    def _program(self) -> Callable[[jax.Array], tuple]:
        chosen = xla.is_file() or _LEVEL in xla.flags()
        lower = jax.default_backend() == "cpu" and not chosen
        return jax.jit(self._split, compiler_options={_LEVEL: "1"} if lower else None)


def call(
    graphdef: nnx.GraphDef, params: Tree, stats: Tree, *inputs: Any, **batch_norm: Any
) -> tuple[Any, Tree]:
    """Outputs of the module with these parameters, and its updated statistics.

    Its batch normalizations get the attributes `batch_norm`, such as `axis_name`.
    """
    # Copies: without them NNX refuses to update statistics across trace levels.
    module = nnx.merge(graphdef, params, stats, copy=True)
    # A sentence encoder has none.
    module.set_attributes(BatchNorm, raise_if_not_found=False, **batch_norm)
    outputs = module(*inputs)
    return outputs, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
