"""Operations of recipes that move pixels, such as crops; `color` contains the others.

An operation is a function `op(key, image, *, size, **params) -> image` on the device. Images are
float32 [h, w, c] with values in [0, 1]; `size` is the side of the final image in pixels.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
# As in SimCLR, see `distorted_box`.
ATTEMPTS = 100
MIN_COVERED = np.float32(0.1)


def units(key, *shape):
    """Draw all uniform numbers in [0, 1) of an operation at once: draws are slow to compile."""
    return jax.random.uniform(key, shape, jnp.float32)


def between(unit, low, high):
    """Map numbers in [0, 1) to [low, high)."""
    return low + (high - low) * unit


def planes(image):
    """View [h, w, c] as [c, h, w]: with the width last, color operations are 3 times faster on CPU.

    The compiler removes conversions back and forth between operations.
    """
    return jnp.moveaxis(image, -1, 0)


def pixels(planes):
    """View [c, h, w] as [h, w, c]."""
    return jnp.moveaxis(planes, 0, -1)


def weigh(image, rows, columns):
    """Weigh [h, w, c] by rows [out_height, h] and columns [out_width, w].

    Under vmap these are batched products, where a gather would be slow. Full precision, because
    accelerators round the inputs to 8 or 11 bits by default.
    """
    image = jnp.einsum("oh,hwc->cow", rows, image, precision="highest")
    return pixels(jnp.einsum("cow,pw->cop", image, columns, precision="highest"))


def resized_shape(height: int, width: int, size: int, factor: float) -> tuple[int, int]:
    """Return height and width after `resize`."""
    shorter = min(height, width)
    target = round(factor * size) if shorter > size else size
    return target * height // shorter, target * width // shorter


def center(height: int, width: int, size: int) -> tuple[int, int]:
    """Return top and left of the center [size, size] of an image that is at least as large."""
    if min(height, width) < size:
        raise ValueError(f"center_crop to {size} pixels needs a larger image, got {height}x{width}")
    return round((height - size) / 2), round((width - size) / 2)


def _linear_weights(start, length, in_size, out_size):
    """Return weights [out_size, in_size] of Pillow's bilinear filter for pixels from `start` on.

    When shrinking, the triangle widens (antialiasing).
    """
    scale = length / out_size
    middle = start + (jnp.arange(out_size, dtype=jnp.float32)[:, None] + 0.5) * scale
    pixel = jnp.arange(in_size, dtype=jnp.float32)[None, :] + 0.5
    weights = jnp.maximum(0.0, 1.0 - jnp.abs(pixel - middle) / jnp.maximum(scale, 1.0))
    weights = jnp.where((pixel > start) & (pixel < start + length), weights, 0.0)
    return weights / jnp.sum(weights, axis=1, keepdims=True)


def cubic_weights(start, length, in_size, out_size, xp=jnp):
    """Return weights [out_size, in_size] of Keys' cubic (a = -1/2) for pixels from `start` on.

    Not widened when shrinking, since TensorFlow resizes without antialiasing. `xp` is the library.
    """
    middle = start + (xp.arange(out_size)[:, None] + 0.5) * (length / out_size)
    pixel = xp.arange(in_size)[None, :] + 0.5
    x = xp.abs(pixel - middle)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((2.5 - 0.5 * x) * x - 4) * x + 2
    weights = xp.where(x < 1, near, xp.where(x < 2, far, 0.0))
    weights = xp.where((pixel > start) & (pixel < start + length), weights, 0.0)
    return (weights / xp.sum(weights, axis=1, keepdims=True)).astype(np.float32)


def crop_resize(image, box, out_height, out_width):
    """Crop [h, w, c] to the box and resize to [out_height, out_width, c] like Pillow's BILINEAR.

    The box is (top, left, height, width) in whole pixels, and may be traced.
    """
    top, left, height, width = box
    rows = _linear_weights(top, height, image.shape[0], out_height)
    columns = _linear_weights(left, width, image.shape[1], out_width)
    return weigh(image, rows, columns)


def crop_box(numbers, height, width, scale, ratio, xp=jnp):
    """Draw the box of a random resized crop: the first of ten that fits, else a centered one.

    The area is uniform in `scale` (fractions of the image), width / height log-uniform in `ratio`.
    `numbers` are uniform in [0, 1), `[22]`; `xp` is NumPy on the host. Returns (top, left, height,
    width) in pixels, int32 scalars.
    """
    area = height * width * between(numbers[:10], *scale)
    aspect = xp.exp(between(numbers[10:20], math.log(ratio[0]), math.log(ratio[1])))
    heights = xp.round(xp.sqrt(area / aspect)).astype(np.int32)
    widths = xp.round(xp.sqrt(area * aspect)).astype(np.int32)
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    any_fits = xp.any(fits)
    first = xp.argmax(fits)

    # The largest box of an allowed shape.
    box_height = xp.where(any_fits, heights[first], min(height, round(width / ratio[0])))
    box_width = xp.where(any_fits, widths[first], min(width, round(height * ratio[1])))
    room = xp.stack([height - box_height, width - box_width])
    top, left = xp.where(any_fits, (numbers[20:] * (room + 1)).astype(np.int32), room // 2)
    return top, left, box_height, box_width


def random_resized_crop(key, image, *, size, scale=SCALE, ratio=RATIO):
    """Crop a random box (see `crop_box`) and resize it to [size, size, c]."""
    box = crop_box(units(key, 22), *image.shape[:2], scale, ratio)
    return crop_resize(image, box, size, size)


def distorted_box(numbers, height, width, scale, ratio, xp=jnp):
    """Draw a box like TensorFlow's `sample_distorted_bounding_box` around the whole image.

    Each attempt draws width / height uniformly in `ratio`, then the height uniformly between the
    heights of the smallest area in `scale` and of the largest that has room. The result is the
    first box that fits and covers `MIN_COVERED` of the image (`min_object_covered`, which SimCLR
    sets besides the areas), otherwise the whole image. As in TensorFlow, the last possible row and
    column are never drawn. `numbers` are `[2 * ATTEMPTS + 2]`; the rest is as in `crop_box`.
    """
    aspect = between(numbers[:ATTEMPTS], *ratio)
    least = scale[0] * height * width
    most = scale[1] * height * width
    low = xp.round(xp.sqrt(least / aspect))
    high = xp.round(xp.sqrt(most / aspect))
    widest = xp.floor((width + 0.5) / aspect)
    widest -= xp.round(widest * aspect) > width
    high = xp.where(xp.round(high * aspect) > width, widest, high)
    high = xp.minimum(high, height)
    low = xp.minimum(low, high)
    heights = low + xp.floor(numbers[ATTEMPTS:-2] * (high - low + 1))
    heights += heights * xp.round(heights * aspect) < least  # only by rounding
    heights -= heights * xp.round(heights * aspect) > most
    widths = xp.round(heights * aspect)
    area = heights * widths
    fits = (area >= max(least, 1)) & (area <= most) & (area / (height * width) >= MIN_COVERED)
    fits &= (heights <= height) & (widths <= width)
    any_fits = xp.any(fits)
    first = xp.argmax(fits)
    box_height = xp.where(any_fits, heights[first], height)
    box_width = xp.where(any_fits, widths[first], width)
    top = numbers[-2] * (height - box_height)
    left = numbers[-1] * (width - box_width)
    return tuple(xp.floor(x).astype(np.int32) for x in (top, left, box_height, box_width))


def inception_crop(key, image, *, size, scale=SCALE, ratio=RATIO):
    """Crop a `distorted_box` and resize it to [size, size, c] bicubically, not antialiased."""
    numbers = units(key, 2 * ATTEMPTS + 2)
    top, left, height, width = distorted_box(numbers, *image.shape[:2], scale, ratio)
    rows = cubic_weights(top, height, image.shape[0], size)
    columns = cubic_weights(left, width, image.shape[1], size)
    return jnp.clip(weigh(image, rows, columns), 0.0, 1.0)


def resize(key, image, *, size, factor=1.0):
    """Resize at the same ratio of the sides, so that `center_crop` can follow.

    The shorter side becomes round(factor * size) if it is larger than `size`, else `size`.
    """
    height, width = image.shape[:2]
    shape = resized_shape(height, width, size, factor)
    if shape == (height, width):
        return image
    return crop_resize(image, (0, 0, height, width), *shape)


def center_crop(key, image, *, size):
    """Crop the center [size, size, c]."""
    top, left = center(*image.shape[:2], size)
    return image[top : top + size, left : left + size]


def random_horizontal_flip(key, image, *, size, p=0.5):
    """Swap left and right with probability p."""
    image = planes(image)
    return pixels(jnp.where(units(key) < p, image[..., ::-1], image))


def random_rotation(key, image, *, size):
    """Rotate a square image counterclockwise by 0, 90, 180 or 270 degrees, equally likely."""
    if image.shape[0] != image.shape[1]:
        raise ValueError(f"random_rotation needs a square image (crop first), got {image.shape}")
    quarters = (4 * units(key)).astype(jnp.int32)
    image = planes(image)
    image = jnp.where(quarters >= 2, image[..., ::-1, ::-1], image)
    return pixels(jnp.where(quarters % 2 == 1, jnp.rot90(image, axes=(1, 2)), image))


def cutout(key, image, *, size, side=0.5, value=0.0, p=1.0):
    """Fill a square with a value with probability p: one for all channels, or one for each.

    The side is a fraction of `size`. The center is uniform over all pixels, so a part of the square
    may be outside of the image (DeVries & Taylor, 2017).
    """
    height, width, channels = image.shape
    numbers = units(key, 3)
    length = round(side * size)
    rows = _covered(numbers[0], height, length)
    columns = _covered(numbers[1], width, length)
    hole = rows[None, :, None] & columns[None, None, :] & (numbers[2] < p)
    fill = np.broadcast_to(np.asarray(value, np.float32), (channels,))
    return pixels(jnp.where(hole, fill[:, None, None], planes(image)))


def _covered(unit, extent, length):
    """Return which pixels of an axis a segment covers, whose center is drawn by `unit`."""
    start = (unit * extent).astype(jnp.int32) - length // 2
    position = jnp.arange(extent)
    return (position >= start) & (position < start + length)


def random_affine(key, image, *, size, degrees, scale, shift):
    """Rotate by up to +-degrees, scale within the range, and shift by up to +-shift of the side.

    The frame is the unit square with a fixed center, the result is [size, size, c]. Bilinear with
    zeros around the image, as in torchvision; not antialiased.
    """
    numbers = units(key, 4)
    angle = jnp.deg2rad(between(numbers[0], -degrees, degrees))
    factor = between(numbers[1], *scale)
    down, right = between(numbers[2:], -shift, shift)
    height, width, _ = image.shape
    grid = (jnp.arange(size, dtype=jnp.float32) + 0.5) / size - 0.5
    y, x = jnp.meshgrid(grid, grid, indexing="ij")
    y = (y - down) / factor
    x = (x - right) / factor
    sin = jnp.sin(angle)
    cos = jnp.cos(angle)
    from_y = (cos * y - sin * x + 0.5) * height
    from_x = (sin * y + cos * x + 0.5) * width

    def sample(plane):
        # Points count from pixel edges, map_coordinates from pixel centers.
        return map_coordinates(plane, (from_y - 0.5, from_x - 0.5), order=1, mode="constant")

    return jax.vmap(sample, in_axes=-1, out_axes=-1)(image)
