"""Devices: the only place that knows `pmap` and how arrays lie on devices.

Arrays that enter a mapped function have a leading axis of this host's devices. A function that is
mapped knows only the name of the axis, so the same function runs under `pmap`, under `shard_map`,
and, with no axis, on one device. `devices` are those of all hosts, in the same order everywhere.
"""

import contextlib
import gc
import os
import platform
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hypersphere_jax.config import UserError, require

AXIS = "data"
MAPS, LIMIT_OF_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def use_virtual_cpu_devices(count: int) -> None:
    """Asks for this many virtual devices if JAX runs on CPU; must come before JAX's first use."""
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has its devices already: `local_devices` checks their number.
        return


def keep_compiled(folder: str | Path) -> None:
    """Keeps compiled programs in a folder for the next process, unless JAX was told where."""
    if jax.config.jax_compilation_cache_dir is None:
        # Programs for one processor may not run on another one that shares the folder.
        kind = f"{platform.machine()}-{zlib.crc32(_processor().encode()):08x}"
        where = Path(folder).expanduser() / "compiled" / kind
        jax.config.update("jax_compilation_cache_dir", str(where))


def forget_compiled(share: float = 0.5) -> bool:
    """Frees the compiled programs of this process where they use up its memory maps.

    JAX keeps all that it compiled. On CPU each program takes ten maps and more, of which Linux
    allows a process 65,530 by default; beyond that LLVM aborts it, after some hundred encoders in
    turn. What is used again is compiled again, or comes from the folder of `keep_compiled`.

    Args:
      share: of the allowed maps, from which on they are freed.

    Returns:
      Whether they were.
    """
    try:
        most = int(LIMIT_OF_MAPS.read_text())
        with MAPS.open("rb") as lines:
            maps = sum(1 for _ in lines)
    except OSError:  # not on Linux
        return False
    if maps < share * most:
        return False
    jax.clear_caches()
    gc.collect()
    return True


def local_devices(count: int | None = None) -> list[jax.Device]:
    """This host's devices, or the first `count` of them.

    Raises:
      UserError: when there are fewer, or none at all.
    """
    try:
        devices = jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines() or ["see JAX_PLATFORMS"]
        raise UserError(f"JAX finds no device to run on: {why[0]}") from error
    require(
        count is None or count <= len(devices),
        f"--devices {count}: this host has {len(devices)} {devices[0].platform} device(s)",
    )
    return devices[:count]


def everywhere(count: int | None = None) -> list[jax.Device]:
    """The devices of all hosts, host by host, or the first `count` of each; see `local_devices`."""
    here = len(local_devices(count))
    return [
        device for host in range(jax.process_count()) for device in jax.local_devices(host)[:here]
    ]


def here(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Those of the devices that are this host's."""
    return [device for device in devices if device.process_index == jax.process_index()]


def rows_here(n: int, devices: Sequence[jax.Device]) -> slice:
    """The rows of a global batch of `n` that this host's devices take."""
    first = [device.process_index for device in devices].index(jax.process_index())
    each = n // len(devices)
    return slice(first * each, (first + len(here(devices))) * each)


def memory(devices: Sequence[jax.Device]) -> int:
    """Bytes that each of the devices may hold; those of a CPU share the memory of this process."""
    host = _host_memory()
    if devices[0].platform == "cpu":
        return host // len(devices)
    stats = devices[0].memory_stats() or {}
    return min(host, stats.get("bytes_limit", host))


def share(batch_size: int, devices: Sequence[jax.Device]) -> int:
    """Samples per device of a global batch.

    Raises:
      UserError: when the batch does not divide.
    """
    total = len(devices)
    if batch_size % total:
        near = max(total, batch_size // total * total)
        raise UserError(
            f"--batch-size {batch_size} does not divide over {total} devices: "
            f"take a multiple of {total}, such as {near}"
        )
    return batch_size // total


def pmap(
    function: Callable, devices: Sequence[jax.Device], donate: Sequence[int] = ()
) -> Callable[..., Any]:
    """Maps a per-device function over the axis `AXIS`, a leading one of local devices."""
    forget_compiled()
    return jax.pmap(function, axis_name=AXIS, devices=devices, donate_argnums=tuple(donate))


def split(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Host arrays `[local devices, ...]` put so that each device holds its own row."""
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

    Reading one device's shard needs no communication, where `x[0]` would run a program on all.
    """
    return jax.tree.map(lambda x: np.asarray(np.array(x.addressable_shards[0].data)[0]), tree)


def from_first_process(tree: Any) -> Any:
    """The arrays of the first process, to the bit; those of the others give the shapes."""
    if jax.process_count() == 1:
        return tree
    tree = jax.tree.map(np.asarray, tree)
    # As bytes, since the arrays of processes are summed: -0.0 would become 0.0.
    raw = jax.tree.map(lambda x: np.frombuffer(x.tobytes(), np.uint8), tree)
    sent = multihost_utils.broadcast_one_to_all(raw)
    return jax.tree.map(
        lambda x, b: np.frombuffer(np.asarray(b).tobytes(), x.dtype).reshape(x.shape), tree, sent
    )


def _host_memory() -> int:
    """Bytes of the machine, or of the container that this process runs in."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path("/sys/fs/cgroup", file).read_text()))
    return min(limits)


def _processor() -> str:
    """The instructions that this host's processor knows, on Linux."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _rows(devices: Sequence[jax.Device]) -> NamedSharding:
    return NamedSharding(Mesh(np.asarray(here(devices)), (AXIS,)), PartitionSpec(AXIS))
