"""Encoders from PyTorch, and for it."""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from hypersphere_jax.config.base import config, require
from hypersphere_jax.config.data import DataConfig
from hypersphere_jax.config.model import ModelConfig
from hypersphere_jax.config.values import Name


@config
class ImportConfig:
    """An encoder that was trained in PyTorch, and the data that it is to be evaluated on."""

    file: Positional[Path]
    """Its state dict: .safetensors, a file of PyTorch (.pth, .pt, .pth.tar), or an .npz file of
    the same names and arrays. The options of the model are read off its names and shapes."""
    name: Name
    """Name of the run that is made: its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    prefix: str | None = None
    """Prefix of the encoder's names in the file, such as `module.encoder_k`; the rest of the file
    is left out. None: it is detected, and of MoCo's two encoders the query's is taken."""
    fresh_head: bool = False
    """Replace the file's head, if it has one, by a random one, of --head and --dim. Probe layers
    before the head then, such as `backbone` or `fc7`."""
    seed: int = 0
    """Seed of the random head."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()

    def __post_init__(self):
        require(
            not (self.fresh_head and self.model.head == "none"),
            "fresh_head= makes a head, and head=none is without one: give one of them",
        )
        require(
            self.fresh_head or self.model.init == ModelConfig.init,
            f"init={self.model.init} is for a random head, see fresh_head=",
        )


@config
class ExportConfig:
    """A trained encoder as a file of arrays."""

    run: Positional[str]
    """The run: its folder, or its name in RUNS_DIR; or a folder that `Encoder.save` wrote."""
    out: Path
    """The file to write, .safetensors or .npz: parameters and statistics."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    step: int | None = None
    """Checkpoint to take; None: the newest."""
    names: Literal["torch", "own"] | None = None
    """PyTorch's names and layouts (ResNets, SmallAlexNet), or this package's own, such as
    `params/conv1/layer/kernel`. None: PyTorch's where the network has them."""
