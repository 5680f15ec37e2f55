"""The encoder."""

from typing import Annotated, Literal

from tyro.conf import Fixed, arg

from hypersphere_jax.config.base import at_least_one, config, given, require


@config
class ModelConfig:
    """The encoder."""

    name: Annotated[
        Literal["small_cnn", "small_alexnet", "resnet18", "resnet34", "resnet50", "sentence_gru"],
        arg(name="model"),
    ] = "small_cnn"
    """`small_cnn` for images of 8 to 16 pixels, `small_alexnet` (Wang & Isola's) for 32 and 64,
    ResNets for all sizes; `sentence_gru` for text: the two sentence encoders of Quick-Thought."""
    dim: int = 32
    """Dimension d of the output on the unit hypersphere; of each of the two sentence encoders, half
    of it for each direction."""
    width: float = 1.0
    """Factor on all channel counts but the head's."""
    stem: Literal["cifar", "imagenet"] | None = None
    """First layer of a ResNet: `cifar` (3x3 convolution), or `imagenet` (7x7 convolution with
    stride 2, then a maximum pool). None: `cifar` for images below 64 pixels."""
    zero_init_residual: bool = False
    """In a ResNet, start the last scale of every block at zero, so that it begins as identity."""
    head: Literal["linear", "moco_v2", "simclr2", "simclr3", "balanced"] = "linear"
    """From the backbone to the output: a linear map; MoCo v2's MLP; SimCLR's projection of 2 or 3
    layers with batch norm; or the balanced contrastive loss's of 3 layers (take --dim 2048)."""
    head_hidden: int | None = None
    """Width of the head's hidden layers. None: that of the features which enter it (2048 for
    ResNet-50, 512 for ResNet-18), and 2048 for `balanced`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What convolutions and linear maps compute in. Parameters, statistics, the output and the
    loss are float32 either way."""
    image_size: int | None = None
    """Side of the square images that enter the network, pixels. None: as the data."""
    channels: Fixed[int | None] = None
    """Channels of these images; a run takes them from its data."""
    num_classes: Fixed[int] = 0
    """Classes of a linear classifier (layer `logits`), 0 for none; a run has one when its objective
    is supervised."""
    classifier_layer: str = "output"
    """Layer that this classifier is on: `output`, a hidden layer of the head (`projection1`,
    `projection2`), or the layer before the head (`backbone`, `fc7` of small_alexnet)."""
    batch_norm: Literal["sync", "local", "split"] | None = None
    """Statistics of batch norm over the global batch (`sync`); over each device's part alone
    (`local`); or over `bn_groups` equal parts of the global batch, however many devices there are
    (`split`). None: `split` with a queue, where `sync` would give the positives away; else
    `sync`."""
    bn_groups: int = 8
    """Parts of the global batch under `--batch-norm split`."""
    embedding: int = 620
    """Dimensions of the word embeddings of `sentence_gru`."""
    unit_norm: bool = True
    """Of `sentence_gru`: whether the contrastive loss sees features of unit norm. Alignment,
    uniformity and evaluation always do."""
    vocabulary: Fixed[int | None] = None
    """Words that `sentence_gru` knows, the special ones among them; a run takes them from its
    data."""

    def __post_init__(self):
        require(self.dim >= 2, f"--dim {self.dim}: the hypersphere needs at least 2 dimensions")
        require(0 < self.width < 100, f"--width {self.width}: must be above 0 and below 100")
        require(
            self.image_size is None or self.image_size >= 4,
            f"--image-size {self.image_size}: must be at least 4 pixels",
        )
        for flag in ("head_hidden", "bn_groups", "embedding"):
            at_least_one(flag, getattr(self, flag))
        require(
            self.batch_norm in (None, "split") or "--bn-groups" not in given(self),
            f"--bn-groups is for --batch-norm split, not {self.batch_norm}",
        )
        resnet = self.name.startswith("resnet")
        require(resnet or self.stem is None, f"--stem is for ResNets, and {self.name} is none")
        require(
            resnet or not self.zero_init_residual,
            f"--zero-init-residual is for ResNets, and {self.name} is none",
        )
        require(
            self.head != "linear" or self.head_hidden is None,
            "--head-hidden needs a --head with hidden layers",
        )
        self._check_text()

    def _check_text(self):
        for_text = ("--embedding", "--unit-norm", "--vocabulary")
        for_both = ("--name", "--dim", "--dtype")
        for flag in given(self):
            fits = flag in for_both or (flag in for_text) == self.reads_text
            shown = flag.replace("--unit", "--no-unit")
            kind = "sentences" if flag in for_text else "images"
            require(fits, f"{shown} is for encoders of {kind}, not {self.name}")
        require(
            not self.reads_text or self.dim % 2 == 0,
            f"--dim {self.dim}: {self.name} has half of it for each direction: take an even number",
        )

    @property
    def reads_text(self) -> bool:
        """Whether this is an encoder of sentences."""
        return self.name == "sentence_gru"
