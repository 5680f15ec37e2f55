"""What is measured of a trained encoder."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.config.base import at_least_one, config, positive, require, valid_seed

Part = Literal["rank", "classes", "distances", "projections", "views", "prototype"]


@config
class ProbeConfig:
    """Linear probe and k-NN on the frozen features of a run's checkpoint."""

    run: Positional[str]
    """The run: its folder, or its name under `runs/`."""
    layer: str = "output"
    """Layer whose (flattened) output is classified: `output`, `fc7`, `conv5`, `backbone`, …"""
    protocol: Literal["lbfgs", "stl10", "moco", "simclr", "balanced"] = "lbfgs"
    """`lbfgs`: full-batch logistic regression; the others: those of the papers, by minibatches. All
    choose their hyper-parameters on a held-out part of the training split."""
    k: int = 5
    """Neighbours of the k-NN classifier."""
    step: int | None = None
    """Checkpoint to take; None: the newest. 0 is the random initialization."""
    data_dir: str | None = None
    """Where the run's data are now, if they were moved."""
    seed: int = 0
    """Seed of the held-out part and of batches."""
    devices: int | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        for flag in ("k", "devices"):
            at_least_one(flag, getattr(self, flag))
        valid_seed(self.seed)


@config
class MetricsConfig:
    """Alignment, uniformity and geometry of a run's features over a split, or of anybody's."""

    run: Annotated[Positional[str], arg(metavar="RUN|FILE.npy")]
    """A run (its folder, or its name under `runs/`), or a file of features [n, d] of unit norm,
    which may be larger than memory."""
    parts: tuple[Part, ...] | None = None
    """What to measure beside alignment and uniformity. `rank`: effective rank and singular values;
    `classes`: uniformity by class; `distances`: histogram of positive pairs; `projections`:
    histograms along random directions; `views`: uniformity of the augmented views; `prototype`:
    prototype representation bias, for which a run's images pass the network again. None: the first
    four, as far as the data allow."""
    pairs: Path | None = None
    """Of a file: the features of its positives, row by row, in another .npy file. Without it there
    is no alignment."""
    labels: Path | None = None
    """Of a file: the integer class of each row, in another .npy file; below zero: unknown."""
    normalize: bool = False
    """Of a file: divide the features by their norm first."""
    split: Literal["test", "train"] = "test"
    """Of a run: split of the data."""
    alpha: float = 2.0
    """Power of the distance in the alignment."""
    t: float = 2.0
    """Scale of the Gaussian potential in the uniformity."""
    step: int | None = None
    """Of a run: checkpoint to take; None: the newest. 0 is the random initialization."""
    data_dir: str | None = None
    """Of a run: where its data are now, if they were moved."""
    seed: int = 0
    """Seed of a run's augmented views, of the directions, and of the draw of class mates."""
    out: Path | None = None
    """Of a file: also write the result there, as JSON. (That of a run goes into its folder.)"""
    figure: Path | None = None
    """Of a file: also draw the result there, as PNG. (That of a run goes into its folder.)"""
    devices: int | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        positive("alpha", self.alpha)
        positive("t", self.t)
        at_least_one("devices", self.devices)
        valid_seed(self.seed)
        require(self.t <= 1e6, f"--t {self.t}: at most 1e6")
        require(
            self.out is None or self.out.suffix.lower() != ".npy",
            f"--out {self.out}: would be JSON in a file for arrays; name it .json",
        )
        require(
            self.figure is None or self.figure.suffix.lower() == ".png",
            f"--figure {self.figure}: pictures are PNG; name it .png",
        )
        standard = {field.name: field.default for field in dataclasses.fields(self)}
        if self.of_file:
            other, names = "a run", ("split", "step", "data_dir")
        else:
            other, names = "an .npy file", ("pairs", "labels", "normalize", "out", "figure")
        for name in names:
            given = getattr(self, name) != standard[name]
            require(
                not given, f"--{name.replace('_', '-')} is for {other}, and {self.run!r} is none"
            )

    @property
    def of_file(self) -> bool:
        return self.run.lower().endswith((".npy", ".npz")) and not Path(self.run).is_dir()
