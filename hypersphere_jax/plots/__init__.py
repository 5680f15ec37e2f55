"""Pictures from arrays: training curves, features on the circle, depth maps and others.

Each function returns its matplotlib `Figure`, and saves it as a PNG where a path is given. There is
no pyplot here, so no global state and no display.
"""

from hypersphere_jax.plots.bounds import bound_sheet
from hypersphere_jax.plots.circle import circle_figure
from hypersphere_jax.plots.comparisons import Point, curves, scatter
from hypersphere_jax.plots.density import gaussian_kde_2d, vmf_kde
from hypersphere_jax.plots.depth import depth_sheet
from hypersphere_jax.plots.geometry import draw_metrics, metrics_figure
from hypersphere_jax.plots.grids import Grid, heat_maps
from hypersphere_jax.plots.losses import loss_scaling
from hypersphere_jax.plots.projections import projection_sheet
from hypersphere_jax.plots.runs import alignment_uniformity_plane, training_curves
from hypersphere_jax.plots.sweeps import metrics_planes, trajectories, weights_curves
from hypersphere_jax.plots.theory import (
    hypergeometric_curves,
    limit_deviations,
    optimum_curves,
    potential_sheet,
    single_negative_sheet,
)
from hypersphere_jax.plots.views import view_sheet

__all__ = [
    "Grid",
    "Point",
    "alignment_uniformity_plane",
    "bound_sheet",
    "circle_figure",
    "curves",
    "depth_sheet",
    "draw_metrics",
    "gaussian_kde_2d",
    "heat_maps",
    "hypergeometric_curves",
    "limit_deviations",
    "loss_scaling",
    "metrics_figure",
    "metrics_planes",
    "optimum_curves",
    "potential_sheet",
    "projection_sheet",
    "scatter",
    "single_negative_sheet",
    "training_curves",
    "trajectories",
    "view_sheet",
    "vmf_kde",
    "weights_curves",
]
