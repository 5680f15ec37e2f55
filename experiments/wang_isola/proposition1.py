"""Proposition 1 of Wang & Isola: the uniform distribution has the least mean Gaussian potential.

Claim: among all distributions on the sphere, only the uniform one minimizes the mean potential G_t.

    python run.py reproduce wang-isola/proposition1 --scale laptop

Nothing is trained; a second on one CPU core.
Result: supported. The closed-form eigenvalues of G_2 are positive in every degree and agree with
quadrature; 27 other distributions have a larger potential.

G_t acts on a harmonic of degree k as the number exp(-2t) Gamma(d/2) t^(1 - d/2) I_(k + d/2 -
1)(2t), which is positive because Bessel functions I are. So the potential is least if and only if
all harmonic moments of degree 1 or more are zero. Uniqueness rests on this closed form; no finite
computation shows it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.lib.plots import MARKERS, new_figure, printed
from experiments.lib.records import Rows
from experiments.lib.stats import check
from experiments.lib.sweep import no_runs
from experiments.wang_isola import harmonics
from experiments.wang_isola.potentials import (
    DIMS,
    exact_eigenvalues,
    other_potentials,
    potential,
    uniform_potential,
    vmf_potential,
)
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ()
runs = no_runs
DEGREES = 17
ABOVE_ROUNDING = 1e3 * harmonics.ROUNDING


def visible(dim: int) -> np.ndarray:
    """Return which eigenvalues `[DEGREES]` are well above the rounding of the quadrature."""
    exact = exact_eigenvalues(dim, DEGREES)
    sizes = exact * np.sqrt(harmonics.multiplicities(dim, DEGREES))
    return sizes > ABOVE_ROUNDING * exact[0]


def analyze(rows: Sequence = ()) -> Rows:
    """Compare eigenvalues with quadrature, and other distributions with the uniform one."""
    table = []
    for dim in DIMS:
        exact = exact_eigenvalues(dim, DEGREES)
        by_quadrature = harmonics.eigenvalues(potential, dim, DEGREES)
        error = float(np.abs(by_quadrature / exact - 1)[visible(dim)].max())
        claim = "eigenvalues are positive; relative error of quadrature"
        table.append(check(claim, bool((exact > 0).all()) and error < 1e-3, error, d=dim))
        least = uniform_potential(dim)
        for name, value in other_potentials(dim).items():
            claim = f"G_2 above uniform: {name}"
            table.append(check(claim, value > least, value - least, d=dim))
    return table


@printed
def plot(rows: Rows, path: Path | None):
    """Draw eigenvalues over the degree, and von Mises-Fisher potentials over concentration."""
    figure, ((left, right),) = new_figure(1, 2, 2.6)
    degrees = np.arange(DEGREES)
    kappas = np.geomspace(0.03, 300, 81)
    for dim, color, marker in zip(DIMS, COLORS, MARKERS, strict=False):
        exact = exact_eigenvalues(dim, DEGREES)
        sizes = np.sqrt(harmonics.multiplicities(dim, DEGREES)) / exact[0]
        found = harmonics.eigenvalues(potential, dim, DEGREES)
        seen = visible(dim)
        left.plot(degrees[seen], (sizes * exact)[seen], color=color, linewidth=0.8)
        left.plot(degrees[seen], (sizes * found)[seen], marker, color=color, label=f"d = {dim}")
        excess = [vmf_potential(dim, kappa) - uniform_potential(dim) for kappa in kappas]
        right.plot(kappas, excess, color=color)
    left.set(yscale="log", xlabel="degree k", title="eigenvalues of $G_2$ (dots: quadrature)")
    left.set_ylabel(r"$\lambda_k \sqrt{N_k}\ /\ \lambda_0$")
    left.legend()
    right.set(xscale="log", yscale="log", xlabel="concentration κ", ylim=(1e-6, 2))
    right.set(title="von Mises-Fisher distributions", ylabel="$G_2$ above uniform")
    return save_figure(figure, path)
