"""XLA's options, which it reads once when JAX is first used, and its compiled programs."""

import contextlib
import gc
import os
import platform
import zlib
from collections.abc import Iterator
from pathlib import Path

from hypersphere_jax.configs.base import require

DETERMINISTIC = "--xla_gpu_deterministic_ops"
CPU_KERNELS = "--xla_cpu_experimental_ynn_fusion_type"
COMPILED_SHARE = 0.5  # share of the memory maps above which compiled programs are freed


def flags() -> str:
    """Return the XLA_FLAGS of the environment."""
    return os.environ.get("XLA_FLAGS", "")


def is_file() -> bool:
    """Return whether XLA_FLAGS names a file, to which no flag can be added."""
    return bool(flags().strip()) and not flags().strip().startswith("-")


def _add(flag: str) -> bool:
    """Add a flag to XLA_FLAGS; return False if JAX is in use already, so that it has no effect."""
    import jax

    count = jax.config.values["jax_num_cpu_devices"]
    try:  # JAX refuses another number once it is in use
        for number in (count + 1, count):
            jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        return False
    os.environ["XLA_FLAGS"] = f"{flags()} {flag}".strip()
    return True


def prepare(devices: int | None, deterministic: bool = False) -> None:
    """Make the settings that options of a run ask for; must come before JAX's first use.

    Args:
      devices: Virtual devices where JAX runs on CPU.
      deterministic: Compile GPU programs that compute the same bits in every process.

    Raises:
      UserError: when XLA_FLAGS asks for the opposite, or JAX is in use on GPUs already.
    """
    import jax

    if devices is not None:
        with contextlib.suppress(RuntimeError):  # in use already: `local_devices` checks the number
            jax.config.update("jax_num_cpu_devices", devices)
    if deterministic:
        _use_deterministic_kernels()


def _use_deterministic_kernels() -> None:
    import jax

    message = f"deterministic=True needs {DETERMINISTIC}=true in XLA_FLAGS, which is {flags()!r}"
    require(not is_file(), f"{message}, a file: add it there")
    known = dict(flag.partition("=")[::2] for flag in flags().split())
    value = known.get(DETERMINISTIC, "true").lower()
    require(value in ("", "true", "1"), f"{message}: change it")
    if DETERMINISTIC not in known and not _add(f"{DETERMINISTIC}=true"):
        is_gpu = jax.default_backend() == "gpu"
        require(not is_gpu, f"{message}: set this variable before JAX is first used")
        return
    # Otherwise kernels that an earlier run without the option chose would be loaded.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def use_eigen() -> None:
    """Compute matrix products by Eigen on CPUs, unless XLA_FLAGS has the user's choice.

    XLA has two libraries of CPU kernels. Eigen is faster for the networks' products on CPUs with
    AVX-512 (`python run.py bench step`), YNNPACK for nearest neighbours.
    """
    if not is_file() and CPU_KERNELS not in flags():
        _add(f"{CPU_KERNELS}=LIBRARY_FUSION_TYPE_REDUCE")


def keep_compiled(folder: str | Path) -> None:
    """Cache compiled programs in a folder for later processes, unless JAX has a cache already."""
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is None:
        # A program for one processor may not run on another that shares the folder.
        info = Path("/proc/cpuinfo")
        lines = info.read_text().splitlines() if info.is_file() else []
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        kind = f"{platform.machine()}-{zlib.crc32(features.encode()):08x}"
        where = Path(folder).expanduser() / "compiled" / kind
        jax.config.update("jax_compilation_cache_dir", str(where))
        # JAX's default limit of one second would exclude most programs of `probe`.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@contextlib.contextmanager
def kept_compiled(folder: str | Path) -> Iterator[None]:
    """Cache compiled programs as `keep_compiled` does, and restore JAX's settings afterwards."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    keep_compiled(folder)
    if before["jax_compilation_cache_dir"] is not None:
        yield
        return
    compilation_cache.reset_cache()  # JAX reads the folder's name only once
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def free_compiled(share: float = COMPILED_SHARE) -> None:
    """Free all compiled programs once they take this share of the process's memory maps.

    On CPU each program takes ten maps or more. Linux allows a process 65,530, beyond which LLVM
    ends it: after a few hundred encoders in one process.
    """
    import jax

    with contextlib.suppress(OSError):  # not on Linux
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
        if Path("/proc/self/maps").read_bytes().count(b"\n") > share * limit:
            jax.clear_caches()
            gc.collect()
