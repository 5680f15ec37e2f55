"""Devices, processes, checkpoints and logs: options that do not change the numbers of a run."""

from dataclasses import dataclass
from typing import Literal

from hypersphere_jax.configs.base import (
    Auto,
    Config,
    check_at_least,
    check_at_most,
    check_positive,
    require,
)


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """Devices, processes, checkpoints and logs; a resumed run may have other values.

    They change the numbers by rounding at most, except for the number of devices with
    `--batch-norm local`.
    """

    devices: Auto[int] = None
    """Devices of this process. On CPU this many virtual devices are made. Defaults to all."""
    processes: Literal["one", "auto"] = "one"
    """`auto`: this process is one of several that JAX detects by itself (TPU pod, Slurm, Open MPI,
    Kubernetes). Each reads its part of every batch; `--devices` is the number of each."""
    coordinator: str | None = None
    """HOST:PORT of process 0, where JAX detects no cluster."""
    num_processes: int | None = None
    """Number of processes, with `--coordinator`."""
    process_index: int | None = None
    """Index of this process from 0, with `--coordinator`. Process 0 writes the run's folder."""
    resume: Literal["auto", "never", "overwrite"] = "auto"
    """`auto`: resume the run in the folder; `never`: refuse a folder with a run; `overwrite`:
    remove that run once config and data are checked, and start again."""
    force: bool = False
    """Resume although options or data that change the numbers differ; the run's config.json records
    the differences."""
    pipeline: Literal["auto", "resident", "streaming"] = "auto"
    """`resident`: decode all training images once and keep them on the devices; `streaming`: read
    them batch by batch. `auto`: resident if they fit."""
    workers: int = 0
    """Processes that read images while streaming. 0: threads of this process."""
    cache_dir: str = "~/.cache/hypersphere_jax"
    """Cache of decoded images and compiled programs."""
    log_every_steps: int = 10
    """Steps between two lines of metrics."""
    steps_per_call: Auto[int] = None
    """Steps in one program, with resident images. Defaults to 10 on accelerators and 1 on CPU. A
    line of metrics, an evaluation or a checkpoint ends a call earlier."""
    checkpoint_every_minutes: float = 5.0
    """Minutes between two checkpoints. The last step always has one."""
    checkpoint_every_steps: int | None = None
    """Steps between two further checkpoints."""
    keep_last: int = 3
    """Newest checkpoints to keep, at least two: a damaged one needs one to fall back to."""
    keep_every_steps: int | None = None
    """Steps between two further checkpoints that are never removed. Step 0 is always kept."""
    matmul_precision: Auto[Literal["default", "high", "highest"]] = None
    """Precision of float32 convolutions and products in training. `default`: TF32 on NVIDIA,
    bfloat16 on TPU; `high`: TF32, or three bfloat16 products on TPU; `highest`: float32. Defaults
    to JAX's setting. Without effect on CPU and with `--dtype bfloat16`."""
    deterministic: bool = False
    """On GPUs: use deterministic operations, slower ones, so that a resumed run is bit-identical to
    an uninterrupted one. Without effect on CPU, where this is always so."""
    log_to: Literal["none", "wandb"] = "none"
    """`wandb`: also log to Weights & Biases. Needs `pip install ".[wandb]"`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "devices", "log_every_steps", "steps_per_call")
        check_at_least(self, 1, "checkpoint_every_steps", "keep_every_steps")
        check_at_least(self, 0, "workers")
        check_at_most(self, 1024, "workers")
        check_at_least(self, 2, "keep_last")
        check_positive(self, "checkpoint_every_minutes")
        cluster = (self.coordinator, self.num_processes, self.process_index)
        require(
            cluster.count(None) in (0, 3),
            "coordinator=, num_processes= and process_index= are given all or none",
        )
        if self.coordinator is not None:
            self._check_cluster(self.coordinator, self.num_processes or 0, self.process_index or 0)

    def _check_cluster(self, coordinator: str, num_processes: int, process_index: int) -> None:
        host, _, port = coordinator.rpartition(":")
        is_address = bool(host) and port.isdecimal() and 0 < int(port) < 2**16
        require(
            is_address,
            f"coordinator={coordinator}: must be HOST:PORT, such as 10.0.0.1:7000",
        )
        require(self.processes == "one", "processes=auto: leave coordinator= out")
        require(
            0 <= process_index < num_processes,
            f"process_index={process_index}: must be at least 0 and below "
            f"num_processes={num_processes}",
        )

    @property
    def multi_process(self) -> bool:
        """Whether this process is one of several."""
        return self.processes == "auto" or self.coordinator is not None
