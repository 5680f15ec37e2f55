"""Options of import-torch and export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.configs.base import Config, check_folder_name, check_seed, require
from hypersphere_jax.configs.data import DataConfig
from hypersphere_jax.configs.model import ModelConfig


@dataclass(frozen=True)
class ImportOptions(Config):
    """Pretrained weights."""

    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """State dict: .safetensors, .npz, or a PyTorch file (.pth, .pt, .pth.tar, .bin, .ckpt), which
    needs PyTorch; or a folder from Hugging Face. The network is inferred from names and shapes."""
    name: str
    """Name of the new run. Its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    prefix: str | None = None
    """Prefix of the encoder's names in the file, such as `module.encoder_k`. Detected by default;
    MoCo's query encoder is preferred to its key encoder."""
    fresh_head: bool = False
    """Replace the file's head by a random one (--head, --dim). Probe a layer before the head then,
    such as `backbone` or `fc7`."""
    seed: int = 0
    """Seed of the random head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_folder_name(self, "name")
        check_seed(self, "seed")


@dataclass(frozen=True)
class ImportConfig(DataConfig, ModelConfig, ImportOptions):
    """Make a run from pretrained weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (self.fresh_head and self.head == "none"),
            "fresh_head=True adds a random head, but head=none removes it; use one of them",
        )
        require(
            self.fresh_head or self.init == ModelConfig.init,
            f"init={self.init} has an effect on random heads only; add fresh_head=True",
        )


@dataclass(frozen=True)
class ExportConfig(Config):
    """Encoder to write to a file."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """A run (folder, or name in RUNS_DIR), or a folder that `Encoder.save` wrote."""
    out: Path
    """File to write, .safetensors or .npz: parameters and batch statistics."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    step: int | None = None
    """Checkpoint. Defaults to the newest."""
    names: Literal["torch", "own"] | None = None
    """PyTorch's names and layouts (ResNets, SmallAlexNet), or this package's, such as
    `params/conv1/layer/kernel`. Defaults to PyTorch's where the network has them."""
