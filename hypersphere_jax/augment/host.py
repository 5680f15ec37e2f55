"""Crops on the host, for images of different sizes: NumPy and Pillow, in the data's workers.

Boxes have the same distribution and resampling is the same as on the device, rounded to 8 bits.
`make_augment(..., cropped=True)` applies the rest of the recipe.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hypersphere_jax.augment import operations
from hypersphere_jax.augment.operations import RATIO, SCALE, center, resized_shape
from hypersphere_jax.augment.recipes import RECIPES, Recipe, Steps, find

Range = tuple[float, float]


def host_crops(
    recipe: str | Recipe, size: int
) -> tuple[
    Callable[[np.random.Generator, np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]
]:
    """Return the crops of a recipe as functions for the host, which can be pickled.

    Args:
      recipe: a name in `RECIPES`, or a `Recipe`.
      size: side of the crops, pixels.

    Returns:
      (train_crop, evaluate_crop): (rng, uint8 [h, w, c]) -> uint8 [size, size, c] with the
      distribution of the recipe's random crop, and uint8 [h, w, c] -> uint8 [size, size, c], its
      resize and center_crop. A recipe without a random crop ("digits", "none") has the evaluation
      crop for both: its random operations then start from that square.

    Raises:
      ValueError: for an unknown recipe, or one whose crop follows an operation that does not
        commute with it.
    """
    found = find(recipe)
    train: Any = () if callable(found.train) else found.train
    evaluate: Any = () if callable(found.evaluate) else found.evaluate
    evaluate = evaluate or RECIPES["none"].evaluate  # a custom function follows a center crop
    if "center_crop" not in dict(evaluate):
        raise ValueError(f"a recipe for the host needs a center_crop for evaluation: {evaluate}")
    _check_movable(evaluate, "center_crop")
    factor = dict(evaluate).get("resize", {}).get("factor", 1.0)
    evaluate_crop = partial(middle_crop, size=size, factor=factor)
    crops = {"inception_crop": inception_crop, "random_resized_crop": random_crop}
    for name, crop in crops.items():
        if name in dict(train):
            _check_movable(train, name)
            law = {"scale": SCALE, "ratio": RATIO} | dict(train)[name]
            return partial(crop, size=size, **law), evaluate_crop
    return partial(_without_rng, evaluate_crop), evaluate_crop


def _without_rng(crop: Callable, rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    return crop(image)


def _check_movable(steps: Steps, crop: str) -> None:
    """Raise ValueError for operations before a crop that do not commute with it."""
    names = [name for name, _ in steps]
    before = set(names[: names.index(crop)]) - {"rgb", "resize"}
    if before:
        raise ValueError(f"{crop} cannot move to the host: {', '.join(before)} comes before it")


def random_crop(
    rng: np.random.Generator, image: np.ndarray, *, size: int, scale: Range, ratio: Range
) -> np.ndarray:
    """Apply `operations.random_resized_crop` to uint8 [h, w, c]."""
    numbers = rng.random(22, np.float32)
    top, left, height, width = operations.crop_box(numbers, *image.shape[:2], scale, ratio, np)
    # The box is cut out first, since Pillow's `resize(box=...)` also weighs pixels around it.
    return _resize(image[top : top + height, left : left + width], size, size)


def inception_crop(
    rng: np.random.Generator, image: np.ndarray, *, size: int, scale: Range, ratio: Range
) -> np.ndarray:
    """Apply `operations.inception_crop` to uint8 [h, w, c]."""
    numbers = rng.random(2 * operations.ATTEMPTS + 2, np.float32)
    box = operations.distorted_box(numbers, *image.shape[:2], scale, ratio, np)
    top, left, height, width = box
    inside = image[top : top + height, left : left + width].astype(np.float32)
    rows = operations.cubic_weights(0, height, height, size, np)
    columns = operations.cubic_weights(0, width, width, size, np)
    resized = np.einsum("oh,hwc,pw->opc", rows, inside, columns, optimize=True)
    return np.clip(np.rint(resized), 0, 255).astype(np.uint8)


def middle_crop(image: np.ndarray, *, size: int, factor: float) -> np.ndarray:
    """Resize an image and crop its center: uint8 [h, w, c] -> uint8 [size, size, c].

    A depth map, float32 [h, w, 1], is resized in the same way, without rounding.
    """
    image = _resize(image, *resized_shape(*image.shape[:2], size, factor))
    top, left = center(*image.shape[:2], size)
    return image[top : top + size, left : left + size]


def _resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize [h, w, c] bilinearly with antialiasing."""
    if image.shape[:2] == (height, width):
        return image
    from PIL import Image

    if image.shape[-1] == 3:
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    # Channels are resized one by one: Pillow treats a second or fourth channel as transparency.
    resized = [
        Image.fromarray(channel).resize((width, height), Image.Resampling.BILINEAR)
        for channel in np.moveaxis(image, -1, 0)
    ]
    return np.stack(resized, axis=-1)
