"""Figure 10 of Wang & Isola: 0F1(; alpha; z) converges to 1 as alpha grows.

Claim: for z > 0 the function falls to 1, so the optimal L_uniform converges to -2t.

    python run.py reproduce wang-isola/figure10 --scale laptop

Nothing is trained; a second on one CPU core.
Result: supported. All curves fall; at alpha = 512 they exceed 1 by z / alpha (0.0005 to 0.032). The
values agree with SciPy's hyp0f1 within 1e-12.
"""

import math
from pathlib import Path

import numpy as np
from scipy import special

from experiments.lib.plots import curves, line
from experiments.lib.records import Rows
from experiments.lib.stats import check
from experiments.lib.sweep import no_runs
from hypersphere_jax import theory

SCALES = ("laptop", "gpu", "paper")
runs = no_runs
Z = (0.25, 1.0, 4.0, 16.0)  # t^2 at t = 1/2, 1, 2, 4, as in Corollary 1
ALPHAS = np.geomspace(0.5, 512, 161)


def hypergeometric(z: float) -> np.ndarray:
    """Return 0F1(; alpha; z) at `ALPHAS`, from the optimum of uniformity."""
    t = math.sqrt(z)
    optima = np.array([theory.uniformity_optimum(2 * alpha, t) for alpha in ALPHAS])
    return np.exp(optima + 2 * t)


def analyze(rows: Rows) -> Rows:
    """Check that the curves fall to 1 and agree with SciPy, which shares no code."""
    table = []
    for z in Z:
        values = hypergeometric(z)
        error = float(np.abs(values / special.hyp0f1(ALPHAS, z) - 1).max())
        falls = bool((np.diff(values) < 0).all())
        table.append(check("falls; excess over 1 at alpha = 512", falls, values[-1] - 1, z=z))
        table.append(check("relative difference from SciPy", error < 1e-11, error, z=z))
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw the function over alpha."""
    panels = {"": {f"z = {z:g}": line(ALPHAS, hypergeometric(z)) for z in Z}}
    labels = {"xlabel": r"$\alpha$", "ylabel": r"${}_0F_1(;\alpha;z)$"}
    curves(panels, path, levels={"limit 1": 1}, xscale="log", yscale="log", **labels)
