"""The encoder."""

from typing import Annotated, Any, Literal

from tyro.conf import Fixed, Suppress, arg

from hypersphere_jax.config.base import Custom, changed, config, hold_custom, refuse, require
from hypersphere_jax.config.values import Count, Within

Width = Annotated[int, Within("[1, 1e6]")]


@config
class ModelConfig:
    """The encoder."""

    name: Annotated[
        Literal["small_cnn", "small_alexnet", "resnet18", "resnet34", "resnet50", "sentence_gru"],
        arg(name="model"),
    ] = "small_cnn"
    """`small_cnn` for images of 8 to 16 pixels, `small_alexnet` (Wang & Isola's) for 32 and 64,
    ResNets for all sizes; `sentence_gru` for text: the two sentence encoders of Quick-Thought."""
    dim: Annotated[int, Within("[2, 1e6]")] = 32
    """Dimension d of the output on the unit hypersphere; of each of the two sentence encoders."""
    width: Annotated[float, Within("(0, 100)")] = 1.0
    """Factor on all channel counts but the head's."""
    stem: Literal["cifar", "imagenet"] | None = None
    """First layer of a ResNet: `cifar` (3x3 convolution), or `imagenet` (7x7 with stride 2, then a
    maximum pool). None: `cifar` for images below 64 pixels."""
    init: Literal["authors", "torch", "simclr", "he", "chrono"] = "he"
    """Whose initialization: `authors`, Wang & Isola's of `small_alexnet`, N(0, 0.02); `torch`, as
    nn.Conv2d, nn.Linear and torchvision's ResNets have it; `simclr`, its code's of ResNets; `he`:
    He et al., LeCun for a linear output. `sentence_gru` has Quick-Thought's; with
    `chrono` its update gates remember 1 to 63 words from the start (Tallec & Ollivier)."""
    zero_init_residual: bool = False
    """In a ResNet, start the last scale of every block at zero, so that it begins as identity;
    `--init simclr` does."""
    head: Literal["linear", "moco_v2", "simclr2", "simclr3", "balanced", "none"] = "linear"
    """From the backbone to the output: a linear map; MoCo v2's MLP; SimCLR's projection of 2 or 3
    layers with batch norm; the balanced contrastive loss's of 3 layers (take --dim 2048); or
    `none`: the output is the layer before the head, divided by its norm."""
    head_hidden: Width | None = None
    """Width of the head's hidden layers. None: as the features that enter; 2048 for `balanced`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of convolutions and linear maps. Parameters, statistics, output and loss are float32."""
    image_size: Annotated[int | None, Within("[4, 1e4]")] = None
    """Side of the square images that enter the network, pixels. None: as the data."""
    channels: Fixed[int | None] = None
    """Channels of these images; a run takes them from its data."""
    num_classes: Fixed[int] = 0
    """Classes of a linear classifier (layer `logits`), which supervised runs have; 0: none."""
    classifier_layer: str = "output"
    """Layer that this classifier is on: `output`, a hidden layer of the head (`projection1`,
    `projection2`), or the layer before the head (`backbone`, `fc7` of small_alexnet)."""
    batch_norm: Literal["sync", "local", "split"] | None = None
    """Statistics of batch norm over the global batch (`sync`), each device's part (`local`), or
    `bn_groups` equal parts of the global batch on any number of devices (`split`). None: `split`
    with a queue, where `sync` would give the positives away; else `sync`."""
    bn_groups: Count = 8
    """Parts of the global batch under `--batch-norm split`."""
    embedding: Width = 620
    """Dimensions of the word embeddings of `sentence_gru`."""
    unit_norm: bool = True
    """Of `sentence_gru`: contrastive loss on features of unit norm, as all else has them."""
    vocabulary: Fixed[int | None] = None
    """Words that `sentence_gru` knows, with the special ones; a run takes them from its data."""

    network: Annotated[Any, Suppress] = None
    """A network of one's own, in place of all that is above; from Python only."""

    def __post_init__(self):
        hold_custom(self, "network")
        if self.network is not None:
            names = set(changed(self)) - {"image_size", "channels", "dim", "network"}
            what = ", ".join(sorted(names)).replace("name", "model")
            require(not names, f"{what}: for this package's networks, and network= is your own")
        if self.batch_norm not in (None, "split"):
            refuse(self, ["bn_groups"], f"is for batch_norm=split, not {self.batch_norm}")
        if not self.name.startswith("resnet"):
            names = ["stem", "zero_init_residual"]
            refuse(self, names, f"is for ResNets, and {self.name} is none")
        whose = {"authors": "small_alexnet", "simclr": "resnet", "chrono": "sentence_gru"}
        network = whose.get(self.init, "")
        require(
            self.name.startswith(network),
            f"init={self.init} is of model={network}, not {self.name}: take torch or he",
        )
        if self.head in ("linear", "none"):
            refuse(self, ["head_hidden"], "needs a head= with hidden layers")
        for_text = {"embedding", "unit_norm", "vocabulary"}
        if self.reads_text:
            names = set(changed(self)) - for_text - {"name", "dim", "dtype"}
            names -= {"init"} if self.init == "chrono" else set()
            refuse(self, names, f"is for encoders of images, not {self.name}")
            require(
                self.dim % 2 == 0,
                f"dim={self.dim}: {self.name} has half of it for each direction: take an even "
                "number",
            )
        else:
            refuse(self, for_text, f"is for encoders of sentences, not {self.name}")

    @property
    def label(self) -> str:
        """The name of the network, for messages."""
        network = self.network
        return network.name if isinstance(network, Custom) else network or self.name

    @property
    def reads_text(self) -> bool:
        """Whether this is an encoder of sentences."""
        return self.name == "sentence_gru"
