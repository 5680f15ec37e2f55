"""Figure 10 of Wang & Isola: 0F1(; alpha; z) converges to 1 as alpha grows.

Claim: for z > 0 the function falls to 1, so the optimal L_uniform converges to -2t.

    python run.py reproduce wang-isola/figure10 --scale laptop

Nothing is trained; a second on one CPU core.
Result: supported. All curves fall; at alpha = 512 they exceed 1 by z / alpha (0.0005 to 0.032). The
values agree with SciPy's hyp0f1 within 1e-12.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import special

from experiments.lib.plots import COLUMN_WIDTH, new_figure, printed
from experiments.lib.records import Rows
from experiments.lib.stats import check
from experiments.lib.sweep import no_runs
from hypersphere_jax import theory
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ()
runs = no_runs
Z = (0.25, 1.0, 4.0, 16.0)  # t^2 at t = 1/2, 1, 2, 4, as in Corollary 1
ALPHAS = np.geomspace(0.5, 512, 161)


def hypergeometric(alpha: float, z: float) -> float:
    """Return 0F1(; alpha; z) for alpha >= 1/2 and z > 0, from the optimum of uniformity."""
    t = math.sqrt(z)
    return math.exp(theory.uniformity_optimum(2 * alpha, t) + 2 * t)


def analyze(rows: Sequence = ()) -> Rows:
    """Check that the curves fall to 1 and agree with SciPy, which shares no code."""
    table = []
    for z in Z:
        values = np.array([hypergeometric(alpha, z) for alpha in ALPHAS])
        error = float(np.abs(values / special.hyp0f1(ALPHAS, z) - 1).max())
        falls = bool((np.diff(values) < 0).all())
        table.append(check("falls; excess over 1 at alpha = 512", falls, values[-1] - 1, z=z))
        table.append(check("relative difference from SciPy", error < 1e-11, error, z=z))
    return table


@printed
def plot(rows: Rows, path: Path | None):
    """Draw the function over alpha."""
    figure, ((axes,),) = new_figure(1, 1, 2.5, COLUMN_WIDTH)
    for z, color in zip(Z, COLORS, strict=False):
        axes.plot(ALPHAS, [hypergeometric(a, z) for a in ALPHAS], color=color, label=f"z = {z:g}")
    axes.axhline(1, color="gray", linestyle="--", linewidth=0.8, label="limit 1")
    axes.set(xscale="log", yscale="log", xlabel=r"$\alpha$", ylabel=r"${}_0F_1(;\alpha;z)$")
    axes.legend()
    return save_figure(figure, path)
