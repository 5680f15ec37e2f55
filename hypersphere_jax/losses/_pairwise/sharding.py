"""Calls of losses: options checked, compiled once, mapped over the devices of global arrays.

A loss with `axis_name` is written for one device of a mapped axis. `shard_over_mesh` lets the same
function take global arrays, under `jit` or outside. It runs under `shard_map` over the axis that
the arrays are sharded along if their types show it (`Explicit` axes), or over a named axis (`Auto`
axes). Outside `jit` it is compiled, too, once for all calls that differ in numbers only.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from hypersphere_jax.losses._pairwise.options import AxisName
from hypersphere_jax.losses._pairwise.validation import (
    as_array,
    as_labels,
    as_weights,
    check_positive,
    computation_dtype,
)

Loss = TypeVar("Loss", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, kw_only=True)
class shard_over_mesh:
    """Let a loss with options `axis_name` and `mesh_axis` take global arrays of a mesh.

    All other arguments than the following are static options.

    Attributes:
      sharded: names of arrays `[n, ...]` that are sharded over devices.
      replicated: names of arrays that are the same on every device.
      labels: names of sharded arrays of class labels.
      positive: names of options that are one positive number.
      non_negative: names of options that are one number, zero or positive.
      weighted: whether the loss has the options `mask` and `weights`.
    """

    sharded: tuple[str, ...]
    replicated: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    non_negative: tuple[str, ...] = ()
    weighted: bool = False

    def __call__(self, loss: Loss) -> Loss:
        signature = inspect.signature(loss)

        @functools.wraps(loss)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                options = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{loss.__name__}() {error}") from None
            options.apply_defaults()
            return self._call(loss, dict(options.arguments))

        return cast(Loss, wrapper)

    def _call(self, loss: Callable, options: dict[str, Any]) -> Any:
        """Call a loss on one device, in a mapped function, or mapped over its arrays' devices."""
        axis_name = options.pop("axis_name")
        mesh_axis = options.pop("mesh_axis")
        if axis_name is not None and mesh_axis is not None:
            raise ValueError("give axis_name in mapped functions, mesh_axis elsewhere")
        sharded, replicated = self._pop_traced(options)
        mesh = None
        if axis_name is None:
            mesh, axis_name = _find_axis(sharded, mesh_axis)
        if not all(isinstance(value, Hashable) for value in options.values()):
            # The loss reports the invalid option.
            return loss(**sharded, **replicated, **options, axis_name=axis_name)
        return _compiled(loss, mesh, axis_name, **options)(sharded, replicated)

    def _pop_traced(self, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Remove arrays and numbers from the options; return sharded and replicated ones."""
        sharded = {name: as_array(name, options.pop(name)) for name in self.sharded}
        sharded |= {name: as_labels(name, options.pop(name)) for name in self.labels}
        if self.weighted:
            mask = options.pop("mask")
            weights = options.pop("weights")
            if weights is not None:
                sharded["weights"] = as_weights(weights, mask)
            if mask is not None:
                sharded["mask"] = as_array("mask", mask)
        replicated = {name: as_array(name, options.pop(name)) for name in self.replicated}
        dtype = computation_dtype(*sharded.values(), *replicated.values())
        for name in (*self.positive, *self.non_negative):
            allow_zero = name in self.non_negative
            replicated[name] = check_positive(name, options.pop(name), dtype, allow_zero)
        return sharded, replicated


def _find_axis(
    arrays: Mapping[str, Any], mesh_axis: AxisName
) -> tuple[AbstractMesh | None, AxisName]:
    """Return the mesh to map a loss over, if any, and the axis that arrays are sharded along."""
    if len({np.shape(array)[:1] for array in arrays.values()}) > 1:
        return None, None  # The loss reports that shapes do not fit.
    shardings = [jax.typeof(array).sharding for array in arrays.values()]
    shardings = [sharding for sharding in shardings if not sharding.mesh.empty]
    mesh = shardings[0].mesh if shardings else jax.sharding.get_abstract_mesh()
    if mesh_axis is not None:
        _check_axis(arrays, mesh, mesh_axis)
        return mesh, mesh_axis
    if AxisType.Explicit not in mesh.axis_types:
        return None, None
    axes = (sharding.spec[0] for sharding in shardings if sharding.spec)
    return mesh, next((axis for axis in axes if axis is not None), None)


def _check_axis(arrays: Mapping[str, Any], mesh: AbstractMesh, mesh_axis: AxisName) -> None:
    """Check that an axis is in the mesh, and that its devices divide the arrays."""
    if mesh.empty:
        raise ValueError(
            f"mesh_axis={mesh_axis!r}, but no mesh is set: call jax.set_mesh(mesh) or shard the "
            "arrays (in mapped functions, give axis_name)"
        )
    names = {mesh_axis} if isinstance(mesh_axis, str) else set(mesh_axis or ())
    if not names <= _unmapped_axes(mesh):
        raise ValueError(
            f"mesh_axis={mesh_axis!r} is not in the mesh, whose axes are {mesh.axis_names}: call "
            "the loss under jax.set_mesh (in mapped functions, give axis_name)"
        )
    devices = math.prod(mesh.shape[name] for name in names)
    for name, array in arrays.items():
        if np.shape(array)[:1] and np.shape(array)[0] % devices:
            raise ValueError(
                f"{name} {np.shape(array)} does not divide over the {devices} devices of "
                f"{mesh_axis!r}: pad the batch, and give mask to losses that take it"
            )


def _unmapped_axes(mesh: AbstractMesh) -> set[str]:
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in axes if kind != AxisType.Manual}


@functools.lru_cache(maxsize=256, typed=True)  # `jit` knows its functions by identity.
def _compiled(loss: Callable, mesh: AbstractMesh | None, axis: AxisName, **static: Any) -> Callable:
    """Return the compiled loss of sharded and replicated arguments."""

    def local(sharded: dict, replicated: dict) -> Any:
        return loss(**sharded, **replicated, **static, axis_name=axis)

    if mesh is None:
        return jax.jit(local)
    specs = (PartitionSpec(axis), PartitionSpec())
    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=specs,
        out_specs=PartitionSpec(),
        axis_names=_unmapped_axes(mesh),
    )
    if AxisType.Explicit not in mesh.axis_types:
        return jax.jit(mapped)

    def reshard(sharded: dict, replicated: dict) -> Any:
        split, whole = (NamedSharding(mesh, spec) for spec in specs)
        sharded = jax.tree.map(lambda array: jax.reshard(array, split), sharded)
        replicated = jax.tree.map(lambda array: jax.reshard(array, whole), replicated)
        return mapped(sharded, replicated)

    return jax.jit(reshard)
