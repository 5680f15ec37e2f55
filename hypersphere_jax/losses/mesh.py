"""How a loss is called: options checked, compiled once, over the devices of global arrays.

A loss with `axis_name` is written for one device of a mapped axis. `on_mesh` lets the same function
take global arrays, under `jit` or outside: it runs under `shard_map` over the axis that the arrays
are sharded along, where their types show it (`Explicit` axes), or that is named (`Auto` axes).
Outside `jit` it is compiled too, once for all calls that differ in numbers alone.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from hypersphere_jax.losses.common import as_array, as_weights, computed_in, number
from hypersphere_jax.losses.devices import AxisName

Loss = TypeVar("Loss", bound=Callable[..., Any])


def on_mesh(*sharded: str, labels: str = "") -> Callable[[Loss], Loss]:
    """Lets a loss with arguments `axis_name` and `mesh_axis` take global arrays of a mesh.

    Arguments that are annotated as arrays are made such, floats become scalars (see `number`); the
    other options are static.

    Args:
      *sharded: names of its arguments `[n, ...]` that are spread over devices; every device has
        the same of the others.
      labels: name of its argument of class labels.
    """

    def decorate(loss):
        signature = inspect.signature(loss)
        kinds = {name: option.annotation for name, option in signature.parameters.items()}

        @functools.wraps(loss)
        def wrapper(*args, **kwargs):
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{loss.__name__}() {error}") from None
            bound.apply_defaults()
            options = bound.arguments
            mesh_axis, axis_name = options.pop("mesh_axis"), options.pop("axis_name")
            if options.get("weights") is not None:
                mask = True if options["mask"] is None else options["mask"]
                options["weights"] = as_weights(options["weights"], mask)
            given = {
                name: as_array(name, options.pop(name), labels=name == labels)
                for name, kind in kinds.items()
                if kind is jax.Array or (kind == jax.Array | None and options[name] is not None)
            }
            dtype, numbers = computed_in(*given.values()), [n for n in kinds if kinds[n] is float]
            given |= {name: number(name, options.pop(name), dtype) for name in numbers}
            if None not in (axis_name, mesh_axis):
                raise ValueError("give axis_name in mapped functions, mesh_axis elsewhere")
            spread, mesh, axis = {n: given[n] for n in sharded if n in given}, None, axis_name
            if axis_name is None:
                mesh, axis = _find_axis(spread, mesh_axis)
            if mesh is not None and len({np.shape(a)[:1] for a in spread.values()}) > 1:
                mesh = axis = None  # the loss says that shapes do not fit
            try:
                compiled = _compiled(loss, mesh, axis, tuple(spread), **options)
            except TypeError:  # not hashable: the loss says that it is no such option
                return loss(**given, **options, axis_name=axis_name)
            return compiled(given)

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


@functools.lru_cache(maxsize=256, typed=True)  # `jit` knows its functions by identity
def _compiled(
    loss: Callable, mesh: AbstractMesh | None, axis: AxisName, spread: tuple[str, ...], **static
) -> Callable:
    """The loss of a dict of arrays, global ones where there is a mesh."""

    def local(arrays):
        return loss(**arrays, **static, axis_name=axis)

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

    return jax.jit(local if mesh is None else call)
