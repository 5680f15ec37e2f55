"""Options of the commands `quickstart` and `reproduce`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.configs import require
from hypersphere_jax.configs.base import Config, check_range, refuse


@dataclass(frozen=True)
class QuickstartConfig(Config):
    """Pretrain, save checkpoints, probe from the checkpoints, and report, in minutes."""

    runs_dir: str = "runs"
    """Folder of all runs. Runs, pictures and page are in RUNS_DIR/quickstart; finished runs there
    are not trained again."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of each encoder of the table. The picture of the circle shows the first."""
    jobs: int | None = None
    """Encoders at a time, each in a process with separate cores. Defaults to at most 4 on CPUs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "jobs", at_least=1)
        require(len(self.seeds) > 0, "--seeds: at least one is needed")


@dataclass(frozen=True)
class SweepOptions(Config):
    """Options to train and evaluate several runs."""

    only: tuple[str, ...] = ()
    """Names of runs to train, with wildcards such as 'figure7_*seed0'. `--dry-run` prints names."""
    jobs: int = 1
    """Processes that train at a time, each with separate cores. One job on an accelerator trains
    encoders that differ in scalars only in one program."""
    retry: bool = False
    """Train failed runs again."""
    seed_offset: int = 0
    """Number added to the seed of every run."""
    data_dir: str | None = None
    """Folder with a subfolder per data set, e.g. DATA_DIR/cifar10. Defaults to TensorFlow
    Datasets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "jobs", at_least=1)


@dataclass(frozen=True)
class ReproduceConfig(SweepOptions):
    """A table, figure or theorem of a paper.

    Trains and evaluates its encoders and writes table, analysis and picture. Finished runs are not
    trained again. Without ITEM: list all items. With ITEM only: print its description.
    """

    item: Annotated[Positional[str | None], arg(metavar="[ITEM]")] = None
    """What to reproduce, such as wang-isola/table1."""
    scale: Literal["laptop", "gpu", "paper"] | None = None
    """`laptop`: small encoders, minutes to hours on 2 cores. `gpu`: about an hour on one
    H100. `paper`: the paper's data and settings."""
    dry_run: bool = False
    """Print the runs and train nothing."""
    runs_dir: str = "runs"
    """Folder of all runs. Results are in RUNS_DIR/reproduce."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.item is None:
            refuse(self, ("scale", "only", "dry_run", "retry", "seed_offset"), "needs an ITEM")
