"""The linear probe: what is chosen on training data alone, and what is scored once on the test.

Most problems have one shape and four values of l2, and so share compiled programs.
"""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import Watched, scikit_learn, splits

from hypersphere_jax import sharding
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import checks, linear, logistic, scores
from hypersphere_jax.evaluation.classifier import Classifier
from hypersphere_jax.evaluation.selection import stratified_folds, stratified_part
from hypersphere_jax.evaluation.sgd import PROTOCOLS

CLASSES, N, D = 6, 300, 16
L2S = (1e-3, 1e-1, 1e-4, 1e-2)
SCORES = {"top1", "top5", "top1_interval", "per_class", "confusion"}


def probed(train_x, train_y, test_x, test_y, **options):
    options = {"num_classes": CLASSES} | options
    if options.get("protocol", "lbfgs") == "lbfgs":
        options = {"grid": L2S} | options
    return linear.linear_probe(train_x, train_y, test_x, test_y, **options)


def assert_same(found, expected, but=()):
    for key in expected.keys() - {"seconds", *but}:
        assert found[key] == expected[key], key


@pytest.mark.parametrize("folds", [None, 3])
def test_choice_and_scores_are_those_of_the_same_steps_with_scikit_learn(rng, folds):
    train_x, train_y, test_x, test_y = splits(rng, spread=2.0)
    if folds:  # unbalanced, and class 5 is missing from the test split
        rows = np.resize(np.flatnonzero(rng.random(N) < 0.4 ** (train_y % 3)), N)
        train_x = (train_x[rows] + 0.1 * rng.normal(size=(N, D))).astype(np.float32)
        train_y, test_x, test_y = train_y[rows], test_x[test_y != 5], test_y[test_y != 5]
    arrays = train_x, train_y, test_x, test_y
    result = probed(*arrays, seed=3, folds=folds)

    centre = train_x.mean(axis=0, dtype=np.float64)
    scale = np.sqrt(np.mean(np.sum((train_x - centre) ** 2, axis=1)))
    x = (train_x - centre) / scale
    part = stratified_folds(train_y, folds, 3) if folds else stratified_part(train_y, 0.2, 3)
    l2s = [cell["l2"] for cell in result["grid"]]
    assert l2s == sorted(L2S, reverse=True)
    for cell, l2 in zip(result["grid"], l2s, strict=True):
        expected = []
        for fold in range(folds or 1):
            inside, valid = part != fold, part == fold
            reference = scikit_learn(x[inside], train_y[inside], 1 / (l2 * inside.sum()))
            expected.append(100 * reference.score(x[valid], train_y[valid]))
        # At most one row lies so near a boundary that float32 decides.
        assert cell["fold_top1"] == pytest.approx(expected, abs=101 / np.sum(part == 0))
        assert cell["valid_top1"] == pytest.approx(np.mean(cell["fold_top1"]))
    means = [cell["valid_top1"] for cell in result["grid"]]
    l2 = l2s[int(np.argmax(means))]
    assert len(set(means)) > 1 and result["chosen"] == {"l2": l2}
    assert result["valid_top1"] == max(means)

    # On the features as they are, at the C of the result.
    assert result["C"] == pytest.approx(1 / (l2 * scale**2 * N), rel=1e-4)
    final = scikit_learn(train_x, train_y, result["C"])
    outputs = np.full((len(test_x), CLASSES), -np.inf)
    outputs[:, final.classes_] = final.decision_function(test_x)
    hits = np.argsort(-outputs, axis=1) == test_y[:, None]
    per_class = [
        pytest.approx(100 * hits[test_y == c, 0].mean()) if (test_y == c).any() else None
        for c in range(CLASSES)
    ]
    expected = {"protocol": "lbfgs", "n": len(test_x), "n_train": N, "d": D, "folds": folds}
    expected |= {"valid_fraction": None if folds else 0.2, "num_classes": CLASSES, "seed": 3}
    expected |= {"converged": True, "per_class": per_class}
    expected |= {"top1": pytest.approx(100 * hits[:, 0].mean())}
    expected |= {"top5": pytest.approx(100 * hits[:, :5].any(axis=1).mean())}
    assert {key: result[key] for key in expected} == expected
    assert np.sum(result["confusion"]) == len(test_x)
    assert set(result["seconds"]) == {"check", "place", "select", "refit", "score"}
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("folds", [None, 3])
def test_no_test_label_influences_a_choice(rng, folds):
    train_x, train_y, test_x, test_y = splits(rng, spread=2.5)
    result = probed(train_x, train_y, test_x, test_y, folds=folds)
    # Labels that the most and the least regularized classifier would like best, and shuffled ones.
    others = [scikit_learn(train_x, train_y, c).predict(test_x) for c in (0.01, 1e4)]
    for other_y in (*others, rng.permutation(test_y)):
        other = probed(train_x, train_y, test_x, other_y, folds=folds)
        assert other["top1"] != result["top1"]
        assert_same(other, result, but=SCORES)


def test_what_changes_nothing(rng, monkeypatch, tmp_path):
    """Scale, place, rotation and dtype of features, where they lie, and how they are cut."""
    train_x, train_y, test_x, test_y = splits(rng)
    train_x, test_x = (x.astype(np.float16).astype(np.float32) for x in (train_x, test_x))
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0]
    np.save(tmp_path / "x.npy", train_x)
    reference = probed(train_x, train_y, test_x, test_y)
    for name, change in {
        "larger": lambda x: 1000 * x,
        "smaller and elsewhere": lambda x: 1e-3 * x + 0.1,
        "rotated": lambda x: x @ rotation,
        "1e-25": lambda x: x * np.float32(1e-25),
        "1e25": lambda x: x * np.float32(1e25),
        "2e37": lambda x: x * np.float32(1e38),  # a difference may not fit into float32
        "float16": lambda x: x.astype(np.float16),
        "bfloat16": lambda x: jnp.asarray(x, jnp.bfloat16).astype(jnp.float32),
        "float64": lambda x: x.astype(np.float64),
        "file": lambda x: np.load(tmp_path / "x.npy", mmap_mode="r") if len(x) == N else x,
    }.items():
        found = probed(change(train_x), train_y, change(test_x), test_y)
        expected = reference
        if name == "bfloat16":  # rounded
            x = np.float32(change(train_x)), np.float32(change(test_x))
            expected = probed(x[0], train_y, x[1], test_y)
        for key in ("top1", "chosen", "grid", "confusion", "converged"):
            assert found[key] == expected[key], (name, key)

    # All fits in groups of seven, and reading twenty rows at a time.
    folds = probed(train_x, train_y, test_x, test_y, folds=3)
    with monkeypatch.context() as patch:
        patch.setattr(linear, "AT_ONCE", 7 * CLASSES * D)
        grouped = probed(train_x, train_y, test_x, test_y, folds=3)
    assert_same(grouped, folds, but={"steps", "gradient_norm"})
    for where, name in ((checks, "BLOCK"), (scores, "BLOCK"), (logistic, "READ")):
        monkeypatch.setattr(where, name, 20 * D)
    watched = Watched(train_x), Watched(test_x)
    found = probed(watched[0], train_y, watched[1], test_y)
    assert [max(x.reads) for x in watched] == [20, 20]
    assert_same(found, reference)


def test_c_of_two_classes(rng):
    """scikit-learn has one vector then, and at this C the same classifier."""
    train_x, train_y, test_x, test_y = splits(rng, d=3, num_classes=2)
    result = probed(train_x, train_y, test_x, test_y, num_classes=2, grid=(0.1,))
    variance = np.mean(np.sum((train_x - train_x.mean(0)) ** 2, axis=1))
    assert result["C"] == pytest.approx(2 / (0.1 * variance * N), rel=1e-4)
    reference = scikit_learn(train_x, train_y, result["C"])
    assert result["top1"] == pytest.approx(100 * reference.score(test_x, test_y), abs=0.6)


@pytest.mark.parametrize("devices", [1, 2])
def test_lbfgs_says_so_where_its_copy_does_not_fit(rng, monkeypatch, devices):
    arrays, share = splits(rng), 4 * N * D // devices
    monkeypatch.setattr(logistic, "scaling", lambda x: 1 / 0)  # what comes after the check
    for room, said in (
        (-1, pytest.raises(UserError, match=r"lbfgs needs .* 300 x 16 .* \(stl10, moco, ")),
        (+1, pytest.raises(ZeroDivisionError)),
    ):
        memory = share / linear.MEMORY_SHARE + room
        monkeypatch.setattr(sharding, "memory", lambda _, memory=memory: memory)
        with said:
            probed(*arrays, devices=jax.devices()[:devices])


def test_which_cell_is_chosen(rng):
    """The best; of equals the most regularized; one alone as it is. An edge of the grid is told."""
    arrays = splits(rng, spread=2.5)
    chosen = probed(*arrays)["chosen"]["l2"]
    for grid, at_edge in (
        ([9.0, 10.0, chosen, 1e-9], False),
        ([10.0, 11.0, 12.0, chosen], True),
        ([chosen, 1e-9, 2e-9, 3e-9], True),
    ):
        result = probed(*arrays, grid=grid)
        assert result["chosen"] == {"l2": chosen} and result["chosen_at_edge"] is at_edge

    y = np.arange(N) % CLASSES
    x = np.eye(D)[y] + 0.01 * rng.normal(size=(N, D))
    result = probed(x, y, x, y)
    assert [cell["valid_top1"] for cell in result["grid"]] == [100.0] * 4
    assert result["chosen"] == {"l2": 1e-1}

    alone = probed(*arrays, grid=[1e-2])
    assert alone["chosen"] == {"l2": 1e-2} and alone["valid_fraction"] is None
    assert alone["grid"] == [{"l2": 1e-2, "valid_top1": None, "fold_top1": []}]
    assert alone["chosen_at_edge"] is False
    (cell,) = probed(*arrays, folds=3, grid=[1e-2])["grid"]
    assert len(cell["fold_top1"]) == 3 and cell["valid_top1"] == np.mean(cell["fold_top1"])
    assert cell in probed(*arrays, folds=3)["grid"]


@pytest.mark.parametrize("protocol", ["lbfgs", "balanced"])
def test_a_class_without_training_rows_has_no_part_in_the_fit(rng, monkeypatch, protocol):
    """Class 3 here: the others are fitted, chosen and predicted as if it were not there."""
    monkeypatch.setitem(PROTOCOLS, "balanced", PROTOCOLS["balanced"]._replace(epochs=3))
    train_x, train_y, test_x, test_y = splits(rng, spread=2.0)
    names = np.array([0, 1, 2, 4, 5, 6])
    few = probed(train_x, train_y, test_x, test_y, protocol=protocol)
    more_x, more_y = np.concatenate([test_x, test_x[:1]]), np.append(names[test_y], 3)
    more = probed(train_x, names[train_y], more_x, more_y, num_classes=7, protocol=protocol)
    assert_same(more, few, but=SCORES | {"n", "num_classes"})
    assert more["top1"] == pytest.approx(few["top1"] * 200 / 201)
    table = np.array(more["confusion"])
    assert table[3].sum() == 1 and table[:, 3].sum() == 0
    assert table[np.ix_(names, names)].tolist() == few["confusion"]
    assert more["per_class"][3] == 0.0


def test_rare_classes_and_features_without_signal(rng, monkeypatch):
    train_x, train_y, test_x, test_y = splits(rng, spread=0.2)
    rare = train_y.copy()
    rare[np.flatnonzero(rare == 3)[1:]] = 2  # one sample of class 3 is left
    known = test_y < 2
    for folds in (None, 3):
        result = probed(train_x, rare, test_x[known], test_y[known], folds=folds)
        assert result["top1"] > 90 and result["n"] == known.sum() and result["converged"]
        assert [top1 is None for top1 in result["per_class"]] == [False] * 2 + [True] * 4
    # An encoder that maps all to one point gets the largest class.
    largest = np.repeat(np.arange(CLASSES), [40, 40, 40, 100, 40, 40])
    result = probed(np.full((N, D), 0.25), largest, np.full((200, D), 0.25), test_y)
    assert result["top1"] == pytest.approx(100 * np.mean(test_y == 3))
    # A fit that does not converge says so.
    monkeypatch.setattr(logistic, "TOLERANCE", 1e-12)
    result = probed(train_x, train_y, test_x, test_y)
    assert result["converged"] is False and result["gradient_norm"] > 1e-12


def test_a_large_problem_is_not_fitted_to_the_end_while_choosing(rng, monkeypatch):
    arrays = splits(rng)
    to_the_end = probed(*arrays)
    ended, original = [], logistic.fit_logistic

    def fit_logistic(*args, **options):
        ended.append(original(*args, **options))
        return ended[-1]

    monkeypatch.setattr(linear, "SMALL", 0)
    monkeypatch.setattr(linear, "EXCESS", 1e-3)
    monkeypatch.setattr(logistic, "fit_logistic", fit_logistic)
    result = probed(*arrays)
    assert ended[0].gradient_norm.max() > 10 * logistic.TOLERANCE and result["converged"]
    assert len(ended[0].steps) == 4 and len(ended[1].steps) == 1
    for cell, same in zip(result["grid"], to_the_end["grid"], strict=True):
        assert cell["valid_top1"] == pytest.approx(same["valid_top1"], abs=3.5)  # 2 of 61 rows


# By minibatches.

GRID = ((1e-9, 0.0), (9.0, 0.0), (9.0, 1.0), (1e4, 0.0))


class Recipe(NamedTuple):
    grid: tuple


@pytest.fixture
def centroids(monkeypatch):
    """In place of training by minibatches: nearest class means, spoiled more in some cells."""
    calls = []

    def fit_grid(protocol, x, y, rows, grid, *, num_classes, seed, epoch_features, devices):
        calls.append((rows, list(grid), seed, epoch_features))
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
def test_learning_rate_and_weight_decay_are_chosen_the_same_way(rng, centroids, monkeypatch, folds):
    train_x, train_y, test_x, test_y = splits(rng, spread=1.0)
    epochs = lambda epoch: train_x  # noqa: E731
    options = {"protocol": "moco", "folds": folds, "seed": 2, "epoch_features": epochs}
    result = probed(train_x, train_y, test_x, test_y, **options)
    part = stratified_folds(train_y, folds, 2) if folds else stratified_part(train_y, 0.2, 2)
    assert len(centroids) == (folds or 1) + 1
    for fold, (rows, grid, seed, features) in enumerate(centroids[:-1]):
        np.testing.assert_array_equal(rows, np.flatnonzero(part != fold))
        assert grid == list(GRID) and seed == 2 and features is epochs
        means = np.stack([train_x[rows][train_y[rows] == c].mean(0) for c in range(CLASSES)])
        right = nearest_of(means, train_x[part == fold]) == train_y[part == fold]
        first = result["grid"][0]["fold_top1"][fold]
        assert first == pytest.approx(100 * right.mean()) and right.mean() < 1
    rows, grid, seed, features = centroids[-1]
    assert sorted(rows) == list(range(N)) and grid == [GRID[0]] and features is epochs

    assert result["chosen"] == {"learning_rate": 1e-9, "weight_decay": 0.0}
    assert result["epochs"] == 7 and result["top1"] > 50
    assert result["grid"][-1]["valid_top1"] is None  # it diverged
    means = np.stack([train_x[train_y == c].mean(axis=0) for c in range(CLASSES)])
    right = nearest_of(means, test_x) == test_y
    assert result["top1"] == pytest.approx(100 * right.mean(), abs=1)
    assert json.loads(json.dumps(result)) == result
    shuffled = probed(train_x, train_y, test_x, rng.permutation(test_y), **options)
    assert_same(shuffled, result, but=SCORES)
    monkeypatch.setattr(scores, "BLOCK", 7 * D)  # what is held out is read in blocks
    watched = Watched(train_x)
    again = probed(watched, train_y, test_x, test_y, **options)
    assert [cell["fold_top1"] for cell in again["grid"]] == [
        pytest.approx(cell["fold_top1"]) for cell in result["grid"]
    ]
    assert watched.reads.count(7) >= np.sum(part < (folds or 1)) // 7 - (folds or 1)


def nearest_of(means, x):
    return ((x[:, None] - means) ** 2).sum(axis=-1).argmin(axis=1)


# Mistakes.


def spoiled(value):
    x = np.zeros((N, D))
    x[[4, 7, 9, 11, 13, 200], 3] = value
    return x


MISTAKES = (
    ({"train_y": np.full(N, 2)}, "train labels: only class 2"),
    ({"train_x": spoiled(np.nan)}, r"train features: 6 of 300 .* \(rows 4, 7, .*, \.\.\.\)"),
    ({"train_x": spoiled(-np.inf)}, "train features: 6 of 300 rows"),
    ({"train_x": spoiled(1e39)}, "train features: 6 of 300 rows"),
    ({"test_x": np.zeros((200, D - 1))}, "train features have 16 dimensions, test features 15"),
    ({"test_x": np.zeros(200)}, r"test features: expected \[n, d\], got shape \(200,\)"),
    ({"test_x": np.zeros((200, D), complex)}, "test features: .* got complex128"),
    ({"test_y": np.zeros(199, int)}, r"test labels: expected shape \(200,\), got \(199,\)"),
    ({"test_y": np.zeros(200)}, "test labels: expected integers, got float64"),
    ({"test_y": np.zeros(200, bool)}, "expected integers, got bool"),
    ({"train_x": np.zeros((0, D)), "train_y": np.zeros(0, int)}, r"train features: .* \(0, 16\)"),
    ({"test_y": np.full(200, 6)}, r"test labels: 6 \(row 0\) is not .* 6 classes 0 to 5"),
    ({"train_y": np.arange(N) % 6 - 1}, r"train labels: -1 \(row 0\)"),
    ({"protocol": "sgd"}, "'sgd': choose one of lbfgs, moco"),
    ({"grid": []}, "grid: give at least one"),
    ({"grid": [0.0, 1.0]}, "grid .* l2 must be positive"),
    ({"grid": [(1.0, 0.0)]}, "grid .* chooses from numbers"),
    ({"protocol": "moco", "grid": [0.1]}, "grid .* chooses from pairs"),
    ({"protocol": "moco", "grid": []}, "grid: give at least one"),
    ({"protocol": "moco", "grid": [(0.0, 0.0)]}, "grid .* must be pairs"),
    ({"protocol": "moco", "grid": [(1e4, 0.0)]}, "diverged at learning rate 10000"),
    ({"epoch_features": lambda epoch: None}, "epoch_features: lbfgs has no epochs"),
    ({"valid_fraction": 1.0}, "valid_fraction = 1.0"),
    ({"folds": 1}, "folds = 1"),
    ({"train_x": np.eye(6), "train_y": np.arange(6), "test_x": np.zeros((200, 6))},
     "no class has two training samples"),
)  # fmt: skip


def test_mistakes_are_named_in_one_line(rng, centroids):
    names = "train_x", "train_y", "test_x", "test_y"
    arrays = dict(zip(names, splits(rng), strict=True))
    for change, message in MISTAKES:
        with pytest.raises(UserError, match=message) as error:
            probed(**(arrays | change))
        assert "\n" not in str(error.value), message


def test_rows_that_are_not_finite_are_named_in_every_block(monkeypatch):
    monkeypatch.setattr(checks, "BLOCK", 20 * D)
    x = spoiled(np.nan)
    for rows, message in (
        (x, r"x features: 6 of 300 .* \(rows 4, 7, 9, 11, 13, \.\.\.\)"),
        (x[10:], r"3 of 290 rows hold NaN or infinity \(rows 1, 3, 190\);"),
    ):
        with pytest.raises(UserError, match=message):
            checks.check_features("x", rows)
    fine = Watched(x[14:199])
    assert checks.check_features("x", fine) is fine and max(fine.reads) == 20
