"""Operations that move pixels: crops, flips, turns, and the square that cutout erases."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from hypersphere_jax.augment.common import between, pixels, planes, units, weigh
from hypersphere_jax.augment.shapes import RATIO, SCALE, centre, largest_box, resized_shape


def _resize_weights(start, length, in_size, out_size):
    """Weights [out_size, in_size] of Pillow's bilinear filter over pixels start to start+length.

    When shrinking, the triangle widens to cover the source pixels (antialiasing). Pixels outside
    the range get no weight, as if the image had been cropped first.
    """
    scale = length / out_size
    middle = start + (jnp.arange(out_size, dtype=jnp.float32)[:, None] + 0.5) * scale
    pixel = jnp.arange(in_size, dtype=jnp.float32)[None, :] + 0.5
    weights = jnp.maximum(0.0, 1.0 - jnp.abs(pixel - middle) / jnp.maximum(scale, 1.0))
    weights = jnp.where((pixel > start) & (pixel < start + length), weights, 0.0)
    return weights / jnp.sum(weights, axis=1, keepdims=True)


def crop_resize(image, box, out_height, out_width):
    """Crop [h, w, c] to the box and resize to [out_height, out_width, c] as Pillow's BILINEAR does.

    The box is (top, left, height, width) in whole pixels, and may be traced.
    """
    top, left, height, width = box
    rows = _resize_weights(top, height, image.shape[0], out_height)
    columns = _resize_weights(left, width, image.shape[1], out_width)
    return weigh(image, rows, columns)


def crop_box(key, height, width, scale, ratio):
    """Draw the box of a random resized crop: the first of ten that fits, else a centred one.

    The area is uniform in `scale` (fractions of the image's), width / height log-uniform in
    `ratio`. Returns (top, left, height, width) in pixels, int32 scalars.
    """
    numbers = units(key, 22)
    area = height * width * between(numbers[:10], *scale)
    aspect = jnp.exp(between(numbers[10:20], math.log(ratio[0]), math.log(ratio[1])))
    heights = jnp.round(jnp.sqrt(area / aspect)).astype(jnp.int32)
    widths = jnp.round(jnp.sqrt(area * aspect)).astype(jnp.int32)
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    found, first = jnp.any(fits), jnp.argmax(fits)

    fallback_height, fallback_width = largest_box(height, width, ratio)
    box_height = jnp.where(found, heights[first], fallback_height)
    box_width = jnp.where(found, widths[first], fallback_width)
    room = jnp.stack([height - box_height, width - box_width])
    top, left = jnp.where(found, (numbers[20:] * (room + 1)).astype(jnp.int32), room // 2)
    return top, left, box_height, box_width


def random_resized_crop(key, image, *, size, scale=SCALE, ratio=RATIO):
    """Crop a random box (see `crop_box`) and resize it to [size, size, c]."""
    box = crop_box(key, *image.shape[:2], scale, ratio)
    return crop_resize(image, box, size, size)


def resize(key, image, *, size, factor=1.0):
    """Resize so that `center_crop` can follow, keeping the ratio of the sides.

    The shorter side becomes round(factor * size) if it is larger than `size`, else `size`.
    """
    height, width = image.shape[:2]
    shape = resized_shape(height, width, size, factor)
    if shape == (height, width):
        return image
    return crop_resize(image, (0, 0, height, width), *shape)


def center_crop(key, image, *, size):
    """Cut out the middle [size, size, c]."""
    top, left = centre(*image.shape[:2], size)
    return image[top : top + size, left : left + size]


def random_horizontal_flip(key, image, *, size, p=0.5):
    """Swap left and right with probability p."""
    image = planes(image)
    return pixels(jnp.where(units(key) < p, image[..., ::-1], image))


def random_rotation(key, image, *, size):
    """Turn a square image counterclockwise by 0, 90, 180 or 270 degrees, each as likely."""
    if image.shape[0] != image.shape[1]:
        raise ValueError(f"random_rotation needs a square image (crop first), got {image.shape}")
    quarters = (4 * units(key)).astype(jnp.int32)
    image = planes(image)
    image = jnp.where(quarters >= 2, image[..., ::-1, ::-1], image)
    return pixels(jnp.where(quarters % 2 == 1, jnp.rot90(image, axes=(1, 2)), image))


def cutout(key, image, *, size, side=0.5, value=0.0, p=1.0):
    """With probability p, fill a square with a value: one for all channels, or one for each.

    The side is a fraction of `size`. The centre is uniform over all pixels, so that a part of the
    square may lie outside (DeVries & Taylor, 2017).
    """
    height, width, _ = image.shape
    numbers = units(key, 3)
    length = round(side * size)

    def covered(unit, extent):
        start = (unit * extent).astype(jnp.int32) - length // 2
        place = jnp.arange(extent)
        return (place >= start) & (place < start + length)

    rows, columns = covered(numbers[0], height), covered(numbers[1], width)
    hole = rows[None, :, None] & columns[None, None, :] & (numbers[2] < p)
    fill = np.broadcast_to(np.asarray(value, np.float32), image.shape[-1:])
    return pixels(jnp.where(hole, fill[:, None, None], planes(image)))


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
    numbers = units(key, 4)
    angle, factor = between(numbers[0], -degrees, degrees), between(numbers[1], *scale)
    return affine(image, size, angle, factor, between(numbers[2:], -shift, shift))
