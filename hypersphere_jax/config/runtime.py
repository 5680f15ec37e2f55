"""How a run is carried out."""

from typing import Literal

from hypersphere_jax.config.base import at_least_one, config, require


@config
class RuntimeConfig:
    """How the run is carried out: may differ when it is continued.

    This changes the numbers by rounding at most; only with `--batch-norm local` the number of
    devices shapes them.
    """

    devices: int | None = None
    """Local devices to use; None: all. On CPU this many virtual devices are made."""
    hosts: Literal["one", "auto"] = "one"
    """`auto`: this process is one of several that JAX finds by itself (TPU pod, Slurm, Open MPI,
    Kubernetes). Each reads its part of every batch; `--devices` counts those of each."""
    coordinator: str | None = None
    """Where JAX finds no hosts by itself: HOST:PORT of host 0, for all of them."""
    num_hosts: int | None = None
    """With `--coordinator`: how many hosts there are."""
    host_index: int | None = None
    """With `--coordinator`: which one this is, counted from 0. Host 0 writes the run's folder."""
    resume: Literal["auto", "never"] = "auto"
    """`auto`: continue the run that is in the folder; `never`: refuse a folder with a run."""
    pipeline: Literal["auto", "resident", "streaming"] = "auto"
    """Where the training images are: `resident` decodes all of them once and keeps them on the
    devices; `streaming` reads them from batch to batch. `auto`: resident if they fit."""
    workers: int = 0
    """Processes that read images while streaming; 0: threads of this process."""
    cache_dir: str = "~/.cache/hypersphere_jax"
    """Where decoded images and compiled programs are kept for the next run."""
    log_every_steps: int = 10
    """Steps between two lines of metrics."""
    checkpoint_every_steps: int = 100
    """Steps between two checkpoints."""
    keep_last: int = 3
    """Newest checkpoints to keep."""
    keep_every_steps: int | None = None
    """Besides these, keep every checkpoint whose step is a multiple. Step 0 always stays."""

    def __post_init__(self):
        for flag in ("devices", "log_every_steps", "checkpoint_every_steps", "keep_every_steps"):
            at_least_one(flag, getattr(self, flag))
        self._check_hosts()
        require(0 <= self.workers <= 1024, f"--workers {self.workers}: must be from 0 to 1024")
        require(
            self.keep_last >= 2,
            f"--keep-last {self.keep_last}: at least 2, so that a damaged newest checkpoint "
            "has one to fall back to",
        )

    def _check_hosts(self):
        named = (self.coordinator, self.num_hosts, self.host_index)
        if named == (None, None, None):
            return
        require(
            None not in named, "--coordinator, --num-hosts and --host-index are given all or none"
        )
        require(self.hosts == "one", "--hosts auto finds the hosts: leave --coordinator out")
        host, _, port = self.coordinator.rpartition(":")
        require(
            bool(host) and port.isdecimal() and 0 < int(port) < 2**16,
            f"--coordinator {self.coordinator}: must be HOST:PORT, such as 10.0.0.1:7000",
        )
        at_least_one("num_hosts", self.num_hosts)
        require(
            0 <= self.host_index < self.num_hosts,
            f"--host-index {self.host_index} of --num-hosts {self.num_hosts}: counted from 0",
        )

    @property
    def has_hosts(self) -> bool:
        """Whether this process is one of several hosts."""
        return self.hosts == "auto" or self.coordinator is not None
