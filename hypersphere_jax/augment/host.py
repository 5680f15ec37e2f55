"""Crops on the host, for images of different sizes: NumPy and Pillow, in the data's workers.

The same distribution of boxes and the same resampling as on the device, rounded to 8 bits;
`make_augment(..., cropped=True)` does the rest of the recipe.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hypersphere_jax.augment import operations
from hypersphere_jax.augment.operations import RATIO, SCALE, centre, largest_box, resized_shape
from hypersphere_jax.augment.recipes import RANDOM_CROPS, RECIPES, Recipe, find


def host_crops(
    recipe: str | Recipe, size: int
) -> tuple[
    Callable[[np.random.Generator, np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]
]:
    """The crops of a recipe, as functions for the host; both can be pickled.

    Args:
      recipe: a name in `RECIPES`, or a `Recipe`.
      size: side of the crops, pixels.

    Returns:
      (train_crop, evaluate_crop): (rng, uint8 [h, w, c]) -> uint8 [size, size, c] with the law of
      the recipe's random crop, and uint8 [h, w, c] -> uint8 [size, size, c], its resize
      and center_crop. A recipe without a random crop ("digits", "none") has the evaluate crop for
      both: its random operations then start from that square.

    Raises:
      ValueError: for an unknown recipe, or one whose crop comes after an operation that would not
        do the same after it.
    """
    train: Any
    evaluate: Any
    train, evaluate = (() if callable(part) else part for part in find(recipe))
    if not evaluate:  # one's own takes the middle
        evaluate = RECIPES["none"].evaluate
    random = next((name for name in RANDOM_CROPS if name in dict(train)), "none")
    for steps, crop in ((train, random), (evaluate, "center_crop")):
        names = [name for name, _ in steps]
        # Of the rest, "rgb" alone does the same before a crop and after it.
        before = set(names[: names.index(crop)]) - {"rgb", "resize"} if crop in names else set()
        if before:
            raise ValueError(f"{crop} cannot move to the host: {', '.join(before)} comes before it")
    if "center_crop" not in dict(evaluate):
        raise ValueError(f"a recipe for the host needs a center_crop for evaluation: {evaluate}")
    factor = dict(evaluate).get("resize", {}).get("factor", 1.0)
    evaluate_crop = partial(middle_crop, size=size, factor=factor)
    if random == "none":
        return partial(middle_crop_for_training, size=size, factor=factor), evaluate_crop
    law = {"scale": SCALE, "ratio": RATIO} | dict(train)[random]
    crop = inception_crop if random == "inception_crop" else random_crop
    return partial(crop, size=size, **law), evaluate_crop


def random_crop(
    rng: np.random.Generator,
    image: np.ndarray,
    *,
    size: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> np.ndarray:
    """A random box (see `draw_box`) of uint8 [h, w, c], resized to [size, size, c]."""
    top, left, height, width = draw_box(rng, *image.shape[:2], scale, ratio)
    # Cut out first: Pillow's `resize(box=...)` also weighs pixels around the box.
    return _resize(image[top : top + height, left : left + width], size, size)


def inception_crop(
    rng: np.random.Generator, image: np.ndarray, *, size: int, **law: tuple[float, float]
) -> np.ndarray:
    """As `operations.inception_crop`, of uint8 [h, w, c]."""
    numbers = rng.random(2 * operations.ATTEMPTS + 2, np.float32)
    box = operations.distorted_box(numbers, *image.shape[:2], law["scale"], law["ratio"], np)
    top, left, height, width = box
    inside = image[top : top + height, left : left + width].astype(np.float32)
    rows, columns = (operations.cubic_weights(0, n, n, size, np) for n in (height, width))
    resized = np.einsum("oh,hwc,pw->opc", rows, inside, columns, optimize=True)
    return np.clip(np.rint(resized), 0, 255).astype(np.uint8)


def middle_crop(image: np.ndarray, *, size: int, factor: float) -> np.ndarray:
    """Resizes an image and takes its middle: uint8 [h, w, c] -> uint8 [size, size, c].

    A depth map, float32 [h, w, 1], is resized just so, without rounding.
    """
    image = _resize(image, *resized_shape(*image.shape[:2], size, factor))
    top, left = centre(*image.shape[:2], size)
    return image[top : top + size, left : left + size]


def middle_crop_for_training(
    rng: np.random.Generator, image: np.ndarray, *, size: int, factor: float
) -> np.ndarray:
    """As `middle_crop`, for training: nothing is drawn."""
    return middle_crop(image, size=size, factor=factor)


def draw_box(
    rng: np.random.Generator,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random box; see `crop_box`, which has the same law."""
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        box_height, box_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 1 <= box_height <= height and 1 <= box_width <= width:
            top = int(rng.integers(height - box_height + 1))
            left = int(rng.integers(width - box_width + 1))
            return top, left, box_height, box_width
    box_height, box_width = largest_box(height, width, ratio)
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Antialiased bilinear resizing of [h, w, c]."""
    if image.shape[:2] == (height, width):
        return image
    from PIL import Image

    if image.shape[-1] == 3:
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    # Pillow would take a second or fourth channel for transparency, so these go one by one.
    resized = [
        Image.fromarray(channel).resize((width, height), Image.Resampling.BILINEAR)
        for channel in np.moveaxis(image, -1, 0)
    ]
    return np.stack(resized, axis=-1)
