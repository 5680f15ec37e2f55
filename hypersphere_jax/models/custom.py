"""Networks of the user's own, in the form of this package's: `apply(params, stats, x, train)`.

Taken are modules of Flax (NNX or Linen) and of Equinox, and pairs of functions (init, apply).
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import Custom, described
from hypersphere_jax.losses import l2_normalize

Tree = dict[str, Any]
# Of the statistics of a network that draws random numbers, as for dropout: calls in training so
# far, float32, as statistics are averaged over devices.
CALLS = "dropout_calls"


class Functions(NamedTuple):
    """A network as functions of its parameters and statistics, trees of any kind.

    Attributes:
      init: (random key, example x) -> (params, stats).
      apply: (params, stats, x, train, random key, axis_name) -> (outputs, stats).
      random: whether `apply` uses its key in training.
    """

    init: Callable[[jax.Array, jax.Array], tuple[Any, Any]]
    apply: Callable[..., tuple[Any, Any]]
    random: bool


@functools.lru_cache(maxsize=8)
def create(network: Custom, shape: tuple[int, ...]) -> tuple[Callable, Callable]:
    """A network of the user's as `models.create` gives those of this package.

    Args:
      network: see the top of this file. A single array that it gives is taken for the layer
        "output", before it is divided by its norm; a dict of named layers must have that one.
      shape: of an image, `(h, w, c)`.

    Returns:
      `init(key) -> (params, stats)` and `apply(params, stats, x, train, axis_name=None)`.

    Raises:
      UserError: for anything else than such networks, or outputs that are not `[n, d]`.
    """
    functions = _functions(network)
    example = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    trees = jax.eval_shape(functions.init, jax.eval_shape(jax.random.key, 0), example)
    require(bool(jax.tree.leaves(trees[0])), f"network={network.name} has no parameters to train")
    to_params, from_params = _as_dict(trees[0], f"network={network.name}: its parameters")
    to_stats, from_stats = _as_dict(trees[1], f"network={network.name}: its statistics")

    def init(key):
        params, stats = functions.init(key, jnp.zeros(example.shape, example.dtype))
        # Runs of other seeds begin elsewhere in the sequence of draws.
        begin = jnp.floor(2**20 * jax.random.uniform(jax.random.fold_in(key, 1)))
        return to_params(params), to_stats(stats) | ({CALLS: begin} if functions.random else {})

    def apply(params, stats, x, train, axis_name=None):
        calls, key = stats.get(CALLS), None
        if train and calls is not None:
            key = jax.random.fold_in(jax.random.key(0), calls.astype(jnp.uint32))
            key = (
                key if axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(axis_name))
            )
        kept = {name: part for name, part in stats.items() if name != CALLS}
        outputs, changed = functions.apply(
            from_params(params), from_stats(kept), x, train, key, axis_name
        )
        if train:
            stats = to_stats(changed) | ({} if calls is None else {CALLS: calls + 1})
        return _layers(outputs, len(x), network.name), stats

    return init, apply


def _layers(outputs: Any, n: int, name: str) -> dict[str, jax.Array]:
    outputs = dict(outputs) if isinstance(outputs, Mapping) else {"output": outputs}
    known = ", ".join(map(str, outputs))
    require("output" in outputs, f"network={name} returns the layers {known}: none is 'output'")
    for layer, x in outputs.items():
        is_float = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        fits = is_float and x.shape[:1] == (n,) and (layer != "output" or x.ndim == 2)
        form = f"[{n}, d]" if layer == "output" else f"[{n}, …]"
        require(
            fits,
            f"network={name} returns {described(x)} as {layer!r} for {n} images: it must be "
            f"floating point {form}",
        )
    raw = outputs["output"]
    layers = {"unnormalized": raw} | outputs | {"output": l2_normalize(raw)}
    return {layer: jnp.asarray(x, jnp.float32) for layer, x in layers.items()}


def _functions(network: Custom) -> Functions:
    value = network.value
    if isinstance(value, nnx.Module):
        return _nnx(value)
    if isinstance(value, linen.Module):
        return _linen(value)
    if any(cls.__module__.startswith("equinox") for cls in type(value).__mro__):
        return _equinox(value)
    if isinstance(value, tuple) and len(value) == 2 and all(map(callable, value)):
        return _pair(*value)
    raise UserError(
        f"network={network.name} must be a module of Flax (NNX or Linen) or Equinox, or "
        "a pair of functions (init, apply)"
    )


def _nnx(module: nnx.Module) -> Functions:
    """Parameters are the module's own, as they are at the time; the rest are statistics."""
    parts = (nnx.Param, nnx.RngState, nnx.Intermediate, ...)
    flags = _flags(type(module).__call__)

    def definition(train: bool, axis_name: str | None):
        clone = nnx.clone(module)
        clone.train() if train else clone.eval()
        for _, part in nnx.iter_modules(clone):
            if isinstance(part, nnx.BatchNorm) and part.axis_name is None:
                part.axis_name = axis_name
        return nnx.split(clone, *parts)

    def init(key, x):
        _, params, _, _, stats = nnx.split(module, *parts)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(stats)

    def apply(params, stats, x, train, key, axis_name):
        graphdef, _, own, intermediates, _ = definition(train, axis_name)
        if key is not None:
            own = jax.tree.map(functools.partial(_reseeded, key), own)
        copy = nnx.merge(graphdef, params, own, intermediates, stats, copy=True)
        outputs = copy(x, **flags(train))
        return outputs, nnx.to_pure_dict(nnx.split(copy, *parts)[-1])

    made: Any = nnx.split(module, *parts)
    return Functions(init, apply, bool(jax.tree.leaves(made[2])))


def _reseeded(key: jax.Array, leaf: jax.Array) -> jax.Array:
    """In place of a stream's key one that differs from step to step."""
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.fold_in(key, jax.random.bits(leaf)) if is_key else leaf


def _linen(module: linen.Module) -> Functions:
    flags = _flags(type(module).__call__)

    def init(key, x):
        keys = dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
        variables = dict(module.init(keys, x, **flags(False)))
        return variables.pop("params", {}), variables

    def apply(params, stats, x, train, key, axis_name):
        variables = {"params": params, **stats}
        if not train:
            return module.apply(variables, x, **flags(False)), stats
        # Streams of other names fall back on that of the parameters.
        keys = dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
        options = {**flags(True), "mutable": list(stats), "rngs": keys}
        with linen.intercept_methods(functools.partial(_over_devices, axis_name)):
            return module.apply(variables, x, **options)

    return Functions(init, apply, True)


def _over_devices(axis_name: str | None, call: Callable, args, kwargs, context) -> Any:
    """Batch norm without an axis of its own takes the statistics of all devices."""
    part = context.module
    if isinstance(part, linen.BatchNorm) and part.axis_name is None:
        object.__setattr__(part, "axis_name", axis_name)
    return call(*args, **kwargs)


def _equinox(module: Any) -> Functions:
    """A module of one example, as Equinox has them."""
    import equinox

    indices = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, equinox.nn.StateIndex))
    require(
        not any(isinstance(leaf, equinox.nn.StateIndex) for leaf in indices),
        f"{type(module).__name__} has a state, such as BatchNorm's: give a pair of functions, "
        "init(key, x) -> (params, stats) and apply(params, stats, x, train) -> (outputs, stats)",
    )

    takes_key = "key" in inspect.signature(type(module).__call__).parameters
    params, rest = equinox.partition(module, equinox.is_inexact_array)

    def apply(params, stats, x, train, key, axis_name):
        whole = equinox.combine(params, equinox.nn.inference_mode(rest, not train))
        if not takes_key:
            return jax.vmap(whole)(x), stats
        if key is None:
            return jax.vmap(lambda image: whole(image, key=None))(x), stats
        keys = jax.random.split(key, len(x))
        return jax.vmap(lambda image, key: whole(image, key=key))(x, keys), stats

    return Functions(lambda key, x: (params, {}), apply, takes_key)


def _pair(init: Callable, apply: Callable) -> Functions:
    """`init(key, x)`; `apply(params, x)`, `(params, key, x)` or `(params, stats, x, train)`."""
    count, wanted = len(_positional(apply)), len(_positional(init))
    require(
        count in (2, 3, 4) and wanted in (1, 2),
        f"network=: init takes {wanted} arguments and apply {count}: they must be init(key, x) and "
        "apply(params, x), apply(params, key, x) or apply(params, stats, x, train)",
    )
    stateful, random = count == 4, count == 3

    def initial(key, x):
        made = init(key, x) if wanted == 2 else init(key)
        return _two(made, "init", "params, stats") if stateful else (made, {})

    def applied(params, stats, x, train, key, axis_name):
        if not stateful:
            return apply(params, *([key] if random else []), x), stats
        over = (
            {"axis_name": axis_name} if "axis_name" in inspect.signature(apply).parameters else {}
        )
        return _two(apply(params, stats, x, train, **over), "apply", "outputs, stats")

    return Functions(initial, applied, random)


def _two(value: Any, name: str, form: str) -> Any:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    require(is_pair, f"network=: {name} returns {described(value)}: it must return ({form})")
    return value


def _positional(function: Callable) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def _flags(call: Callable) -> Callable[[bool], dict[str, bool]]:
    """What says to a module's call whether it trains, by the names that are usual."""
    known = inspect.signature(call).parameters
    same = [name for name in ("train", "training", "is_training") if name in known]
    opposite = [name for name in ("deterministic", "use_running_average") if name in known]
    return lambda train: dict.fromkeys(same, train) | dict.fromkeys(opposite, not train)


def _as_dict(tree: Any, what: str) -> tuple[Callable[[Any], Tree], Callable[[Tree], Any]]:
    """Functions from trees of this structure to nested dicts with names as keys, and back."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    for path, leaf in leaves:
        require(
            jnp.issubdtype(leaf.dtype, jnp.floating),
            f"{what}: {jax.tree_util.keystr(path)} is {leaf.dtype}, and must be floating point",
        )
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/").split("/") for path, _ in leaves
    ]

    def to_dict(tree):
        same = jax.tree.structure(tree) == structure
        require(same, f"{what} must have the same structure after training")
        nested: Tree = {}
        for path, leaf in zip(paths, jax.tree.leaves(tree), strict=True):
            place = nested
            for name in path[:-1]:
                place = place.setdefault(name or "value", {})
            place[path[-1] or "value"] = leaf
        return nested

    def from_dict(nested):
        leaves = [
            functools.reduce(lambda place, name: place[name or "value"], path, nested)
            for path in paths
        ]
        return jax.tree.unflatten(structure, leaves)

    return to_dict, from_dict
