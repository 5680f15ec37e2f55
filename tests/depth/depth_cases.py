"""A .mat file in the layout of NYU-Depth-V2's labelled images, and its splits.mat."""

import h5py
import numpy as np
from scipy.io import savemat


def scenes(n, height=36, width=48, seed=0):
    """Return images `[n, h, w, 3]` of a slope behind a box, darker where farther, and depths."""
    rng = np.random.default_rng(seed)
    rows = np.linspace(0, 1, height)[:, None].repeat(width, axis=1)
    near, far = rng.uniform(1, 3, (n, 1, 1)), rng.uniform(4, 8, (n, 1, 1))
    depths = far - (far - near) * rows
    for depth in depths:
        top, left = rng.integers(height // 2), rng.integers(width // 2)
        depth[top : top + height // 2, left : left + width // 3] = rng.uniform(1, 2)
    brightness = (255 * np.exp(-depths / 4))[..., None]
    tint = rng.uniform(0.7, 1, (n, 1, 1, 3))
    return (brightness * tint).astype(np.uint8), depths.astype(np.float32)


def write_mat(path, images, depths):
    """Write the arrays [h, w, 3, n] and [h, w, n] like MATLAB, which reverses the axes."""
    with h5py.File(path, "w") as file:
        file["images"] = np.ascontiguousarray(np.moveaxis(images, (1, 2, 3), (3, 2, 1)))
        file["depths"] = np.ascontiguousarray(np.swapaxes(depths, 1, 2))
    return path


def write_splits(folder, train, test):
    columns = {"trainNdxs": train, "testNdxs": test}  # MATLAB counts from 1
    savemat(folder / "splits.mat", {key: np.array([v]).T + 1 for key, v in columns.items()})
