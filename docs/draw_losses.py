"""Draw the effect of each loss on points in the plane: docs/losses/images/*.png.

`python -m docs.draw_losses` draws all pictures, `python -m docs.draw_losses NAME ...` some.

The points are free parameters, without a network. Each step descends the gradient and projects the
points back onto the circle, unless the panel is for a prior in the plane.
"""

import dataclasses
import io
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import hypersphere_jax as hj
from hypersphere_jax.reporting.plots.style import COLORS

IMAGES = Path(__file__).parent / "losses" / "images"
SEED = 0
GROUPS = (6, 4, 2)  # images of each colour
ARCS = ((38, 116), (140, 188), (216, 234))  # degrees, of each colour at the start
NOISE = 9  # degrees, of the views of an image
SENTENCES = 12
QUEUE = np.linspace(-75, 105, 16)  # degrees


@dataclasses.dataclass(frozen=True)
class Descent:
    """One panel: a loss with its settings, and the options of the descent."""

    title: str
    loss: Callable[[jax.Array, jax.Array], jax.Array]  # (points [2, n, 2], key)
    rate: float = 0.01
    on_circle: bool = True
    steps: int = 6000


@dataclasses.dataclass(frozen=True)
class Picture:
    """One file: the start with the directions of the first descent, and the results."""

    losses: tuple[str, ...]
    descents: tuple[Descent, Descent]
    start: str = "images"  # or "sentences", "queue"
    joined: bool = True  # lines between the views of an image
    others: np.ndarray | None = None  # fixed points `[m, 2]`
    frame: bool = False  # the square [-1, 1]^2


def on_circle(degrees):
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=-1).astype(np.float32)


def start_of(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return points `[2, n, 2]` and their colour indices `[n]`."""
    random = np.random.default_rng(SEED)
    if kind == "sentences":
        turns = np.linspace(20, 200, SENTENCES) + random.normal(0, 9, (2, SENTENCES))
        return on_circle(turns), np.arange(SENTENCES)
    colors = np.repeat(np.arange(len(GROUPS)), GROUPS)
    images = np.concatenate([np.linspace(*arc, n) for arc, n in zip(ARCS, GROUPS, strict=True)])
    return on_circle(images + random.normal(0, NOISE, (2, len(colors)))), colors


def with_queue(loss):
    """Return a loss of queries and keys; keys have no gradient and follow with momentum."""
    queue = jnp.asarray(on_circle(QUEUE))
    return lambda z, key: loss(z[0], lax.stop_gradient(z[1]), queue)


def descend(start: np.ndarray, descent: Descent, momentum: bool) -> tuple[np.ndarray, float, float]:
    """Return the final points, and the loss before and after the descent."""
    n = start.shape[1]
    keys = jax.random.split(jax.random.key(SEED), descent.steps)

    def step(z, key):
        z_next = z - descent.rate * n * jax.grad(descent.loss)(z, key)
        if momentum:
            z_next = z_next.at[1].set(0.99 * z[1] + 0.01 * z_next[0])
        return (hj.l2_normalize(z_next) if descent.on_circle else z_next), None

    @jax.jit
    def run(z):
        end, _ = lax.scan(step, z, keys)
        # Losses that draw samples are averaged over keys.
        value = jax.vmap(descent.loss, (None, 0))
        return end, value(z, keys[:64]).mean(), value(end, keys[:64]).mean()

    end, before, after = run(jnp.asarray(start))
    return np.asarray(end), float(before), float(after)


def directions(start: np.ndarray, descent: Descent) -> np.ndarray:
    """Return the first direction of the descent along the circle; the longest has length 0.45."""
    keys = jax.random.split(jax.random.key(SEED), 256)
    down = -np.asarray(
        jax.vmap(jax.grad(descent.loss), (None, 0))(jnp.asarray(start), keys).mean(0)
    )
    if descent.on_circle:
        down = down - np.sum(down * start, axis=-1, keepdims=True) * start
    return down * 0.45 / np.maximum(np.linalg.norm(down, axis=-1).max(), 1e-9)


def draw_points(axes: Axes, points: np.ndarray, colors: np.ndarray, picture: Picture) -> None:
    edge = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(edge), np.sin(edge), color="0.8", linewidth=1, zorder=0)
    if picture.frame:
        axes.plot([-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1], color="0.8", linewidth=1, zorder=0)
    if picture.others is not None:
        axes.scatter(*picture.others.T, marker="x", s=22, color="0.45", linewidth=1, zorder=1)
    shades = [COLORS[color % len(COLORS)] for color in colors]
    first, second = points
    if picture.start == "sentences":
        shades = colormaps["viridis"](np.linspace(0, 0.92, len(colors)))
        for i, shade in enumerate(shades):
            for j in {max(i - 1, 0), min(i + 1, len(colors) - 1)} - {i}:
                axes.plot(*zip(first[i], second[j], strict=True), color=shade, linewidth=0.8)
    elif picture.joined:
        for a, b, shade in zip(first, second, shades, strict=True):
            axes.plot(*zip(a, b, strict=True), color=shade, linewidth=1.2)
    axes.scatter(*first.T, s=20, color=shades, zorder=3)
    axes.scatter(*second.T, s=62, facecolors="none", edgecolors=shades, linewidth=1.3, zorder=2)
    axes.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
    axes.axis("off")


def draw(picture: Picture) -> Figure:
    start, colors = start_of(picture.start)
    figure = Figure(figsize=(7, 2.85), dpi=150)
    panels = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.85, wspace=0.03)
    draw_points(panels[0], start, colors, picture)
    panels[0].set_title("start\n", fontsize=10)
    arrows = directions(start, picture.descents[0])
    panels[0].quiver(*start[0].T, *arrows[0].T, width=0.008, zorder=4, **IN_UNITS)
    for axes, descent in zip(panels[1:], picture.descents, strict=True):
        end, before, after = descend(start, descent, picture.start == "queue")
        draw_points(axes, end, colors, picture)
        axes.set_title(f"{descent.title}\n{before:.2f} → {after:.2f}", fontsize=10)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Save with 64 colours, which halves the file size."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    Image.open(buffer).convert("RGB").quantize(64).save(path, optimize=True)


def _of_views(function, **settings):
    return lambda z, key: function(z[0], z[1], **settings)


def _of_all(function, **settings):
    return lambda z, key: function(z.reshape(-1, 2), **settings)


def _with_key(function, **settings):
    return lambda z, key: function(key, z[0], z[1], **settings)


def _in_half_units(function, lam):
    """Return a loss of points whose coordinates are twice as large as those drawn."""
    return lambda z, key: function(key, 2 * z[0], 2 * z[1], lam)


def _align_uniform(weight):
    def loss(z, key):
        uniform = (hj.uniform_loss(z[0]) + hj.uniform_loss(z[1])) / 2
        return weight * hj.align_loss(z[0], z[1]) + uniform

    return loss


def _logsumexp(tau):
    return lambda z, key: (hj.logsumexp_loss(z[0], tau) + hj.logsumexp_loss(z[1], tau)) / 2


def _matched(function, **settings):
    return lambda z, key: function(key, z.reshape(-1, 2), **settings)


def _sliced(angles):
    def loss(z, key):
        drawn = jax.random.uniform(key, (), maxval=np.pi)
        along = jnp.deg2rad(jnp.asarray(angles)) if angles else drawn + jnp.array([0, np.pi / 2])
        turned = jnp.stack([jnp.cos(along), jnp.sin(along)])
        return hj.sliced_wasserstein_loss(z.reshape(-1, 2), jnp.asarray(SAMPLES), turned)

    return loss


def _supervised(labels):
    labels = jnp.asarray(np.tile(labels, 2))
    return lambda z, key: hj.supervised_contrastive_loss(z.reshape(-1, 2), labels, 0.3)


SAMPLES = on_circle(np.linspace(0, 360, 2 * sum(GROUPS), endpoint=False) + 4)
CLASSES = start_of("images")[1]
IN_UNITS = {"angles": "xy", "scale_units": "xy", "scale": 1}
QUEUED = {"start": "queue", "others": 1.13 * on_circle(QUEUE)}

PICTURES = {
    "align_loss": Picture(
        ("align_loss",),
        (
            Descent("alpha = 2", _of_views(hj.align_loss)),
            Descent("alpha = 1", _of_views(hj.align_loss, alpha=1.0), rate=0.0005),
        ),
    ),
    "uniform_loss": Picture(
        ("uniform_loss",),
        (
            Descent("t = 2", _of_all(hj.uniform_loss), rate=0.02),
            Descent("t = 20", _of_all(hj.uniform_loss, t=20.0), rate=0.004),
        ),
        joined=False,
    ),
    "align_and_uniform": Picture(
        ("align_loss", "uniform_loss"),
        (
            Descent("1 : 1", _align_uniform(1.0)),
            Descent("0.1 : 1", _align_uniform(0.1), steps=20000),
        ),
    ),
    "contrastive_loss": Picture(
        ("contrastive_loss",),
        (
            Descent("tau = 0.1", _of_views(hj.contrastive_loss, tau=0.1), rate=0.002),
            Descent("tau = 1", _of_views(hj.contrastive_loss, tau=1.0)),
        ),
    ),
    "queue_losses": Picture(
        ("info_nce_loss", "uniform_queue_loss"),
        (
            Descent(
                "InfoNCE, tau = 0.2",
                with_queue(lambda q, k, queue: hj.info_nce_loss(q, k, queue, 0.2)),
            ),
            Descent(
                "3 align + uniform, t = 3",
                with_queue(
                    lambda q, k, queue: (
                        3 * hj.align_loss(q, k) + hj.uniform_queue_loss(q, queue, 3.0)
                    )
                ),
            ),
        ),
        **QUEUED,
    ),
    "nt_xent_loss": Picture(
        ("nt_xent_loss",),
        (
            Descent("tau = 0.1", _of_views(hj.nt_xent_loss, tau=0.1), rate=0.002),
            Descent("tau = 1", _of_views(hj.nt_xent_loss, tau=1.0)),
        ),
    ),
    "decoupled_nt_xent_loss": Picture(
        ("decoupled_nt_xent_loss",),
        (
            Descent(
                "tau = 0.05, lam = 0.05",
                _of_views(hj.decoupled_nt_xent_loss, tau=0.05, lam=0.05),
                rate=0.01,
            ),
            Descent(
                "tau = 0.05, lam = 2",
                _of_views(hj.decoupled_nt_xent_loss, tau=0.05, lam=2.0),
                rate=0.0005,
            ),
        ),
    ),
    "logsumexp_loss": Picture(
        ("logsumexp_loss",),
        (
            Descent("tau = 0.5", _logsumexp(0.5)),
            Descent("tau = 0.05", _logsumexp(0.05), rate=0.001),
        ),
        joined=False,
    ),
    "dcl_loss": Picture(
        ("dcl_loss",),
        (
            Descent("tau = 0.1", _of_views(hj.dcl_loss, tau=0.1), rate=0.002),
            Descent("tau = 1", _of_views(hj.dcl_loss, tau=1.0)),
        ),
    ),
    "balanced_contrastive_loss": Picture(
        ("balanced_contrastive_loss",),
        (
            Descent("alpha = 4, lam = 2", _of_views(hj.balanced_contrastive_loss)),
            Descent(
                "alpha = 8, lam = 8",
                _of_views(hj.balanced_contrastive_loss, alpha=8.0, lam=8.0),
                rate=0.002,
            ),
        ),
    ),
    "generalized_nt_xent_loss": Picture(
        ("generalized_nt_xent_loss",),
        (
            Descent("alpha = 2, lam = 2", _of_views(hj.generalized_nt_xent_loss)),
            Descent(
                "alpha = 8, lam = 8",
                _of_views(hj.generalized_nt_xent_loss, alpha=8.0, lam=8.0),
                rate=0.002,
            ),
        ),
    ),
    "generalized_contrastive_loss": Picture(
        ("generalized_contrastive_loss",),
        (
            Descent("lam = 5", _with_key(hj.generalized_contrastive_loss), rate=0.004),
            Descent("lam = 0.5", _with_key(hj.generalized_contrastive_loss, lam=0.5)),
        ),
    ),
    "jepa_losses": Picture(
        ("lejepa_loss", "visreg_loss"),
        (
            Descent("LeJEPA, lam = 0.05", _in_half_units(hj.lejepa_loss, 0.05), on_circle=False),
            Descent("VISReg, lam = 0.9", _in_half_units(hj.visreg_loss, 0.9), on_circle=False),
        ),
    ),
    "prior_matching_loss": Picture(
        ("prior_matching_loss",),
        (
            Descent("hypersphere", _matched(hj.prior_matching_loss)),
            Descent(
                "hypercube", _matched(hj.prior_matching_loss, prior="hypercube"), on_circle=False
            ),
        ),
        joined=False,
        frame=True,
    ),
    "sliced_wasserstein_loss": Picture(
        ("sliced_wasserstein_loss",),
        (
            Descent("two fixed directions", _sliced((0.0, 90.0)), on_circle=False),
            Descent("fresh directions", _sliced(()), on_circle=False),
        ),
        joined=False,
        others=SAMPLES,
    ),
    "quick_thought_contrastive_loss": Picture(
        ("quick_thought_contrastive_loss",),
        (
            Descent(
                "tau = 0.05", _of_views(hj.quick_thought_contrastive_loss, tau=0.05), rate=0.001
            ),
            Descent("tau = 1", _of_views(hj.quick_thought_contrastive_loss, tau=1.0)),
        ),
        start="sentences",
    ),
    "quick_thought_align_and_uniform": Picture(
        ("quick_thought_align_loss", "quick_thought_uniform_loss"),
        (
            Descent("align", _of_views(hj.quick_thought_align_loss), rate=0.05),
            Descent(
                "0.9 align + 0.1 uniform, t = 5",
                lambda z, key: (
                    0.9 * hj.quick_thought_align_loss(z[0], z[1])
                    + 0.1 * hj.quick_thought_uniform_loss(z[0], z[1], 5.0)
                ),
            ),
        ),
        start="sentences",
    ),
    "supervised_contrastive_loss": Picture(
        ("supervised_contrastive_loss",),
        (
            Descent("labels: colours", _supervised(CLASSES)),
            Descent("labels: images", _supervised(np.arange(len(CLASSES)))),
        ),
    ),
}


def main(names: list[str]) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        path = IMAGES / f"{name}.png"
        save(draw(PICTURES[name]), path)
        print(f"{path.name} {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
