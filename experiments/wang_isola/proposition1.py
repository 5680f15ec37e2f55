"""Proposition 1 of Wang & Isola: the uniform distribution has the least mean Gaussian potential.

Claim: among all distributions on the sphere, only the uniform one minimizes the mean potential G_t.

    python run.py reproduce wang-isola/proposition1 --scale laptop

Nothing is trained; a second on one CPU core.
Result: supported. The closed-form eigenvalues of G_2 are positive in every degree and agree with
quadrature; 27 other distributions have a larger potential. Uniqueness rests on the closed form, in
which Bessel functions I are positive; no finite computation shows it.
"""

import numpy as np

from experiments.lib import Rows, stats
from experiments.wang_isola import harmonics

SCALES = ("laptop", "gpu", "paper")
DEGREES = 17
ABOVE_ROUNDING = 1e3 * harmonics.ROUNDING


def analyze(rows: Rows) -> Rows:
    """Compare eigenvalues with quadrature, and other distributions with the uniform one."""
    table = []
    for dim in harmonics.DIMS:
        exact = harmonics.exact_eigenvalues(dim, DEGREES)
        by_quadrature = harmonics.eigenvalues(harmonics.potential, dim, DEGREES)
        sizes = exact / exact[0] * np.sqrt(harmonics.multiplicities(dim, DEGREES))
        error = np.abs(by_quadrature / exact - 1)[sizes > ABOVE_ROUNDING].max()
        claim = "eigenvalues are positive; relative error of quadrature"
        table.append(stats.check(claim, bool((exact > 0).all()) and error < 1e-3, error, d=dim))
        least = harmonics.uniform_potential(dim)
        for name, value in harmonics.other_potentials(dim).items():
            claim = f"G_2 above uniform: {name}"
            table.append(stats.check(claim, value > least, value - least, d=dim))
    return table
