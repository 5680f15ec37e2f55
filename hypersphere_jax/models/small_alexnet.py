"""The small AlexNet of Wang & Isola's STL-10 and CIFAR-10 experiments."""

import jax
from flax import nnx

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models import heads
from hypersphere_jax.models.blocks import channels, conv, dense, flatten
from hypersphere_jax.models.initializers import scheme_of
from hypersphere_jax.models.ops import max_pool


class SmallAlexNet(nnx.Module):
    """Five 3x3 convolutions and two fully connected layers, all with batch norm and ReLU.

    The convolutions have 96, 192, 384, 384 and 192 channels, the fully connected layers 4096 units.
    Maximum pools follow the first, second and fifth convolution: 64 pixels become 31, 15, 7, and 32
    pixels become 15, 7, 3. The layers "conv1", "conv2" and "conv5" are after their pool.

    Source: Tian et al. 2019, cited in Wang & Isola, B.1.
    """

    min_image_size = 15
    layers = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", *heads.LAYERS)

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        c1, c2, c3, c4, c5 = (channels(base, config) for base in (96, 192, 384, 384, 192))
        hidden = channels(4096, config)
        common = {"init": scheme_of(config), "dtype": config.dtype, "rngs": rngs}
        self.conv1 = conv(config.in_channels, c1, **common)
        self.conv2 = conv(c1, c2, **common)
        self.conv3 = conv(c2, c3, **common)
        self.conv4 = conv(c3, c4, **common)
        self.conv5 = conv(c4, c5, **common)
        side = config.image_size
        for _ in range(3):
            side = (side - 1) // 2
        self.fc6 = dense(side * side * c5, hidden, **common)
        self.fc7 = dense(hidden, hidden, **common)
        self.head = heads.Head(hidden, config, layer="fc7", **common)

    def __call__(self, x: jax.Array, train: bool) -> dict[str, jax.Array]:
        outputs = {}
        outputs["conv1"] = x = max_pool(self.conv1(x, train))
        outputs["conv2"] = x = max_pool(self.conv2(x, train))
        outputs["conv3"] = x = self.conv3(x, train)
        outputs["conv4"] = x = self.conv4(x, train)
        outputs["conv5"] = x = max_pool(self.conv5(x, train))
        outputs["fc6"] = x = self.fc6(flatten(x), train)
        outputs["fc7"] = x = self.fc7(x, train)
        return {**outputs, **self.head(x, train)}
