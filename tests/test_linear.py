"""Linear probes against scikit-learn."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from hypersphere_jax import sharding
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import checks, lbfgs, linear, logistic, scores
from hypersphere_jax.evaluation.classifier import Classifier
from hypersphere_jax.evaluation.linear import linear_probe
from hypersphere_jax.evaluation.selection import stratified_folds, stratified_part
from hypersphere_jax.evaluation.sgd import PROTOCOLS

CLASSES, N, D = 6, 300, 16  # most tests share these shapes, and so the compiled functions
# Without the smallest values, at which rounding decides a row and scikit-learn takes long.
L2S = linear.L2S[:6]
SCORES = {"top1", "top5", "top1_interval", "per_class", "confusion"}


def problem(rng, n=N, d=D, num_classes=CLASSES, spread=1.5):
    """Train and test features of unit norm, of classes that overlap, and their labels."""
    centres = rng.normal(size=(num_classes, d))
    sides = []
    for rows in (n, 200):
        labels = rng.integers(num_classes, size=rows)
        x = centres[labels] + spread * rng.normal(size=(rows, d))
        sides += [(x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels]
    return sides


def scikit_learn(x, y, l2):
    """The same objective: theirs is the sum of the losses, and 1/C times half the squared norm."""
    model = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-8, max_iter=5000)
    return model.fit(x.astype(np.float64), y)


def place(x, y, part=None, num_classes=CLASSES, **options):
    part = np.zeros(len(x), np.int32) if part is None else part
    scaling = logistic.Scaling(np.zeros(x.shape[1], np.float32), 1.0)
    y = np.asarray(y, np.int32)
    return logistic.place(x, y, part, scaling, num_classes=num_classes, **options)


def fit(x, y, l2, **options):
    """One fit on all rows, as it comes from several at once."""
    found = logistic.fit_logistic(place(x, y), [l2], [logistic.NONE], **options)
    return jax.tree.map(lambda leaf: leaf[0], found)


def assert_same_classifier(classifier, reference, tolerance=2e-3):
    scale = np.abs(reference.coef_).max()
    np.testing.assert_allclose(classifier.weights, reference.coef_, atol=tolerance * scale)
    # A number added to every bias changes nothing: neither penalizes it.
    bias = np.asarray(classifier.bias)
    expected = reference.intercept_ - reference.intercept_.mean()
    np.testing.assert_allclose(bias - bias.mean(), expected, atol=tolerance * scale)


@pytest.mark.parametrize(("d", "l2"), [(D, 1e-1), (D, 1e-3), (D, 1e-5), (2, 1e-4), (600, 1e-4)])
def test_lbfgs_finds_the_optimum_of_scikit_learn(rng, d, l2):
    """Also where the model of the curvature leaves out some of the directions."""
    x, y, _, _ = problem(rng, d=d)
    found = fit(x, y, l2)
    assert found.gradient_norm <= logistic.TOLERANCE
    assert_same_classifier(found.classifiers, scikit_learn(x, y, l2))


def test_the_limit_of_the_gradient_falls_with_l2(rng):
    """By the norm that is enough at larger values, the weights are a third off at l2 = 1e-8."""
    x, y, _, _ = problem(rng, d=40, spread=1.0)
    found = fit(x, y, 1e-8)
    assert found.gradient_norm <= 3e-8
    assert_same_classifier(found.classifiers, scikit_learn(x, y, 1e-8), tolerance=0.05)
    limits = logistic.limit([1e-1, 1e-6, 1e-7])
    np.testing.assert_allclose(limits, [1e-6, 1e-6, 3e-7])


@pytest.mark.slow
def test_the_model_of_the_curvature_changes_the_way_and_not_the_end(rng, monkeypatch):
    x, y, _, _ = problem(rng, d=40)
    monkeypatch.setattr(logistic, "RANK", 5)
    monkeypatch.setattr(logistic, "SAMPLE", 50)
    jax.clear_caches()
    rough = fit(x, y, 1e-4)
    assert_same_classifier(rough.classifiers, scikit_learn(x, y, 1e-4))
    monkeypatch.undo()
    jax.clear_caches()
    assert fit(x, y, 1e-4).steps < rough.steps


def test_fits_at_once_leave_out_their_own_parts(rng):
    x, y, _, _ = problem(rng)
    part = rng.integers(3, size=N).astype(np.int32)
    l2s, held_out = [1e-2, 1e-4, 1e-3, 1e-3], [0, 1, 2, logistic.NONE]
    together = place(x, y, part, fits=4)
    found = logistic.fit_logistic(together, l2s, held_out)
    right = logistic.hits(together, found.classifiers, held_out)
    for cell, (l2, left_out) in enumerate(zip(l2s, held_out, strict=True)):
        reference = scikit_learn(x[part != left_out], y[part != left_out], l2)
        one = Classifier(found.classifiers.weights[cell], found.classifiers.bias[cell])
        assert_same_classifier(one, reference)
        if left_out != logistic.NONE:
            valid = part == left_out
            assert right[cell] == round(reference.score(x[valid], y[valid]) * valid.sum())
        else:
            assert right[cell] == 0


@pytest.mark.parametrize("devices", [3, 8])
def test_devices_and_blocks_change_nothing(rng, devices, monkeypatch):
    x, y, _, _ = problem(rng)
    part = rng.integers(3, size=N).astype(np.int32)

    def found(problem):
        fit = logistic.fit_logistic(problem, [1e-2, 1e-3], [0, 1])
        return *fit.classifiers, logistic.hits(problem, fit.classifiers, [0, 1])

    one = found(place(x, y, part))
    monkeypatch.setattr(logistic, "BLOCK", 100)
    several = place(x, y, part, fits=2, devices=jax.devices()[:devices])
    assert several.rows.x.shape[0] == devices and several.rows.x.shape[1] > 3
    assert several.rows.x[..., 0].size > N  # some only fill up
    for a, b in zip(one, found(several), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


def test_lbfgs_converges_on_features_of_very_unequal_variance(rng):
    """Where plain L-BFGS has not converged after 1000 steps."""
    x = rng.normal(size=(N, D)) * np.logspace(0, -4, D)
    y = (x / np.logspace(0, -4, D) @ rng.normal(size=(D, CLASSES))).argmax(axis=1)
    found = fit(x.astype(np.float32), y, 1e-6)
    assert found.gradient_norm <= logistic.TOLERANCE and found.steps < 200
    start = jax.tree.map(lambda leaf: leaf[None], found.classifiers)
    again = fit(x.astype(np.float32), y, 1e-6, start=start)
    assert again.gradient_norm <= logistic.TOLERANCE and again.steps == 0


def test_an_early_end_is_as_near_the_minimum_as_it_was_told(rng):
    """And the steps before it are those of the norm of the gradient."""
    x, y, _, _ = problem(rng)

    def objective(classifier):
        weights, bias = (np.asarray(leaf, np.float64) for leaf in classifier)
        outputs = x @ weights.T + bias
        losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(N), y]
        return losses.mean() + 1e-4 / 2 * (weights**2).sum()

    best = objective(fit(x, y, 1e-4).classifiers)
    early = fit(x, y, 1e-4, excess=1e-3)
    assert 0 < objective(early.classifiers) - best < 4e-3  # an estimate
    assert 0 < early.steps < fit(x, y, 1e-4).steps


def test_gradient_norm_is_that_of_the_objective(rng):
    x, y, _, _ = problem(rng)
    found = fit(x, y, 1e-2, max_steps=3)
    weights, bias = (np.asarray(leaf, np.float64) for leaf in found.classifiers)
    exps = np.exp(x @ weights.T + bias)
    errors = (exps / exps.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / N
    gradient = np.linalg.norm(np.c_[errors.T @ x + 1e-2 * weights, errors.sum(axis=0)])
    assert found.steps == 3
    assert found.gradient_norm == pytest.approx(gradient, rel=1e-3)
    assert gradient > 10 * logistic.TOLERANCE


@pytest.mark.parametrize("folds", [None, 3])
@pytest.mark.parametrize(("seed", "unbalanced"), [(0, False), (1, True), (2, True)])
def test_probe_chooses_and_scores_as_the_same_steps_with_scikit_learn(seed, unbalanced, folds):
    rng = np.random.default_rng(seed)
    train_x, train_y, test_x, test_y = problem(rng, spread=1.0 + seed / 2)
    if unbalanced:  # and class 5 is missing from the test split
        keep = rng.random(N) < 0.3 ** (train_y % 3)
        train_x, train_y = train_x[keep], train_y[keep]
        test_x, test_y = test_x[test_y != 5], test_y[test_y != 5]
    arrays = train_x, train_y, test_x, test_y
    options = {"seed": 3, "folds": folds, "grid": L2S}
    result = linear_probe(*arrays, num_classes=CLASSES, **options)

    n, centre = len(train_x), train_x.mean(axis=0)
    scale = np.sqrt(np.mean(np.sum((train_x - centre) ** 2, axis=1)))
    x = (train_x - centre) / scale
    part = stratified_folds(train_y, folds, 3) if folds else stratified_part(train_y, 0.2, 3)
    parts = range(folds or 1)
    l2s = [cell["l2"] for cell in result["grid"]]
    assert l2s == sorted(L2S, reverse=True)
    for cell, l2 in zip(result["grid"], l2s, strict=True):
        expected = []
        for fold in parts:
            inside, valid = part != fold, part == fold
            reference = scikit_learn(x[inside], train_y[inside], l2)
            expected.append(100 * reference.score(x[valid], train_y[valid]))
        # At most one row lies so near a boundary that float32 decides.
        assert cell["fold_top1"] == pytest.approx(expected, abs=101 / np.sum(part == 0))
        assert cell["valid_top1"] == pytest.approx(np.mean(cell["fold_top1"]))
    means = [cell["valid_top1"] for cell in result["grid"]]
    l2 = l2s[int(np.argmax(means))]
    assert len(set(means)) > 1 and result["chosen"] == {"l2": l2}

    # On the features as they are, at the C of the result.
    assert result["C"] == pytest.approx(1 / (l2 * scale**2 * n), rel=1e-4)
    final = LogisticRegression(C=result["C"], tol=1e-9, max_iter=5000)
    final.fit(train_x.astype(np.float64), train_y)
    outputs = np.full((len(test_x), CLASSES), -np.inf)
    outputs[:, final.classes_] = final.decision_function(test_x)
    hits = np.argsort(-outputs, axis=1) == test_y[:, None]
    per_class = [
        pytest.approx(100 * hits[test_y == c, 0].mean()) if (test_y == c).any() else None
        for c in range(CLASSES)
    ]
    expected = {
        "protocol": "lbfgs",
        "top1": pytest.approx(100 * hits[:, 0].mean()),
        "top5": pytest.approx(100 * hits[:, :5].any(axis=1).mean()),
        "per_class": per_class,
        "n": len(test_x),
        "n_train": n,
        "d": D,
        "num_classes": CLASSES,
        "folds": folds,
        "valid_fraction": None if folds else 0.2,
        "seed": 3,
        "converged": True,
    }
    assert {key: result[key] for key in expected} == expected
    assert result["top1_interval"][0] < result["top1"] < result["top1_interval"][1]
    assert np.sum(result["confusion"]) == len(test_x)
    assert set(result["seconds"]) == {"check", "place", "select", "refit", "score"}
    assert json.loads(json.dumps(result)) == result


def without_seconds(result):
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize("folds", [None, 3])
def test_no_test_label_influences_a_choice(rng, folds):
    train_x, train_y, test_x, test_y = problem(rng, spread=2.5)
    options = {"num_classes": CLASSES, "folds": folds}
    result = without_seconds(linear_probe(train_x, train_y, test_x, test_y, **options))
    # Labels that the most and the least regularized classifier would like best, and shuffled ones.
    others = [predicted_by(train_x, train_y, test_x, l2) for l2 in (min(linear.L2S), 0.1)]
    for other_y in (*others, rng.permutation(test_y)):
        other = without_seconds(linear_probe(train_x, train_y, test_x, other_y, **options))
        assert other["top1"] != result["top1"]
        for key in result.keys() - SCORES:
            assert other[key] == result[key], key


def predicted_by(train_x, train_y, test_x, l2):
    return scikit_learn(train_x - train_x.mean(0), train_y, l2).predict(test_x - train_x.mean(0))


def test_lbfgs_result_is_the_same_for_scaled_moved_and_rotated_features(rng):
    train_x, train_y, test_x, test_y = problem(rng)
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0]

    def found(change):
        result = linear_probe(change(train_x), train_y, change(test_x), test_y, num_classes=CLASSES)
        return result["top1"], result["chosen"], result["grid"]

    reference = found(lambda x: x)
    assert found(lambda x: 1000 * x) == reference
    assert found(lambda x: 1e-3 * x + 0.1) == reference
    assert found(lambda x: x @ rotation) == reference


@pytest.fixture(scope="module")
def pixels():
    """Handwritten digits as they are, and the result on them."""
    x, y = load_digits(return_X_y=True)
    arrays = x[:1400].astype(np.float32), y[:1400], x[1400:].astype(np.float32), y[1400:]
    options = {"num_classes": 10, "grid": [1e-1, 1e-3]}
    return arrays, options, linear_probe(*arrays, **options)


def test_c_of_two_classes(rng):
    """scikit-learn has one vector then, and at this C the same classifier."""
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=60) > 0).astype(int)
    result = linear_probe(x[:40], y[:40], x[40:], y[40:], num_classes=2, grid=(0.1,))
    n, scale = 40, np.sqrt(np.mean(np.sum((x[:40] - x[:40].mean(0)) ** 2, axis=1)))
    assert result["C"] == pytest.approx(2 / (0.1 * scale**2 * n), rel=1e-4)
    scaled = (x[:40] - x[:40].mean(0)) / scale
    one = LogisticRegression(C=result["C"] * scale**2, tol=1e-10).fit(scaled, y[:40])
    both = minimize(
        lambda w: (
            np.mean(np.logaddexp(0, -(2 * y[:40] - 1) * (scaled @ (w[:3] - w[3:6]) + w[6])))
            + 0.1 / 2 * np.sum(w[:6] ** 2)
        ),
        np.zeros(7),
    ).x
    np.testing.assert_allclose(one.coef_[0], both[:3] - both[3:6], atol=1e-3)


@pytest.mark.parametrize("factor", [1e-25, 1e18, 1e25, 2e37])
def test_features_as_large_or_small_as_float32_holds(pixels, factor):
    """Neither their squares nor, at 2e37, their differences fit into float32."""
    (train_x, train_y, test_x, test_y), options, expected = pixels
    if factor == 2e37:
        train_x, test_x = train_x - 8, test_x - 8
    large = [(x * np.float32(factor)) for x in (train_x, test_x)]
    assert all(np.isfinite(x).all() for x in large)
    result = linear_probe(large[0], train_y, large[1], test_y, **options)
    assert expected["top1"] > 85 and result["converged"]
    for key in ("top1", "chosen", "valid_top1", "per_class"):
        assert result[key] == expected[key], key
    assert result["C"] == pytest.approx(expected["C"] / factor**2, rel=1e-3)


class Spied:
    """Features that know how many rows, and which, were read at a time."""

    def __init__(self, x):
        self.x, self.shape, self.reads = x, x.shape, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):
        found = self.x[rows]
        self.reads.append(len(found))
        return found


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_lbfgs_reads_features_in_blocks_of_rows(rng, monkeypatch, dtype):
    train_x, train_y, test_x, test_y = problem(rng)
    train_x, test_x = Spied(train_x.astype(dtype)), Spied(test_x.astype(dtype))
    expected = linear_probe(train_x.x, train_y, test_x.x, test_y, num_classes=CLASSES)
    for where in (checks, scores):
        monkeypatch.setattr(where, "BLOCK", 20 * D)
    monkeypatch.setattr(logistic, "READ", 20 * D)
    found = linear_probe(train_x, train_y, test_x, test_y, num_classes=CLASSES)
    assert max(train_x.reads) == max(test_x.reads) == 20
    for key in ("top1", "confusion", "chosen", "grid"):
        assert found[key] == expected[key], key


def test_rows_that_are_not_finite_are_named_in_every_block(rng, monkeypatch):
    monkeypatch.setattr(checks, "BLOCK", 20 * D)
    x = _spoiled(np.nan)
    with pytest.raises(
        UserError, match=r"x features: 6 of 300 .* \(rows 4, 7, 9, 11, 13, \.\.\.\)"
    ):
        checks.check_features("x", x)
    with pytest.raises(UserError, match=r"3 of 290 rows hold NaN or infinity \(rows 1, 3, 190\);"):
        checks.check_features("x", x[10:])
    fine = Spied(x[14:199])
    assert checks.check_features("x", fine) is fine and max(fine.reads) == 20


@pytest.mark.parametrize("devices", [1, 2])
def test_lbfgs_says_so_where_its_copy_does_not_fit(rng, monkeypatch, devices):
    arrays = problem(rng)
    monkeypatch.setattr(logistic, "scaling", None)  # it is not even begun
    share = 4 * N * D // devices
    monkeypatch.setattr(sharding, "memory", lambda _: share / linear.MEMORY_SHARE - 1)
    with pytest.raises(UserError, match=r"lbfgs needs .* 300 x 16 .* minibatches \(stl10, moco,"):
        linear_probe(*arrays, num_classes=CLASSES, devices=jax.devices()[:devices])
    monkeypatch.undo()
    monkeypatch.setattr(sharding, "memory", lambda _: share / linear.MEMORY_SHARE + 1)
    linear_probe(*arrays, num_classes=CLASSES, devices=jax.devices()[:devices], grid=[1e-2])


def test_a_choice_at_the_edge_of_the_grid_is_told(rng):
    arrays = problem(rng, spread=2.5)
    chosen = linear_probe(*arrays, num_classes=CLASSES)["chosen"]["l2"]
    for grid, at_edge in (
        ([chosen], False),
        ([10.0, chosen, 1e-9], False),
        ([10.0, chosen], True),
        ([chosen, 1e-9], True),
    ):
        result = linear_probe(*arrays, num_classes=CLASSES, grid=grid)
        assert result["chosen"] == {"l2": chosen} and result["chosen_at_edge"] is at_edge


def test_equal_held_out_scores_choose_the_strongest_regularization(rng):
    y = np.arange(N) % CLASSES
    x = np.eye(D)[y] + 0.01 * rng.normal(size=(N, D))
    result = linear_probe(x, y, x, y, num_classes=CLASSES, grid=(1e-5, 1e-2, 1e-3))
    assert [cell["valid_top1"] for cell in result["grid"]] == [100.0, 100.0, 100.0]
    assert [cell["l2"] for cell in result["grid"]] == [1e-2, 1e-3, 1e-5]
    assert result["chosen"] == {"l2": 1e-2}


def test_one_l2_is_taken_without_a_held_out_part(rng):
    train_x, train_y, test_x, test_y = problem(rng)
    result = linear_probe(train_x, train_y, test_x, test_y, num_classes=CLASSES, grid=[1e-2])
    assert result["chosen"] == {"l2": 1e-2} and result["valid_fraction"] is None
    assert result["grid"] == [{"l2": 1e-2, "valid_top1": None, "fold_top1": []}]


@pytest.mark.parametrize("protocol", ["lbfgs", "moco"])
def test_one_cell_is_scored_on_the_folds_that_are_asked_for(rng, centroids, protocol):
    arrays = problem(rng, spread=1.0)
    grid = [1e-2] if protocol == "lbfgs" else [(0.01, 0.0)]
    options = {"num_classes": CLASSES, "protocol": protocol, "folds": 3}
    (cell,) = linear_probe(*arrays, **options, grid=grid)["grid"]
    several = linear_probe(
        *arrays, **options, grid=[*grid, *([10.0] if protocol == "lbfgs" else GRID)]
    )
    assert len(cell["fold_top1"]) == 3 and cell["valid_top1"] == np.mean(cell["fold_top1"])
    name = "l2" if protocol == "lbfgs" else "learning_rate"
    assert cell in [other for other in several["grid"] if other[name] == cell[name]]


@pytest.mark.parametrize("protocol", ["lbfgs", "balanced"])
def test_a_class_without_training_rows_has_no_part_in_the_fit(rng, monkeypatch, protocol):
    """Class 3 here: the others are fitted, chosen and predicted as if it were not there."""
    if protocol in PROTOCOLS:
        monkeypatch.setitem(PROTOCOLS, protocol, PROTOCOLS[protocol]._replace(epochs=3))
    train_x, train_y, test_x, test_y = problem(rng, spread=2.0)
    names = np.array([0, 1, 2, 4, 5, 6])
    few = linear_probe(train_x, train_y, test_x, test_y, num_classes=6, protocol=protocol)
    more_x, more_y = np.concatenate([test_x, test_x[:1]]), np.append(names[test_y], 3)
    more = linear_probe(train_x, names[train_y], more_x, more_y, num_classes=7, protocol=protocol)
    for key in few.keys() - SCORES - {"seconds", "n", "num_classes"}:
        assert more[key] == few[key], key
    assert more["top1"] == pytest.approx(few["top1"] * 200 / 201)
    table = np.array(more["confusion"])
    assert table[3].sum() == 1 and table[:, 3].sum() == 0
    assert table[np.ix_(names, names)].tolist() == few["confusion"]
    assert more["per_class"][3] == 0.0


def test_many_fits_in_groups_are_those_at_once(rng, monkeypatch):
    arrays, options = problem(rng), {"num_classes": CLASSES, "folds": 3, "grid": L2S}
    whole = without_seconds(linear_probe(*arrays, **options))
    monkeypatch.setattr(linear, "AT_ONCE", 7 * CLASSES * D)
    grouped = without_seconds(linear_probe(*arrays, **options))
    for key in whole.keys() - {"steps", "gradient_norm"}:
        assert grouped[key] == whole[key], key


@pytest.mark.parametrize("folds", [None, 4])
def test_rare_and_missing_classes(rng, folds):
    train_x, train_y, test_x, test_y = problem(rng, spread=0.2)
    train_y[train_y == 5] = 4  # a class without a training sample, and one with a single one
    train_y[np.flatnonzero(train_y == 3)[1:]] = 2
    known = test_y < 2
    result = linear_probe(
        train_x, train_y, test_x[known], test_y[known], num_classes=CLASSES, folds=folds
    )
    assert result["top1"] > 90 and result["n"] == known.sum() and result["converged"]
    assert [top1 is None for top1 in result["per_class"]] == [False] * 2 + [True] * 4


def test_an_encoder_that_maps_all_to_one_point_gets_the_largest_class(rng):
    _, _, _, test_y = problem(rng)
    train_y = np.repeat(np.arange(CLASSES), [40, 40, 40, 100, 40, 40])
    x, test_x = np.full((N, D), 0.25), np.full((200, D), 0.25)
    result = linear_probe(x, train_y, test_x, test_y, num_classes=CLASSES)
    assert result["top1"] == pytest.approx(100 * np.mean(test_y == 3))


def test_a_fit_that_does_not_converge_says_so(rng, monkeypatch):
    arrays = problem(rng)
    monkeypatch.setattr(logistic, "TOLERANCE", 1e-12)
    result = linear_probe(*arrays, num_classes=CLASSES)
    assert result["converged"] is False and result["gradient_norm"] > 1e-12


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float64])
def test_other_dtypes_count_as_float32(rng, dtype):
    train_x, train_y, test_x, test_y = problem(rng)
    train_x, test_x = train_x.astype(dtype), test_x.astype(dtype)
    as_float32 = train_x.astype(np.float32), train_y, test_x.astype(np.float32), test_y
    result = linear_probe(train_x, train_y, jnp.asarray(test_x), test_y, num_classes=CLASSES)
    expected = linear_probe(*as_float32, num_classes=CLASSES)
    assert without_seconds(result) == without_seconds(expected)


def test_features_in_a_file_stay_there(rng, tmp_path):
    train_x, train_y, test_x, test_y = problem(rng)
    np.save(tmp_path / "x.npy", train_x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    result = linear_probe(mapped, train_y, test_x, test_y, num_classes=CLASSES)
    expected = linear_probe(train_x, train_y, test_x, test_y, num_classes=CLASSES)
    assert without_seconds(result) == without_seconds(expected)
    np.testing.assert_array_equal(mapped, train_x)


def test_a_large_problem_is_not_fitted_to_the_end_while_choosing(rng, monkeypatch):
    arrays = problem(rng)
    to_the_end = linear_probe(*arrays, num_classes=CLASSES)
    monkeypatch.setattr(linear, "SMALL", 0)
    ended, original = [], logistic.fit_logistic

    def fit_logistic(*args, **options):
        ended.append(original(*args, **options))
        return ended[-1]

    monkeypatch.setattr(logistic, "fit_logistic", fit_logistic)
    result = linear_probe(*arrays, num_classes=CLASSES)
    assert ended[0].gradient_norm.max() > 10 * logistic.TOLERANCE and result["converged"]
    assert len(ended[1].steps) == 1
    for cell, same in zip(result["grid"], to_the_end["grid"], strict=True):
        assert cell["valid_top1"] == pytest.approx(same["valid_top1"], abs=3.5)  # 2 of 61 rows


GRID = ((0.01, 0.0), (9.0, 0.0), (9.0, 1.0), (1e4, 0.0))


class Recipe(NamedTuple):
    grid: tuple


@pytest.fixture
def centroids(monkeypatch):
    """In place of training by minibatches: nearest class means, spoiled more in some cells."""
    calls = []

    def fit_grid(protocol, x, y, rows, grid, *, num_classes, seed, epoch_features, devices):
        calls.append((rows, list(grid)))
        means = np.stack([x[rows][y[rows] == c].mean(axis=0) for c in range(num_classes)])
        found = []
        for rate, decay in grid:
            noise = np.random.default_rng(0).normal(size=means.shape) * (rate + decay)
            weights = means + noise if rate < 100 else means * np.nan
            found.append(Classifier(weights, -(weights**2).sum(axis=1) / 2))
        return found, {"epochs": 7}

    monkeypatch.setattr(linear, "PROTOCOLS", {"moco": Recipe(GRID)})
    monkeypatch.setattr(linear, "fit_grid", fit_grid)
    return calls


@pytest.mark.parametrize("folds", [None, 3])
def test_learning_rate_and_weight_decay_are_chosen_the_same_way(rng, centroids, folds):
    train_x, train_y, test_x, test_y = problem(rng, spread=0.3)
    options = {"num_classes": CLASSES, "protocol": "moco", "folds": folds, "seed": 2}
    result = linear_probe(train_x, train_y, test_x, test_y, **options)
    part = stratified_folds(train_y, folds, 2) if folds else stratified_part(train_y, 0.2, 2)
    for fold in range(folds or 1):
        rows, grid = centroids[fold]
        np.testing.assert_array_equal(rows, np.flatnonzero(part != fold))
        assert grid == list(GRID)
    (rows, grid) = centroids[-1]
    assert len(centroids) == (folds or 1) + 1 and len(rows) == N and grid == [(0.01, 0.0)]

    assert result["chosen"] == {"learning_rate": 0.01, "weight_decay": 0.0}
    assert result["epochs"] == 7 and result["top1"] > 90
    assert result["grid"][-1]["valid_top1"] is None  # it diverged
    means = np.stack([train_x[train_y == c].mean(axis=0) for c in range(CLASSES)])
    distances = ((test_x[:, None] - means) ** 2).sum(axis=-1)
    assert result["top1"] == pytest.approx(100 * np.mean(distances.argmin(axis=1) == test_y), abs=1)
    assert json.loads(json.dumps(result)) == result
    shuffled = linear_probe(train_x, train_y, test_x, rng.permutation(test_y), **options)
    for key in result.keys() - SCORES - {"seconds"}:
        assert shuffled[key] == result[key], key


def test_held_out_rows_are_read_in_blocks(rng, centroids, monkeypatch):
    train_x, train_y, test_x, test_y = problem(rng)
    options = {"num_classes": CLASSES, "protocol": "moco"}
    expected = linear_probe(train_x, train_y, test_x, test_y, **options)
    monkeypatch.setattr(scores, "BLOCK", 7 * D)
    held_out = int(np.sum(stratified_part(train_y, 0.2, 0) == 0))
    spied = Spied(train_x)
    result = linear_probe(spied, train_y, test_x, test_y, **options)
    assert result["grid"] == [
        cell | {key: pytest.approx(cell[key]) for key in ("valid_top1", "fold_top1")}
        for cell in expected["grid"]
    ]
    # Once for all cells; whole are the readings by the stand-in for training alone.
    parts = [read for read in spied.reads[2:] if read < N - held_out]
    assert parts == [7] * (held_out // 7) + [held_out % 7] * int(held_out % 7 > 0)


def test_a_classifier_that_diverged_is_no_result(rng, centroids):
    options = {"num_classes": CLASSES, "protocol": "moco", "grid": [(1e4, 0.0)]}
    with pytest.raises(UserError, match="diverged at learning rate 10000"):
        linear_probe(*problem(rng), **options)


def _spoiled(value):
    x = np.zeros((N, D))
    x[[4, 7, 9, 11, 13, 200], 3] = value
    return x


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_y": np.full(N, 2)}, "train labels: only class 2"),
        ({"train_x": _spoiled(np.nan)}, r"train features: 6 of 300 .* \(rows 4, 7, .*, \.\.\.\)"),
        ({"train_x": _spoiled(-np.inf)}, "train features: 6 of 300 rows"),
        ({"train_x": _spoiled(1e39)}, "train features: 6 of 300 rows"),
        ({"test_x": np.zeros((200, D - 1))}, "train features have 16 dimensions, test features 15"),
        ({"test_x": np.zeros(200)}, r"test features: expected \[n, d\], got shape \(200,\)"),
        ({"test_x": np.zeros((200, D), complex)}, "test features: .* got complex128"),
        ({"test_y": np.zeros(199, int)}, r"test labels: expected shape \(200,\), got \(199,\)"),
        ({"test_y": np.zeros(200)}, "test labels: expected integers, got float64: save them as i"),
        ({"test_y": np.zeros(200, bool)}, "expected integers, got bool: save them as integers"),
        ({"train_x": np.zeros((0, D)), "train_y": np.zeros(0, int)},
         r"train features: expected \[n, d\], got shape \(0, 16\)"),
        ({"test_y": np.full(200, 6)}, r"test labels: 6 \(row 0\) is not .* 6 classes 0 to 5"),
        ({"train_y": np.arange(N) % 6 - 1}, r"train labels: -1 \(row 0\)"),
        ({"protocol": "sgd"}, "'sgd': choose one of lbfgs, moco"),
        ({"grid": []}, "grid: give at least one"),
        ({"grid": [0.0, 1.0]}, "grid .* l2 must be positive"),
        ({"grid": [(1.0, 0.0)]}, "grid .* chooses from numbers"),
        ({"protocol": "moco", "grid": [0.1]}, "grid .* chooses from pairs"),
        ({"protocol": "moco", "grid": []}, "grid: give at least one"),
        ({"protocol": "moco", "grid": [(0.0, 0.0)]}, "grid .* must be pairs"),
        ({"epoch_features": lambda epoch: None}, "epoch_features: lbfgs has no epochs"),
        ({"valid_fraction": 1.0}, "valid_fraction = 1.0"),
        ({"folds": 1}, "folds = 1"),
        ({"train_x": np.eye(6), "train_y": np.arange(6), "test_x": np.zeros((200, 6))},
         "no class has two training samples"),
    ],
)  # fmt: skip
def test_mistakes_are_named(rng, centroids, change, message):
    names = "train_x", "train_y", "test_x", "test_y"
    arguments = dict(zip(names, problem(rng), strict=True), num_classes=CLASSES)
    with pytest.raises(UserError, match=message) as error:
        linear_probe(**(arguments | change))
    assert "\n" not in str(error.value)


def test_steps_that_go_too_far_are_shortened():
    """Far from the minimum, log cosh is straight: steps by its curvature there are too long."""
    centres = np.array([0.3, -2.0, 5.0, 0.0], np.float32).reshape(2, 1, 2)

    def gradient_at(points):
        return jnp.tanh(4 * (points - centres))

    @jax.jit
    def advance(state):
        return lbfgs.advance(state, gradient_at, lambda vectors: 50 * vectors, 1e-5, 0.0)

    state = lbfgs.begin(jnp.full((2, 1, 2), 1.0))
    for _ in range(60):
        state = advance(state)
    assert state.done.all() and (state.norm <= 1e-5).all()
    np.testing.assert_allclose(state.point, centres, atol=1e-5)
