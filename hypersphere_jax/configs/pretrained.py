"""Pretrained weights of other libraries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.configs.base import Auto, Config, check_folder_name, check_range, refuse
from hypersphere_jax.configs.data import DataConfig
from hypersphere_jax.configs.model import Dtype, Init, ModelConfig


@dataclass(frozen=True)
class WeightsOptions(Config):
    """Pretrained weights, and the run to make of them."""

    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """State dict: .safetensors, .npz, or a PyTorch file (.pth, .pt, .pth.tar, .bin, .ckpt), which
    needs PyTorch; or a folder from Hugging Face. The network is inferred from names and shapes."""
    name: str
    """Name of the new run. Its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    prefix: Auto[str] = None
    """Prefix of the encoder's names in the file, as `module.encoder_k`. Detected by default."""
    image_size: Auto[int] = None
    """Side of the images in pixels. Defaults to 224 for ResNets (32 with a 3x3 stem)."""
    dtype: Dtype = "float32"
    """Type of convolutions and linear maps."""
    head: Literal["file", "none", "linear", "moco_v2", "simclr2", "simclr3", "balanced"] = "file"
    """`file`: the file's; `none`; or a random one: probe a layer before it, such as `fc7`."""
    dim: int = ModelConfig.dim
    """Dimension of the output of a random head."""
    head_hidden: Auto[int] = None
    """Width of the hidden layers of a random head. Defaults to the backbone's features."""
    init: Init = ModelConfig.init
    """Initialization of a random head."""
    seed: int = 0
    """Seed of a random head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_folder_name(self, "name")
        check_range(self, "seed", at_least=0, below=2**32)
        if not self.has_random_head:
            reason = "is for a random head: choose one, such as head=linear"
            refuse(self, ["dim", "head_hidden", "init"], reason)

    @property
    def has_random_head(self) -> bool:
        """Whether the head is not the file's."""
        return self.head not in ("file", "none")


@dataclass(frozen=True)
class ImportConfig(DataConfig, WeightsOptions):
    """Make a run from pretrained weights."""


@dataclass(frozen=True)
class ExportConfig(Config):
    """Encoder to write to a file."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """A run (folder, or name in RUNS_DIR), or a folder that `Encoder.save` wrote."""
    out: Path
    """File to write, .safetensors or .npz: parameters and batch statistics."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    step: Auto[int] = None
    """Checkpoint. Defaults to the newest."""
    names: Auto[Literal["torch", "own"]] = None
    """PyTorch's names and layouts (its default networks), or this package's, `params/conv1/…`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "step", at_least=0)
