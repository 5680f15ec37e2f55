"""Figure 10 of Wang & Isola: 0F1(; alpha; z) converges to 1 as alpha grows.

Claim: for z > 0 the function falls to 1, so the optimal L_uniform converges to -2t.

    python run.py reproduce wang-isola/figure10 --scale laptop

Nothing is trained; a second on one CPU core.
Result: supported. All curves fall; at alpha = 512 they exceed 1 by z / alpha (0.0005 to 0.032). The
values agree with SciPy's hyp0f1 within 1e-12.
"""

from pathlib import Path

import numpy as np
from scipy import special

from experiments.lib import Rows, plots
from experiments.lib.stats import check
from hypersphere_jax import theory

SCALES = ("laptop", "gpu", "paper")
TS = (0.5, 1.0, 2.0, 4.0)  # z = t^2, as in Corollary 1
ALPHAS = np.geomspace(0.5, 512, 161)


def hypergeometric(t: float) -> np.ndarray:
    """Return 0F1(; alpha; t^2) at `ALPHAS`, from the optimum of uniformity."""
    return np.exp([theory.uniformity_optimum(2 * alpha, t) + 2 * t for alpha in ALPHAS])


def analyze(rows: Rows) -> Rows:
    """Check that the curves fall to 1 and agree with SciPy, which shares no code."""
    table = []
    for t in TS:
        values = hypergeometric(t)
        error = float(np.abs(values / special.hyp0f1(ALPHAS, t**2) - 1).max())
        falls = bool((np.diff(values) < 0).all())
        table.append(check("falls; excess over 1 at alpha = 512", falls, values[-1] - 1, z=t**2))
        table.append(check("relative difference from SciPy", error < 1e-11, error, z=t**2))
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw the function over alpha."""
    panels = {"": {f"z = {t**2:g}": plots.line(ALPHAS, hypergeometric(t)) for t in TS}}
    labels = {"xlabel": r"$\alpha$", "ylabel": r"${}_0F_1(;\alpha;z)$"}
    plots.curves(panels, path, levels={"limit 1": 1}, xscale="log", yscale="log", **labels)
