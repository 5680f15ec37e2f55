"""NNX modules as pure functions of their parameters and batch statistics."""

from collections.abc import Callable
from typing import Any

from flax import nnx

Tree = dict[str, Any]


def split(module: nnx.Module) -> tuple[nnx.GraphDef, Tree, Tree]:
    """The definition, the parameters and the running statistics of a module."""
    parts: Any = nnx.split(module, nnx.Param, nnx.BatchStat)
    graphdef, params, stats = parts
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(stats)


def abstract(build: Callable[[], nnx.Module]) -> tuple[nnx.GraphDef, Tree, Tree]:
    """As `split`, with shapes (`jax.ShapeDtypeStruct`) for arrays: nothing is computed."""
    module = nnx.eval_shape(build)
    return split(module)


def call(graphdef: nnx.GraphDef, params: Tree, stats: Tree, *inputs: Any) -> tuple[Any, Tree]:
    """Outputs of the module with these parameters, and its updated statistics."""
    # Copies: without them NNX refuses to update statistics across trace levels.
    module = nnx.merge(graphdef, params, stats, copy=True)
    outputs = module(*inputs)
    return outputs, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
