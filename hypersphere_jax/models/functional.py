"""NNX modules as pure functions of parameters and batch statistics."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.utils import xla

Tree = dict[str, Any]

_LEVEL = "xla_backend_optimization_level"


def split(module: nnx.Module) -> tuple[nnx.GraphDef, Tree, Tree]:
    """Return the graph definition, the parameters and the running statistics of a module."""
    parts: Any = nnx.split(module, nnx.Param, nnx.BatchStat)
    graphdef, params, stats = parts
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(stats)


class Builder:
    """Graph definition of a module, and its parameters as a function of a random key.

    On CPUs the initialization is compiled at LLVM's optimization level 1, unless XLA_FLAGS sets a
    level. It compiles in less than half the time and gives the same bits.
    """

    def __init__(self, build: Callable[[jax.Array], nnx.Module]):
        self._split = lambda key: split(build(key))

    def abstract(self) -> tuple[nnx.GraphDef, Tree, Tree]:
        """Return what `split` returns, with `jax.ShapeDtypeStruct` for arrays."""
        return jax.jit(self._split).eval_shape(jax.eval_shape(jax.random.key, 0))

    def __call__(self, key: jax.Array) -> tuple[Tree, Tree]:
        """Return parameters and running statistics."""
        # Under `jit`, JAX takes no compiler options, and data of a constant key are tracers, too.
        if isinstance(jax.random.key_data(key), jax.core.Tracer):
            return self._split(key)[1:]
        return self._program(key)[1:]

    @functools.cached_property
    def _program(self) -> Callable[[jax.Array], tuple]:
        level_is_set = xla.is_file() or _LEVEL in xla.flags()
        if level_is_set or jax.default_backend() != "cpu":
            return jax.jit(self._split)
        return jax.jit(self._split, compiler_options={_LEVEL: "1"})


def call(
    graphdef: nnx.GraphDef, params: Tree, stats: Tree, *inputs: Any, **batch_norm: Any
) -> tuple[Any, Tree]:
    """Return outputs and updated statistics; `batch_norm` are attributes of `BatchNorm` layers."""
    # Without copies, NNX refuses to update statistics across trace levels.
    module = nnx.merge(graphdef, params, stats, copy=True)
    # Sentence encoders have no batch norm.
    module.set_attributes(BatchNorm, raise_if_not_found=False, **batch_norm)
    outputs = module(*inputs)
    return outputs, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))


def named_arrays(params: Any, stats: Any) -> dict[str, np.ndarray]:
    """Return parameters and statistics by path, such as "params/conv1/layer/kernel"."""
    leaves = named_leaves({"params": params, "stats": stats})
    return {name: np.array(leaf, order="C") for name, leaf in leaves.items()}


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of nested dicts by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
