"""Linear probes: the choice on training data, scores, and independence of details."""

import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import fit_scikit_learn, insert_rows, splits
from sklearn.preprocessing import StandardScaler

from hypersphere_jax.configs import UserError
from hypersphere_jax.evaluation.linear import linear_probe
from hypersphere_jax.evaluation.scores import held_out_part, validation_folds
from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS, fit_grid

CLASSES, N, D = 6, 300, 16
L2S = (1e-3, 1e-1, 1e-4, 1e-2)
CELLS = ((0.01, 0.0), (1.0, 0.0), (1.0, 1.0))  # learning rates and weight decays
SCORES = {"top1", "top5", "top1_interval", "per_class", "confusion", "targets", "predicted"}


def probe(train_x, train_y, test_x, test_y, **options):
    """Probe with a grid of four penalties, so that most tests share compiled programs."""
    options = {"num_classes": CLASSES, "grid": L2S} | options
    return linear_probe(train_x, train_y, test_x, test_y, **options)


def part_of(y, folds, seed):
    if folds:
        return validation_folds(y, folds, seed)
    return held_out_part(y, 0.2, seed)


def assert_same(found, expected, but=()):
    for key in expected.keys() - {"seconds", *but}:
        assert found[key] == expected[key], key


@pytest.mark.parametrize("folds", [None, 3])
def test_choice_and_scores_match_scikit_learn(rng, folds):
    train_x, train_y, test_x, test_y = splits(rng, spread=2.0)
    result = probe(train_x, train_y, test_x, test_y, seed=3, folds=folds)
    scale = np.sqrt(((train_x - train_x.mean(axis=0)) ** 2).sum(axis=1).mean())
    x = (train_x - train_x.mean(axis=0)) / scale
    part = part_of(train_y, folds, 3)
    for cell, l2 in zip(result["grid"], sorted(L2S, reverse=True), strict=True):
        expected = []
        for fold in range(folds or 1):
            inside = part != fold
            model = fit_scikit_learn(x[inside], train_y[inside], 1 / (l2 * inside.sum()))
            expected.append(100 * model.score(x[~inside], train_y[~inside]))
        # At most one row is so near a boundary that float32 decides.
        assert cell["fold_top1"] == pytest.approx(expected, abs=101 / np.sum(part == 0))
        assert cell["l2"] == l2 and cell["valid_top1"] == pytest.approx(np.mean(cell["fold_top1"]))
    best = max(result["grid"], key=lambda cell: cell["valid_top1"])
    assert result["chosen"] == {"l2": best["l2"]}
    assert result["C"] == pytest.approx(1 / (best["l2"] * scale**2 * N), rel=1e-4)
    final = fit_scikit_learn(train_x, train_y, result["C"])
    hits = np.argsort(-final.decision_function(test_x), axis=1)[:, :5] == test_y[:, None]
    assert result["top1"] == pytest.approx(100 * hits[:, 0].mean())
    assert result["top5"] == pytest.approx(100 * hits.any(axis=1).mean())
    assert result["converged"] and (result["n"], result["n_train"], result["d"]) == (200, N, D)


@pytest.mark.parametrize(
    "options", [{}, {"folds": 3}, {"protocol": "moco_imagenet100", "grid": CELLS}]
)
def test_test_labels_change_no_choice(rng, options):
    """Even test labels on which the least regularized classifier is always right."""
    train_x, train_y, test_x, test_y = splits(rng, spread=2.0)
    result = probe(train_x, train_y, test_x, test_y, **options)
    overfitted = fit_scikit_learn(train_x, train_y, 1e4).predict(test_x)
    other = probe(train_x, train_y, test_x, overfitted, **options)
    assert_same(other, result, but=SCORES)
    assert other["top1"] != result["top1"]


@pytest.mark.parametrize("folds", [None, 3])
def test_minibatch_cells_are_chosen_on_held_out_rows(rng, folds):
    train_x, train_y, test_x, test_y = splits(rng, spread=1.0)
    name = "moco_imagenet100"
    options = {"protocol": name, "grid": (*CELLS, (1e4, 10.0)), "seed": 2}
    result = probe(train_x, train_y, test_x, test_y, folds=folds, **options)
    fit = {"num_classes": CLASSES, "seed": 2}
    part = part_of(train_y, folds, 2)
    for fold in range(folds or 1):
        rows = np.flatnonzero(part != fold)
        fitted, _ = fit_grid(MINIBATCH_PROTOCOLS[name], train_x, train_y, rows, CELLS, **fit)
        for cell, classifier in zip(result["grid"], fitted, strict=False):
            logits = train_x @ classifier.weights.T + classifier.bias
            is_correct = (logits.argmax(axis=1) == train_y)[part == fold]
            assert cell["fold_top1"][fold] == pytest.approx(100 * is_correct.mean(), abs=2)
    assert result["grid"][-1]["valid_top1"] is None  # it diverged
    best = max(result["grid"][:-1], key=lambda cell: cell["valid_top1"])
    chosen = {name: best[name] for name in ("learning_rate", "weight_decay")}
    assert result["chosen"] == chosen and result["top1"] > 40


def test_standardized_features(rng):
    """Scales of the dimensions do not matter, and one dimension is constant."""
    train_x, train_y, test_x, test_y = splits(rng)
    scales = np.float32(10) ** np.linspace(-3, 3, D, dtype=np.float32)
    scales[2] = 0
    found = probe(train_x * scales, train_y, test_x * scales, test_y, standardize=True)
    kept = scales > 0
    scaler = StandardScaler().fit(train_x[:, kept])
    model = fit_scikit_learn(scaler.transform(train_x[:, kept]), train_y, found["C"])
    assert found["C"] == pytest.approx(1 / (found["chosen"]["l2"] * D * N))
    assert found["predicted"] == model.predict(scaler.transform(test_x[:, kept])).tolist()


CHANGES = {
    "small and far from the origin": lambda x: 1e-3 * x + 0.1,
    "rotated": lambda x: x @ np.linalg.qr(np.vander(np.arange(D) / D))[0],
    "large": lambda x: x * np.float32(1e30),  # squares exceed float32
    "bfloat16": lambda x: jnp.asarray(x, jnp.bfloat16),
}


@pytest.mark.parametrize("change", CHANGES)
def test_scale_rotation_and_type_change_nothing(rng, change):
    train_x, train_y, test_x, test_y = splits(rng)
    train_x, test_x = (np.round(128 * x) / 128 for x in (train_x, test_x))  # exact in bfloat16
    expected = probe(train_x, train_y, test_x, test_y)
    found = probe(CHANGES[change](train_x), train_y, CHANGES[change](test_x), test_y)
    for key in ("top1", "chosen", "grid", "confusion", "converged"):
        assert found[key] == expected[key], key


def test_two_classes_and_a_grid_of_one_cell(rng):
    train_x, train_y, test_x, test_y = splits(rng, d=3, num_classes=2)
    result = probe(train_x, train_y, test_x, test_y, num_classes=2, grid=(0.1,))
    model = fit_scikit_learn(train_x, train_y, 2 / (0.1 * train_x.var(axis=0).sum() * N))
    assert result["top1"] == pytest.approx(100 * model.score(test_x, test_y), abs=0.6)
    assert result["C"] == pytest.approx(model.C, rel=1e-4)
    assert result["grid"] == [{"l2": 0.1, "valid_top1": None, "fold_top1": []}]


def test_rare_classes_and_equal_features(rng):
    train_x, train_y, test_x, test_y = splits(rng, spread=0.2)
    train_y[np.flatnonzero(train_y == 3)[1:]] = 2  # one sample of class 3 is left
    result = probe(train_x, train_y, test_x, np.where(test_y == 3, 2, test_y), folds=3)
    assert result["top1"] > 70 and result["converged"] and result["per_class"][3] is None
    largest = np.repeat(range(CLASSES), [40, 40, 40, 100, 40, 40])
    result = probe(np.full((N, D), 0.25), largest, np.full((200, D), 0.25), test_y)
    assert result["top1"] == pytest.approx(100 * np.mean(test_y == 3))


@pytest.mark.parametrize("options", [{}, {"protocol": "moco_imagenet100", "grid": CELLS}])
def test_class_without_training_rows_changes_no_fit(rng, options):
    train_x, train_y, test_x, test_y = splits(rng, spread=2.0)
    names = np.array([0, 1, 2, 4, 5, 6])
    few = probe(train_x, train_y, test_x, test_y, **options)
    more_x = np.concatenate([test_x, test_x[:1]])
    more_y = np.append(names[test_y], 3)
    more = probe(train_x, names[train_y], more_x, more_y, num_classes=7, **options)
    assert_same(more, few, but=SCORES | {"n", "num_classes"})
    table = np.array(more["confusion"])
    assert table[3].sum() == 1 and table[:, 3].sum() == 0
    assert table[np.ix_(names, names)].tolist() == few["confusion"]


@pytest.mark.parametrize("label", [-1, 77])
@pytest.mark.parametrize("options", [{}, {"protocol": "stl10", "grid": [(0.01, 0.0)]}])
def test_ignored_rows_do_not_count(rng, options, label):
    def run(arrays, **more):
        views = {}
        if options:  # other features in each epoch
            views = {"epoch_features": lambda epoch: arrays[0] + np.float32(0.01 * epoch)}
        return probe(*arrays, **options, **views, **more)

    arrays = splits(rng, sizes=(60, 40))
    found = run(insert_rows(arrays, label), ignore_label=label)
    assert_same(found, run(arrays))


def test_epoch_features_have_all_rows(rng):
    arrays = insert_rows(splits(rng, sizes=(60, 40)), -1)
    options = {"protocol": "stl10", "grid": [(0.01, 0.0)], "ignore_label": -1}
    with pytest.raises(UserError, match="epoch 0"):
        probe(*arrays, **options, epoch_features=lambda epoch: arrays[0][:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_x": np.where(np.arange(N)[:, None] == 27, np.nan, np.ones(D))}, "27"),
        ({"train_x": np.full((N, D), 1e39)}, "train"),
        ({"train_y": np.arange(N) % 6 - 1}, "ignore_label"),
        ({"test_y": np.full(200, 0.5), "num_classes": None}, "test labels"),
        ({"protocol": "moco", "grid": [(1e4, 10.0)]}, "learning rate"),
        ({"protocol": "stl10", "grid": CELLS, "standardize": True}, "standardize"),
        ({"protocol": "stl10", "grid": [("a", "b")]}, "grid"),
        ({"grid": ["a"]}, "grid"),
        ({"train_y": [5, 5, -1, *range(N - 3)], "ignore_label": 5, "num_classes": None}, "row 2 "),
        ({"test_x": None, "test_y": None}, "test_x"),
    ],
)
def test_mistakes_are_named(rng, change, message):
    names = ("train_x", "train_y", "test_x", "test_y")
    arrays = dict(zip(names, splits(rng), strict=True))
    with pytest.raises(UserError, match=message):
        probe(**(arrays | change))
