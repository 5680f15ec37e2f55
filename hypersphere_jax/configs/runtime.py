"""Devices, processes, checkpoints and logs: options that do not change the numbers of a run."""

from dataclasses import dataclass
from typing import Literal

from hypersphere_jax.configs.base import Auto, Config, check_range, require


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """Devices, processes, checkpoints and logs; a resumed run may have other values.

    They change the numbers by rounding at most, except for the number of devices with
    `--batch-norm local`.
    """

    devices: Auto[int] = None
    """Devices of this process. On CPU this many virtual devices are made. Defaults to all."""
    processes: Literal["one", "auto"] = "one"
    """`auto`: one of several processes that JAX detects (TPU pod, Slurm, Open MPI, Kubernetes)."""
    coordinator: str | None = None
    """HOST:PORT of process 0, where JAX detects no cluster."""
    num_processes: int | None = None
    """Number of processes, with `--coordinator`."""
    process_index: int | None = None
    """Index of this process from 0, with `--coordinator`. Process 0 writes the run's folder."""
    resume: Literal["auto", "never", "overwrite"] = "auto"
    """Resume the run in the folder; refuse a folder with a run (`never`); or remove that run once
    all options are checked (`overwrite`)."""
    force: bool = False
    """Resume although options or data that change the numbers differ; config.json records it."""
    pipeline: Literal["auto", "resident", "streaming"] = "auto"
    """Keep the images on the devices, or read them batch by batch. `auto`: resident if they fit."""
    workers: int = 0
    """Processes that read images while streaming. 0: threads of this process."""
    cache_dir: str = "~/.cache/hypersphere_jax"
    """Cache of decoded images and compiled programs."""
    log_every_steps: int = 10
    """Steps between two lines of metrics."""
    steps_per_call: Auto[int] = None
    """Steps in one program, with resident images. Defaults to 10 on accelerators and 1 on CPU."""
    checkpoint_every_minutes: float = 5.0
    """Minutes between two checkpoints. The last step always has one."""
    checkpoint_every_steps: int | None = None
    """Steps between two further checkpoints."""
    keep_last: int = 3
    """Newest checkpoints to keep, at least two: a damaged one needs one to fall back to."""
    keep_every_steps: int | None = None
    """Steps between two further checkpoints that are never removed. Step 0 is always kept."""
    matmul_precision: Auto[Literal["default", "high", "highest"]] = None
    """Precision of float32 products in training, such as TF32 (`default`, NVIDIA) and
    float32 (`highest`). Defaults to JAX's setting. No effect on CPU or with `--dtype bfloat16`."""
    deterministic: bool = False
    """Bit-identical resumption on GPUs by slower, deterministic operations. CPUs always have it."""
    log_to: Literal["none", "wandb"] = "none"
    """`wandb`: also log to Weights & Biases. Needs `pip install ".[wandb]"`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "devices", "log_every_steps", "steps_per_call", at_least=1)
        check_range(self, "checkpoint_every_steps", "keep_every_steps", at_least=1)
        check_range(self, "workers", at_least=0, at_most=1024)
        check_range(self, "keep_last", at_least=2)
        check_range(self, "checkpoint_every_minutes", above=0)
        cluster = (self.coordinator, self.num_processes, self.process_index)
        is_whole = cluster.count(None) in (0, 3)
        require(is_whole, "coordinator=, num_processes=, process_index=: give all three, or none")
        if self.coordinator is not None:
            host, _, port = self.coordinator.rpartition(":")
            is_address = host != "" and port.isdecimal() and 0 < int(port) < 2**16
            example = "HOST:PORT, such as 10.0.0.1:7000"
            require(is_address, f"coordinator={self.coordinator}: must be {example}")
            require(self.processes == "one", "processes=auto: leave coordinator= out")
            check_range(self, "process_index", at_least=0, below=self.num_processes)

    @property
    def multi_process(self) -> bool:
        """Whether this process is one of several."""
        return self.processes == "auto" or self.coordinator is not None
