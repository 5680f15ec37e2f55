# ruff: noqa: F401  (names for import from here)
"""Augmentation on the device: pure functions of (key, image) for `jit` and `vmap`.

A recipe is data, a sequence of operations by name. Random operations follow torchvision's
definitions and resampling follows Pillow's, without rounding to 8 bits after each operation.
"""

from hypersphere_jax.augment.host import host_crops
from hypersphere_jax.augment.recipes import (
    RECIPES,
    Recipe,
    Steps,
    crop_flip,
    find,
    recipe_of,
)
from hypersphere_jax.augment.views import (
    OPERATIONS,
    make_augment,
    make_evaluate,
    one_view,
    two_views,
)
