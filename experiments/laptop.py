"""Changes of a paper's config to laptop scale, shared by Chen et al. and the balanced paper."""

from typing import Any

# A narrow network on scikit-learn's digits, 20 epochs of 10 steps.
DIGITS: dict[str, Any] = {
    "data": "digits",
    "recipe": None,
    "model": "small_cnn",
    "width": 0.5,
    "image_size": None,
    "init": "he",
    "epochs": 20,
    "devices": 1,
    "log_every_steps": 10,
}
# A harder task for the same network: a tenth of CIFAR-10 in gray at 16 pixels, all test images.
GRAY: dict[str, Any] = {
    "data": "cifar10",
    "channels": 1,
    "fraction": 0.1,
    "image_size": 16,
    "epochs": 8,
}
