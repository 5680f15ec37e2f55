"""The user's networks in the form of this package: `apply(params, stats, x, train)`.

A network is a Flax module (NNX or Linen), an Equinox module, or a pair of functions (init, apply).
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import Custom, described
from hypersphere_jax.losses import l2_normalize

Tree = dict[str, Any]
# Statistic of networks with dropout: number of training calls, float32 because statistics are
# averaged over devices.
CALLS = "dropout_calls"


class Functions(NamedTuple):
    """A network as functions of its parameters and statistics, which may be any trees."""

    init: Callable[[jax.Array, jax.Array], tuple[Any, Any]]  # (random key, x) -> (params, stats)
    # (params, stats, x, train, random key or None, axis_name) -> (outputs, stats)
    apply: Callable[..., tuple[Any, Any]]
    random: bool  # whether `apply` uses its key in training


@functools.lru_cache(maxsize=8)
def create(network: Custom, shape: tuple[int, ...]) -> tuple[Callable, Callable]:
    """Return `init(key)` and `apply` of a user's network, in the form of `models.create`.

    The network returns the layer "output" before normalization as an array `[n, d]`, or a dict of
    layers with "output". `shape` is `(h, w, c)` of an image.

    Raises:
      UserError: for another kind of network, or outputs of other shapes.
    """
    functions = _functions(network)
    example = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    params, stats = jax.eval_shape(functions.init, jax.eval_shape(jax.random.key, 0), example)
    require(bool(jax.tree.leaves(params)), f"network={network.name} has no parameters to train")
    params_as_dict = DictForm(params, f"network={network.name}: its parameters")
    stats_as_dict = DictForm(stats, f"network={network.name}: its statistics")

    def init(key):
        params, stats = functions.init(key, jnp.zeros(example.shape, example.dtype))
        stats = stats_as_dict.to_dict(stats)
        if functions.random:
            # Runs with other seeds start elsewhere in the sequence of draws.
            start = 2**20 * jax.random.uniform(jax.random.fold_in(key, 1))
            stats[CALLS] = jnp.floor(start)
        return params_as_dict.to_dict(params), stats

    def apply(params, stats, x, train, axis_name=None):
        stats = dict(stats)
        calls = stats.pop(CALLS, None)
        key = None
        if train and calls is not None:
            key = _dropout_key(calls, axis_name)
        trees = params_as_dict.from_dict(params), stats_as_dict.from_dict(stats)
        outputs, new_stats = functions.apply(*trees, x, train, key, axis_name)
        if train:
            stats = stats_as_dict.to_dict(new_stats)
        if calls is not None:
            stats[CALLS] = calls + train
        return _layers(outputs, len(x), network.name), stats

    return init, apply


def _dropout_key(calls: jax.Array, axis_name: str | None) -> jax.Array:
    """Return a random key that differs between training calls and between devices."""
    # The mean of equal counters of several devices or microbatches may be rounded.
    key = jax.random.fold_in(jax.random.key(0), jnp.round(calls).astype(jnp.uint32))
    if axis_name is None:
        return key
    return jax.random.fold_in(key, jax.lax.axis_index(axis_name))


def _layers(outputs: Any, n: int, name: str) -> dict[str, jax.Array]:
    """Return the network's layers as float32, with "output" normalized."""
    if not isinstance(outputs, Mapping):
        outputs = {"output": outputs}
    known = ", ".join(map(str, outputs))
    require("output" in outputs, f"network={name} returns the layers {known}: none is 'output'")
    for layer, x in outputs.items():
        is_float = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        fits = is_float and x.shape[:1] == (n,) and (x.ndim == 2 or layer != "output")
        require(
            fits,
            f"network={name} returns {described(x)} as {layer!r} for {n} images: layers must be "
            f"floating point [{n}, …], 'output' [{n}, d]",
        )
    raw = outputs["output"]
    layers = {"unnormalized": raw, **outputs, "output": l2_normalize(raw)}
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
    """Return the functions of an NNX module; other variables than parameters are statistics."""
    kinds = (nnx.Param, nnx.RngState, nnx.Intermediate, ...)
    train_flags = _train_flags(type(module).__call__)

    def split(train: bool, axis_name: str | None):
        copy = nnx.clone(module)
        if train:
            copy.train()
        else:
            copy.eval()
        for _, part in nnx.iter_modules(copy):
            if isinstance(part, nnx.BatchNorm) and part.axis_name is None:
                part.axis_name = axis_name
        return nnx.split(copy, *kinds)

    def init(key, x):
        _, params, _, _, stats = nnx.split(module, *kinds)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(stats)

    def apply(params, stats, x, train, key, axis_name):
        graphdef, _, streams, intermediates, _ = split(train, axis_name)
        if key is not None:
            streams = jax.tree.map(functools.partial(_reseeded, key), streams)
        copy = nnx.merge(graphdef, params, streams, intermediates, stats, copy=True)
        outputs = copy(x, **train_flags(train))
        return outputs, nnx.to_pure_dict(nnx.split(copy, *kinds)[-1])

    parts: Any = nnx.split(module, *kinds)
    return Functions(init, apply, bool(jax.tree.leaves(parts[2])))


def _reseeded(key: jax.Array, leaf: jax.Array) -> jax.Array:
    """Replace the key of a random stream by a key that differs from step to step."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.fold_in(key, jax.random.bits(leaf))
    return leaf


def _linen(module: linen.Module) -> Functions:
    train_flags = _train_flags(type(module).__call__)

    def streams(key):
        # Linen takes streams of other names from "params".
        params_key, dropout_key = jax.random.split(key)
        return {"params": params_key, "dropout": dropout_key}

    def init(key, x):
        variables = dict(module.init(streams(key), x, **train_flags(False)))
        return variables.pop("params", {}), variables

    def apply(params, stats, x, train, key, axis_name):
        variables = {"params": params, **stats}
        if not train:
            return module.apply(variables, x, **train_flags(False)), stats
        options = {"mutable": list(stats), "rngs": streams(key), **train_flags(True)}
        with linen.intercept_methods(functools.partial(_synchronize_batch_norm, axis_name)):
            return module.apply(variables, x, **options)

    return Functions(init, apply, True)


def _synchronize_batch_norm(axis_name: str | None, call: Callable, args, kwargs, context) -> Any:
    """Average the statistics of Linen's batch norm over devices, unless it has its own axis."""
    part = context.module
    if isinstance(part, linen.BatchNorm) and part.axis_name is None:
        object.__setattr__(part, "axis_name", axis_name)
    return call(*args, **kwargs)


def _equinox(module: Any) -> Functions:
    """Return an Equinox module, which takes one image, as functions of a batch."""
    import equinox

    leaves = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, equinox.nn.StateIndex))
    require(
        not any(isinstance(leaf, equinox.nn.StateIndex) for leaf in leaves),
        f"{type(module).__name__} has a state, such as BatchNorm's: give a pair of functions, "
        "init(key, x) -> (params, stats) and apply(params, stats, x, train) -> (outputs, stats)",
    )
    takes_key = "key" in inspect.signature(type(module).__call__).parameters
    params, static = equinox.partition(module, equinox.is_inexact_array)

    def init(key, x):
        return params, {}

    def apply(params, stats, x, train, key, axis_name):
        encoder = equinox.combine(params, equinox.nn.inference_mode(static, not train))
        if key is None:
            options = {"key": None} if takes_key else {}
            return jax.vmap(functools.partial(encoder, **options))(x), stats
        keys = jax.random.split(key, len(x))
        return jax.vmap(lambda image, key: encoder(image, key=key))(x, keys), stats

    return Functions(init, apply, takes_key)


def _pair(init: Callable, apply: Callable) -> Functions:
    """Return the functions of `init(key, x)` and `apply(params, x)`.

    With statistics, `apply` is `apply(params, stats, x, train)`, and may take `axis_name`.
    """
    form = "init(key, x) and apply(params, x) or apply(params, stats, x, train)"
    count = len(_required_arguments(apply))
    is_known = count in (2, 4) and len(_required_arguments(init)) == 2
    require(is_known, f"network=: the functions must be {form}")
    if count == 2:
        return Functions(
            lambda key, x: (init(key, x), {}),
            lambda params, stats, x, train, key, axis_name: (apply(params, x), stats),
            random=False,
        )
    takes_axis = "axis_name" in inspect.signature(apply).parameters

    def init_both(key, x):
        return _checked_pair(init(key, x), "init", "params, stats")

    def apply_both(params, stats, x, train, key, axis_name):
        options = {"axis_name": axis_name} if takes_axis else {}
        return _checked_pair(apply(params, stats, x, train, **options), "apply", "outputs, stats")

    return Functions(init_both, apply_both, random=False)


def _checked_pair(value: Any, name: str, form: str) -> Any:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    require(is_pair, f"network=: {name} returns {described(value)}: it must return ({form})")
    return value


def _required_arguments(function: Callable) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def _train_flags(call: Callable) -> Callable[[bool], dict[str, bool]]:
    """Return the arguments by which a module is told whether it trains, by their usual names."""
    known = inspect.signature(call).parameters
    same = [name for name in ("train", "training", "is_training") if name in known]
    opposite = [name for name in ("deterministic", "use_running_average") if name in known]
    return lambda train: dict.fromkeys(same, train) | dict.fromkeys(opposite, not train)


class DictForm:
    """Conversion between trees of one structure and nested dicts with text keys.

    Raises UserError, with the tree's `name`, for leaves that are not floating point.
    """

    def __init__(self, tree: Any, name: str):
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        self.structure: Any = jax.tree.structure(tree)
        self.name = name
        self.paths: list[tuple[str, ...]] = []
        for path, leaf in leaves:
            require(
                jnp.issubdtype(leaf.dtype, jnp.floating),
                f"{name}: {jax.tree_util.keystr(path)} is {leaf.dtype}, and must be floating point",
            )
            keys = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
            # A leaf at the top has an empty path.
            self.paths.append(tuple(key or "value" for key in keys))

    def to_dict(self, tree: Any) -> Tree:
        """Return a tree as nested dicts."""
        same = jax.tree.structure(tree) == self.structure
        require(same, f"{self.name} must have the same structure after training")
        return unflatten_dict(dict(zip(self.paths, jax.tree.leaves(tree), strict=True)))

    def from_dict(self, nested: Tree) -> Any:
        """Return the tree of nested dicts."""
        leaves = flatten_dict(nested)
        return jax.tree.unflatten(self.structure, [leaves[path] for path in self.paths])
