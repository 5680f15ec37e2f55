"""Pictures from arrays: training curves, metrics, depth maps, images, benchmarks.

Each function returns its matplotlib `Figure`, and saves it as a PNG where a path is given. There is
no pyplot here, so no global state and no display.
"""

from hypersphere_jax.plots import backend  # noqa: F401  imports matplotlib
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
