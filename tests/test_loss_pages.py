"""The pages of docs/losses/: one for each loss, its formula, its picture, and what they state."""

import inspect
import re

import jax
import numpy as np
import pytest
from processes import ROOT

import hypersphere_jax as hj
from docs.draw_losses import PICTURES, descend, start_of
from hypersphere_jax import losses

FOLDER = ROOT / "docs" / "losses"
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
LOSSES = [name for name in losses.__all__ if name.endswith("_loss")]


def squeezed(text):
    return re.sub(r"\s+", "", text)


def test_every_loss_has_a_page_with_its_formula_and_picture():
    for name in LOSSES:
        (page,) = (text for text in PAGES.values() if _is_of(text, name))
        found = re.search(
            r"\.\. math::(.*?)\n(?=\S)", inspect.getdoc(getattr(losses, name)), re.DOTALL
        )
        if name != "prior_matching_loss":  # whose formula is that of sliced_wasserstein_loss
            formulas = re.findall(r"^\$\$\n(.*?)^\$\$$", page, re.MULTILINE | re.DOTALL)
            assert squeezed(found[1]) in map(squeezed, formulas), name
        pictures = [file for file, picture in PICTURES.items() if name in picture.losses]
        assert any(f"](images/{file}.png)" in page for file in pictures), name


def _is_of(page, name):
    """Whether the page is the loss's own: named in its title, or in code before a formula."""
    title = page.splitlines()[0].removeprefix("# ")
    own = re.split(r", | and ", title)
    return name in own or (title == "Quick-Thought losses" and name.startswith("quick_thought"))


def test_the_script_draws_the_pictures_that_the_pages_show():
    shown = [file for page in PAGES.values() for file in re.findall(r"\(images/(\w+)\.png\)", page)]
    assert sorted(shown) == sorted(PICTURES)
    assert sorted(PICTURES) == sorted(path.stem for path in (FOLDER / "images").iterdir())
    assert {name for picture in PICTURES.values() for name in picture.losses} == set(LOSSES)
    assert max(path.stat().st_size for path in (FOLDER / "images").iterdir()) < 60_000


def test_the_overview_links_to_every_page():
    overview = (ROOT / "docs" / "losses.md").read_text()
    assert not [name for name in PAGES if f"(losses/{name}.md)" not in overview]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("picture", "panel", "page", "value"),
    [
        ("decoupled_nt_xent_loss", 1, "decoupled_nt_xent_loss", "39.04"),
        ("logsumexp_loss", 1, "decoupled_nt_xent_loss", "17.02"),
        ("dcl_loss", 0, "dcl_loss", "-0.70"),
        ("balanced_contrastive_loss", 1, "balanced_contrastive_loss", "7.39"),
    ],
)
def test_descents_end_where_the_pages_say(picture, panel, page, value):
    start, _ = start_of("images")
    _, _, end = descend(start, PICTURES[picture].descents[panel], momentum=False)
    assert value in PAGES[page] and abs(end - float(value)) < 0.006


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


def without(i, n):
    return [k for k in range(n) if k != i]


@pytest.mark.slow
def test_gradients_are_what_the_pages_say(rng):
    """The forces on each point, written from the pages' words."""
    n, tau, alpha, lam, t = 5, 0.3, 3.0, 2.5, 2.0
    x, y = (side / np.linalg.norm(side, axis=1)[:, None] for side in rng.normal(size=(2, n, 3)))
    z = np.concatenate([x, y])
    partner = (np.arange(2 * n) + n) % (2 * n)

    def check(loss, points, forces):
        found = jax.grad(lambda points: loss(points))(points.astype(np.float32))
        np.testing.assert_allclose(found, forces, atol=2e-5)

    def of_views(function, *args):
        return lambda z: function(z[:n], z[n:], *args)

    def forces_of(weights, points=z, scale=1.0):
        """Gradient of a mean over anchors i with weights[i, k] on their similarity to k."""
        return scale * (weights + weights.T) @ points / len(points)

    def weights_of(inverse, attract, repel, left_out):
        weights = np.zeros((2 * n, 2 * n))
        for i in range(2 * n):
            others = [k for k in range(2 * n) if k not in left_out(i)]
            weights[i, others] = repel * softmax(inverse * z[others] @ z[i])
            weights[i, partner[i]] -= attract
        return weights

    itself, both, own_view = (
        lambda i: {i},
        lambda i: {i, partner[i]},
        lambda i: {k for k in range(2 * n) if (k < n) == (i < n)},
    )
    near = weights_of(1 / tau, 1 / tau, 1 / tau, itself)
    check(of_views(lambda a, b: hj.nt_xent_loss(a, b, tau, "dot")), z, forces_of(near))
    check(
        of_views(hj.contrastive_loss, tau),
        z,
        forces_of(weights_of(1 / tau, 1 / tau, 1 / tau, own_view)),
    )
    apart = weights_of(1 / tau, 1 / tau, 1 / tau, lambda i: own_view(i) | {partner[i]})
    check(of_views(hj.dcl_loss, tau), z, forces_of(apart))
    decoupled = forces_of(weights_of(1 / tau, 1, lam / tau, itself))
    check(of_views(hj.decoupled_nt_xent_loss, tau, lam), z, decoupled)
    balanced = forces_of(weights_of(alpha, 1, lam, both))
    check(of_views(hj.balanced_contrastive_loss, alpha, lam), z, balanced)
    generalized = forces_of(weights_of(alpha, 1, lam, itself))
    check(of_views(hj.generalized_nt_xent_loss, alpha, lam), z, generalized)

    labels = np.arange(2 * n) % 3
    weights = np.zeros((2 * n, 2 * n))
    for i in range(2 * n):
        others = without(i, 2 * n)
        weights[i, others] = softmax(z[others] @ z[i] / tau) / tau
        positives = [k for k in others if labels[k] == labels[i]]
        weights[i, positives] -= 1 / tau / len(positives)
    check(lambda z: hj.supervised_contrastive_loss(z, labels, tau), z, forces_of(weights))

    gaps = x - y
    lengths = np.linalg.norm(gaps, axis=1)[:, None]
    check(
        lambda x: hj.align_loss(x, y, alpha), x, alpha / n * lengths ** (alpha - 1) * gaps / lengths
    )

    between = x[:, None] - x[None]
    shares = np.exp(-t * (between**2).sum(-1)) * (1 - np.eye(n))
    pull = -4 * t * (shares[..., None] / shares.sum() * between).sum(1)
    check(lambda x: hj.uniform_loss(x, t), x, pull)

    queue = rng.normal(size=(7, 3))
    forces = []
    for q, k in zip(x, y, strict=True):
        p = softmax(np.append(queue @ q, q @ k) / tau)
        forces.append((p[:-1] @ queue - (1 - p[-1]) * k) / tau / n)
    check(lambda x: hj.info_nce_loss(x, y, queue, tau), x, np.array(forces))
