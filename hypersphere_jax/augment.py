"""Augmentation on the device: pure functions of (key, image), made for `jit` and `vmap`.

An operation is `op(key, image, *, size, **params) -> image`: float32 [h, w, c] with values in
[0, 1], `size` the side of the final image in pixels. A recipe is a sequence of operations by name,
so it is data; `RECIPES` holds those of the experiments. Random operations follow torchvision's
definitions and resampling follows Pillow's, without their rounding to 8 bits after each operation.
"""

import difflib
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

Steps = tuple[tuple[str, dict[str, Any]], ...]


class Recipe(NamedTuple):
    """What makes a training view and an evaluation image: (operation, parameters) in order."""

    train: Steps
    evaluate: Steps


def _units(key, *shape):
    """Uniform numbers in [0, 1), one draw for each operation: draws are slow to compile."""
    return jax.random.uniform(key, shape, jnp.float32)


def _between(unit, low, high):
    return low + (high - low) * unit


def _resize_weights(start, length, in_size, out_size):
    """Weights [out_size, in_size] of Pillow's bilinear filter over pixels start to start+length.

    When shrinking, the triangle widens to cover the source pixels (antialiasing). Pixels outside
    the range get no weight, as if the image had been cropped first.
    """
    scale = length / out_size
    centre = start + (jnp.arange(out_size, dtype=jnp.float32)[:, None] + 0.5) * scale
    pixel = jnp.arange(in_size, dtype=jnp.float32)[None, :] + 0.5
    weights = jnp.maximum(0.0, 1.0 - jnp.abs(pixel - centre) / jnp.maximum(scale, 1.0))
    weights = jnp.where((pixel > start) & (pixel < start + length), weights, 0.0)
    return weights / jnp.sum(weights, axis=1, keepdims=True)


def crop_resize(image, box, out_height, out_width):
    """Crop [h, w, c] to the box and resize to [out_height, out_width, c] as Pillow's BILINEAR does.

    The box is (top, left, height, width) in whole pixels, and may be traced.
    """
    top, left, height, width = box
    rows = _resize_weights(top, height, image.shape[0], out_height)
    columns = _resize_weights(left, width, image.shape[1], out_width)
    # Two matrix products: under vmap they stay batched products, where a gather would be slow.
    # Full precision, because accelerators by default round the inputs to 8 or 11 bits.
    image = jnp.einsum("pw,hwc->hpc", columns, image, precision="highest")
    return jnp.einsum("oh,hpc->opc", rows, image, precision="highest")


def crop_box(key, height, width, scale, ratio):
    """Draw the box of a random resized crop: the first of ten that fits, else a centred one.

    The area is uniform in `scale` (fractions of the image's), width / height log-uniform in
    `ratio`. Returns (top, left, height, width) in pixels, int32 scalars.
    """
    units = _units(key, 22)
    area = height * width * _between(units[:10], *scale)
    aspect = jnp.exp(_between(units[10:20], math.log(ratio[0]), math.log(ratio[1])))
    heights = jnp.round(jnp.sqrt(area / aspect)).astype(jnp.int32)
    widths = jnp.round(jnp.sqrt(area * aspect)).astype(jnp.int32)
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    found, first = jnp.any(fits), jnp.argmax(fits)

    # The largest centred box whose ratio is in the range.
    box_height = jnp.where(found, heights[first], min(height, round(width / ratio[0])))
    box_width = jnp.where(found, widths[first], min(width, round(height * ratio[1])))
    room = jnp.stack([height - box_height, width - box_width])
    top, left = jnp.where(found, (units[20:] * (room + 1)).astype(jnp.int32), room // 2)
    return top, left, box_height, box_width


def random_resized_crop(key, image, *, size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
    """Crop a random box (see `crop_box`) and resize it to [size, size, c]."""
    box = crop_box(key, *image.shape[:2], scale, ratio)
    return crop_resize(image, box, size, size)


def resize(key, image, *, size, factor=1.0):
    """Resize so that `center_crop` can follow, keeping the ratio of the sides.

    The shorter side becomes round(factor * size) if it is larger than `size`, else `size`.
    """
    height, width = image.shape[:2]
    shorter = min(height, width)
    target = round(factor * size) if shorter > size else size
    if target == shorter:
        return image
    box = (0, 0, height, width)
    return crop_resize(image, box, target * height // shorter, target * width // shorter)


def center_crop(key, image, *, size):
    """Cut out the middle [size, size, c]."""
    height, width = image.shape[:2]
    if min(height, width) < size:
        raise ValueError(f"center_crop to {size} pixels needs a larger image, got {image.shape}")
    top, left = round((height - size) / 2), round((width - size) / 2)
    return image[top : top + size, left : left + size]


def random_horizontal_flip(key, image, *, size, p=0.5):
    """Swap left and right with probability p."""
    return jnp.where(_units(key) < p, image[:, ::-1], image)


def affine(image, size, degrees, scale, shift):
    """Turn clockwise, enlarge and shift (down, right: fractions of the side) [h, w, c].

    The frame is taken as the unit square, its centre is fixed, the result is [size, size, c].
    Bilinear with zeros around the image, as torchvision has it; not antialiased: made for small
    changes of scale. The edge fades within a pixel: a hard one would let the last bit of rounding
    decide whether a pixel is drawn.
    """
    height, width, _ = image.shape
    grid = (jnp.arange(size, dtype=jnp.float32) + 0.5) / size - 0.5
    y, x = jnp.meshgrid(grid, grid, indexing="ij")
    y, x = (y - shift[0]) / scale, (x - shift[1]) / scale
    sin, cos = jnp.sin(jnp.deg2rad(degrees)), jnp.cos(jnp.deg2rad(degrees))
    from_y, from_x = (cos * y - sin * x + 0.5) * height, (sin * y + cos * x + 0.5) * width

    def sample(plane):
        # Sample points count from pixel edges, map_coordinates from pixel centres.
        return map_coordinates(plane, (from_y - 0.5, from_x - 0.5), order=1, mode="constant")

    return jax.vmap(sample, in_axes=-1, out_axes=-1)(image)


def random_affine(key, image, *, size, degrees, scale, shift):
    """`affine` with angle in +-degrees, scale in the range, each shift in +-shift of the side."""
    units = _units(key, 4)
    angle, factor = _between(units[0], -degrees, degrees), _between(units[1], *scale)
    return affine(image, size, angle, factor, _between(units[2:], -shift, shift))


def rgb(key, image, *, size):
    """Repeat a single channel three times; three channels pass."""
    if image.shape[-1] not in (1, 3):
        raise ValueError(f"rgb needs 1 or 3 channels, got an image of shape {image.shape}")
    return jnp.broadcast_to(image, (*image.shape[:2], 3))


def grayscale(image):
    """Return the ITU-R 601 luma of an RGB image [h, w, 3], as [h, w, 1]."""
    if image.shape[-1] != 3:
        raise ValueError(f"colours need 3 channels (put 'rgb' first), got shape {image.shape}")
    # A sum over a last axis of 3 takes twice as long on CPU.
    return 0.299 * image[..., 0:1] + 0.587 * image[..., 1:2] + 0.114 * image[..., 2:3]


def _blend(image, base, factor):
    return jnp.clip(factor * image + (1.0 - factor) * base, 0.0, 1.0)


def adjust_brightness(image, factor):
    """Blend with black; a factor of 1 changes nothing, here and in the two that follow."""
    return _blend(image, 0.0, factor)


def adjust_contrast(image, factor):
    """Blend with the mean of the grayscale image."""
    return _blend(image, jnp.mean(grayscale(image)), factor)


def adjust_saturation(image, factor):
    """Blend each pixel with its own gray."""
    return _blend(image, grayscale(image), factor)


def adjust_hue(image, shift):
    """Shift the hue by a fraction of a full turn at the same HSV saturation and value."""
    red, green, blue = image[..., 0:1], image[..., 1:2], image[..., 2:3]
    low = jnp.min(image, -1, keepdims=True)
    chroma = jnp.max(image, -1, keepdims=True) - low
    inverse = 1.0 / jnp.maximum(chroma, 1e-6)  # finite for grays, whose hue does not show
    # Not `red == max`: a compiler may round the two sides differently, and none would be equal.
    hue = jnp.where(
        (red >= green) & (red >= blue),
        (green - blue) * inverse,
        jnp.where(green >= blue, 2.0 + (blue - red) * inverse, 4.0 + (red - green) * inverse),
    )
    # In sixths of a turn red, green and blue peak at 0, 2 and 4. A channel is full up to 1 from
    # its peak and gone at 2: back to RGB without branches, and without `mod`, which is slow on CPU.
    turn = (hue + 6.0 * shift - np.array([[[0.0, 2.0, 4.0]]], np.float32)) / 6.0
    distance = 6.0 * jnp.abs(turn - jnp.round(turn))
    return low + chroma * jnp.clip(2.0 - distance, 0.0, 1.0)


def color_jitter(key, image, *, size, brightness, contrast, saturation, hue, p=1.0):
    """With probability p, adjust brightness, contrast, saturation and hue in random order.

    Strength b of the first three draws a factor from [max(0, 1 - b), 1 + b]; the hue shifts by up
    to +-hue, a fraction of a full turn.
    """
    units = _units(key, 9)
    spread = jnp.array([brightness, contrast, saturation], jnp.float32)
    factors = _between(units[:3], jnp.maximum(0.0, 1.0 - spread), 1.0 + spread)
    shift = _between(units[3], -hue, hue)
    adjustments = (
        lambda image: adjust_brightness(image, factors[0]),
        lambda image: adjust_contrast(image, factors[1]),
        lambda image: adjust_saturation(image, factors[2]),
        lambda image: adjust_hue(image, shift),
    )
    jittered = image
    # Under vmap each turn computes all four and selects. They fuse, so that it is no slower than
    # computing the hue once and the others, masked, before and after it.
    for adjustment in jnp.argsort(units[4:8]):
        jittered = jax.lax.switch(adjustment, adjustments, jittered)
    return jnp.where(units[8] < p, jittered, image)


def random_grayscale(key, image, *, size, p):
    """Replace the three channels by their luma with probability p."""
    return jnp.where(_units(key) < p, grayscale(image), image)


def random_intensity(key, image, *, size, scale):
    """Multiply all values by one factor from the range, then clip: black stays black."""
    return jnp.clip(image * _between(_units(key), *scale), 0.0, 1.0)


def normalize(key, image, *, size, mean, std):
    """Subtract the mean and divide by the standard deviation of each channel."""
    if not len(mean) == len(std) == image.shape[-1]:
        raise ValueError(f"normalize got mean {mean}, std {std} for an image of {image.shape}")
    mean, std = (np.array(values, np.float32).reshape(1, 1, -1) for values in (mean, std))
    return (image - mean) / std


OPERATIONS: dict[str, Callable] = {
    op.__name__: op
    for op in (
        rgb,
        random_resized_crop,
        resize,
        center_crop,
        random_horizontal_flip,
        random_affine,
        color_jitter,
        random_grayscale,
        random_intensity,
        normalize,
    )
}

_FIT: Steps = (("resize", {}), ("center_crop", {}))
_STL10 = ("normalize", {"mean": (0.4409, 0.4279, 0.3868), "std": (0.2683, 0.2610, 0.2687)})
_DIGITS = ("normalize", {"mean": (0.3053,), "std": (0.3760,)})

RECIPES: dict[str, Recipe] = {
    # Wang & Isola B.1 after Tian et al. (2019): natural images.
    "stl10": Recipe(
        train=(
            ("rgb", {}),
            ("random_resized_crop", {"scale": (0.08, 1.0)}),
            ("random_horizontal_flip", {"p": 0.5}),
            ("color_jitter", {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.4}),
            ("random_grayscale", {"p": 0.2}),
            _STL10,
        ),
        evaluate=(("rgb", {}), ("resize", {"factor": 70 / 64}), ("center_crop", {}), _STL10),
    ),
    # Small enough changes that a digit stays the digit it is: no flips, a shift of 1 pixel in 8.
    "digits": Recipe(
        train=(
            ("random_affine", {"degrees": 15.0, "scale": (0.85, 1.15), "shift": 0.125}),
            ("random_intensity", {"scale": (0.7, 1.3)}),
            _DIGITS,
        ),
        evaluate=(*_FIT, _DIGITS),
    ),
    # Nothing random: both views are the image itself.
    "none": Recipe(train=_FIT, evaluate=_FIT),
}


def _find(recipe: str) -> Recipe:
    if recipe not in RECIPES:
        near = difflib.get_close_matches(recipe, RECIPES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown recipe {recipe!r}, known: {', '.join(RECIPES)}{hint}")
    return RECIPES[recipe]


def _chain(steps: Steps, size: int) -> Callable:
    """One function (key, uint8 image) -> float32 image that applies the steps in order."""
    if len(dict(steps)) < len(steps):
        raise ValueError(f"an operation names its random stream, so it may stand once: {steps}")

    def apply(key, image):
        if image.dtype != jnp.uint8 or image.ndim != 3:
            raise ValueError(f"expected uint8 [h, w, c], got {image.dtype} {list(image.shape)}")
        image = image.astype(jnp.float32) / 255.0
        for name, params in steps:
            # A stream by name: inserting an operation leaves the others' randomness as it was.
            stream = jax.random.fold_in(key, zlib.crc32(name.encode()))
            image = OPERATIONS[name](stream, image, size=size, **params)
        return image

    return apply


def make_augment(recipe: str, size: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Make the random function that turns an image into a training view.

    Args:
      recipe: a name in `RECIPES`.
      size: side of the view, pixels.

    Returns:
      (key, image uint8 [h, w, c]) -> float32 [size, size, c'], for one image: use `jax.vmap`.
      It raises ValueError for another dtype or rank.

    Raises:
      ValueError: for an unknown recipe.

    >>> augment = make_augment("digits", 16)
    >>> augment(jax.random.key(0), np.zeros((8, 8, 1), np.uint8)).shape
    (16, 16, 1)
    """
    return _chain(_find(recipe).train, size)


def make_evaluate(recipe: str, size: int) -> Callable[[jax.Array], jax.Array]:
    """Make the function that turns an image into the input of an evaluation: nothing is random.

    Takes and raises the same as `make_augment`; the function returned has no key:
    image uint8 [h, w, c] -> float32 [size, size, c'].
    """
    apply = _chain(_find(recipe).evaluate, size)
    return lambda image: apply(jax.random.key(0), image)


def two_views(augment, key, images, positions):
    """Two random views of each image; the same for any number of devices.

    What is random about a view depends on the key, the sample's position and the view alone.

    Args:
      augment: (key, image) -> view, see `make_augment`.
      key: random key, the same on all devices, another one each step.
      images: uint8 [n, h, w, c].
      positions: integers [n], the places of these samples in the global batch.

    Returns:
      (view1, view2), each float32 [n, size, size, c'].

    Raises:
      ValueError: where there is not one position for each image.
    """
    if positions.shape != images.shape[:1]:
        raise ValueError(f"images {images.shape} need one position each, got {positions.shape}")

    def one(view, position, image):
        return augment(jax.random.fold_in(jax.random.fold_in(key, position), view), image)

    view1, view2 = (jax.vmap(partial(one, view))(positions, images) for view in (0, 1))
    return view1, view2
