"""Encoder architecture."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import Suppress

from hypersphere_jax.configs.base import Auto, Config, Custom, changed, check_range, refuse, require

ImageNetwork = Literal[
    "small_cnn", "small_alexnet", "resnet18", "resnet34", "resnet50", "vit_tiny", "vit_small"
]
Network = Literal[ImageNetwork, "sentence_gru"]
Init = Literal["authors", "torch", "simclr", "he", "chrono"]
Dtype = Literal["float32", "bfloat16"]
# The only network of some initializations.
NETWORK_OF_INIT = {"authors": "small_alexnet", "simclr": "resnet", "chrono": "sentence_gru"}
TEXT_OPTIONS = ("embedding", "unit_norm", "vocabulary_size")


@dataclass(frozen=True)
class ModelConfig(Config):
    """Encoder."""

    model: Network = "small_cnn"
    """`small_cnn` for 8 to 16 pixels, `small_alexnet` (Wang & Isola) for 32 and 64, ResNets for all
    sizes, ViTs for multiples of their `patch_size`, `sentence_gru` (Quick-Thought) for text."""
    dim: int = 32
    """Dimension d of the output on the unit hypersphere."""
    width: float = 1.0
    """Factor on the channel counts of the backbone."""
    stem: Auto[Literal["cifar", "imagenet"]] = None
    """First layer of a ResNet: 3x3, or 7x7 and pooling. Defaults to `cifar` below 64 pixels."""
    patch_size: Auto[int] = None
    """Side of a ViT's patches in pixels. Defaults to 4 below 64 pixels, otherwise 16."""
    pool: Literal["token", "mean"] = "token"
    """Features of a ViT: its class token, or the mean over its patches."""
    init: Init = "he"
    """`authors` (small_alexnet, N(0, 0.02)); `torch` (nn.Conv2d, nn.Linear, torchvision's
    ResNets); `simclr` (its ResNets); `he` (He et al., LeCun for linear
    outputs); `chrono` (sentence_gru with update gates that remember 1 to 63 words). ViTs start as
    in timm, except for their head."""
    zero_init_residual: bool = False
    """Start the last scale of each residual block at zero; `--init simclr` does so."""
    remat: bool = False
    """Recompute the blocks of a ResNet or ViT for the gradient: less memory, same numbers."""
    head: Literal["linear", "moco_v2", "simclr2", "simclr3", "balanced", "none"] = "linear"
    """Projection head: linear; MoCo v2's; SimCLR's with 2 or 3 layers and batch norm; the balanced
    paper's with 3 layers (use --dim 2048); `none`: the normalized backbone features."""
    head_hidden: Auto[int] = None
    """Width of the head's hidden layers. Defaults to the backbone's features (`balanced`: 2048)."""
    dtype: Dtype = "float32"
    """Type of convolutions and linear maps. Parameters, output and loss are float32."""
    image_size: Auto[int] = None
    """Side of the images that enter the network, in pixels. Defaults to the size of the data."""
    in_channels: Annotated[int | None, Suppress] = None
    """Channels of these images; set from the data."""
    num_classes: Annotated[int, Suppress] = 0
    """Classes of a linear classifier (layer `logits`); set from the data of supervised runs."""
    classifier_layer: str = "output"
    """Layer of a supervised run's classifier: `output`, `projection1`, `backbone`, …"""
    batch_norm: Auto[Literal["sync", "local", "split"]] = None
    """Batch statistics of the global batch, each device, or `--bn-groups` parts of the global
    batch. Defaults to `split` with a queue, where `sync` would leak positives, else to `sync`."""
    bn_groups: int = 8
    """Parts of the global batch for `--batch-norm split`."""
    embedding: int = 620
    """Dimension of the word embeddings of `sentence_gru`."""
    unit_norm: bool = True
    """Normalize the features of `sentence_gru` for the contrastive loss."""
    vocabulary_size: Annotated[int | None, Suppress] = None
    """Words that `sentence_gru` knows, with the special ones; set from the data."""
    network: Annotated[Any, Suppress] = None
    """A custom network instead of `model`; from Python only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "dim", at_least=2, at_most=10**6)
        check_range(self, "head_hidden", "embedding", at_least=1, at_most=10**6)
        check_range(self, "bn_groups", "patch_size", at_least=1)
        check_range(self, "image_size", at_least=4, at_most=10**4)
        check_range(self, "width", above=0, at_most=100)
        if self.network is not None:
            own = {"image_size", "in_channels", "dim", "network"}
            names = [name for name in changed(self, ModelConfig) if name not in own]
            refuse(self, names, "is for the networks of this package, and network= is a custom one")
        if self.batch_norm not in (None, "split"):
            refuse(self, ["bn_groups"], f"is for batch_norm=split, not {self.batch_norm}")
        if not self.model.startswith("resnet"):
            names = ["stem", "zero_init_residual"]
            refuse(self, names, f"is for ResNets, and {self.model} is none")
        if not self.model.startswith(("resnet", "vit")):
            refuse(self, ["remat"], f"is for ResNets and ViTs, and {self.model} is none")
        if not self.model.startswith("vit"):
            refuse(self, ["patch_size", "pool"], f"is for ViTs, and {self.model} is none")
        elif self.image_size is not None and self.patch_size is not None:
            fits = self.image_size % self.patch_size == 0
            require(fits, f"patch_size={self.patch_size}: must divide image_size={self.image_size}")
        network = NETWORK_OF_INIT.get(self.init, "")
        is_allowed = self.model.startswith(network)
        require(is_allowed, f"init={self.init} is for model={network}: use torch or he")
        if self.head in ("linear", "none"):
            refuse(self, ["head_hidden"], "needs a head= with hidden layers")
        if not self.reads_text:
            refuse(self, TEXT_OPTIONS, f"is for encoders of sentences, not {self.model}")
            return
        allowed = {*TEXT_OPTIONS, "model", "dim", "dtype", "network"}
        if self.init == "chrono":
            allowed.add("init")
        names = [name for name in changed(self, ModelConfig) if name not in allowed]
        refuse(self, names, f"is for encoders of images, not {self.model}")
        require(self.dim % 2 == 0, f"dim={self.dim}: must be even for both directions")

    @property
    def label(self) -> str:
        """Name of the network, for messages."""
        network = self.network
        return network.name if isinstance(network, Custom) else network or self.model

    @property
    def reads_text(self) -> bool:
        """Whether this is an encoder of sentences."""
        return self.model == "sentence_gru"
