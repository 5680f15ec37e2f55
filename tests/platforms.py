"""What is different where the suite runs on accelerators: `python -m pytest --platform gpu`."""

import functools
import os

import jax
import numpy as np
import pytest

from hypersphere_jax.utils.xla import DETERMINISTIC, flags, is_file

LEVEL = "--xla_backend_optimization_level"
ADDED = (f"{LEVEL}=0", f"{DETERMINISTIC}=true")  # to the user's XLA_FLAGS, for this process
# Sums come in other orders there, and exponentials by other approximations: so many times as wide
# are the tolerances of `assert_allclose`. Products are of float32 (`begin`), not TF32 or bfloat16.
LOOSER = {"cpu": 1, "gpu": 10, "tpu": 10}
# Tests that need more devices than one, by how many: `--devices 1` shows which do.
DEVICES = {
    2: (
        "benchmarks/test_scaling.py::test_contrastive_loss_sends_what_its_formula_says[2]",
        "evaluation/test_metrics.py::test_all_parts_of_files",
        "models/test_custom.py::test_statistics_over_devices_are_the_global_batchs",
        "models/test_dense.py::test_several_encoders_and_sharded_rows",
        "models/test_winograd.py::test_sharded_images",
        "configs/test_config_files.py::test_the_record_of_a_run",
        "test_cli.py::test_from_training_to_report",
        "text/test_sentence_training.py::test_step_on_one_and_two_devices",
    ),
    3: (
        "evaluation/test_logistic.py::test_minima_match_scikit_learn[False-3",
        "evaluation/test_logistic.py::test_minima_match_scikit_learn[True-3",
    ),
    4: (
        "losses/test_losses.py::test_half_precision_over_devices_under_vmap",
        "losses/test_losses.py::test_one_pair_a_device_is_enough",
        "losses/test_masks.py::test_other_forms[pmap",
        "losses/test_masks.py::test_other_forms[ring",
        "losses/test_masks.py::test_over_a_mesh",
        "losses/test_masks.py::test_what_devices_send",
        "losses/test_mesh.py::test_on_a_mesh_as_under_pmap",
        "losses/test_mesh.py::test_other_places_of_arrays",
        "losses/test_reductions.py::test_devices_change_nothing",
        "losses/test_sliced_wasserstein.py::test_devices_change_nothing[shard_map-4",
        "test_examples.py",
        "test_moco.py::test_any_number_of_devices_shuffles_as_one",
        "text/test_text_runs.py::test_each_sentence_of_a_batch_is_on_one_device",
    ),
    8: (
        "benchmarks/test_scaling.py::test_contrastive_loss_sends_what_its_formula_says[8]",
        "benchmarks/test_scaling.py::test_uniform_loss_sends_its_points_once[8]",
        "losses/test_sliced_wasserstein.py::test_devices_change_nothing[pmap-8",
        "test_moco.py::test_every_device_has_the_queue_of_one",
    ),
}
# Tests of what is on CPU alone, by what that is.
ON_CPU = {
    "operations as they are counted on CPU": ("test_stored_costs_are_those_of_the_programs",),
    "products of float32 at each precision": (
        "losses/test_precision.py::test_precision_is_one_of_three",
        "losses/test_precision.py::test_products_of_parts",
    ),
    "features that stay in a memory map": (
        "evaluation/test_linear_protocols.py::test_scale_type_and_blocks_change_nothing",
    ),
}


def begin(platform: str, devices: int) -> None:
    """Starts JAX on the devices of a platform; on CPU makes them.

    JAX makes them here: else the first test that gives `--devices` would set their number.
    """
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
        if not is_file() and LEVEL not in flags():
            os.environ["XLA_FLAGS"] = f"{flags()} {LEVEL}=0".strip()
        assert jax.device_count() == devices
        return
    # Resumption is exact with such kernels alone.
    os.environ["XLA_FLAGS"] = f"{flags()} {DETERMINISTIC}=true".strip()
    # Several processes share a device's memory: pytest's, and those that tests start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    jax.config.update("jax_default_matmul_precision", os.environ["JAX_DEFAULT_MATMUL_PRECISION"])
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        found = str(error).splitlines()[0]
    if found != platform:
        raise pytest.UsageError(
            f"--platform {platform}: JAX finds none here ({found}); see docs/accelerators.md"
        )


@functools.cache
def has_float16() -> bool:
    """Whether XLA converts float16 here; JAX 0.10 does not under --xla_cpu_max_isa=SSE4_2."""
    try:
        jax.block_until_ready(jax.numpy.ones(3, "float16").astype("float32"))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def allclose(platform, actual, desired, rtol=1e-7, atol=0, *arguments, **options):
    """`numpy.testing.assert_allclose` with the tolerances of a platform."""
    rtol, atol = (LOOSER[platform] * tolerance for tolerance in (rtol, atol))
    _allclose(actual, desired, rtol, atol, *arguments, **options)


_allclose = np.testing.assert_allclose


def reason_to_leave_out(test: str, platform: str) -> str | None:
    """Why a test cannot run here, if so."""
    of_cpu = [why for why, tests in ON_CPU.items() if any(name in test for name in tests)]
    if of_cpu and platform != "cpu":
        return f"is of CPUs: {of_cpu[0]}"
    here = jax.device_count()
    needed = [n for n, tests in DEVICES.items() if any(name in test for name in tests)]
    return (
        f"needs {needed[0]} devices, and {here} are here" if max(needed, default=0) > here else None
    )
