"""Devices: the only place that knows `pmap` and how arrays are laid out on devices.

Arrays that enter a mapped function have a leading axis of this process's devices. A function that
is mapped knows only the name of the axis, so the same function runs under `pmap`, `shard_map`,
and, with no axis, on one device. `devices` are those of all processes, in the same order in each.
"""

import contextlib
import functools
import gc
import logging
import os
import platform
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hypersphere_jax import xla_flags
from hypersphere_jax.configs import UserError, require
from hypersphere_jax.memory import is_used_up

AXIS = "data"


def prepare(devices: int | None, deterministic: bool | None) -> None:
    """Sets JAX up as the options of a verb ask for; must come before JAX's first use."""
    if devices is not None:
        use_virtual_cpu_devices(devices)
    if deterministic:
        use_deterministic_kernels()


def use_virtual_cpu_devices(count: int) -> None:
    """Asks for this many virtual devices if JAX runs on CPU; must come before JAX's first use."""
    with contextlib.suppress(RuntimeError):  # in use already: `local_devices` checks the number
        jax.config.update("jax_num_cpu_devices", count)


def use_deterministic_kernels() -> None:
    """Asks XLA for programs that give the same bits in every process; before JAX's first use.

    Raises:
      UserError: when XLA_FLAGS says the contrary, or JAX is in use on GPUs without.
    """
    name = xla_flags.DETERMINISTIC
    require(
        not xla_flags.is_file(),
        f"deterministic=True adds {name}=true to XLA_FLAGS, which names a file: list it there",
    )
    flags = [flag.partition("=") for flag in xla_flags.given().split()]
    values = [value for flag, _, value in flags if flag == name]
    for value in values:
        require(
            value.lower() in ("", "true", "1"),
            f"deterministic=True needs {name}=true, and XLA_FLAGS has {value}: take it out there",
        )
    if not values and not xla_flags.add(f"{name}=true"):
        if jax.default_backend() != "gpu":
            return
        raise UserError(
            "deterministic=True: JAX is in use already; set the environment "
            f"variable XLA_FLAGS={name}=true before"
        )
    # Else kernels that were the fastest in a run without, and are kept, would be taken over.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def keep_compiled(folder: str | Path) -> None:
    """Keeps compiled programs in a folder for the next process, unless JAX was told where."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        # Programs for one processor may not run on another one that shares the folder.
        info = Path("/proc/cpuinfo")
        lines = info.read_text().splitlines() if info.is_file() else []
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        kind = f"{platform.machine()}-{zlib.crc32(features.encode()):08x}"
        where = Path(folder).expanduser() / "compiled" / kind
        jax.config.update("jax_compilation_cache_dir", str(where))
        # By default JAX drops what took less than a second: most programs of `probe`.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@contextlib.contextmanager
def kept_compiled(folder: str | Path) -> Iterator[None]:
    """Keep compiled programs as `keep_compiled` does, and restore JAX's settings afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    keep_compiled(folder)
    is_changed = before != {name: jax.config.values[name] for name in names}
    if is_changed:
        compilation_cache.reset_cache()  # JAX reads the folder's name only once
    try:
        yield
    finally:
        if is_changed:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Leave the mesh of the caller's `jax.set_mesh`, and keep the root logger as it is.

    Orbax and Grain log through absl, which configures a root logger without handlers. This is a
    decorator of the functions that users call.
    """
    handler = logging.lastResort or logging.NullHandler()
    added = not logging.root.handlers
    if added:
        logging.root.addHandler(handler)
    try:
        with jax.set_mesh(None):
            yield
    finally:
        if added:
            logging.root.removeHandler(handler)


def forget_compiled(share: float = 0.5) -> None:
    """Frees the compiled programs of this process when they take this share of its memory maps.

    On CPU each program takes ten maps and more, of which Linux allows a process 65,530: beyond
    that LLVM aborts it, after some hundred encoders in turn.
    """
    with contextlib.suppress(OSError):  # not on Linux
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
        if Path("/proc/self/maps").read_bytes().count(b"\n") > share * limit:
            for mapped in _WITH_OPTIONS:
                mapped.forget()
            jax.clear_caches()
            gc.collect()


def local_devices(
    count: int | None = None, given: Sequence[jax.Device] | None = None
) -> list[jax.Device]:
    """This process's devices, the first `count` of them, or the `given` ones.

    Raises:
      UserError: when there are fewer, or none at all.
    """
    if given is not None:
        require(len(given) > 0, "devices is empty: pass one device or more, or leave it out")
        return list(given)
    try:
        devices = jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        if is_used_up(error):
            raise
        reason = str(error).splitlines() or ["see JAX_PLATFORMS"]
        raise UserError(f"JAX has no device to run on: {reason[0]}") from error
    require(
        count is None or count <= len(devices),
        f"devices={count}: this process has {len(devices)} {devices[0].platform} device(s)",
    )
    return devices[:count]


def global_devices(count: int | None = None) -> list[jax.Device]:
    """The devices of all processes, in order, or the first `count` of each; see `local_devices`."""
    count = len(local_devices(count))
    devices = [jax.local_devices(index) for index in range(jax.process_count())]
    counts = [len(each) for each in devices]
    require(len(set(counts)) == 1, f"processes have {counts} devices: give each equally many")
    return [device for each in devices for device in each[:count]]


def local(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Those of the devices that are this process's."""
    return [device for device in devices if device.process_index == jax.process_index()]


def local_rows(n: int, devices: Sequence[jax.Device]) -> slice:
    """The rows of a global batch of `n` that this process's devices take."""
    first = [device.process_index for device in devices].index(jax.process_index())
    each = n // len(devices)
    return slice(first * each, (first + len(local(devices))) * each)


def memory(devices: Sequence[jax.Device]) -> int:
    """Bytes that each device may hold; those of a CPU share the machine's, or the container's."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path("/sys/fs/cgroup", file).read_text()))
    if devices[0].platform == "cpu":
        return min(limits) // len(devices)
    return min(*limits, (devices[0].memory_stats() or {}).get("bytes_limit", limits[0]))


def check_batch_size(batch_size: int, devices: Sequence[jax.Device]) -> None:
    """Raises UserError when a global batch does not divide over the devices."""
    total = len(devices)
    near = max(total, batch_size // total * total)
    require(
        batch_size % total == 0,
        f"batch_size={batch_size} does not divide over {total} devices: "
        f"take a multiple of {total}, such as {near}",
    )


def pmap(
    function: Callable,
    devices: Sequence[jax.Device],
    donate: Sequence[int] = (),
    *,
    network: bool = False,
) -> Any:
    """Maps a per-device function over the axis `AXIS`, a leading one of local devices.

    Args:
      function: of one device.
      devices: of all processes.
      donate: arguments whose memory the results take.
      network: whether a network is in it, for which XLA has options.
    """
    forget_compiled()
    mapped = jax.pmap(function, axis_name=AXIS, devices=devices, donate_argnums=tuple(donate))
    return WithOptions(mapped, xla_flags.of_networks(devices[0].platform)) if network else mapped


class WithOptions:
    """A mapped function whose programs XLA compiles with options, one for each shape of arguments.

    `jax.pmap` takes none when it is called. Arguments are arrays. What is traced as a part of
    another program has that one's options; what several processes run together has none.
    """

    def __init__(self, mapped: Any, options: dict[str, str] | None):
        self._mapped, self._options = mapped, options
        self._programs: dict[Any, Any] = {}
        _WITH_OPTIONS.add(self)

    def __call__(self, *arguments: Any) -> Any:
        if self._options is None or jax.process_count() > 1:
            return self._mapped(*arguments)
        leaves, structure = jax.tree.flatten(arguments)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._mapped(*arguments)
        key = structure, *((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._programs:
            self._programs[key] = self.compile(*arguments)
        return self._programs[key](*arguments)

    def lower(self, *arguments: Any) -> Any:
        """The program for such arguments, or shapes and types, before it is compiled."""
        return self._mapped.lower(*arguments)

    def compile(self, *arguments: Any) -> Any:
        """The program for such arguments, or shapes and types."""
        return self.lower(*arguments).compile(compiler_options=self._options)

    def forget(self) -> None:
        """Frees its programs."""
        self._programs.clear()


_WITH_OPTIONS: weakref.WeakSet[WithOptions] = weakref.WeakSet()


def split(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Puts arrays `[local devices, ...]` so that each device holds its own row."""
    return jax.device_put(tree, _rows(devices))


def replicate(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """A copy of every array on each device, under a leading axis of local devices."""
    rows = _rows(devices)

    def copies(x):
        if jax.dtypes.issubdtype(getattr(x, "dtype", np.dtype(float)), jax.dtypes.prng_key):
            return jax.random.wrap_key_data(copies(jax.random.key_data(x)))
        x = np.asarray(x)
        row = x[None]
        return jax.make_array_from_callback((rows.num_devices, *x.shape), rows, lambda _: row)

    return jax.tree.map(copies, tree)


def unreplicate(tree: Any) -> Any:
    """The first local device's copy of every array, as NumPy arrays of their own memory.

    Reading one device's shard needs no communication, where `x[0]` would run a program on all. All
    are on their way to the host before the first is waited for.
    """
    shards = _first(tree)
    for shard in jax.tree.leaves(shards):
        shard.copy_to_host_async()
    return jax.tree.map(lambda shard: np.asarray(np.array(shard)[0]), shards)


def finite(tree: Any, axes: int = 0) -> jax.Array:
    """Whether all numbers of every array are finite, on the first local device, by its copy.

    Of each place along so many axes, after that of the devices.
    """
    return _finite(_first(tree), axes)


@functools.partial(jax.jit, static_argnums=1)
def _finite(tree: Any, axes: int) -> jax.Array:
    arrays = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    flags = [jnp.isfinite(x).all(tuple(range(1 + axes, x.ndim))) for x in arrays]
    return functools.reduce(jnp.logical_and, flags)


def _first(tree: Any) -> Any:
    """The first local device's copy of every array, `[1, ...]`."""
    return jax.tree.map(lambda x: x.addressable_shards[0].data, tree)


def from_first_process(tree: Any) -> Any:
    """The arrays of the first process, to the bit; those of the others give the shapes."""
    if jax.process_count() == 1:
        return tree
    tree = jax.tree.map(np.asarray, tree)
    # As bytes, since JAX sums the arrays of processes: -0.0 would become 0.0.
    raw = jax.tree.map(lambda x: np.frombuffer(x.tobytes(), np.uint8), tree)
    sent = multihost_utils.broadcast_one_to_all(raw)
    return jax.tree.map(lambda x, b: np.asarray(b).view(x.dtype).reshape(x.shape), tree, sent)


def _rows(devices: Sequence[jax.Device]) -> NamedSharding:
    return _rows_of(tuple(devices))


@functools.lru_cache(maxsize=8)
def _rows_of(devices: tuple[jax.Device, ...]) -> NamedSharding:
    return NamedSharding(Mesh(np.asarray(local(devices)), (AXIS,)), PartitionSpec(AXIS))
