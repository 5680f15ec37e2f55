"""Losses of global arrays on a mesh: each device computes its share, as under `pmap`.

A loss with `axis_name` is written for one device of a mapped axis. `on_mesh` lets the same function
take global arrays, under `jit` or outside: it runs under `shard_map` over the axis that the arrays
are sharded along, where their types show it (`Explicit` axes), or that is named (`Auto` axes).
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from hypersphere_jax.losses.devices import AxisName

Loss = TypeVar("Loss", bound=Callable[..., Any])
STATIC = bool, int, float, str, np.generic, type(None)  # types of options that are no arrays


def on_mesh(*sharded: str) -> Callable[[Loss], Loss]:
    """Lets a loss with arguments `axis_name` and `mesh_axis` take global arrays of a mesh.

    Args:
      *sharded: names of its arguments `[n, ...]` that are spread over devices; every device has
        the same of the others.
    """

    def decorate(loss):
        signature = inspect.signature(loss)

        @functools.wraps(loss)
        def wrapper(*args, **kwargs):
            try:
                options = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{loss.__name__}() {error}") from None
            mesh_axis = options.pop("mesh_axis", None)
            if options.get("axis_name") is not None:
                if mesh_axis is not None:
                    raise ValueError("give axis_name in mapped functions, mesh_axis elsewhere")
                return loss(**options)
            arrays = {k: v for k, v in options.items() if not isinstance(v, STATIC)}
            spread = {name: arrays[name] for name in sharded if name in arrays}
            mesh, axis = _find_axis(spread, mesh_axis)
            if mesh is None or len({np.shape(array)[:1] for array in spread.values()}) > 1:
                return loss(**options)  # which says so where shapes do not fit
            static = tuple((k, v) for k, v in options.items() if k not in arrays)
            mapped = _mapped(loss, mesh, axis, tuple(spread), static)
            return mapped({name: jnp.asarray(array) for name, array in arrays.items()})

        return wrapper

    return decorate


def _find_axis(
    arrays: Mapping[str, Any], mesh_axis: AxisName
) -> tuple[AbstractMesh | None, AxisName]:
    """The mesh to map a loss over, if any, and the axis that its arrays are spread along."""
    shardings = [jax.typeof(array).sharding for array in arrays.values() if hasattr(array, "aval")]
    shardings = [sharding for sharding in shardings if not sharding.mesh.empty]
    mesh = shardings[0].mesh if shardings else jax.sharding.get_abstract_mesh()
    if mesh_axis is None:
        if AxisType.Explicit not in mesh.axis_types:
            return None, None
        along = (sharding.spec[0] for sharding in shardings if sharding.spec)
        return mesh, next((axis for axis in along if axis is not None), None)
    names = {mesh_axis} if isinstance(mesh_axis, str) else set(mesh_axis)
    if mesh.empty:
        raise ValueError(
            f"mesh_axis={mesh_axis!r}, and no mesh is set: jax.set_mesh(mesh), or shard the arrays "
            "(in mapped functions give axis_name)"
        )
    if not names <= _not_mapped(mesh):
        raise ValueError(
            f"mesh_axis={mesh_axis!r} is no axis of the mesh, which has {mesh.axis_names}: call "
            "the loss under jax.set_mesh (in mapped functions give axis_name)"
        )
    devices = math.prod(mesh.shape[name] for name in names)
    for name, array in arrays.items():
        if np.shape(array)[:1] and np.shape(array)[0] % devices:
            raise ValueError(
                f"{name} {np.shape(array)} does not divide over the {devices} devices of "
                f"{mesh_axis!r}: pad the batch, and give mask to losses that take it"
            )
    return mesh, mesh_axis


def _not_mapped(mesh: AbstractMesh) -> set[str]:
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in axes if kind != AxisType.Manual}


@functools.lru_cache(maxsize=256)  # `jit` knows its functions by identity
def _mapped(
    loss: Callable, mesh: AbstractMesh, axis: AxisName, spread: tuple[str, ...], static: tuple
) -> Callable:
    """The loss of a dict of global arrays."""

    def local(arrays):
        return loss(**arrays, **dict(static), axis_name=axis)

    def call(arrays):
        split, whole = PartitionSpec(axis), PartitionSpec()
        specs = {name: split if name in spread else whole for name in arrays}
        if AxisType.Explicit in mesh.axis_types:
            places = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
            arrays = {name: jax.reshard(arrays[name], place) for name, place in places.items()}
        free = _not_mapped(mesh)
        return jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=whole, axis_names=free)(
            arrays
        )

    return jax.jit(call)
