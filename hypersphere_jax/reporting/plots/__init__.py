"""Figures from arrays and records.

Each function returns a matplotlib `Figure` and saves it as a PNG if a path is given. None uses
pyplot, so there is no global state and no display.
"""

from hypersphere_jax.reporting.plots.curves import training_curves
from hypersphere_jax.reporting.plots.images import depth_sheet, neighbour_sheet, view_sheet
from hypersphere_jax.reporting.plots.metrics_figure import metrics_figure

__all__ = ["depth_sheet", "metrics_figure", "neighbour_sheet", "training_curves", "view_sheet"]
