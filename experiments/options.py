"""The options of the verbs `quickstart` and `reproduce`: their help needs nothing else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.configs import require
from hypersphere_jax.configs.base import Config, check_at_least, refuse


@dataclass(frozen=True)
class QuickstartConfig(Config):
    """The whole path in minutes: pretrain, checkpoint, probe from the checkpoint, report."""

    out: str | None = None
    """Folder of the runs, pictures and page; None: RUNS_DIR/quickstart. What is finished there is
    not done again."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of each encoder of the table; the picture of the circle is of the first."""
    choose: bool = False
    """Try learning rates on a held-out part of the training split instead, and print their
    accuracies there."""
    jobs: int | None = None
    """Encoders at a time, each in a process with cores of its own. None: on CPUs up to four."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "jobs")
        require(len(self.seeds) > 0, "--seeds: at least one is needed")

    @property
    def folder(self) -> str:
        """Of the runs, pictures and page."""
        return self.out or f"{self.runs_dir}/quickstart"


@dataclass(frozen=True)
class ReproduceConfig(Config):
    """A table, figure or theorem of a paper: the paper's numbers and ours, side by side.

    Trains and evaluates the encoders that it needs, if that is not done yet, and writes table,
    picture and page. The same command continues what was interrupted. Without ITEM: lists all;
    with ITEM alone: says what its scales would take.
    """

    item: Annotated[Positional[str | None], arg(metavar="[ITEM]")] = None
    """What to reproduce, such as wang-isola/table1."""
    scale: Literal["laptop", "paper"] | None = None
    """`laptop`: the paper's claims with digits, or CIFAR-10 and a narrow encoder, in minutes to
    hours on 2 cores; `paper`: its data and settings, which need GPUs."""
    row: int | None = None
    """Of a table: the one encoder of this row, counted from 1 as in experiments/paper_tables/."""
    only: tuple[str, ...] = ()
    """Only the runs with such names, such as 'figure7_*seed0'; `--dry-run --only '*'` prints the
    names."""
    jobs: int = 1
    """Processes that train at a time, each with its share of the cores; with GPUs, of these
    and, where there are fewer, of their memory."""
    vmapped: Annotated[Literal["auto", "yes", "no"], arg(aliases=["--together"])] = "auto"
    """Whether encoders that differ in scalars alone (weights, tau, alpha, t, rate, seed) train
    under `vmap`, as many at a time as fit. `auto`: with one job, on accelerators."""
    yes: bool = False
    """Begin also what takes over an hour, or more memory than there is."""
    dry_run: bool = False
    """Print the runs, what they would take, and the paper's numbers; train nothing. Of many runs
    those that take the same are counted."""
    measure: bool = False
    """With `--dry-run`: take the time of a step of each, rather than estimate it, in at most 70% of
    the memory that is free."""
    retry: bool = False
    """Do those runs again that failed before."""
    data_dir: str | None = None
    """Folder of the images: of CIFAR-10, DATA_DIR/cifar10 if that holds train/ or train.zip; else
    as for `pretrain`."""
    out: Path | None = None
    """Folder of all that is reproduced; None: RUNS_DIR/reproduce."""
    runs_dir: str = "runs"
    """Folder of all runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "row", "jobs")
        require(self.jobs == 1 or self.vmapped != "yes", "--vmapped yes needs --jobs 1")
        if self.item is None:
            refuse(self, ("scale", "row", "only", "dry_run", "retry"), "needs an ITEM")
        require(self.dry_run or not self.measure, "--measure needs --dry-run")

    @property
    def folder(self) -> Path:
        """Of all that is reproduced."""
        return self.out or Path(self.runs_dir, "reproduce")
