"""How a run is carried out."""

from typing import Annotated, Literal

from hypersphere_jax.config.base import config, require
from hypersphere_jax.config.values import Count, Positive, Within


@config
class RuntimeConfig:
    """How the run is carried out: may differ when it is continued.

    This changes the numbers by rounding at most; only with `--batch-norm local` the number of
    devices shapes them.
    """

    devices: Count | None = None
    """Devices of this process to use; None: all. On CPU this many virtual devices are made."""
    processes: Literal["one", "auto"] = "one"
    """`auto`: this process is one of several that JAX detects by itself (TPU pod, Slurm, Open MPI,
    Kubernetes). Each reads its part of every batch; `--devices` counts those of each."""
    coordinator: str | None = None
    """Where JAX detects no cluster: HOST:PORT of process 0, for all of them."""
    num_processes: int | None = None
    """With `--coordinator`: how many processes there are."""
    process_index: int | None = None
    """With `--coordinator`: which one this is, from 0. Process 0 writes the run's folder."""
    resume: Literal["auto", "never", "overwrite"] = "auto"
    """`auto`: continue the run that is in the folder; `never`: refuse a folder with a run;
    `overwrite`: remove that run, once the config and the data are checked, and start anew."""
    force: bool = False
    """Resume although options or data that change the numbers differ; the run's config.json records
    the differences."""
    pipeline: Literal["auto", "resident", "streaming"] = "auto"
    """Where the training images are: `resident` decodes all of them once and keeps them on the
    devices; `streaming` reads them from batch to batch. `auto`: resident if they fit."""
    workers: Annotated[int, Within("[0, 1024]")] = 0
    """Processes that read images while streaming; 0: threads of this process."""
    cache_dir: str = "~/.cache/hypersphere_jax"
    """Where decoded images and compiled programs are kept for the next run."""
    log_every_steps: Count = 10
    """Steps between two lines of metrics."""
    steps_per_call: Count | None = None
    """Steps in one program, where the images are resident; None: 10 on accelerators, 1 on CPU. The
    log, an evaluation or a checkpoint ends a call earlier."""
    checkpoint_every_minutes: Positive = 5.0
    """Minutes between two checkpoints. The last step always has one."""
    checkpoint_every_steps: Count | None = None
    """Besides, save one every so many steps."""
    keep_last: Annotated[int, Within("[2, inf)")] = 3
    """Newest checkpoints to keep: two or more, as a damaged one needs one to fall back to."""
    keep_every_steps: Count | None = None
    """Besides these, save one every so many steps and keep it. Step 0 is always kept."""
    matmul_precision: Literal["default", "high", "highest"] | None = None
    """Of float32 convolutions and products while training. `default`: TF32 on NVIDIA, bfloat16 on
    TPU; `high`: TF32, on TPU three bfloat16 products; `highest`: float32. None: as JAX is set, by
    itself `default`. On CPU, and with `--dtype bfloat16`, it changes nothing."""
    deterministic: bool = False
    """On GPUs: the same bits in every session, so that a continued run is exactly the one that was
    not interrupted, with slower operations. On CPU that holds without, and it changes nothing."""
    profile: Count | None = None
    """Trace so many steps, after those that compile, for TensorBoard and Perfetto, into
    RUNS_DIR/NAME/profile."""
    log_to: Literal["none", "wandb"] = "none"
    """`wandb`: send the metrics to Weights & Biases, too, besides metrics.jsonl and TensorBoard's
    files. Needs `pip install ".[wandb]"`."""

    def __post_init__(self):
        given = [x is not None for x in (self.coordinator, self.num_processes, self.process_index)]
        require(
            all(given) or not any(given),
            "coordinator=, num_processes= and process_index= are given all or none",
        )
        if all(given):
            host, _, port = self.coordinator.rpartition(":")
            require(
                bool(host) and port.isdecimal() and 0 < int(port) < 2**16,
                f"coordinator={self.coordinator}: must be HOST:PORT, such as 10.0.0.1:7000",
            )
            require(self.processes == "one", "processes=auto: leave coordinator= out")
            require(
                0 <= self.process_index < self.num_processes,
                f"process_index={self.process_index} of num_processes={self.num_processes}: "
                "counted from 0",
            )

    @property
    def multi_process(self) -> bool:
        """Whether this process is one of several."""
        return self.processes == "auto" or self.coordinator is not None
