"""Linear probes against scikit-learn, and Adam against a float64 loop."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere
from sklearn.linear_model import LogisticRegression

from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import linear
from hypersphere_jax.evaluation.linear import linear_probe, stratified_split

CLASSES, N, D = 6, 300, 16  # most tests share these shapes, and so the compiled functions


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


def fit(x, y, l2, rows=None, start=None, **options):
    x, y = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    weight = jnp.ones(len(x)) if rows is None else jnp.zeros(len(x)).at[rows].set(1.0)
    if start is None:
        start = linear.Classifier(jnp.zeros((CLASSES, x.shape[1])), jnp.zeros(CLASSES))
    moments = linear.second_moments(x)
    return linear.fit_logistic(start, x, y, moments, weight, l2, **options)


def assert_same_classifier(classifier, reference, tolerance=2e-3):
    scale = np.abs(reference.coef_).max()
    np.testing.assert_allclose(classifier.weights, reference.coef_, atol=tolerance * scale)
    # A number added to every bias changes nothing: neither penalizes it.
    bias = np.asarray(classifier.bias)
    expected = reference.intercept_ - reference.intercept_.mean()
    np.testing.assert_allclose(bias - bias.mean(), expected, atol=tolerance * scale)


@pytest.mark.parametrize(("d", "l2"), [(D, 1e-1), (D, 1e-3), (D, 1e-5), (2, 1e-4), (512, 1e-4)])
def test_lbfgs_finds_the_optimum_of_scikit_learn(rng, d, l2):
    x, y, _, _ = problem(rng, d=d)
    found = fit(x, y, l2)
    assert found.gradient_norm <= linear.TOLERANCE
    assert_same_classifier(found.classifier, scikit_learn(x, y, l2))


def test_rows_of_weight_zero_do_not_count(rng):
    x, y, _, _ = problem(rng)
    rows = np.flatnonzero(rng.random(N) < 0.6)
    assert_same_classifier(fit(x, y, 1e-3, rows).classifier, scikit_learn(x[rows], y[rows], 1e-3))


def test_lbfgs_converges_on_features_of_very_unequal_variance(rng):
    """Where plain L-BFGS has not converged after 1000 steps."""
    x = rng.normal(size=(N, D)) * np.logspace(0, -4, D)
    y = (x / np.logspace(0, -4, D) @ rng.normal(size=(D, CLASSES))).argmax(axis=1)
    found = fit(x.astype(np.float32), y, 1e-6)
    assert found.gradient_norm <= linear.TOLERANCE and found.steps < 200
    again = fit(x.astype(np.float32), y, 1e-6, start=found.classifier)
    assert again.gradient_norm <= linear.TOLERANCE and again.steps == 1


def test_gradient_norm_is_that_of_the_objective(rng):
    x, y, _, _ = problem(rng)
    found = fit(x, y, 1e-2, max_steps=3)
    weights, bias = (np.asarray(leaf, np.float64) for leaf in found.classifier)
    exps = np.exp(x @ weights.T + bias)
    errors = (exps / exps.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / N
    gradient = np.linalg.norm(np.c_[errors.T @ x + 1e-2 * weights, errors.sum(axis=0)])
    assert found.steps == 3
    assert found.gradient_norm == pytest.approx(gradient, rel=1e-3)
    assert gradient > 10 * linear.TOLERANCE


@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_probe_chooses_and_scores_as_the_same_steps_with_scikit_learn(rng, spread):
    train_x, train_y, test_x, test_y = problem(rng, spread=spread)
    result = linear_probe(train_x, train_y, test_x, test_y, num_classes=CLASSES, seed=3)

    centre = train_x.mean(axis=0)
    scale = np.sqrt(np.mean(np.sum((train_x - centre) ** 2, axis=1)))
    train_x, test_x = (train_x - centre) / scale, (test_x - centre) / scale
    fitting, held_out = stratified_split(train_y, 0.2, 3)
    valid_top1 = [
        100
        * scikit_learn(train_x[fitting], train_y[fitting], l2).score(
            train_x[held_out], train_y[held_out]
        )
        for l2 in result["l2_grid"]
    ]
    l2 = result["l2_grid"][int(np.argmax(valid_top1))]
    final = scikit_learn(train_x, train_y, l2)
    ranked = np.argsort(-final.decision_function(test_x), axis=1)
    hits = ranked == test_y[:, None]

    assert result["valid_top1"] == pytest.approx(valid_top1)
    assert len(set(valid_top1)) > 1
    expected = {
        "protocol": "lbfgs",
        "top1": pytest.approx(100 * hits[:, 0].mean()),
        "top5": pytest.approx(100 * hits[:, :5].any(axis=1).mean()),
        "n": 200,
        "n_train": N,
        "n_valid": len(held_out),
        "d": D,
        "num_classes": CLASSES,
        "chosen": {"l2": l2},
        "seed": 3,
        "converged": True,
    }
    assert {key: result[key] for key in expected} == expected
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("protocol", linear.L2_GRIDS)
def test_no_test_label_influences_a_choice(rng, protocol):
    train_x, train_y, test_x, test_y = problem(rng, spread=2.5)
    options = {"num_classes": CLASSES, "protocol": protocol}
    result = linear_probe(train_x, train_y, test_x, test_y, **options)
    # Labels that the most and the least regularized classifier would like best in turn.
    for l2 in (min(result["l2_grid"]), max(result["l2_grid"])):
        other_y = _predicted_by(train_x, train_y, test_x, l2 or 1e-8)
        other = linear_probe(train_x, train_y, test_x, other_y, **options)
        assert other["top1"] != result["top1"]
        for key in result.keys() - {"top1", "top5"}:
            assert other[key] == result[key], key


def _predicted_by(train_x, train_y, test_x, l2):
    return scikit_learn(train_x - train_x.mean(0), train_y, l2).predict(test_x - train_x.mean(0))


def test_lbfgs_result_is_the_same_for_scaled_moved_and_rotated_features(rng):
    train_x, train_y, test_x, test_y = problem(rng)
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0]

    def top1(change):
        result = linear_probe(change(train_x), train_y, change(test_x), test_y, num_classes=CLASSES)
        return result["top1"], result["chosen"], result["valid_top1"]

    reference = top1(lambda x: x)
    assert top1(lambda x: 1000 * x) == reference
    assert top1(lambda x: 1e-3 * x + 0.1) == reference
    assert top1(lambda x: x @ rotation) == reference


def test_equal_held_out_scores_choose_the_strongest_regularization(rng):
    y = np.arange(N) % CLASSES
    x = np.eye(D)[y] + 0.01 * rng.normal(size=(N, D))
    result = linear_probe(x, y, x, y, num_classes=CLASSES, l2_grid=(1e-5, 1e-2, 1e-3))
    assert result["valid_top1"] == [100.0, 100.0, 100.0]
    assert result["l2_grid"] == [1e-2, 1e-3, 1e-5] and result["chosen"] == {"l2": 1e-2}


def test_one_l2_is_taken_without_a_held_out_part(rng):
    train_x, train_y, test_x, test_y = problem(rng)
    result = linear_probe(train_x, train_y, test_x, test_y, num_classes=CLASSES, l2_grid=[1e-2])
    assert (result["chosen"], result["n_valid"], result["valid_top1"]) == ({"l2": 1e-2}, 0, None)


def test_stratified_split_is_a_seeded_partition_of_every_class():
    y = np.repeat([0, 1, 2, 3, 5], [100, 33, 3, 2, 1])
    fitting, held_out = stratified_split(y, 0.2, 0)
    np.testing.assert_array_equal(np.sort(np.concatenate([fitting, held_out])), np.arange(139))
    assert np.bincount(y[held_out], minlength=6).tolist() == [20, 7, 1, 1, 0, 0]
    again, other = stratified_split(y, 0.2, 0)[1], stratified_split(y, 0.2, 1)[1]
    assert np.array_equal(held_out, again) and not np.array_equal(held_out, other)
    assert np.bincount(y[stratified_split(y, 0.9, 0)[0]]).tolist() == [10, 3, 1, 1, 0, 1]


@pytest.mark.parametrize("protocol", linear.L2_GRIDS)
def test_rare_and_missing_classes(rng, protocol):
    train_x, train_y, test_x, test_y = problem(rng, spread=0.2)
    train_y[train_y == 5] = 4  # a class without a training sample, and one with a single one
    train_y[np.flatnonzero(train_y == 3)[1:]] = 2
    known = test_y < 2
    result = linear_probe(
        train_x, train_y, test_x[known], test_y[known], num_classes=CLASSES, protocol=protocol
    )
    assert result["top1"] > 90 and result["n"] == known.sum()


@pytest.mark.parametrize("protocol", linear.L2_GRIDS)
def test_an_encoder_that_maps_all_to_one_point_gets_the_largest_class(rng, protocol):
    _, _, _, test_y = problem(rng)
    train_y = np.repeat(np.arange(CLASSES), [40, 40, 40, 100, 40, 40])
    x, test_x = np.full((N, D), 0.25), np.full((200, D), 0.25)
    result = linear_probe(x, train_y, test_x, test_y, num_classes=CLASSES, protocol=protocol)
    assert result["top1"] == pytest.approx(100 * np.mean(test_y == 3))


def adam_oracle(x, y, rows, l2, seed):
    """Wang & Isola's B.1, in loops: weights and bias after 100 epochs."""
    x, targets = x.astype(np.float64), np.eye(CLASSES)[y]
    w, m, v, t = np.zeros((CLASSES, D + 1)), 0.0, 0.0, 0
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    for epoch in range(100):
        rate = 0.001 if epoch < 60 else 0.0002 if epoch < 80 else 0.00004
        order = np.random.default_rng([seed, epoch]).permutation(rows)
        for start in range(0, len(order), 128):
            batch = order[start : start + 128]
            exps = np.exp(x[batch] @ w.T)
            errors = exps / exps.sum(axis=1, keepdims=True) - targets[batch]
            gradient = errors.T @ x[batch] / len(batch)
            gradient[:, :D] += l2 * w[:, :D]
            t += 1
            m, v = 0.5 * m + 0.5 * gradient, 0.999 * v + 0.001 * gradient**2
            w = w - rate * (m / (1 - 0.5**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w[:, :D], w[:, D]


def test_adam_follows_the_paper_for_every_l2_at_once(rng):
    x, y, _, _ = problem(rng)
    rows = np.flatnonzero(rng.random(N) < 0.7)
    assert len(rows) % 128
    zeros = linear.Classifier(jnp.zeros((CLASSES, D)), jnp.zeros(CLASSES))
    l2s = [0.1, 0.001, 0.0]
    labels = jnp.asarray(y, jnp.int32)
    classifiers, report = linear._fit_adam(zeros, jnp.asarray(x), labels, 5, rows, l2s)
    for classifier, l2 in zip(classifiers, l2s, strict=True):
        weights, bias = adam_oracle(x, y, rows, l2, 5)
        np.testing.assert_allclose(classifier.weights, weights, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(classifier.bias, bias, rtol=1e-3, atol=1e-4)
    assert report == {"epochs": 100, "batch_size": 128, "learning_rate": 0.001}


def test_adam_probe_separates_clear_classes_and_repeats_itself(rng):
    train_x, train_y, test_x, test_y = problem(rng, spread=0.3)
    arrays = 10 * train_x, train_y, 10 * test_x, test_y  # 300 steps go a short way on unit norm
    result = linear_probe(*arrays, num_classes=CLASSES, protocol="adam")
    assert result["top1"] > 98
    assert result == linear_probe(*arrays, num_classes=CLASSES, protocol="adam")
    assert json.loads(json.dumps(result)) == result


def test_a_fit_that_does_not_converge_says_so(rng, monkeypatch):
    train_x, train_y, test_x, test_y = problem(rng)
    monkeypatch.setattr(linear, "TOLERANCE", 1e-12)
    result = linear_probe(train_x, train_y, test_x, test_y, num_classes=CLASSES)
    assert result["converged"] is False and result["gradient_norm"] > 1e-12


def test_top5_is_left_out_where_it_is_always_right(rng):
    arrays = problem(rng, num_classes=2)
    assert linear_probe(*arrays, num_classes=2, l2_grid=[1e-3])["top5"] is None


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float64])
def test_other_dtypes_count_as_float32(rng, dtype):
    train_x, train_y, test_x, test_y = problem(rng)
    train_x, test_x = train_x.astype(dtype), test_x.astype(dtype)
    as_float32 = train_x.astype(np.float32), train_y, test_x.astype(np.float32), test_y
    result = linear_probe(train_x, train_y, jnp.asarray(test_x), test_y, num_classes=CLASSES)
    assert result == linear_probe(*as_float32, num_classes=CLASSES)


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
        ({"test_y": np.zeros(200)}, "test labels: expected integers, got float64"),
        ({"test_y": np.full(200, 6)}, r"test labels: 6 \(row 0\) is not .* 6 classes 0 to 5"),
        ({"train_y": np.arange(N) % 6 - 1}, r"train labels: -1 \(row 0\)"),
        ({"protocol": "sgd"}, "'sgd': choose one of lbfgs, adam"),
        ({"l2_grid": []}, "l2_grid: give at least one"),
        ({"l2_grid": [0.0, 1.0]}, "l2_grid .* must be positive"),
        ({"protocol": "adam", "l2_grid": [-1.0, 1.0]}, "l2_grid .* must be positive"),
        ({"valid_fraction": 1.0}, "valid_fraction = 1.0"),
    ],
)  # fmt: skip
def test_mistakes_are_named(rng, change, message):
    names = "train_x", "train_y", "test_x", "test_y"
    arguments = dict(zip(names, problem(rng), strict=True), num_classes=CLASSES)
    with pytest.raises(UserError, match=message) as error:
        linear_probe(**(arguments | change))
    assert "\n" not in str(error.value)


def test_no_choice_without_two_samples_of_a_class(rng):
    x = sphere(rng, 3, 4)
    with pytest.raises(UserError, match="no class has two training samples"):
        linear_probe(x, np.arange(3), x, np.arange(3), num_classes=3)
