"""Devices and processes: the only module that knows `jax.pmap` and `jax.distributed`.

Arrays that enter a mapped function have a leading axis of this process's devices. The function
itself knows only the name of that axis, so it also runs under `shard_map`, or on one device without
an axis. `devices` are the devices of all processes, in the same order in each.

All processes take every step. When one fails or dies, JAX's coordinator in process 0 ends the
others; the same command in all of them continues from the newest checkpoint.
"""

import atexit
import contextlib
import functools
import logging
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hypersphere_jax.configs import (
    OptimizerConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.utils import memory, xla

AXIS = "data"
INITIALIZATION_SECONDS = 300  # largest difference between the starts of the processes
HEARTBEAT_SECONDS = 30  # after which a silent process counts as dead
SHUTDOWN_SECONDS = 3600  # for which the others wait while the first process draws the report
EXIT_DELAY_SECONDS = 3  # in which the others may report an error that all have


# Processes.


def initialize(runtime: RuntimeConfig) -> None:
    """Connect the processes of a run, if it has several; must come before JAX's first use."""
    if not runtime.multi_process or is_multi_process():
        return
    print("waiting for the other processes to start", file=sys.stderr)
    options: dict[str, Any] = {}
    hint = "; coordinator=, num_processes= and process_index= name one"
    if runtime.coordinator is not None:
        options["cluster_detection_method"] = "deactivate"
        hint = ""
    if runtime.devices is not None:  # by default one GPU where JAX detects a cluster
        options["local_device_ids"] = list(range(runtime.devices))
    try:
        jax.distributed.initialize(
            runtime.coordinator,
            runtime.num_processes,
            runtime.process_index,
            initialization_timeout=INITIALIZATION_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            **options,
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"could not connect the processes: {reason}{hint}") from error


def is_multi_process() -> bool:
    """Return whether this process is one of several, without starting JAX's devices."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Return whether this process is the one that prints and writes the run's folder."""
    return not is_multi_process() or jax.process_index() == 0


def check_equal(values: dict[str, Any]) -> None:
    """Raise UserError in all processes unless their values have the same texts."""
    if not is_multi_process():
        return
    checksums = [zlib.crc32(repr(value).encode()) for value in values.values()]
    gathered = multihost_utils.process_allgather(np.asarray(checksums, np.uint32))
    is_equal = (gathered == gathered[0]).all(axis=0)
    pairs = zip(values.items(), is_equal, strict=True)
    differing = [f"{name}={value}" for (name, value), equal in pairs if not equal]
    if differing:
        raise UserError(
            f"process {jax.process_index()} differs from another process ({', '.join(differing)} "
            "here): start all with the same options, data and kind of machine"
        )


def should_stop(requested: bool, count: int) -> bool:
    """Return whether to stop before step `count` of the session, the same in all processes.

    With several processes JAX catches SIGTERM.
    """
    if is_multi_process():
        return multihost_utils.reached_preemption_sync_point(count)
    return requested


def from_first_process(tree: Any) -> Any:
    """Return the first process's arrays, bit for bit, in all; the shapes must be equal."""
    if jax.process_count() == 1:
        return tree
    tree = jax.tree.map(np.asarray, tree)
    # As bytes: JAX broadcasts by a sum, which changes -0.0 to 0.0.
    raw = jax.tree.map(lambda x: np.frombuffer(x.tobytes(), np.uint8), tree)
    sent = multihost_utils.broadcast_one_to_all(raw)
    return jax.tree.map(lambda x, b: np.asarray(b).view(x.dtype).reshape(x.shape), tree, sent)


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """End one of several processes after an error without waiting for the others."""
    try:
        yield
    except Stopped:  # in all processes
        raise
    except BaseException as error:
        if is_multi_process():
            atexit.register(_exit)
            if isinstance(error, jax.errors.JaxRuntimeError) and not memory.is_used_up(error):
                line = (str(error).splitlines() or ["JAX failed"])[0]
                raise UserError(
                    f"{line}: has another process ended? To continue, run the same command in all"
                ) from error
        raise


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for child in multiprocessing.active_children():
        child.kill()
    if is_first():
        time.sleep(EXIT_DELAY_SECONDS)
    os._exit(2)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Ignore the mesh of the caller's `jax.set_mesh`, and leave the root logger as it is.

    Orbax and Grain log through absl, which configures a root logger that has no handlers.
    """
    handler = logging.lastResort or logging.NullHandler()
    is_added = not logging.root.handlers
    if is_added:
        logging.root.addHandler(handler)
    try:
        with jax.set_mesh(None):
            yield
    finally:
        if is_added:
            logging.root.removeHandler(handler)


# Devices.


def local_devices(
    count: int | None = None, given: Sequence[jax.Device] | None = None
) -> list[jax.Device]:
    """Return this process's devices, the first `count` of them, or the `given` ones."""
    if given is not None:
        if not given:
            raise UserError("devices is empty: give one device or more, or leave it out")
        return list(given)
    try:
        devices = jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        if memory.is_used_up(error):
            raise
        reason = str(error).splitlines() or ["see JAX_PLATFORMS"]
        raise UserError(f"JAX has no device to run on: {reason[0]}") from error
    if count is not None and count > len(devices):
        found = f"{len(devices)} {devices[0].platform} device(s)"
        raise UserError(f"devices={count}: this process has {found}")
    return devices[:count]


def global_devices(count: int | None = None) -> list[jax.Device]:
    """Return the devices of all processes, or the first `count` of each; see `local_devices`."""
    count = len(local_devices(count))
    devices = [jax.local_devices(index)[:count] for index in range(jax.process_count())]
    counts = [len(each) for each in devices]
    if len(set(counts)) > 1:
        raise UserError(f"processes have {counts} devices: give each the same number")
    return [device for each in devices for device in each]


def local(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Return this process's part of the devices."""
    return [device for device in devices if device.process_index == jax.process_index()]


def local_rows(n: int, devices: Sequence[jax.Device], microbatches: int = 1) -> np.ndarray:
    """Return which rows of a global batch of `n` this process's devices take, in their order.

    Each device takes an equal part of the consecutive rows of a microbatch.
    """
    first = [device.process_index for device in devices].index(jax.process_index())
    rows = np.arange(n).reshape(microbatches, len(devices), -1)
    return rows[:, first : first + len(local(devices))].swapaxes(0, 1).ravel()


def device_memory(devices: Sequence[jax.Device]) -> int:
    """Return the bytes of each device; CPU devices share the machine's or container's memory."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path("/sys/fs/cgroup", file).read_text()))
    if devices[0].platform == "cpu":
        return min(limits) // len(devices)
    stats = devices[0].memory_stats() or {}
    return min(*limits, stats.get("bytes_limit", limits[0]))


def check_batch_size(config: OptimizerConfig, devices: Sequence[jax.Device]) -> None:
    """Raise UserError unless batch and microbatch divide over the devices."""
    total = len(devices)
    for name in ("batch_size", "microbatch_size"):
        size = getattr(config, name) or total
        if size % total:
            raise UserError(
                f"{name}={size} does not divide over {total} devices: use a multiple of {total}"
            )


# Mapped functions and their arrays.


def pmap(function: Callable, devices: Sequence[jax.Device], donate: Sequence[int] = ()) -> Any:
    """Map a per-device function over `AXIS`; results may reuse memory of `donate`d arguments."""
    xla.free_compiled()
    return jax.pmap(function, axis_name=AXIS, devices=devices, donate_argnums=tuple(donate))


def split(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Put arrays `[local devices, ...]` on the devices, a row on each."""
    return jax.device_put(tree, _row_sharding(tuple(devices)))


def replicate(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Copy every array to each device, with a leading axis of local devices."""
    rows = _row_sharding(tuple(devices))

    def copy(x: Any) -> jax.Array:
        if jax.dtypes.issubdtype(getattr(x, "dtype", np.dtype(float)), jax.dtypes.prng_key):
            return jax.random.wrap_key_data(copy(jax.random.key_data(x)))
        row = np.asarray(x)[None]
        shape = (rows.num_devices, *row.shape[1:])
        return jax.make_array_from_callback(shape, rows, lambda _: row)

    return jax.tree.map(copy, tree)


def stacked_shapes(tree: Any, devices: Sequence[jax.Device], *axes: int) -> Any:
    """Return the shapes of a tree's arrays with leading axes: local devices, then `axes`."""
    leading = (len(local(devices)), *axes)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), tree)


def unreplicate(tree: Any) -> Any:
    """Return the first local device's copy of every array as NumPy arrays.

    Reading one shard needs no communication, whereas `x[0]` would run a program on all devices.
    """
    shards = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
    return jax.tree.map(lambda shard: np.array(shard[0]), jax.device_get(shards))


@functools.lru_cache(maxsize=8)
def _row_sharding(devices: tuple[jax.Device, ...]) -> NamedSharding:
    return NamedSharding(Mesh(np.asarray(local(devices)), (AXIS,)), PartitionSpec(AXIS))
