"""Colours, axis labels, and saving of figures."""

import warnings
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text

from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.utils.terminal import printable

DPI = 150
# The palette of Okabe and Ito for colour-blind readers, without its pale yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")

ALIGN_LABEL = r"alignment  $\mathcal{L}_{\mathrm{align}}$"
UNIFORM_LABEL = r"uniformity  $\mathcal{L}_{\mathrm{uniform}}$  (nats)"


def save_figure(figure: Figure, path: str | Path | None) -> Figure:
    """Save a figure as a PNG, unless the path is None, and return it."""
    for text in figure.findobj(Text):
        lines = text.get_text().split("\n")
        text.set_text("\n".join(map(printable, lines)))
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # names in any script
            figure.savefig(path, format="png", backend="agg", metadata={"Software": WRITER})
    return figure
