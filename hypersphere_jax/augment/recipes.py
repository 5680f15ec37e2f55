"""Augmentation recipes, as data; `docs/augmentation.md` lists their sources."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax.configs import DataConfig, UserError
from hypersphere_jax.configs.base import Custom, did_you_mean

# Operations, each by its name in `OPERATIONS` or as a function, with its parameters.
Steps = Sequence[tuple[str | Callable, Mapping[str, Any]]]


class Recipe(NamedTuple):
    """Operations that make a training view and an evaluation image, in order.

    Each part may also be a custom function: (key, uint8 image) -> view, or image -> image.
    """

    train: Steps | Callable
    evaluate: Steps | Callable


# Mean and standard deviation of the channels of the training images, with values from 0 to 1. The
# balanced paper also uses ImageNet's, as in torchvision's models, for CIFAR-10.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET = ("normalize", {"mean": IMAGENET_MEAN, "std": (0.229, 0.224, 0.225)})
_STL10 = ("normalize", {"mean": (0.4409, 0.4279, 0.3868), "std": (0.2683, 0.2610, 0.2687)})
_CIFAR10 = ("normalize", {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)})
_DIGITS = ("normalize", {"mean": (0.3053,), "std": (0.3760,)})

_RGB = ("rgb", {})
_FLIP = ("random_horizontal_flip", {"p": 0.5})
_GRAY = ("random_grayscale", {"p": 0.2})
_BLUR = ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5})


def _crop(smallest):
    return "random_resized_crop", {"scale": (smallest, 1.0), "ratio": (3 / 4, 4 / 3)}


def _jitter(strength, hue, p=1.0):
    strengths = dict.fromkeys(("brightness", "contrast", "saturation"), strength)
    return "color_jitter", {**strengths, "hue": hue, "p": p}


def _fit(factor=1.0) -> Steps:
    return ("resize", {"factor": factor}), ("center_crop", {})


def _wang_isola(normalization, factor=1.0) -> Recipe:
    """Wang & Isola B.1 after Tian et al. (2019)."""
    train = _RGB, _crop(0.08), _FLIP, _jitter(0.4, hue=0.4), _GRAY, normalization
    return Recipe(train, (_RGB, *_fit(factor), normalization))


def _imagenet(*train) -> Recipe:
    """Evaluated as usual for ImageNet: the center 224 of 256 pixels."""
    return Recipe((_RGB, *train, _IMAGENET), (_RGB, *_fit(256 / 224), _IMAGENET))


def _simclr_imagenet(crop) -> Recipe:
    blur = ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5, "kernel": 0.1})
    train = _RGB, crop, _FLIP, _jitter(0.8, hue=0.2, p=0.8), _GRAY, blur
    return Recipe(train, (_RGB, *_fit(256 / 224)))


def _simclr_cifar(crop) -> Recipe:
    train = _RGB, crop, _FLIP, _jitter(0.4, hue=0.1, p=0.8), _GRAY
    return Recipe(train, (_RGB, *_fit()))


_INCEPTION_CROP = ("inception_crop", {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)})
_BALANCED_JITTER = _jitter(0.4, hue=0.1, p=0.8)
_BALANCED = (_crop(0.2), _BALANCED_JITTER, _GRAY, _BLUR, _FLIP)
# The paper gives no sizes and probabilities: squares of half the side (DeVries & Taylor, 2017),
# quarter turns (Gidaris et al., 2018).
_CUTOUT = ("cutout", {"side": 0.5, "value": IMAGENET_MEAN})
_ROTATION = ("random_rotation", {})

RECIPES: dict[str, Recipe] = {
    "stl10": _wang_isola(_STL10, factor=70 / 64),
    "cifar10": _wang_isola(_CIFAR10),
    "nyu_depth": _wang_isola(_IMAGENET),
    # Wang & Isola B.2.1, after Tian (2019) and He et al. (2019).
    "moco": _imagenet(_crop(0.2), _GRAY, _jitter(0.4, hue=0.4), _FLIP),
    # Wang & Isola B.2.2, after Chen, Fan et al. (2020).
    "moco_v2": _imagenet(_crop(0.2), _jitter(0.4, hue=0.1, p=0.8), _GRAY, _BLUR, _FLIP),
    # Chen, Luo & Li (2021) follow SimCLR, which does not normalize, halves the jitter for CIFAR-10
    # and does not blur it. Its crops are TensorFlow's.
    "simclr_imagenet": _simclr_imagenet(_INCEPTION_CROP),
    "simclr_cifar": _simclr_cifar(_INCEPTION_CROP),
    "simclr_imagenet_torchvision": _simclr_imagenet(_crop(0.08)),
    "simclr_cifar_torchvision": _simclr_cifar(_crop(0.08)),
    # The balanced paper, A.3.1 (the operations of MoCo v2) and A.4.1.
    "balanced_imagenet": _imagenet(*_BALANCED),
    "balanced_cifar": Recipe(
        train=(_RGB, _crop(0.08), _FLIP, _BALANCED_JITTER, _GRAY, _IMAGENET),
        evaluate=(_RGB, *_fit(), _IMAGENET),
    ),
    # Its Figure 3: "balanced_imagenet" with one more operation, or one or two fewer.
    "balanced_no_blur": _imagenet(_crop(0.2), _BALANCED_JITTER, _GRAY, _FLIP),
    "balanced_no_color": _imagenet(_crop(0.2), _BLUR, _FLIP),
    "balanced_cutout": _imagenet(*_BALANCED, _CUTOUT),
    "balanced_rotation": _imagenet(*_BALANCED, _ROTATION),
    # Changes that keep the digit: no flips, a shift of 1 pixel in 8.
    "digits": Recipe(
        train=(
            ("random_affine", {"degrees": 15.0, "scale": (0.85, 1.15), "shift": 0.125}),
            ("random_intensity", {"scale": (0.7, 1.3)}),
            _DIGITS,
        ),
        evaluate=(*_fit(), _DIGITS),
    ),
    # Both views are the image itself.
    "none": Recipe(train=_fit(), evaluate=_fit()),
}

CROP_FLIP = ":crop_flip"
RANDOM_CROPS = ("random_resized_crop", "inception_crop")
# `crop_flip` keeps the operations that move pixels, and the common ones of all recipes.
MOVING = (*RANDOM_CROPS, "random_horizontal_flip", "random_affine")
KEPT = ("rgb", "resize", "center_crop", *MOVING, "normalize")
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601
PER_CHANNEL = ("mean", "std", "value")  # parameters that may contain a number for each channel


def find(recipe: str | Recipe) -> Recipe:
    """Return the recipe of a name; a `Recipe` is returned as it is.

    `NAME:crop_flip` is the recipe NAME with only crop and flip in training, as usual for
    classifiers (SimCLR, B.5).

    Raises:
      ValueError: for an unknown name.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if recipe.endswith(CROP_FLIP):
        return crop_flip(find(recipe.removesuffix(CROP_FLIP)))
    if recipe not in RECIPES:
        hint = did_you_mean(recipe, RECIPES)
        raise ValueError(f"unknown recipe {recipe!r}, known: {', '.join(RECIPES)}{hint}")
    return RECIPES[recipe]


def crop_flip(recipe: Recipe) -> Recipe:
    """Return the recipe with only crop and flip in training; a custom function is kept."""
    if callable(recipe.train):
        return recipe
    steps = tuple(step for step in recipe.train if step[0] in KEPT)
    return Recipe(steps or recipe.train, recipe.evaluate)


def for_gray(recipe: Recipe) -> Recipe:
    """Return the recipe for gray images: no color operations, and the luma of constants."""
    return Recipe(*map(_gray_steps, recipe))


def _gray_steps(steps: Steps | Callable) -> Steps | Callable:
    if callable(steps):
        return steps
    return tuple(
        (operation, {name: _luma(name, value) for name, value in params.items()})
        for operation, params in steps
        if operation not in ("rgb", "random_grayscale")
    )


def _luma(name: str, value: Any) -> Any:
    if name in PER_CHANNEL and np.size(value) == 3:
        return (float(np.dot(LUMA, value)),)
    return value


def recipe_of(config: DataConfig) -> Recipe:
    """Return the recipe of a config, whose parts custom functions may replace."""
    recipe = find(config.recipe)
    if config.augment is not None:
        recipe = recipe._replace(train=_function(config.augment, "augment"))
    if config.preprocess is not None:
        recipe = recipe._replace(evaluate=_function(config.preprocess, "preprocess"))
    return for_gray(recipe) if config.channels == 1 else recipe


def _function(value: Custom | str, field: str) -> Callable:
    """Return a custom function; one that fails if only its name is known."""
    if isinstance(value, Custom):
        return value.value

    def missing(*_):
        raise UserError(f"the data were augmented by the custom {value}: pass it as {field}=")

    return missing
