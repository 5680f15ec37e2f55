"""Theorem 2 of Wang & Isola: the contrastive loss with a single negative.

Claim: if perfectly aligned and uniform encoders exist, they are the exact minimizers of the
contrastive loss for M = 1.

    python run.py reproduce wang-isola/theorem2 --scale laptop

Nothing is trained; a minute on one CPU core.
Result: not supported; the theorem is false as stated, and nearly true. With data uniform on the
circle and equal positives, an encoder that rounds to the nearest corner of a regular polygon has a
loss up to 0.9% below the aligned and uniform one.

At tau = 1 the loss of a square is (log 2 + 2 log(1 + 1/e) + log(1 + 1/e^2)) / 4 = 0.361567, and
that of the identity 0.361569. The loss of aligned features is the mean of log(1 + exp((s - 1) /
tau)) over the cosines s of pairs. Where an eigenvalue of this kernel is negative, the density 1 + h
of that degree has a lower loss than the uniform one. The proof takes the derivative of the loss by
the squared distance as completely monotone, but its third derivative changes sign for close points.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from experiments.lib.plots import MARKERS, new_figure, printed
from experiments.lib.records import Rows
from experiments.lib.stats import check
from experiments.lib.sweep import no_runs
from experiments.wang_isola import harmonics
from hypersphere_jax import info_nce_loss
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ()
runs = no_runs
TAU = 0.5
TAUS = (0.1, 0.5, 1.0)
DIMS = (2, 3, 8, 128)
FREE_POINTS = 60
STARTS = 5
STEPS = 1000


def pair_loss(cosines: np.ndarray, positive: float, tau: float) -> np.ndarray:
    """Return the loss with one negative: `log(1 + exp((negative's cosine - positive's) / tau))`."""
    return np.logaddexp(0, (cosines - positive) / tau)


def kernel(tau: float) -> harmonics.Kernel:
    """Return the loss of aligned features as a function of the negative's cosine."""
    return lambda cosines: pair_loss(cosines, 1.0, tau)


def uniform_loss_value(dim: int, tau: float, positive: float = 1.0) -> float:
    """Return the loss of uniform features by quadrature over the negative's angle."""
    angles = (np.arange(20_000) + 0.5) * np.pi / 20_000
    weights = np.sin(angles) ** (dim - 2)
    values = pair_loss(np.cos(angles), positive, tau)
    return float((weights * values).sum() / weights.sum())


def vmf_loss(kappa: float, tau: float) -> float:
    """Return the loss of aligned von Mises-Fisher features on the circle."""
    values = harmonics.eigenvalues(kernel(tau), 2, 600, nodes=2048)
    moments = special.ive(np.arange(600), kappa) / special.ive(0, kappa)
    return float((values * harmonics.multiplicities(2, 600) * moments**2).sum())


def polygon_loss(n: int, tau: float) -> float:
    """Return the loss of aligned features at the corners of a regular polygon."""
    return float(pair_loss(np.cos(2 * np.pi * np.arange(n) / n), 1.0, tau).mean())


@jax.jit
def all_pairs_loss(x: jax.Array, y: jax.Array, negatives: jax.Array, tau: float) -> jax.Array:
    """Return the mean `info_nce_loss` with each of the negatives as the only one."""
    return jnp.mean(jax.vmap(lambda negative: info_nce_loss(x, y, negative[None], tau))(negatives))


@jax.jit
def gradient_descent(angles: jax.Array, tau: float) -> tuple[jax.Array, jax.Array]:
    """Minimize the aligned loss of points on the circle.

    Args:
      angles: `[starts, n]`.
      tau: temperature.

    Returns:
      The last angles, and the losses `[STEPS, starts]` before each step.
    """

    def loss(angles):
        x = jnp.stack((jnp.cos(angles), jnp.sin(angles)), axis=1)
        return all_pairs_loss(x, x, x, tau)

    def step(angles, _):
        values, gradients = jax.vmap(jax.value_and_grad(loss))(angles)
        return angles - angles.shape[1] * gradients, values

    return lax.scan(step, angles, length=STEPS)


def free_losses(seed: int = 0) -> np.ndarray:
    """Return the losses `[STEPS, starts]` of free points under gradient descent."""
    random = np.random.default_rng(seed)
    starts = random.uniform(0, 2 * np.pi, (STARTS, FREE_POINTS)).astype(np.float32)
    return np.asarray(gradient_descent(starts, TAU)[1])


def analyze(rows: Sequence = ()) -> Rows:
    """Compare features that are not uniform with aligned and uniform ones."""
    table = []
    for tau in TAUS:
        constant = uniform_loss_value(2, tau)
        corners = 1 + int(np.argmin([polygon_loss(n, tau) for n in range(1, 80)]))
        gain = 100 * (1 - polygon_loss(corners, tau) / constant)
        claim = "no polygon has a lower loss than uniform features; gain of the best one (%)"
        bound = 100 * harmonics.largest_decrease(kernel(tau), 2)
        table.append(check(claim, gain <= 0, gain, d=2, tau=tau, corners=corners, bound=bound))
    lowest = float(free_losses()[-1].min()) - uniform_loss_value(2, TAU)
    claim = f"{FREE_POINTS} free points do not end below uniform features; excess"
    table.append(check(claim, lowest >= 0, lowest, d=2, tau=TAU))
    for dim in DIMS:
        for tau in TAUS:
            negative = harmonics.first_negative(kernel(tau), dim)
            degree, size = negative or (0, 0.0)
            claim = "no eigenvalue is negative; the first negative one over lambda_0"
            table.append(check(claim, negative is None, size, d=dim, tau=tau, degree=degree))
    for degrees in (10, 30, 90):
        excess = uniform_loss_value(2, TAU, math.cos(math.radians(degrees)))
        excess -= uniform_loss_value(2, TAU)
        claim = f"aligned positives are better than positives at {degrees}°; excess"
        table.append(check(claim, excess > 0, excess, d=2, tau=TAU))
    return table


@printed
def plot(rows: Rows, path: Path | None):
    """Draw losses above the aligned and uniform one, which the theorem calls the least."""
    figure, ((vmf, polygons), (free, degrees)) = new_figure(2, 2, 2.4)
    kappas = np.geomspace(0.01, 100, 61)
    numbers = range(1, 17)
    for tau, color, marker in zip(TAUS, COLORS, MARKERS, strict=False):
        constant = uniform_loss_value(2, tau)
        vmf.plot(kappas, [vmf_loss(kappa, tau) - constant for kappa in kappas], color=color)
        values = [polygon_loss(n, tau) - constant for n in numbers]
        polygons.plot(numbers, values, marker=marker, color=color, label=f"τ = {tau:g}")
    vmf.set(title="aligned, von Mises-Fisher", xscale="log", xlabel="concentration κ")
    polygons.set(title="aligned, corners of a regular polygon", xlabel="number of corners")
    polygons.legend()
    for axes in (vmf, polygons):
        axes.set_yscale("symlog", linthresh=1e-4)
        axes.set_ylabel("above uniform (nats)")
    free.plot(1e3 * (free_losses() - uniform_loss_value(2, TAU)), color="0.4", linewidth=0.8)
    title = f"{FREE_POINTS} free points under gradient descent, τ = {TAU:g}"
    free.set(title=title, xlabel="step", ylabel="above uniform (0.001 nats)", ylim=(-1, 1))
    ks = np.arange(1, 15)
    for dim, color, marker in zip(DIMS, COLORS, MARKERS, strict=False):
        values = harmonics.eigenvalues(kernel(TAU), dim, 15)
        values *= np.sqrt(harmonics.multiplicities(dim, 15)) / values[0]
        degrees.plot(ks, values[1:], marker=marker, color=color, label=f"d = {dim}")
    degrees.set(title=f"eigenvalues of the loss, τ = {TAU:g}", xlabel="degree k")
    degrees.set_yscale("symlog", linthresh=1e-6)
    degrees.legend(ncols=2)
    for axes in figure.axes:
        axes.axhline(0, color="gray", linestyle="--", linewidth=0.8)
    return save_figure(figure, path)
