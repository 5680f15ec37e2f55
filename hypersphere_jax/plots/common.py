"""What pictures share: colours, labels, and how they are saved."""

import warnings
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text

from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.terminal import printable

DPI = 150
# Okabe and Ito's colours, which colour-blind readers can tell apart, without their pale yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")

ALIGN_LABEL = r"alignment  $\mathcal{L}_{\mathrm{align}}$"
UNIFORM_LABEL = r"uniformity  $\mathcal{L}_{\mathrm{uniform}}$  (nats)"


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, with texts that can be drawn; also as a PNG where a path is given."""
    for text in figure.findobj(Text):
        text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # of a name, in no font
            figure.savefig(path, format="png", backend="agg", metadata={"Software": WRITER})
    return figure
