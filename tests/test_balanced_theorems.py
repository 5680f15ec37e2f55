"""Theorems 4.4 and 4.6 as items: which runs, what is taken of them, and what is said of it."""

import math
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from conftest import sphere

from experiments.balanced import theorems
from experiments.items import Context
from hypersphere_jax import bounds, data, plots, runs, sharding
from hypersphere_jax.config import DataConfig, ObjectiveConfig, UserError

DIGITS = DataConfig("digits")
DONE = [{"run": name, "status": "done"} for name in ("a", "b", "a")]


@pytest.fixture
def context(tmp_path):
    return Context("laptop", tmp_path / "runs", tmp_path / "item")


def seen(rng, alpha=4.0, lam=2.0, centre=0.0, loss="balanced_contrastive", **more):
    """Features of 4 images of each of 3 classes, around centres that may lie to one side."""
    labels = np.tile(np.arange(3), 4)
    images = (rng.normal(size=(3, 6)) + centre)[labels] + 0.3 * rng.normal(size=(12, 6))
    views = images + 0.5 * rng.normal(size=(theorems.VIEWS + 1, 12, 6))
    views = (views / np.linalg.norm(views, axis=2, keepdims=True)).astype(np.float32)
    made = theorems.Seen("run", loss, alpha, lam, 0, views[0], views[1:], labels, 3)
    return made._replace(**more)


def show(item, context, monkeypatch, encoders):
    monkeypatch.setattr(theorems, "encoders", lambda context, rows: iter(encoders))
    shown = theorems.ITEMS[f"balanced/{item}"].show(context, DONE)
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert all(text.endswith(".") and "nan" not in text for text in shown.text) and shown.verdict
    ((path, _),) = shown.figures
    assert matplotlib.image.imread(path)[..., :3].min() < 0.5
    return [dict(zip(shown.columns, row, strict=True)) for row in shown.rows], shown


# The runs.


@pytest.mark.parametrize(("scale", "number"), [("laptop", 32), ("paper", 15)])
def test_both_items_share_their_runs(scale, number, context):
    context, names = context._replace(scale=scale), []
    for item in theorems.ITEMS.values():
        (stage,) = item.scales[scale].stages
        planned = stage(context, [])
        names.append([one.config.name for one in planned])
        assert len(set(names[-1])) == number
        for one in planned:
            alpha, lam = theorems.strengths(one.config.objective)
            assert (alpha, lam) == (one.about.get("alpha", 2), one.about.get("lam", 1))
    assert names[0] == names[1] and list(theorems.ITEMS) == [
        "balanced/theorem4.4",
        "balanced/theorem4.6",
    ]


def test_strengths_of_what_a_loss_takes_by_itself():
    assert theorems.strengths(ObjectiveConfig(loss="nt_xent", loss_tau=0.1)) == (10, 1)
    assert theorems.strengths(ObjectiveConfig(loss="balanced_contrastive")) == (4, 2)


# What is taken of an encoder.


def test_views_of_as_many_images_of_each_class(context, monkeypatch, rng):
    config = SimpleNamespace(
        data=DIGITS,
        objective=ObjectiveConfig(loss="nt_xent", loss_tau=0.5),
        seed=3,
        runtime=SimpleNamespace(cache_dir="unused"),
    )
    monkeypatch.setattr(runs, "load_encoder", lambda folder: SimpleNamespace(config=config))
    monkeypatch.setattr(sharding, "keep_compiled", lambda folder: None)
    sources = []

    def pair_features(encoder, source, devices, seed):
        sources.append(source)
        values = np.arange(len(source), dtype=np.float32)[:, None]
        return values + 1000 * (2 * seed), values + 1000 * (2 * seed + 1)

    monkeypatch.setattr(theorems, "pair_features", pair_features)
    failed = {"run": "c", "status": "failed"}
    found = list(theorems.encoders(context, [*DONE, failed]))
    assert [each.run for each in found] == ["a", "b"]
    one = found[0]
    assert (one.loss, one.alpha, one.lam, one.seed, one.classes) == ("nt_xent", 2, 1, 3, 10)
    counts = np.bincount(data.load(DIGITS).test.labels)
    assert np.bincount(one.labels).tolist() == [counts.min()] * 10
    np.testing.assert_array_equal(one.labels, sources[0].labels)
    # Every view is another one: 16 for the expectation, and the anchor is none of them.
    assert one.views.shape == (16, 10 * counts.min(), 1)
    assert len({*one.views[:, 0, 0].tolist(), one.anchors[0, 0]}) == 17
    assert len(next(theorems.encoders(context._replace(scale="paper"), DONE)).labels) == 100
    with pytest.raises(UserError, match="none of the encoders is done"):
        next(theorems.encoders(context, [failed]))


# What is said.


def test_theorem_4_4(context, monkeypatch, rng):
    one, other = seen(rng), seen(rng, alpha=1.0, loss="generalized_nt_xent")
    (first, _), shown = show("theorem4.4", context, monkeypatch, [one, other])
    means = one.views.astype(float).mean(axis=0)
    along, norms = (one.anchors * means).sum(axis=1), np.linalg.norm(means, axis=1)
    gaps = along / norms - along
    assert first["holds (%)"] == first["Assumption 4.3 (%)"] == 100
    assert first["left"] == pytest.approx((-along / norms).mean(), rel=1e-5)
    assert first["right"] == pytest.approx(-along.mean(), rel=1e-5)
    found = [first["mean gap"], first["least gap"], first["largest gap"], first["norm of m"]]
    expected = [gaps.mean(), gaps.min(), gaps.max(), norms.mean()]
    assert found == pytest.approx(expected, abs=1e-5)
    assert "100.00% of the 24 anchors of 2 encoder(s)" in shown.text[2]
    assert "of the other ones, 0, the" in shown.text[2] and "It fails" not in shown.text[2]


def test_theorem_4_4_without_its_assumption(context, monkeypatch, rng):
    one = seen(rng)
    turned = one.anchors.copy()
    turned[:3] *= -1
    rows, shown = show("theorem4.4", context, monkeypatch, [one._replace(anchors=turned)])
    assert rows[0]["holds (%)"] == rows[0]["Assumption 4.3 (%)"] == 75
    assert (
        "100.00% of the 9 anchors" in shown.text[2] and "of the other ones, 3, the" in shown.text[2]
    )
    assert "it holds exactly where" in shown.text[2]
    assert (
        "It fails with balanced_contrastive, alpha 4, lambda 2, seed 0 (3 of 12 an" in shown.text[2]
    )
    assert shown.verdict.startswith("the bound holds for 100.00% of the anchors that Assumption")
    assert "(75.00% of all)" in shown.verdict


def test_theorem_4_6(context, monkeypatch, rng):
    encoders = [seen(rng, 1.0, 8.0), seen(rng, 4.0, 2.0), seen(rng, 8.0, 1.0)]
    rows, shown = show("theorem4.6", context, monkeypatch, encoders)
    assert [row["alpha of (10)"] for row in rows] == [1, 4, 8, *theorems.ALPHAS]
    # Over alpha: the paper's best setting.
    assert {(row["alpha"], row["lambda"]) for row in rows[3:]} == {(4, 2)}
    assert rows[5] == rows[1] and rows[4]["right"] != rows[1]["right"]
    one = encoders[1]
    views = one.views.astype(float)
    means = np.stack([views[:, one.labels == c].mean(axis=(0, 1)) for c in range(3)])
    norms = np.linalg.norm(means, axis=1)
    lefts, rights, nus = [], [], []
    for anchor, label in zip(one.anchors.astype(float), one.labels, strict=True):
        others = [c for c in range(3) if c != label]
        nus.append(norms[others].min())
        lefts.append((means[others] @ anchor / norms[others]).max())
        bracket = np.log(np.exp(4 * views @ anchor).mean(axis=1)).mean() / 4 + math.log(3) / 4
        rights.append(bracket / nus[-1])
    gaps = np.array(rights) - lefts
    row = rows[1]
    found = [row["left"], row["right"], row["nu"], row["log(n) / (nu alpha)"]]
    expected = [
        np.mean(lefts),
        np.mean(rights),
        np.mean(nus),
        (math.log(3) / 4 / np.array(nus)).mean(),
    ]
    assert found == pytest.approx(expected, abs=1e-5)
    found = [row["mean gap"], row["least gap"], row["largest gap"]]
    assert found == pytest.approx([gaps.mean(), gaps.min(), gaps.max()], abs=1e-5)
    assert row["holds (%)"] == row["bracket >= 0 (%)"] == 100
    assert "100.00% of the 36 anchors of 3 encoder(s)" in shown.text[3]
    assert "Wherever it is not negative, the bound holds." in shown.text[3]


def test_theorem_4_6_says_where_it_fails(context, monkeypatch):
    """The counterexample of the text, as an encoder, beside an anchor that it holds for."""
    angles = np.radians([180, 180, 120, 240, 135, 135])
    views = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    anchors = np.where(np.arange(6)[:, None] == 0, np.float32([[1, 0]]), views)
    labels = np.repeat(np.arange(3), 2)
    one = theorems.Seen(*("run", "nt_xent", 4.0, 1.0, 0, anchors, np.stack([views] * 2), labels, 3))
    rows, shown = show("theorem4.6", context, monkeypatch, [one])
    assert rows[0]["holds (%)"] == rows[0]["bracket >= 0 (%)"] == pytest.approx(500 / 6)
    assert rows[0]["least gap"] == pytest.approx(-0.774 + 0.707, abs=1e-3)
    assert "It fails with nt_xent, alpha 4, lambda 1, seed 0 (1 of 6 anchors)." in shown.text[3]
    assert "Wherever it is not negative, the bound holds." in shown.text[3]
    right = bounds.repelling_bound(anchors, labels, one.views, labels, 4.0, 3).right
    share = f"{100 * np.mean(right >= 1):.2f}%"
    assert share not in ("0.00%", "100.00%")
    assert f"1 or more, as {share} of" in shown.text[4]
    assert f"1 or more for {share}; the proof has a gap" in shown.verdict
    assert "the left side is -0.707, the right one -0.774" in shown.text[2]


# The picture.


def test_the_picture_shows_what_it_is_given(rng):
    left, right = sphere(rng, 9, 2).T
    encoders = [
        {"loss": loss, "alpha": alpha, "lam": lam, "mean": mean, "least": mean - 1, "largest": 9}
        for mean, (loss, alpha, lam) in enumerate(
            [("x", 1.0, 1.0), ("x", 8.0, 1.0), ("x", 1.0, 2.0), ("y", 8.0, 2.0)]
        )
    ]
    sweep = {"alpha": [1.0, 2.0], "left": [1, 2], "right": [3, 4], "slack": [5, 6]}
    figure = plots.bound_sheet({"one": (left, right)}, encoders, sweep=sweep)
    sides, gaps, third = figure.axes
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    np.testing.assert_allclose(sides.lines[0].get_xydata(), np.stack([left, right], axis=1))
    named = {line.get_label(): line for line in gaps.lines}
    assert named[r"x, $\lambda$ = 1"].get_ydata().tolist() == [0, 1]
    assert named[r"y, $\lambda$ = 2"].get_ydata().tolist() == [3]
    assert r"y, $\lambda$ = 1" not in named
    at = named[r"x, $\lambda$ = 1"].get_xdata()
    assert (
        at[1] / at[0] == pytest.approx(8) and 0.7 < at[0] < named[r"x, $\lambda$ = 2"].get_xdata()
    )
    ranges = [
        segment[:, 1].tolist() for each in gaps.collections for segment in each.get_segments()
    ]
    assert ranges == [[-1, 9], [0, 9], [1, 9], [2, 9]]
    drawn = {line.get_label(): list(line.get_ydata()) for line in third.lines}
    assert drawn["left side"] == [1, 2] and drawn["right side"] == [3, 4]
    assert len(plots.bound_sheet({"one": (left, right)}, encoders).axes) == 2
    with pytest.raises(ValueError, match="at least one encoder"):
        plots.bound_sheet({}, [])
