"""Devices, and the compiled programs that JAX keeps for them."""

from types import SimpleNamespace

import jax

from hypersphere_jax import sharding


def test_rows_and_devices_of_one_host():
    devices = sharding.everywhere(4)
    assert devices == sharding.here(devices) == jax.local_devices()[:4]
    assert sharding.rows_here(12, devices) == slice(0, 12)


def test_each_host_reads_its_rows(monkeypatch):
    devices = [SimpleNamespace(process_index=host) for host in (0, 0, 1, 1, 2, 2)]
    for host in range(3):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        assert sharding.here(devices) == devices[2 * host : 2 * host + 2]
        assert sharding.rows_here(12, devices) == slice(4 * host, 4 * host + 4)


def test_compiled_programs_are_kept_where_jax_was_not_told(tmp_path):
    told = jax.config.jax_compilation_cache_dir
    sharding.keep_compiled(tmp_path)
    assert jax.config.jax_compilation_cache_dir == told
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        sharding.keep_compiled(tmp_path)
        assert jax.config.jax_compilation_cache_dir.startswith(str(tmp_path / "compiled"))
    finally:
        jax.config.update("jax_compilation_cache_dir", told)


def test_compiled_programs_are_freed_before_the_maps_run_out(tmp_path, monkeypatch):
    limit = tmp_path / "max_map_count"
    monkeypatch.setattr(sharding, "LIMIT_OF_MAPS", limit)
    assert not sharding.forget_compiled()  # not on Linux
    limit.write_text("1000000000\n")
    step = jax.jit(lambda x: x + 1)
    assert step(1.0) == 2.0 and not sharding.forget_compiled() and step._cache_size() == 1
    limit.write_text("10\n")
    sharding.pmap(lambda x: x, sharding.local_devices(1))
    assert step._cache_size() == 0 and step(1.0) == 2.0
