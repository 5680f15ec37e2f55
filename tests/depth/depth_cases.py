"""A .mat file in the layout of NYU-Depth-V2's labelled images, and its splits.mat."""

import h5py
import numpy as np
from scipy.io import savemat


def scenes(n, height=36, width=48):
    """Return images `[n, h, w, 3]` of slopes, darker where farther, and their depths."""
    rng = np.random.default_rng(0)
    near, far = rng.uniform(1, 3, (n, 1, 1)), rng.uniform(4, 8, (n, 1, 1))
    depths = far - (far - near) * np.linspace(0, 1, height)[:, None].repeat(width, axis=1)
    brightness = (255 * np.exp(-depths / 4))[..., None]
    tint = rng.uniform(0.7, 1, (n, 1, 1, 3))
    return (brightness * tint).astype(np.uint8), depths.astype(np.float32)


def write_mat(folder, images, depths, train=(), test=()):
    """Write nyu.mat of arrays [h, w, 3, n] and [h, w, n], whose axes MATLAB reverses, and splits.

    MATLAB counts from 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "nyu.mat", "w") as file:
        file["images"] = np.ascontiguousarray(np.moveaxis(images, (1, 2, 3), (3, 2, 1)))
        file["depths"] = np.ascontiguousarray(np.swapaxes(depths, 1, 2))
    indices = {"trainNdxs": train, "testNdxs": test}
    columns = {name: np.array(part, int)[:, None] + 1 for name, part in indices.items()}
    savemat(folder / "splits.mat", columns)
    return folder / "nyu.mat"
