"""The bounds of the balanced paper against loops in float64, and where the second one fails."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere

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
        prototypes = []
        for other in classes:
            members = [
                x
                for view in views.astype(float)
                for x, c in zip(view, view_labels, strict=True)
                if c == other and other != label
            ]
            if members:
                prototypes.append(sum(members) / len(members))
        nu = min(math.sqrt(sum(mean * mean)) for mean in prototypes)
        logs = []
        for view in views.astype(float):
            terms = [math.exp(alpha * cosine(anchor, x)) for x in view]
            logs.append(math.log(sum(terms) / len(terms)))
        bracket = sum(logs) / len(logs) / alpha + math.log(len(classes)) / alpha
        left = max(cosine(anchor, mean) for mean in prototypes)
        found.append((left, bracket / nu, bracket, nu))
    return np.array(found).T


# Theorem 4.4.


def test_attracting_is_the_formula(rng):
    anchors, views = sphere(rng, 6, 4), unit(rng.normal(size=(3, 6, 4)))
    bound = attracting(anchors, views)
    left, right = attracting_oracle(anchors, views)
    np.testing.assert_allclose(bound.left, left, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bound.right, right, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(bound.assumed, right <= 0)
    assert 0 < bound.assumed.sum() < 6


def test_attracting_holds_where_it_is_assumed_and_only_there(rng):
    anchors, views = sphere(rng, 500, 6), unit(rng.normal(size=(4, 500, 6)))
    left, right, assumed = attracting(anchors, views)
    np.testing.assert_array_equal(left <= right, assumed)
    assert 100 < assumed.sum() < 400


def test_attracting_is_an_equality_for_equal_views(rng):
    anchors, view = sphere(rng, 50, 6), sphere(rng, 50, 6)
    left, right, _ = attracting(anchors, np.stack([view] * 4))
    np.testing.assert_allclose(left, right, atol=1e-6)


# Theorem 4.6.


@pytest.mark.parametrize("alpha", [0.5, 4.0, 40.0])
def test_repelling_is_the_formula(alpha, rng):
    anchors, labels, views, view_labels = drawn(rng)
    labels = labels[:7]  # the anchors may be others than the images
    found = repelling(anchors[:7], labels, views, view_labels, alpha, 3)
    expected = repelling_oracle(anchors[:7], labels, views, view_labels, alpha)
    for value, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, exact, rtol=2e-5, atol=2e-6)
    # The nearest class and nu are those of other classes: they differ between labels.
    assert len(set(np.round(found.nu, 4).tolist())) > 1


def test_repelling_goes_to_the_nearest_image_as_alpha_grows(rng):
    anchors, labels, views, view_labels = drawn(rng)
    bound = repelling(anchors, labels, views, view_labels, 1e6, 3)
    nearest = np.einsum("nd,vmd->vnm", anchors, views).max(axis=2).mean(axis=0)
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


def test_the_bracket_is_not_below_the_mean_similarity_to_any_class(rng):
    for alpha in (0.3, 3.0, 30.0):
        anchors, _, views, view_labels = drawn(rng, away=True)
        means = np.stack([views[:, view_labels == c].mean(axis=(0, 1)) for c in range(3)])
        for label in range(3):
            labels = np.full(len(anchors), label)
            bound = repelling(anchors, labels, views, view_labels, alpha, 3)
            least = np.maximum((anchors @ means.T).max(1), (anchors @ means.mean(0)))
            assert (bound.bracket >= least - ROUNDING).all()
            overall = anchors @ means.mean(axis=0) + math.log(3) / alpha
            assert (bound.bracket >= overall - ROUNDING).all()


def test_two_classes_never_fail(rng):
    negative = 0
    for _ in range(20):
        parts = drawn(rng, classes=2, each=3, d=2, away=True)
        left, right, bracket, nu = map(np.asarray, repelling(*parts, 16.0, 2))
        assert (left <= right + ROUNDING / nu).all()
        negative += (bracket < 0).sum()
    assert negative


def test_theorem_4_6_fails_for_three_classes_on_the_circle():
    """By hand: nu = 1/2 is that of the class at 120 and 240; the nearest class is at 135."""
    views, classes = on_circle(180, 180, 120, 240, 135, 135)[None], np.array([0, 0, 1, 1, 2, 2])
    anchor, label = on_circle(0), np.array([0])
    bound = bounds.repelling_bound(anchor, label, views, classes, 4.0, 3)
    bracket = math.log(math.exp(-4) + math.exp(-2) + math.exp(-4 / math.sqrt(2))) / 4
    np.testing.assert_allclose(bound.left, -math.sqrt(0.5), atol=1e-6)
    np.testing.assert_allclose(bound.bracket, bracket, atol=1e-6)
    np.testing.assert_allclose(bound.nu, 0.5, atol=1e-6)
    np.testing.assert_allclose(bound.right, bracket / 0.5, atol=2e-6)
    assert f"{bound.left[0]:.3f} > {bound.right[0]:.3f}" == "-0.707 > -0.774"
    assert bound.left[0] < bound.bracket[0]  # which the proof does show


def test_theorem_4_6_fails_also_where_the_anchor_is_one_of_the_images():
    """The same with 10,000 images a class, one of them at 0 degrees: the anchor itself."""
    each = 10_000
    views = np.repeat(on_circle(180, 120, 240, 135), [each, each // 2, each // 2, each], axis=0)
    views[0] = on_circle(0)
    labels = np.repeat(np.arange(3), each)
    bound = repelling(views[:1], labels[:1], views[None], labels, 4.0, 3)
    terms = math.exp(4) / each + (1 - 1 / each) * math.exp(-4) + math.exp(-2)
    bracket = math.log(terms + math.exp(-4 / math.sqrt(2))) / 4
    np.testing.assert_allclose(bound.right, bracket / 0.5, atol=1e-4)
    assert bound.left[0] > bound.right[0] + 0.05


# Both.


def test_a_rotation_changes_nothing(rng):
    anchors, labels, views, view_labels = drawn(rng)
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0].astype(np.float32)
    for before, after in (
        (attracting(anchors, views), attracting(anchors @ turn, views @ turn)),
        (
            repelling(anchors, labels, views, view_labels, 4.0, 3),
            repelling(anchors @ turn, labels, views @ turn, view_labels, 4.0, 3),
        ),
    ):
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_order_of_images_and_names_of_classes_change_nothing(rng):
    anchors, labels, views, view_labels = drawn(rng)
    order, names = rng.permutation(12), np.array([2, 0, 1])
    before = repelling(anchors, labels, views, view_labels, 4.0, 3)
    after = repelling(anchors, names[labels], views[::-1, order], names[view_labels[order]], 4.0, 3)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_half_precision_is_computed_in_float32(rng):
    anchors, labels, views, view_labels = drawn(rng)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (anchors, views)]
    wide = [x.astype(jnp.float32) for x in half]
    for a, b in zip(attracting(*half), attracting(*wide), strict=True):
        np.testing.assert_array_equal(a, b)
    found = repelling(half[0], labels, half[1], view_labels, 4.0, 3)
    expected = repelling(wide[0], labels, wide[1], view_labels, 4.0, 3)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_array_equal(a, b)


def test_cancelled_features_have_no_cosine():
    opposite, anchor = np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32), on_circle(90)
    assert np.isnan(bounds.attracting_bound(anchor, opposite[:, None]).left[0])
    views, label = np.concatenate([opposite, anchor, anchor])[None], np.array([0])
    # Of the anchor's own class that is no matter.
    own = bounds.repelling_bound(anchor, label, views, np.array([0, 0, 1, 1]), 1.0, 2)
    assert own.left[0] == own.nu[0] == 1
    other = bounds.repelling_bound(anchor, label, views, np.array([1, 1, 0, 0]), 1.0, 2)
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
def test_mistakes_of_the_repelling_bound(change, message):
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
    with pytest.raises(ValueError, match=r"of the images of the anchors, \[v, 2, d\]"):
        bounds.attracting_bound(np.ones((2, 3), np.float32), np.ones((5, 4, 3), np.float32))
    with pytest.raises(ValueError, match="none of them empty"):
        bounds.attracting_bound(np.ones((0, 3), np.float32), np.ones((5, 0, 3), np.float32))
