"""Arithmetic of image sizes, shared by the device's crops and the host's. No jax here."""

SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)


def resized_shape(height: int, width: int, size: int, factor: float) -> tuple[int, int]:
    """Height and width after `resize`.

    The shorter side becomes round(factor * size) if it is larger than `size`, else `size`.
    """
    shorter = min(height, width)
    target = round(factor * size) if shorter > size else size
    return target * height // shorter, target * width // shorter


def centre(height: int, width: int, size: int) -> tuple[int, int]:
    """Top and left of the middle [size, size].

    Raises:
      ValueError: for an image that is smaller.
    """
    if min(height, width) < size:
        raise ValueError(f"center_crop to {size} pixels needs a larger image, got {height}x{width}")
    return round((height - size) / 2), round((width - size) / 2)


def largest_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Height and width of the largest box of an image whose width / height is in the range."""
    return min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
