"""Augmentation on the device: pure functions of (key, image), made for `jit` and `vmap`.

An operation is `op(key, image, *, size, **params) -> image`: float32 [h, w, c] with values in
[0, 1], `size` the side of the final image in pixels. A recipe is a sequence of operations by name,
so it is data; `RECIPES` holds those of the experiments. Random operations follow torchvision's
definitions and resampling follows Pillow's, without their rounding to 8 bits after each operation.
"""

from hypersphere_jax.augment.blur import box_kernel, gaussian_blur, sampled_kernel
from hypersphere_jax.augment.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    color_jitter,
    grayscale,
    normalize,
    random_grayscale,
    random_intensity,
    rgb,
)
from hypersphere_jax.augment.geometry import (
    affine,
    center_crop,
    crop_box,
    crop_resize,
    cutout,
    random_affine,
    random_horizontal_flip,
    random_resized_crop,
    random_rotation,
    resize,
)
from hypersphere_jax.augment.host import draw_box, host_crops
from hypersphere_jax.augment.recipes import MOVING, RECIPES, Recipe, Steps, find
from hypersphere_jax.augment.views import (
    OPERATIONS,
    make_augment,
    make_evaluate,
    one_view,
    two_views,
)

__all__ = [
    "MOVING",
    "OPERATIONS",
    "RECIPES",
    "Recipe",
    "Steps",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "affine",
    "box_kernel",
    "center_crop",
    "color_jitter",
    "crop_box",
    "crop_resize",
    "cutout",
    "draw_box",
    "find",
    "gaussian_blur",
    "grayscale",
    "host_crops",
    "make_augment",
    "make_evaluate",
    "normalize",
    "one_view",
    "random_affine",
    "random_grayscale",
    "random_horizontal_flip",
    "random_intensity",
    "random_resized_crop",
    "random_rotation",
    "resize",
    "rgb",
    "sampled_kernel",
    "two_views",
]
