"""How pictures look in print: widths of a column and of a page, text of 8 points.

Numbers in the cells of grids have 7.
"""

import functools
from collections.abc import Callable

import matplotlib

COLUMN, PAGE = 3.3, 6.8  # inches
PRINT = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "errorbar.capsize": 2,
}


def printed(draw: Callable) -> Callable:
    """Draws with the sizes of print: `@printed` before a function that makes a figure."""

    @functools.wraps(draw)
    def drawn(*args, **options):
        with matplotlib.rc_context(PRINT):
            return draw(*args, **options)

    return drawn
