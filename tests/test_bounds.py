"""The bounds of the balanced paper against loops in float64, and where the second one fails."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from points import sphere

from hypersphere_jax import bounds

attracting = jax.jit(bounds.attracting_bound)
ROUNDING = 1e-5


@functools.partial(jax.jit, static_argnames="classes")
def repelling(anchors, labels, views, view_labels, alpha, classes):
    return bounds.repelling_bound(anchors, labels, views, view_labels, alpha, classes)


def unit(x):
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def drawn(rng, v=3, classes=3, each=4, d=5, spread=1.0, away=False):
    """Anchors of all images, labels, views, their labels: classes around random centres."""
    labels = rng.permutation(np.repeat(np.arange(classes), each))
    centres = rng.normal(size=(classes, d)) + (3 * rng.normal(size=d) if away else 0)
    images = centres[labels] + spread * rng.normal(size=(classes * each, d))
    views = unit(images + 0.3 * rng.normal(size=(v, *images.shape)))
    anchors = unit(-images if away else images)
    return anchors, rng.permutation(labels), views, labels


def on_circle(*degrees):
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def cosine(a, b):
    return sum(a * b) / math.sqrt(sum(a * a)) / math.sqrt(sum(b * b))


def attracting_oracle(anchors, views):
    """(8) from its text, image by image."""
    left, right = [], []
    for i, anchor in enumerate(anchors.astype(float)):
        others = [view[i].astype(float) for view in views]
        left.append(-cosine(anchor, sum(others) / len(others)))
        right.append(-sum(cosine(anchor, other) for other in others) / len(others))
    return np.array(left), np.array(right)


def repelling_oracle(anchors, labels, views, view_labels, alpha):
    """(10) from its text, anchor by anchor: left, right, bracket and nu."""
    found, classes = [], sorted(set(view_labels.tolist()))
    for anchor, label in zip(anchors.astype(float), labels, strict=True):
        prototypes = [
            np.mean([view[i].astype(float) for view in views for i in members], axis=0)
            for c in classes
            if c != label and len(members := np.flatnonzero(view_labels == c))
        ]
        nu = min(math.sqrt(sum(mean * mean)) for mean in prototypes)
        logs = []
        for view in views.astype(float):
            terms = [math.exp(alpha * cosine(anchor, x)) for x in view]
            logs.append(math.log(sum(terms) / len(terms)))
        bracket = sum(logs) / len(logs) / alpha + math.log(len(classes)) / alpha
        left = max(cosine(anchor, mean) for mean in prototypes)
        found.append((left, bracket / nu, bracket, nu))
    return np.array(found).T


def test_attracting_is_the_formula_and_holds_where_it_is_assumed(rng):
    anchors, views = sphere(rng, 500, 6), unit(rng.normal(size=(4, 500, 6)))
    views[:, :50] = views[0, :50]  # an equality for equal views
    left, right, assumed = map(np.asarray, attracting(anchors, views))
    for found, exact in zip((left, right), attracting_oracle(anchors, views), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(left[:50], right[:50], atol=1e-6)
    np.testing.assert_array_equal(assumed, right <= 0)
    np.testing.assert_array_equal((left <= right)[50:], assumed[50:])
    assert 100 < assumed.sum() < 400


def test_repelling_is_the_formula(rng):
    for alpha in (0.5, 4.0, 40.0):
        anchors, labels, views, view_labels = drawn(rng)
        labels = labels[:7]  # the anchors may be others than the images
        found = repelling(anchors[:7], labels, views, view_labels, alpha, 3)
        expected = repelling_oracle(anchors[:7], labels, views, view_labels, alpha)
        for value, exact in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, exact, rtol=2e-5, atol=2e-6)
        # The nearest class and nu are those of other classes: they differ between labels.
        assert len(set(np.round(found.nu, 4).tolist())) > 1
    # As alpha grows the bracket goes to the nearest image of each view.
    bound = repelling(anchors[:7], labels, views, view_labels, 1e6, 3)
    nearest = np.einsum("nd,vmd->vnm", anchors[:7], views).max(axis=2).mean(axis=0)
    np.testing.assert_allclose(bound.bracket, nearest, atol=1e-5)


def test_repelling_holds_wherever_the_bracket_is_not_negative(rng):
    failed = total = negative = 0
    for spread in (0.1, 1.0):
        for _ in range(30):
            parts = drawn(rng, classes=3, each=3, d=2, spread=spread, away=rng.random() < 0.5)
            for alpha in (1.0, 2.0, 8.0, 32.0):
                left, right, bracket, nu = map(np.asarray, repelling(*parts, alpha, 3))
                below = left <= right + ROUNDING / nu
                allowed = bracket >= 0
                assert below[allowed].all()
                # What the paper's proof does show.
                assert (left <= np.maximum(right, bracket) + ROUNDING / nu).all()
                if alpha <= math.log(3):
                    assert allowed.all()
                failed, negative = failed + (~below).sum(), negative + (~allowed).sum()
                total += len(left)
    assert 0 < failed < negative < total


def test_theorem_4_6_fails_for_three_classes_on_the_circle():
    """By hand: nu = 1/2 is that of the class at 120 and 240; the nearest class is at 135."""
    views, classes = on_circle(180, 180, 120, 240, 135, 135)[None], np.array([0, 0, 1, 1, 2, 2])
    bound = repelling(on_circle(0), np.array([0]), views, classes, 4.0, 3)
    bracket = math.log(math.exp(-4) + math.exp(-2) + math.exp(-4 / math.sqrt(2))) / 4
    np.testing.assert_allclose(bound.left, -math.sqrt(0.5), atol=1e-6)
    np.testing.assert_allclose(bound.bracket, bracket, atol=1e-6)
    np.testing.assert_allclose(bound.nu, 0.5, atol=1e-6)
    np.testing.assert_allclose(bound.right, bracket / 0.5, atol=2e-6)
    # It fails, -0.707 > -0.774; what the proof does show holds.
    assert bound.right[0] + 0.06 < bound.left[0] < bound.bracket[0]


def test_half_precision_is_computed_in_float32(rng):
    anchors, labels, views, view_labels = drawn(rng)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (anchors, views)]
    found, expected = (
        (*attracting(*sides), *repelling(sides[0], labels, sides[1], view_labels, 4.0, 3))
        for sides in (half, [x.astype(jnp.float32) for x in half])
    )
    for a, b in zip(found, expected, strict=True):
        assert a.dtype in (jnp.float32, bool)
        np.testing.assert_array_equal(a, b)


def test_cancelled_features_have_no_cosine():
    opposite, anchor = np.float32([[1, 0], [-1, 0]]), on_circle(90)
    assert np.isnan(attracting(anchor, opposite[:, None]).left[0])
    views, label = np.concatenate([opposite, anchor, anchor])[None], np.array([0])
    # Of the anchor's own class that is no matter.
    own = repelling(anchor, label, views, np.array([0, 0, 1, 1]), 1.0, 2)
    assert own.left[0] == own.nu[0] == 1
    other = repelling(anchor, label, views, np.array([1, 1, 0, 0]), 1.0, 2)
    assert np.isnan(other.left[0]) and other.nu[0] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"view_labels": [0, 0, 0, 1]}, "each class as often .*from 1 to 3 images a class"),
        ({"view_labels": [0, 0, 0, 0]}, "from 0 to 4 images a class"),
        ({"view_labels": [0, 1, 0, 2]}, "view_labels must be integers from 0 to 1"),
        ({"view_labels": [0, 1]}, r"view_labels must be \[4\], got shape \(2,\)"),
        ({"labels": [0]}, r"labels must be \[2\], got shape \(1,\)"),
        ({"labels": [0, -1]}, "labels must be integers from 0 to 1"),
        ({"labels": [0.0, 1.0]}, "labels must be integers"),
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"classes": 1}, "at least two classes"),
        ({"anchors": np.ones((2, 5), np.float32)}, r"got \(2, 5\), \(3, 4, 2\)"),
        ({"views": np.ones((4, 2), np.float32)}, r"got \(2, 2\), \(4, 2\)"),
        ({"views": np.ones((0, 4, 2), np.float32)}, "none of them empty"),
        ({"anchors": np.ones((2, 2), int)}, "must be floating point, got int"),
    ],
)
def test_mistakes(change, message):
    given = {
        "anchors": np.ones((2, 2), np.float32),
        "labels": [0, 1],
        "views": np.ones((3, 4, 2), np.float32),
        "view_labels": [0, 1, 0, 1],
        "alpha": 1.0,
        "classes": 2,
    } | change
    given |= {name: np.array(given[name]) for name in ("labels", "view_labels")}
    with pytest.raises(ValueError, match=message):
        bounds.repelling_bound(**given)


def test_mistakes_of_the_attracting_bound():
    for anchors, views, message in (
        (2, 4, r"of the images of the anchors, \[v, 2, d\]"),
        (0, 0, "none of them empty"),
    ):
        with pytest.raises(ValueError, match=message):
            bounds.attracting_bound(np.ones((anchors, 3)), np.ones((5, views, 3)))
