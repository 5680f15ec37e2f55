"""The balanced paper: what is trained, as the paper says it, and what is concluded from it."""

import numpy as np
import pytest

from experiments.balanced import augmentations, grids, seeds, similarities, subsets
from experiments.items import Context
from experiments.reproduce import ELSEWHERE, ITEMS
from hypersphere_jax.data.views import long_tailed_counts

FIGURES = [f"figure{number}" for number in range(1, 6)]
TABLES = [f"table{number}" for number in range(1, 5)]
THEOREMS = ["theorem4.4", "theorem4.6"]


@pytest.fixture
def context(tmp_path):
    return Context("laptop", tmp_path / "runs", tmp_path / "item")


def plan(item, context, scale="laptop"):
    stages = ITEMS[f"balanced/{item}"].scales[scale].stages
    context = context._replace(scale=scale)
    return [one for stage in stages for one in stage(context, [])]


def test_everything_is_listed_once():
    listed = [name for name in (*ITEMS, *ELSEWHERE) if name.startswith("balanced/")]
    assert sorted(listed) == sorted(f"balanced/{name}" for name in FIGURES + TABLES + THEOREMS)


@pytest.mark.parametrize(
    ("item", "epochs", "protocol", "k"),
    [("figure4", 100, "simclr", 200), ("figure5", 200, "balanced", 1)],
)
def test_grids_train_what_the_paper_says(item, epochs, protocol, k, context):
    planned = plan(item, context, "paper")
    for one in planned:
        rule, model = one.config.optimizer, one.config.model
        assert (rule.optimizer, rule.learning_rate, rule.scaling) == ("sgd", 0.1, "none")
        assert (rule.epochs, rule.batch_size, rule.schedule) == (epochs, 512, "cosine")
        assert (rule.momentum, rule.weight_decay) == (0.9, 1e-4)
        assert (model.head, model.dim) == ("balanced", 2048)
        assert (one.measures.protocol, one.measures.neighbours) == (protocol, (k,))
        assert one.measures.layers == ("backbone",)
    found = [
        (one.config.objective.loss, one.config.objective.loss_alpha, one.config.objective.loss_lam)
        for one in planned
    ]
    assert len(found) == len(set(found)) == 32
    assert {alpha for _, alpha, _ in found} == {lam for *_, lam in found} == {1, 2, 4, 8}


def test_five_seeds_of_the_best(context):
    for scale, count in (("laptop", 15), ("paper", 25)):
        planned = plan("table3", context, scale)
        assert len(planned) == count and {one.config.seed for one in planned} == set(range(5))
    losses = {
        (one.config.data.name, one.config.objective.loss_alpha, one.config.objective.loss_lam)
        for one in planned
        if one.config.objective.loss == "balanced_contrastive"
    }
    assert losses == {("imagenet2012", 4, 2), ("cifar10", 2, 4)}
    assert all(
        one.config.objective.loss_tau == 0.5
        for one in planned
        if one.config.objective.loss == "nt_xent"
    )


def test_the_grid_and_the_seeds_share_runs(context):
    names = [{one.config.name for one in plan(item, context)} for item in ("figure4", "table3")]
    assert len(names[0] & names[1]) == 2


def test_five_augmentations(context):
    planned = plan("figure3", context, "paper")
    assert [one.config.data.recipe for one in planned] == list(augmentations.RECIPES.values())
    assert all(one.measures.prototype for one in planned)


def test_similarities_and_subsets(context):
    found = [one.config.objective.similarity for one in plan("table1", context, "paper")]
    assert found == [None, "dot", "neg_euclidean"]
    planned = plan("table4", context, "paper")
    assert [one.config.data.subset for one in planned] == ["uniform", "long_tailed"]
    assert [one.about["paper_top1"] for one in planned] == [20.82, 13.65]
    counts = long_tailed_counts(1000)
    assert (counts[0], counts[-1], counts.sum()) == (1280, 5, 115_846)


def row(**values):
    return {"status": "done", "run": "r", **values}


def test_the_best_of_a_grid(context):
    rows = [
        row(
            kind=loss,
            alpha=alpha,
            lam=lam,
            output_linear=90 - abs(alpha - 4) - abs(lam - 2) / 4,
            output_linear_low=89.9,
            output_linear_high=99.0,
            output_knn1=90.0 + lam * alpha / 8,
        )
        for loss in grids.NAMES
        for alpha in grids.GRID
        for lam in grids.GRID
    ]
    shown = grids.show("balanced/figure4", context, rows)
    line = ["balanced contrastive", "4, 2", 90.0, "89.90 to 99.00", 89.75, "8, 8", 98.0, "4, 2"]
    assert shown.rows[0] == line and shown.figures[0][0].is_file()
    assert "alpha 4, lambda 2 (90.00%; with lambda = 1 at best 89.75%, outside" in shown.verdict
    assert "3 of 16 settings within 1 point" in shown.verdict
    assert not grids.show("balanced/figure4", context, rows[:-1]).verdict


def test_five_seeds_conclude(context):
    def rows(gain):
        return [
            row(
                data="digits",
                loss=kind,
                kind=kind,
                output_linear=90 + seed / 10 + more,
                output_knn1=95.0,
                backbone_linear=98.0 - more / 4 + seed / 100,
            )
            for kind, more in (("nt_xent", 0.0), ("balanced_contrastive", gain))
            for seed in range(5)
        ]

    shown = seeds.show(context, rows(2.0))
    assert shown.rows[0] == ["digits", "nt_xent", 5, "90.20 ± 0.20", "95.00 ± 0.00", "98.02 ± 0.02"]
    output, before = shown.verdict.split("; ")
    assert "NT-Xent +2.00 points (95% interval +1.77 to +2.23" in output
    assert output.endswith(": shows") and before.endswith(": the other way")
    assert "before the head" in before and "-0.50 points" in before
    assert "not told" in seeds.show(context, rows(0.05)).verdict.split("; ")[0]


def test_bias_against_accuracy(context):
    rows = [
        row(
            augmentation=label,
            prototype_bias=0.5 + place / 10,
            backbone_linear=50.0 - place,
            backbone_linear_low=40.0,
            backbone_linear_high=60.0,
        )
        for place, label in enumerate(augmentations.RECIPES)
    ]
    shown = augmentations.show(context, rows)
    assert "accuracy over the five: -1.00" in shown.verdict
    assert "lowest bias: base, highest accuracy: base" in shown.verdict
    assert shown.figures[0][0].is_file()


def test_similarities_conclude(context):
    rows = [
        row(
            similarity=label,
            output_linear=value + seed,
            backbone_linear=98.0,
            paper_top1=1.0,
        )
        for label, value in zip(similarities.SIMILARITIES, (95.0, 60.0, 94.9), strict=True)
        for seed in range(3)
    ]
    first, second = similarities.show(context, rows).verdict.split("; ")
    assert "dot product on the output: +35.00 points" in first and first.endswith(": shows")
    assert second.endswith("does not show for certain")
    lost = [each | {"status": "failed", "reason": "loss nan"} for each in rows[3:6]]
    shown = similarities.show(context, [*rows[:3], *lost, *rows[6:]])
    assert shown.rows[1] == ["dot product", "no", 0, 3, None, None, 1.0]
    assert "dot" not in shown.verdict and "Euclidean" in shown.verdict


def test_subsets_conclude(context):
    def rows(gain):
        return [
            row(
                classes=label,
                backbone_linear=30 + seed / 10 + more,
                backbone_knn1=20.0,
                paper_top1=1.0,
            )
            for label, more in (("uniform", gain), ("long-tailed", 0.0))
            for seed in range(3)
        ]

    shown = subsets.show(context, rows(5.0))
    assert "+5.00 points" in shown.verdict and shown.verdict.endswith("the claim shows")
    np.testing.assert_array_equal([line[1] for line in shown.rows], 3)
    assert subsets.show(context, rows(0.02)).verdict.endswith("does not show")
