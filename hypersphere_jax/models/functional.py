"""NNX modules as pure functions of their parameters and batch statistics."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from hypersphere_jax import xla_flags

Tree = dict[str, Any]

_LEVEL = "xla_backend_optimization_level"


def split(module: nnx.Module) -> tuple[nnx.GraphDef, Tree, Tree]:
    """The definition, the parameters and the running statistics of a module."""
    parts: Any = nnx.split(module, nnx.Param, nnx.BatchStat)
    graphdef, params, stats = parts
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(stats)


def abstract(build: Callable[[], nnx.Module]) -> tuple[nnx.GraphDef, Tree, Tree]:
    """As `split`, with shapes (`jax.ShapeDtypeStruct`) for arrays: nothing is computed."""
    module = nnx.eval_shape(build)
    return split(module)


def drawn(build: Callable[[jax.Array], nnx.Module]) -> Callable[[jax.Array], tuple[Tree, Tree]]:
    """From a key to parameters and running statistics of the module that is built with it.

    On CPU it is compiled at LLVM's level 1, unless the user has named another one: that takes less
    than half the time, for the same numbers to the bit, and a program that runs as long. As a part
    of another program, which JAX allows no options, it is compiled as that is.
    """

    def draw(key):
        return split(build(key))[1:]

    chosen = xla_flags.is_file() or _LEVEL in xla_flags.given()
    lower = jax.default_backend() == "cpu" and not chosen
    alone = jax.jit(draw, compiler_options={_LEVEL: "1"} if lower else None)

    def drawn(key):
        # Also of a key that was made outside: what is computed of it belongs to the program.
        is_part = isinstance(jax.random.key_data(key), jax.core.Tracer)
        return draw(key) if is_part else alone(key)

    return drawn


def call(graphdef: nnx.GraphDef, params: Tree, stats: Tree, *inputs: Any) -> tuple[Any, Tree]:
    """Outputs of the module with these parameters, and its updated statistics."""
    # Copies: without them NNX refuses to update statistics across trace levels.
    module = nnx.merge(graphdef, params, stats, copy=True)
    outputs = module(*inputs)
    return outputs, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
