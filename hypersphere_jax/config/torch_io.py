"""Encoders from PyTorch, and for it."""

from pathlib import Path

from tyro.conf import Positional

from hypersphere_jax.config.base import SEEDS, check_range, config, require
from hypersphere_jax.config.data import DataConfig
from hypersphere_jax.config.model import ModelConfig


@config
class ImportConfig:
    """An encoder that was trained in PyTorch, and the data that it is to be evaluated on."""

    file: Positional[Path]
    """Its state dict: a file of PyTorch (.pth, .pt, .pth.tar), or an .npz file of the same names
    and arrays, such as `export-npz` writes."""
    name: str
    """Name of the run that is made: its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    prefix: str | None = None
    """Prefix of the encoder's names in the file, such as `module.encoder_k`; the rest of the file
    is left out. None: it is detected, and of MoCo's two encoders the query's is taken."""
    fresh_head: bool = False
    """Replace the file's head, if it has one, by a random one: for classifiers, or files of a
    backbone alone. Probe layers before the head then, such as `backbone` or `fc7`."""
    seed: int = 0
    """Seed of the random head."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()

    def __post_init__(self):
        check_range(self, SEEDS, "seed")


@config
class ExportConfig:
    """A run's encoder for PyTorch."""

    run: Positional[str]
    """The run: its folder, or its name under `runs/`."""
    out: Path
    """The .npz file to write: parameters and statistics under PyTorch's names, in its layouts."""
    step: int | None = None
    """Checkpoint to take; None: the newest."""

    def __post_init__(self):
        require(
            self.out.suffix.lower() == ".npz", f"--out {self.out}: must be a file that ends in .npz"
        )
