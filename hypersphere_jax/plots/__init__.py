"""Pictures from arrays: training curves, metrics, depth maps, images, benchmarks.

Each function returns its matplotlib `Figure`, and saves it as a PNG where a path is given. There is
no pyplot here, so no global state and no display.
"""

import contextlib
import importlib
import os
import sys

backend = os.environ.get("MPLBACKEND")
if backend is not None and "matplotlib" not in sys.modules:
    # Its import fails for an unknown backend, such as Jupyter's in a shell without its packages.
    del os.environ["MPLBACKEND"]
    matplotlib = importlib.import_module("matplotlib")
    os.environ["MPLBACKEND"] = backend
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = backend

from hypersphere_jax.plots.depth import depth_sheet
from hypersphere_jax.plots.geometry import metrics_figure
from hypersphere_jax.plots.loss_scaling import loss_scaling
from hypersphere_jax.plots.training import training_curves
from hypersphere_jax.plots.views import neighbour_sheet, view_sheet

__all__ = [
    "depth_sheet",
    "loss_scaling",
    "metrics_figure",
    "neighbour_sheet",
    "training_curves",
    "view_sheet",
]
