"""From a recipe to the functions that make views: chained, on the device, for `jit` and `vmap`."""

import math
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from hypersphere_jax.augment import colour, operations
from hypersphere_jax.augment.recipes import RANDOM_CROPS, Recipe, Steps, find
from hypersphere_jax.configs.base import Custom, check_call, described, require

CACHE_BYTES = 2**21  # of float32 images at once, on CPU
CROPS = (*RANDOM_CROPS, "resize", "center_crop")  # what `host_crops` does instead
OPERATIONS: dict[str, Callable] = {
    op.__name__: op
    for op in (
        *(colour.rgb, operations.random_resized_crop, operations.inception_crop),
        *(operations.resize, operations.center_crop, operations.random_horizontal_flip),
        *(operations.random_rotation, operations.random_affine, operations.cutout),
        *(colour.color_jitter, colour.random_grayscale, colour.random_intensity),
        *(colour.gaussian_blur, colour.normalize),
    )
}


def _chain(
    steps: Steps,
    size: int,
    dtype: DTypeLike,
    cropped: bool,
    extra_channels: int,
    option: str = "augment=",
) -> Callable:
    """One function (key, uint8 image) -> image that applies the steps in order."""
    if callable(steps):
        return _own(steps, option, size, dtype)
    if len(dict(steps)) < len(steps):
        raise ValueError(f"operations name their random streams, so each may occur once: {steps}")
    unknown = [name for name, _ in steps if isinstance(name, str) and name not in OPERATIONS]
    if unknown:
        raise ValueError(f"no operation {', '.join(unknown)}, known: {', '.join(OPERATIONS)}")
    for operation, params in steps:
        function = OPERATIONS.get(operation, operation)
        name, form = Custom(function).name, f"(key, image, *, {', '.join(('size', *params))})"
        check_call(function, f"{option} operation {name}", form, None, None, size=size, **params)
    if cropped:
        steps = tuple(step for step in steps if step[0] not in CROPS)

    def apply(key, image):
        if image.dtype != jnp.uint8 or image.ndim != 3:
            raise ValueError(f"expected uint8 [h, w, c], got {image.dtype} {list(image.shape)}")
        if cropped and image.shape[:2] != (size, size):
            raise ValueError(f"expected images cropped to {size} pixels, got {list(image.shape)}")
        image = image.astype(jnp.float32) / 255.0
        image, extra = jnp.split(image, [image.shape[-1] - extra_channels], axis=-1)
        for operation, params in steps:
            name = operation if isinstance(operation, str) else operation.__qualname__
            # A stream by name: inserting an operation leaves the others' randomness as it was.
            stream = jax.random.fold_in(key, zlib.crc32(name.encode()))
            image = OPERATIONS.get(operation, operation)(stream, image, size=size, **params)
        if extra_channels:
            extra = jnp.broadcast_to(extra[:1, :1], (size, size, extra_channels))
            image = jnp.concatenate([image, extra], axis=-1)
        return image.astype(dtype)

    return apply


def _own(function: Callable, option: str, size: int, dtype: DTypeLike) -> Callable:
    """The user's function of (key, image) or, for `preprocess=`, of image; divides integers by 255.

    Raises:
      UserError: for another signature, or a result that is no image.
    """
    name = f"{option}{Custom(function).name}"
    form = "(key, image)" if option == "augment=" else "(image)"
    check_call(function, name, form, *form.split(","))

    def apply(key, image):
        view = function(key, image) if option == "augment=" else function(image)
        is_real = hasattr(view, "dtype") and not jnp.issubdtype(view.dtype, jnp.complexfloating)
        require(
            is_real and view.ndim == 3 and view.shape[:2] == (size, size),
            f"{name} returns {described(view)}: it must return an image [{size}, {size}, c]; "
            "image_size= sets the side",
        )
        if jnp.issubdtype(view.dtype, jnp.integer):
            view = view.astype(jnp.float32) / 255.0
        return view.astype(dtype)

    return apply


def make_augment(
    recipe: str | Recipe,
    size: int,
    dtype: DTypeLike = jnp.float32,
    cropped: bool = False,
    extra_channels: int = 0,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The random function that turns an image into a training view.

    Args:
      recipe: a name in `RECIPES`, or a `Recipe`.
      size: side of the view, pixels.
      dtype: of the view; all is computed in float32 and rounded at the end.
      cropped: whether images come as [size, size, c] from the train crop of `host_crops`: the
        recipe's own crop is then left out. The other operations draw the same numbers either way.
      extra_channels: how many last channels hold one value at all pixels (the bits of
        `data.synthetic.BitChannels`): the views get them as they are, from 0 to 1.

    Returns:
      (key, image uint8 [h, w, c]) -> dtype [size, size, c'], for one image: use `jax.vmap`.

    >>> augment = make_augment("digits", 16)
    >>> augment(jax.random.key(0), jnp.zeros((8, 8, 1), jnp.uint8)).shape
    (16, 16, 1)
    """
    return _chain(find(recipe).train, size, dtype, cropped, extra_channels)


def make_evaluate(
    recipe: str | Recipe,
    size: int,
    dtype: DTypeLike = jnp.float32,
    cropped: bool = False,
    extra_channels: int = 0,
) -> Callable[[jax.Array], jax.Array]:
    """The function that turns an image into the input of an evaluation: nothing is random.

    As `make_augment` (images come from the evaluate crop, if cropped), but the function has no key:
    image uint8 [h, w, c] -> dtype [size, size, c'].
    """
    steps = find(recipe).evaluate
    apply = _chain(steps, size, dtype, cropped, extra_channels, "preprocess=")
    return lambda image: apply(jax.random.key(0), image)


def two_views(augment, key, images, positions):
    """Two random views of each image: functions of the key, the sample's position and the view.

    Args:
      augment: (key, image) -> view, see `make_augment`.
      key: random key, the same on all devices, another one each step.
      images: uint8 [n, h, w, c]; or [n, 2, size, size, c], two crops that the host made of each.
      positions: integers [n], of these samples in the global batch.

    Returns:
      (view1, view2), each [n, size, size, c'].
    """
    return _views(augment, key, images, positions, (0, 1))


def one_view(augment, key, images, positions, number):
    """The first (number 0) or the second (1) of those two views alone: `[n, size, size, c']`."""
    (view,) = _views(augment, key, images, positions, (number,))
    return view


def _views(augment, key, images, positions, numbers):
    if positions.shape != images.shape[:1]:
        raise ValueError(f"images {images.shape} need one position each, got {positions.shape}")
    if images.ndim == 5 and images.shape[1] != 2:
        raise ValueError(f"crops must be uint8 [n, 2, size, size, c], got {images.shape}")

    # Traced once for both views, and then a part of the program as if it had been for each. As a
    # function of this call alone: what it is traced to is not kept for the next.
    once = jax.jit(lambda key, image: augment(key, image), inline=True)

    def views(position, image):
        crops = image if images.ndim == 5 else (image, image)
        sample_key = jax.random.fold_in(key, position)
        return tuple(once(jax.random.fold_in(sample_key, view), crops[view]) for view in numbers)

    if jax.default_backend() != "cpu":
        return jax.vmap(views)(positions, images)
    # Block by block, so that what goes from one operation to the next stays in the cache.
    block = max(1, CACHE_BYTES // (4 * math.prod(images.shape[-3:])))
    block = 2 ** math.floor(math.log2(block))  # most batches are whole multiples then
    return jax.lax.map(lambda sample: views(*sample), (positions, images), batch_size=block)
