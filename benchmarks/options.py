"""Options of the benchmarks. This module imports no JAX, so that their help is quick."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from hypersphere_jax.configs import DataConfig
from hypersphere_jax.configs.base import Config, check_range
from hypersphere_jax.configs.model import ImageNetwork

Loss = Literal["uniform", "contrastive", "dcl", "nt_xent", "balanced", "info_nce"]


@dataclass(frozen=True)
class TimingOptions(Config):
    """Options of all benchmarks."""

    counts: ClassVar[tuple[str, ...]] = ()  # options that must be at least 1
    rounds: int = 5
    """Rounds to measure, after one that compiles."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "rounds", *self.counts, at_least=1)


@dataclass(frozen=True)
class LossesOptions(TimingOptions):
    """Value and gradient of the losses: time and memory, compared with dense JAX and PyTorch."""

    counts = ("dim",)
    losses: tuple[Loss, ...] = get_args(Loss)
    """Losses to measure."""
    sizes: tuple[int, ...] = (1024, 2048, 4096, 8192)
    """Numbers of points n: pairs, or queries and negatives."""
    dim: int = 128
    """Dimension of the points."""
    figures: str | None = None
    """Folder for a figure of each loss. Defaults to none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "sizes", at_least=2)


@dataclass(frozen=True)
class StepOptions(TimingOptions):
    """Align + uniform training step: time, compared with PyTorch and with XLA's CPU kernels."""

    counts = ("image_size",)
    model: ImageNetwork = "small_alexnet"
    """Network."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of convolutions and linear maps."""
    batch_size: int = 64
    """Positive pairs in a batch."""
    image_size: int = 32
    """Side of the images, in pixels."""
    recipe: str = "stl10"
    """Augmentation recipe; `digits` has gray images."""
    width: float = 1.0
    """Factor of the number of channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size", at_least=2)
        check_range(self, "width", above=0)


@dataclass(frozen=True)
class LoopOptions(TimingOptions):
    """Training loop: time per step, compared with a bare loop over the same steps."""

    epochs: int = 30
    """Passes over the 1,400 digits."""


@dataclass(frozen=True)
class DataOptions(DataConfig, TimingOptions):
    """Data pipelines: their share of a training step, compared with PyTorch's DataLoader."""

    counts = ("image_size", "steps")
    rounds: int = 2
    """Rounds to measure, after one that compiles."""
    model: ImageNetwork = "small_alexnet"
    """Network."""
    image_size: int = 32
    """Side of the images that enter the network, in pixels."""
    batch_size: int = 64
    """Positive pairs in a batch."""
    workers: tuple[int, ...] = (0, 2)
    """Numbers of reading processes; 0: threads."""
    steps: int = 10
    """Steps to measure in each round."""


@dataclass(frozen=True)
class StartOptions(TimingOptions):
    """Start of a run: seconds until the first step, with and without cached programs."""

    rounds: int = 3
    """Rounds to measure."""
    data_dir: str | None = None
    """Folder with CIFAR-10's train.zip and test.zip. Defaults to measuring digits only."""


@dataclass(frozen=True)
class KnnOptions(TimingOptions):
    """Nearest neighbours: time, compared with scikit-learn and with the matrix product."""

    counts = ("queries", "bank", "dim", "k")
    rounds: int = 1
    """Rounds to measure, after one that compiles."""
    queries: int = 10_000
    """Number of queries."""
    bank: int = 50_000
    """Number of features that are searched."""
    dim: int = 4096
    """Dimension of the features."""
    k: tuple[int, ...] = (5, 200)
    """Numbers of neighbours."""


@dataclass(frozen=True)
class ProbeOptions(TimingOptions):
    """Linear probe `lbfgs`: time of the whole, and of one fit compared with scikit-learn."""

    counts = ("n", "dim")
    rounds: int = 2
    """Rounds of the comparison, after one that compiles."""
    n: int = 50_000
    """Training rows."""
    dim: int = 4096
    """Dimension of the features."""
    folds: int | None = None
    """Cross-validation folds. Defaults to one held-out part."""


PARTS = {
    "losses": LossesOptions,
    "step": StepOptions,
    "loop": LoopOptions,
    "data": DataOptions,
    "start": StartOptions,
    "knn": KnnOptions,
    "probe": ProbeOptions,
}
