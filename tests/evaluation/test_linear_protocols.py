"""The linear probe: its choice on training data, its scores, and its independence of details."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import Watched, scikit_learn, splits
from sklearn import metrics
from sklearn.preprocessing import StandardScaler

from hypersphere_jax.configs import UserError
from hypersphere_jax.evaluation import checks, linear, logistic, scores
from hypersphere_jax.evaluation.scores import Classifier
from hypersphere_jax.evaluation.selection import best_cell, held_out_part, validation_folds
from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS

CLASSES, N, D = 6, 300, 16
L2S = (1e-3, 1e-1, 1e-4, 1e-2)
GRID = ((1.0, 0.0), (9.0, 0.0), (9.0, 1.0), (1e4, 0.0))
SCORES = {"top1", "top5", "top1_interval", "per_class", "confusion", "targets", "predicted"}


def probed(train_x, train_y, test_x, test_y, **options):
    """Most problems have one shape and four values of l2, and so share compiled programs."""
    options = {"num_classes": CLASSES} | ({} if "protocol" in options else {"grid": L2S}) | options
    return linear.linear_probe(train_x, train_y, test_x, test_y, **options)


def parts_of(y, folds, seed):
    return validation_folds(y, folds, seed) if folds else held_out_part(y, 0.2, seed)


def assert_same(found, expected, but=()):
    for key in expected.keys() - {"seconds", *but}:
        assert found[key] == expected[key], key


@pytest.mark.parametrize("folds", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_choice_and_scores_match_scikit_learn(rng, folds, monkeypatch):
    x, y, test_x, test_y = splits(rng, spread=2.0, sizes=(900, 200))
    rows = np.flatnonzero(rng.random(900) < 0.4 ** (y % 3))[:N]  # unbalanced
    train_x, train_y = x[rows], y[rows]
    result = probed(train_x, train_y, test_x, test_y, seed=3, folds=folds)
    scale = np.sqrt(((train_x - train_x.mean(axis=0)) ** 2).sum(axis=1).mean())
    x, part = (train_x - train_x.mean(axis=0)) / scale, parts_of(train_y, folds, 3)
    for cell, l2 in zip(result["grid"], sorted(L2S, reverse=True), strict=True):
        expected = []
        for fold in range(folds or 1):
            inside, valid = part != fold, part == fold
            reference = scikit_learn(x[inside], train_y[inside], 1 / (l2 * inside.sum()))
            expected.append(100 * reference.score(x[valid], train_y[valid]))
        # At most one row lies so near a boundary that float32 decides.
        assert cell["fold_top1"] == pytest.approx(expected, abs=101 / np.sum(part == 0))
        assert cell["l2"] == l2 and cell["valid_top1"] == pytest.approx(np.mean(cell["fold_top1"]))
    best = max(result["grid"], key=lambda cell: cell["valid_top1"])
    assert result["C"] == pytest.approx(1 / (best["l2"] * scale**2 * N), rel=1e-4)
    # On the features as they are, at the C of the result.
    final = scikit_learn(train_x, train_y, result["C"])
    hits = np.argsort(-final.decision_function(test_x), axis=1) == test_y[:, None]
    expected = {"n": 200, "n_train": N, "d": D, "seed": 3, "folds": folds, "converged": True}
    expected |= {"chosen": {"l2": best["l2"]}, "valid_top1": best["valid_top1"]}
    expected |= {"top1": pytest.approx(100 * hits[:, 0].mean())}
    monkeypatch.setattr(scores, "RESAMPLES", 20)  # so that the seed shows
    again = probed(train_x, train_y, test_x, test_y, seed=3, folds=folds)
    assert again["top1_interval"] == scores.bootstrap_interval(hits[:, 0], 3)
    expected |= {"top5": pytest.approx(100 * hits[:, :5].any(axis=1).mean())}
    assert_same(result, expected)
    # No test label influences a choice, not even as the least regularized would like it best.
    for c in (0.01, 1e4):
        other_y = scikit_learn(train_x, train_y, c).predict(test_x)
        other = probed(train_x, train_y, test_x, other_y, seed=3, folds=folds)
        assert_same(other, result, but=SCORES)


def test_standardized_features(rng):
    """As scikit-learn's after StandardScaler at the C of the result, whatever the scales were."""
    train_x, train_y, test_x, test_y = splits(rng)
    scales = np.float32(10) ** np.linspace(-3, 3, D, dtype=np.float32)
    scales[2] = 0  # a constant dimension
    found = probed(train_x * scales, train_y, test_x * scales, test_y, standardize=True)
    kept = scales > 0
    scaler = StandardScaler().fit(train_x[:, kept])
    reference = scikit_learn(scaler.transform(train_x[:, kept]), train_y, found["C"])
    assert found["C"] == pytest.approx(1 / (found["chosen"]["l2"] * D * len(train_x)))
    expected = reference.predict(scaler.transform(test_x[:, kept]))
    assert found["predicted"] == expected.tolist() and found["targets"] == test_y.tolist()
    plain = probed(train_x * scales, train_y, test_x * scales, test_y)
    assert plain["predicted"] != found["predicted"]
    with pytest.raises(UserError, match="as they are"):
        probed(train_x, train_y, test_x, test_y, protocol="stl10", standardize=True)


def test_scale_type_and_blocks_change_nothing(rng, monkeypatch):
    train_x, train_y, test_x, test_y = splits(rng)
    train_x, test_x = (np.round(128 * x) / 128 for x in (train_x, test_x))  # bfloat16 holds them
    reference = probed(train_x, train_y, test_x, test_y)
    for name, change in {
        "smaller and elsewhere": lambda x: 1e-3 * x + 0.1,
        "rotated": lambda x: x @ np.linalg.qr(np.vander(np.arange(D) / D))[0],
        "large": lambda x: x * np.float32(1e30),  # squares exceed float32
        "bfloat16": lambda x: jnp.asarray(x, jnp.bfloat16),
    }.items():
        found = probed(change(train_x), train_y, change(test_x), test_y)
        for key in ("top1", "chosen", "grid", "confusion", "converged"):
            assert found[key] == reference[key], (name, key)
    names = ("CHECKED_ENTRIES", "SCORED_ENTRIES", "SCALING_ENTRIES", "CPU_ENTRIES", "SAMPLE")
    for module, name in zip((checks, scores, *[logistic] * 3), names, strict=True):
        monkeypatch.setattr(module, name, 20 if name == "SAMPLE" else 20 * D)
    watched = Watched(train_x), Watched(test_x)
    in_blocks = probed(watched[0], train_y, watched[1], test_y)
    same = {"C": pytest.approx(reference["C"])}
    assert_same(in_blocks, reference | same, but={"steps", "gradient_norm"})
    assert max(watched[0].reads) <= 48 and max(watched[1].reads) == 20


def test_two_classes_and_a_grid_of_one_cell(rng):
    train_x, train_y, test_x, test_y = splits(rng, d=3, num_classes=2)
    result = probed(train_x, train_y, test_x, test_y, num_classes=2, grid=(0.1,))
    reference = scikit_learn(train_x, train_y, 2 / (0.1 * train_x.var(axis=0).sum() * N))
    assert result["top1"] == pytest.approx(100 * reference.score(test_x, test_y), abs=0.6)
    alone = {"C": pytest.approx(reference.C, rel=1e-4), "chosen": {"l2": 0.1}}
    alone |= {"grid": [{"l2": 0.1, "valid_top1": None, "fold_top1": []}]}
    assert_same(result, alone | {"chosen_at_edge": False, "valid_fraction": None})


def test_first_of_equal_cells_is_chosen(rng):
    arrays = splits(rng, spread=2.5)
    chosen = probed(*arrays)["chosen"]["l2"]
    grids = [9.0, 10.0, chosen, 1e-9], [10.0, 11.0, 12.0, chosen], [chosen, 1e-9, 2e-9, 3e-9]
    for grid, at_edge in zip(grids, (False, True, True), strict=True):
        result = probed(*arrays, grid=grid)
        assert result["chosen"] == {"l2": chosen} and result["chosen_at_edge"] is at_edge
    y = np.arange(N) % CLASSES
    x = np.eye(D)[y] + 0.01 * rng.normal(size=(N, D))
    found = probed(x, y, x[:200], y[:200])
    assert found["chosen"] == {"l2": 1e-1} and found["grid"][-1]["valid_top1"] == 100


def test_rare_classes_and_features_without_signal(rng, monkeypatch):
    train_x, train_y, test_x, test_y = splits(rng, spread=0.2)
    train_y[np.flatnonzero(train_y == 3)[1:]] = 2  # one sample of class 3 is left
    for folds in (None, 3):
        result = probed(train_x, train_y, test_x, np.where(test_y == 3, 2, test_y), folds=folds)
        assert result["top1"] > 70 and result["converged"] and result["per_class"][3] is None
    # An encoder that maps all to one point gets the largest class.
    largest = np.repeat(range(CLASSES), [40, 40, 40, 100, 40, 40])
    result = probed(np.full((N, D), 0.25), largest, np.full((200, D), 0.25), test_y)
    assert result["top1"] == pytest.approx(100 * np.mean(test_y == 3))
    # A fit that does not converge says so.
    monkeypatch.setattr(logistic, "TOLERANCE", 1e-12)
    assert probed(train_x, train_y, test_x, test_y)["converged"] is False


def nearest_mean(x, y, num_classes=CLASSES):
    means = np.stack([x[y == c].mean(axis=0) for c in range(num_classes)])
    return Classifier(means, -(means**2).sum(axis=1) / 2)


def accuracy(classifier, x, y):
    return pytest.approx(100 * np.mean((x @ classifier.weights.T + classifier.bias).argmax(1) == y))


@pytest.fixture
def fits(monkeypatch):
    """In place of training by minibatches: nearest class means, spoiled more in some cells."""
    calls = []

    def fit_grid(protocol, x, y, rows, grid, *, num_classes, seed, epoch_features, devices):
        calls.append((rows, tuple(grid), seed, epoch_features))
        weights, bias = nearest_mean(x[rows], y[rows], num_classes)
        factors = [rate + decay if rate < 100 else np.nan for rate, decay in grid]
        return [Classifier(weights, f * bias) for f in factors], {"finite": np.isfinite(factors)}

    protocols = {"moco": MINIBATCH_PROTOCOLS["moco"]._replace(grid=GRID)}
    monkeypatch.setattr(linear, "MINIBATCH_PROTOCOLS", protocols)
    monkeypatch.setattr(linear, "fit_grid", fit_grid)
    return calls


@pytest.mark.parametrize("folds", [None, 3])
def test_learning_rate_and_weight_decay_are_chosen_on_held_out_rows(rng, fits, monkeypatch, folds):
    train_x, train_y, test_x, test_y = splits(rng, spread=1.0)
    monkeypatch.setattr(scores, "SCORED_ENTRIES", 7 * D)
    options = {"protocol": "moco", "folds": folds, "seed": 2, "epoch_features": print}
    result = probed(train_x, train_y, test_x, test_y, **options)
    part = parts_of(train_y, folds, 2)
    for fold in range(folds or 1):
        (rows, *given), held_out = fits[fold], part == fold
        assert np.array_equal(rows, np.flatnonzero(~held_out)) and given == [GRID, 2, print]
        expected, found = nearest_mean(train_x[rows], train_y[rows]), result["grid"][0]["fold_top1"]
        assert found[fold] == accuracy(expected, train_x[held_out], train_y[held_out]) != 100
    rows, *given = fits[-1]
    assert sorted(rows) == list(range(N)) and given == [GRID[:1], 2, print]
    assert result["chosen"] == {"learning_rate": 1.0, "weight_decay": 0.0}
    assert result["grid"][-1]["valid_top1"] is None  # it diverged
    assert result["top1"] == accuracy(nearest_mean(train_x, train_y), test_x, test_y)
    other = probed(train_x, train_y, test_x, rng.permutation(test_y), **options)
    assert_same(other, result, but=SCORES)


@pytest.mark.parametrize("protocol", ["lbfgs", "moco"])
def test_class_without_training_rows_changes_no_fit(rng, fits, protocol):
    """Class 3 here: the others are fitted, chosen and predicted as if it were not there."""
    options = {"protocol": protocol, "grid": L2S if protocol == "lbfgs" else None}
    train_x, train_y, test_x, test_y = splits(rng, spread=2.0)
    names = np.array([0, 1, 2, 4, 5, 6])
    few = probed(train_x, train_y, test_x, test_y, **options)
    more_x, more_y = np.concatenate([test_x, test_x[:1]]), np.append(names[test_y], 3)
    more = probed(train_x, names[train_y], more_x, more_y, num_classes=7, **options)
    assert_same(more, few, but=SCORES | {"n", "num_classes"})
    table = np.array(more["confusion"])
    assert table[3].sum() == 1 and table[:, 3].sum() == 0
    assert table[np.ix_(names, names)].tolist() == few["confusion"]


@pytest.mark.parametrize("options", [{}, {"protocol": "stl10", "grid": [(0.01, 0.0)]}])
def test_ignored_rows_do_not_count(rng, options):
    arrays = splits(rng, sizes=(60, 40))
    given = {"epoch_features": lambda epoch: arrays[0] + np.float32(0.01 * epoch)}
    expected = probed(*arrays, **options | (given if options else {}))
    for label in (-1, 77):
        more = [np.insert(x, 7, x[0] if x.ndim > 1 else label, axis=0) for x in arrays]
        given = {"epoch_features": lambda epoch, x=more[0]: x + np.float32(0.01 * epoch)}
        found = probed(*more, ignore_label=label, **options | (given if options else {}))
        assert_same(found, expected)


class Frame:
    """Columns by name, as a data frame of pandas has them: `frame[rows]` selects columns."""

    def __init__(self, x):
        self.x, self.shape = x, x.shape

    def __len__(self):
        return len(self.x)

    def __array__(self, dtype=None, copy=None):
        return self.x

    def __getitem__(self, name):
        if isinstance(name, slice):
            return Frame(self.x[name])
        raise KeyError(name)


@pytest.mark.parametrize("options", [{}, {"folds": 3}, {"protocol": "moco", "grid": GRID[:2]}])
def test_data_frames_are_arrays(rng, options):
    train_x, train_y, test_x, test_y = splits(rng, sizes=(60, 40))
    expected = linear.linear_probe(train_x, train_y, test_x, test_y, **options)
    found = linear.linear_probe(Frame(train_x), train_y, Frame(test_x), test_y, **options)
    assert_same(found, expected)


def test_mistakes_are_named(rng, fits, monkeypatch):
    monkeypatch.setattr(checks, "CHECKED_ENTRIES", 20 * D)  # rows of all blocks are named
    arrays = dict(zip(("train_x", "train_y", "test_x", "test_y"), splits(rng), strict=True))
    bad = np.isin(np.arange(N), [4, 27, 100, 299])[:, None]
    for change, message in (
        ({"train_x": np.where(bad, 1e39, np.zeros(D))}, "4 of 300 .* rows 4, 27, 100, 299"),
        ({"train_y": np.arange(N) % 6 - 1}, "train labels: row 0 .*ignore_label"),
        ({"train_y": ["cat", "dog"] * (N // 2), "num_classes": None}, "integers.*strings"),
        ({"test_y": arrays["test_y"] / 2, "num_classes": None}, "test labels: label 0.5|1.5|2.5"),
        ({"protocol": "moco", "grid": [(1e4, 0.0)]}, "diverged at learning rate 10000"),
    ):
        with pytest.raises(UserError, match=message):
            probed(**(arrays | change))


def test_held_out_parts_and_folds_have_their_share_of_every_class(rng):
    sizes = np.array([100, 33, 3, 1, 0, 2])
    y = rng.permutation(np.repeat(np.arange(6), sizes))

    def rows(part):
        return np.array([np.bincount(y[part == p], minlength=6) for p in np.unique(part)])

    assert rows(held_out_part(y, 0.2, 0))[0].tolist() == [20, 7, 1, 0, 0, 1]
    assert rows(held_out_part(y, 0.9, 0))[1].tolist() == [10, 3, 1, 1, 0, 1]
    for folds in (2, 5, 7):
        found = rows(validation_folds(y, folds, 1))
        assert found.shape == (folds, 6) and (found.sum(axis=0) == sizes).all()
        assert (found >= sizes // folds).all() and (found <= -(-sizes // folds)).all()
        assert np.ptp(found.sum(axis=1)) <= 1


@pytest.mark.parametrize("folds", [None, 5])
def test_held_out_rows_are_random(folds):
    """Each row is held out as often as every other: labels come sorted, and so may images."""
    y = np.repeat([0, 1], 10)
    held_out = np.array([parts_of(y, folds, seed) == 0 for seed in range(1000)])
    np.testing.assert_allclose(held_out.mean(axis=0), 0.2, atol=0.06)
    assert np.array_equal(parts_of(y, folds, 7) == 0, held_out[7])


def test_best_cell_has_the_best_mean_over_folds():
    assert best_cell([[50.0, 60.0, 70.0], [90.0, 70.0, 59.0]]) == 0
    assert best_cell([[50.0, 60.0, 70.0], [60.0, 70.0, 60.0]]) == 1
    for one, other in ((0, 1), (1, 0)):  # whose sums differ in floating point
        assert best_cell(np.array([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]])[:, [one, other]]) == 0
    assert best_cell([[99.0, 10.0, 99.0], [math.nan, 11.0, math.nan]]) == 1  # some diverged


def test_scores_match_scikit_learn(rng):
    n, classes = 400, 9
    y = rng.choice(classes, size=n, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.03, 0.02, 0.0])
    ranked = np.argsort(-rng.normal(size=(n, classes)) - 1.5 * np.eye(classes)[y], axis=1)
    found = scores.classification_scores(ranked[:, :5], y, num_classes=classes)
    table = metrics.confusion_matrix(y, ranked[:, 0], labels=range(classes))
    assert found["confusion"] == table.tolist()
    top1, top5 = metrics.accuracy_score(y, ranked[:, 0]), (ranked[:, :5] == y[:, None]).any(1)
    assert (found["top1"], found["top5"]) == pytest.approx((100 * top1, 100 * top5.mean()))
    recall = metrics.recall_score(y, ranked[:, 0], labels=range(8), average=None)
    assert found["per_class"] == [*(pytest.approx(100 * share) for share in recall), None]
    assert (
        scores.classification_scores(ranked[:, :5] % 5, y % 5, num_classes=5)["top5"] is None
    )  # always right
    # With many classes, of pairs that occur: a table of a million classes would take terabytes.
    ranked, y = np.array([[999_999], [3], [3], [3]]), np.array([999_999, 999_998, 3, 3])
    few = scores.classification_scores(ranked, y, num_classes=10**6)
    assert few["confusion"] == [[3, 3, 2], [999_998, 3, 1], [999_999, 999_999, 1]]
    assert few["per_class"][-2:] == [0.0, 100.0] and few["per_class"][3:5] == [100.0, None]


def test_bootstrap_interval_resamples_rows():
    rng = np.random.default_rng(1)
    right = rng.random(300) < 0.8
    drawn = [right[rng.integers(300, size=300)].mean() for _ in range(4000)]
    expected = 100 * np.quantile(drawn, [0.025, 0.975])
    np.testing.assert_allclose(scores.bootstrap_interval(right, 5), expected, atol=0.5)
    assert scores.bootstrap_interval(right, 5) == scores.bootstrap_interval(right, 5)
