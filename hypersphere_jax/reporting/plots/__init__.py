"""Figures from arrays and records.

Each function returns a matplotlib `Figure` and saves it as a PNG if a path is given. None uses
pyplot, so there is no global state and no display.
"""

import contextlib
import os
import sys

_backend = os.environ.get("MPLBACKEND")
if _backend is not None and "matplotlib" not in sys.modules:
    # Importing matplotlib fails if MPLBACKEND names a backend that is not installed.
    del os.environ["MPLBACKEND"]
    import matplotlib

    os.environ["MPLBACKEND"] = _backend
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = _backend

from hypersphere_jax.reporting.plots.curves import loss_scaling, training_curves  # noqa: E402
from hypersphere_jax.reporting.plots.images import (  # noqa: E402
    depth_sheet,
    neighbour_sheet,
    view_sheet,
)
from hypersphere_jax.reporting.plots.metrics_figure import metrics_figure  # noqa: E402

__all__ = [
    "depth_sheet",
    "loss_scaling",
    "metrics_figure",
    "neighbour_sheet",
    "training_curves",
    "view_sheet",
]
