"""Functions that make views by a recipe: on the device, for `jit` and `vmap`."""

import math
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp

from hypersphere_jax.augment import color, operations
from hypersphere_jax.augment.recipes import RANDOM_CROPS, Recipe, Steps, find
from hypersphere_jax.configs.base import Custom, check_call, described, require

CACHE_BYTES = 2**21  # float32 images that are processed at a time on CPU
CROPS = (*RANDOM_CROPS, "resize", "center_crop")  # applied by `host_crops` to cropped images
OPERATIONS: dict[str, Callable] = {
    "rgb": color.rgb,
    "random_resized_crop": operations.random_resized_crop,
    "inception_crop": operations.inception_crop,
    "resize": operations.resize,
    "center_crop": operations.center_crop,
    "random_horizontal_flip": operations.random_horizontal_flip,
    "random_rotation": operations.random_rotation,
    "random_affine": operations.random_affine,
    "cutout": operations.cutout,
    "color_jitter": color.color_jitter,
    "random_grayscale": color.random_grayscale,
    "random_intensity": color.random_intensity,
    "gaussian_blur": color.gaussian_blur,
    "normalize": color.normalize,
}


def make_augment(
    recipe: str | Recipe, size: int, *, cropped: bool = False, extra_channels: int = 0
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the random function from an image to a training view.

    Args:
      recipe: a name in `RECIPES`, or a `Recipe`.
      size: side of the view, pixels.
      cropped: the images are [size, size, c] from the training crop of `host_crops`, so the
        recipe's crop is left out. The other operations draw the same numbers either way.
      extra_channels: number of last channels that contain one value at all pixels (the bits of
        `data.channels.with_bits`). Views contain them unchanged, from 0 to 1.

    Returns:
      (key, image uint8 [h, w, c]) -> float32 [size, size, c'], for one image: use `jax.vmap`.

    >>> augment = make_augment("digits", 16)
    >>> augment(jax.random.key(0), jnp.zeros((8, 8, 1), jnp.uint8)).shape
    (16, 16, 1)
    """
    train = find(recipe).train
    if callable(train):
        return _custom(train, "augment=", "(key, image)", size)
    return _chain(train, "augment=", size, cropped, extra_channels)


def make_evaluate(
    recipe: str | Recipe, size: int, *, cropped: bool = False, extra_channels: int = 0
) -> Callable[[jax.Array], jax.Array]:
    """Return the deterministic function from an image to the input of an evaluation.

    See `make_augment` for the arguments; cropped images are from the evaluation crop. The function
    has no key: image uint8 [h, w, c] -> float32 [size, size, c'].
    """
    evaluate = find(recipe).evaluate
    if callable(evaluate):
        return _custom(evaluate, "preprocess=", "(image)", size)
    apply = _chain(evaluate, "preprocess=", size, cropped, extra_channels)
    return lambda image: apply(jax.random.key(0), image)


def _chain(steps: Steps, option: str, size: int, cropped: bool, extra_channels: int) -> Callable:
    """Return one function (key, uint8 image) -> image that applies the steps in order."""
    _check_steps(steps, option, size)
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
            # A random stream per name: another operation in a recipe does not change the others.
            stream = jax.random.fold_in(key, zlib.crc32(name.encode()))
            image = OPERATIONS.get(operation, operation)(stream, image, size=size, **params)
        if extra_channels:
            extra = jnp.broadcast_to(extra[:1, :1], (size, size, extra_channels))
            image = jnp.concatenate([image, extra], axis=-1)
        return image.astype(jnp.float32)

    return apply


def _check_steps(steps: Steps, option: str, size: int) -> None:
    """Raise ValueError for unknown or repeated operations, UserError for wrong parameters."""
    if len(dict(steps)) < len(steps):
        raise ValueError(f"an operation may occur once, its name is its random stream: {steps}")
    unknown = [name for name, _ in steps if isinstance(name, str) and name not in OPERATIONS]
    if unknown:
        raise ValueError(f"no operation {', '.join(unknown)}, known: {', '.join(OPERATIONS)}")
    for operation, params in steps:
        function = OPERATIONS.get(operation, operation)
        name = f"{option} operation {Custom(function).name}"
        form = f"(key, image, *, {', '.join(('size', *params))})"
        check_call(function, name, form, None, None, size=size, **params)


def _custom(function: Callable, option: str, form: str, size: int) -> Callable:
    """Return a custom function with checks of its result; integers are divided by 255.

    Raises:
      UserError: for another signature than `form`, or a result that is not an image.
    """
    name = f"{option}{Custom(function).name}"
    check_call(function, name, form, *form.split(","))

    def apply(*arguments):
        view = function(*arguments)
        is_real = hasattr(view, "dtype") and not jnp.issubdtype(view.dtype, jnp.complexfloating)
        require(
            is_real and view.ndim == 3 and view.shape[:2] == (size, size),
            f"{name} returns {described(view)}: it must return an image [{size}, {size}, c]; "
            "image_size= sets the side",
        )
        if jnp.issubdtype(view.dtype, jnp.integer):
            view = view.astype(jnp.float32) / 255.0
        return view.astype(jnp.float32)

    return apply


def two_views(augment, key, images, positions):
    """Return two random views of each image, which depend on the key, the position and the view.

    Args:
      augment: (key, image) -> view, see `make_augment`.
      key: random key, the same on all devices, a new one each step.
      images: uint8 [n, h, w, c]; or [n, 2, size, size, c], two crops of each made on the host.
      positions: integers [n], positions of the samples in the global batch.

    Returns:
      (view1, view2), each [n, size, size, c'].
    """
    return _views(augment, key, images, positions, (0, 1))


def one_view(augment, key, images, positions, number):
    """Return only the first (number 0) or the second (1) of `two_views`: `[n, size, size, c']`."""
    (view,) = _views(augment, key, images, positions, (number,))
    return view


def _views(augment, key, images, positions, numbers):
    if positions.shape != images.shape[:1]:
        raise ValueError(f"images {images.shape} need one position each, got {positions.shape}")
    if images.ndim == 5 and images.shape[1] != 2:
        raise ValueError(f"crops must be uint8 [n, 2, size, size, c], got {images.shape}")

    # Traced once for both views and inlined. As a new function it is dropped after the call.
    once = jax.jit(lambda key, image: augment(key, image), inline=True)

    def views(position, image):
        crops = image if images.ndim == 5 else (image, image)
        sample_key = jax.random.fold_in(key, position)
        return tuple(once(jax.random.fold_in(sample_key, view), crops[view]) for view in numbers)

    if jax.default_backend() != "cpu":
        return jax.vmap(views)(positions, images)
    # Blocks keep the data between operations in the processor's cache.
    block = max(1, CACHE_BYTES // (4 * math.prod(images.shape[-3:])))
    block = 2 ** math.floor(math.log2(block))  # divides most batches
    return jax.lax.map(lambda sample: views(*sample), (positions, images), batch_size=block)
