"""Figure 11 of Wang & Isola: the optimal L_uniform over the feature dimension.

Claim: the optimum strictly decreases with the dimension m and converges to -2t (Corollary 1).

    python run.py reproduce wang-isola/figure11 --scale laptop

Nothing is trained; a second on one CPU core.
Result: supported. The values decrease for every t and agree with the paper's formula within 1e-12.
At t = 2 the optimum is 0.002 above -4 in 4,096 dimensions.
"""

from pathlib import Path

import numpy as np
from scipy import special

from experiments.lib import Rows, plots
from experiments.lib.stats import check
from hypersphere_jax import theory
from hypersphere_jax.reporting.plots.style import UNIFORM_LABEL

SCALES = ("laptop", "gpu", "paper")
TS = (0.5, 1.0, 2.0, 4.0)
DIMS = 2 ** np.arange(1, 13)


def optima(t: float) -> np.ndarray:
    """Return the optimal L_uniform in each of `DIMS`."""
    return np.array([theory.uniformity_optimum(int(dim), t) for dim in DIMS])


def analyze(rows: Rows) -> Rows:
    """Check that the optimum decreases, and compare with the paper's formula."""
    table = []
    for t in TS:
        formula = -2 * t + np.log(special.hyp0f1(DIMS / 2, t**2))
        error = float(np.abs(optima(t) - formula).max())
        falls = bool((np.diff(optima(t)) < 0).all())
        excess = float(optima(t)[-1] + 2 * t)
        table.append(check("decreases with m; excess over -2t at m = 4096", falls, excess, t=t))
        table.append(check("difference from the formula by SciPy", error < 1e-11, error, t=t))
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw the optimum and its limit over the dimension."""
    panels = {"": {f"t = {t:g}": plots.line(DIMS, optima(t)) for t in TS}}
    levels = {f"limit {-2 * t:g}": -2 * t for t in TS}
    labels = {"xlabel": "feature dimension m", "ylabel": f"optimal {UNIFORM_LABEL}"}
    plots.curves(panels, path, levels=levels, xscale="log", **labels)
