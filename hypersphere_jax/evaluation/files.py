"""Features from anybody's .npy files, larger than memory if need be."""

from pathlib import Path

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.evaluation.checks import check_features

# Half precisions keep norms to a few thousandths.
TOLERANCE = 0.01
ROWS = 65536


class FeatureFile:
    """The rows `[n, d]` of an .npy file, read when they are asked for: `features[slice]`.

    Args:
      path: the file; any real dtype.
      normalize: divide each row by its norm.

    Raises:
      UserError: when there is no such file, or something else is in it.
    """

    def __init__(self, path: str | Path, normalize: bool = False):
        self.path, self.normalize = Path(path), normalize
        require(self.path.is_file(), f"{path}: there is no such file")
        try:
            self._rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise UserError(f"{path} cannot be read as an .npy array: {error}") from error
        self.shape = self._rows.shape
        expected = "expected real features of shape [n, d]"
        require(
            len(self.shape) == 2 and min(self.shape) > 0, f"{path}: {expected}, got {self.shape}"
        )
        require(self._rows.dtype.kind in "fiu", f"{path}: {expected}, got {self._rows.dtype}")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """float32 `[m, d]`."""
        x = check_features(str(self.path), self._rows[rows])
        if self.normalize:
            x = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        return x.astype(np.float32)

    def check_unit(self) -> None:
        """Raises UserError, naming the norms, unless all rows have (or are given) unit norm.

        Rows of zeros have no direction: with `normalize` they are the error.
        """
        norms = np.empty(len(self))
        for begin in range(0, len(self), ROWS):
            rows = slice(begin, begin + ROWS)
            x = check_features(str(self.path), self._rows[rows])
            norms[rows] = np.linalg.norm(x.astype(np.float64), axis=1)
        if self.normalize:
            zero = np.flatnonzero(norms == 0)
            rows = f"row {zero[0]}" if zero.size else ""
            require(not zero.size, f"{self.path}: {rows} is all zeros and has no direction")
            return
        worst = int(np.argmax(np.abs(norms - 1)))
        require(
            abs(norms[worst] - 1) <= TOLERANCE,
            f"{self.path}: features must have unit norm, but norms go from {norms.min():.4g} to "
            f"{norms.max():.4g} (mean {norms.mean():.4g}; row {worst} has {norms[worst]:.4g}): "
            "--normalize divides each row by its norm",
        )
