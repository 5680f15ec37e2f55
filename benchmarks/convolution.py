"""The convolution of the models against XLA's, value and gradients, layer by layer."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.timing import device_kind, median, product, ratio, take_turns
from hypersphere_jax.models.ops import convolution
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.utils import memory

# Side, input and output channels, stride, side of the kernel: SmallAlexNet's layers at 32 pixels,
# SmallCNN's at 8, and the kinds that ResNets have, with the CIFAR stem at 32 pixels.
LAYERS = {
    "alexnet conv1": (32, 3, 96, 1, 3),
    "alexnet conv2": (15, 96, 192, 1, 3),
    "alexnet conv3": (7, 192, 384, 1, 3),
    "alexnet conv4": (7, 384, 384, 1, 3),
    "alexnet conv5": (7, 384, 192, 1, 3),
    "cnn conv1": (8, 1, 32, 1, 3),
    "cnn conv2": (8, 32, 64, 2, 3),
    "cnn conv3": (4, 64, 128, 2, 3),
    "resnet18 layer1": (32, 64, 64, 1, 3),
    "resnet18 layer2": (32, 64, 128, 2, 3),
    "resnet18 layer4": (4, 512, 512, 1, 3),
    "resnet50 1x1 in": (32, 256, 64, 1, 1),
    "resnet50 1x1 out": (32, 64, 256, 1, 1),
    "resnet50 shortcut": (32, 256, 512, 2, 1),
    "ImageNet stem": (64, 3, 64, 2, 7),
}
DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def convolutions(batch_size: int, rounds: int) -> None:
    """Time value and gradients of each convolution, and its share of the matrix-product speed."""
    memory.keep_freed(jax.default_backend())  # as a run does
    multiply, product_flops = product()
    forms = {"product": multiply}
    for name, layer in LAYERS.items():
        forms[f"{name}, ours"] = _form(convolution, batch_size, *layer)
        forms[f"{name}, XLA's"] = _form(jax.lax.conv_general_dilated, batch_size, *layer)
    times = take_turns(forms, rounds)
    peak = product_flops / median(times["product"])
    rows = []
    for name, (side, inputs, outputs, stride, kernel) in LAYERS.items():
        ours, xlas = f"{name}, ours", f"{name}, XLA's"
        # Three products: the value, and the gradients of the kernel and of the input.
        flops = 3 * 2 * kernel**2 * inputs * outputs * batch_size * (-(-side // stride)) ** 2
        ms = [round(1e3 * median(times[form]), 1) for form in (xlas, ours)]
        share = flops / median(times[ours]) / peak
        rows.append([name, *ms, f"{ratio(times, xlas, ours):.2f}", f"{share:.0%}"])
    columns = ["layer", "XLA's ms", "ours ms", "XLA's / ours", "ours of peak"]
    title = f"{batch_size} images, {device_kind()}, product {peak / 1e9:.0f} GFLOP/s"
    print_table(columns, rows, title=title)


def _form(
    conv: Callable, n: int, side: int, inputs: int, outputs: int, stride: int, width: int
) -> Callable:
    x = jax.random.normal(jax.random.key(0), (n, side, side, inputs))
    kernel = jax.random.normal(jax.random.key(1), (width, width, inputs, outputs))

    def loss(x, kernel):
        window = ((stride, stride), ((width // 2, width // 2),) * 2)
        return jnp.sum(jnp.sin(conv(x, kernel, *window, dimension_numbers=DIMENSIONS)))

    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return lambda: jax.block_until_ready(compiled(x, kernel))
