"""The balanced paper: what is trained, as the paper says it, and what is concluded from it.

What our own results give is in `test_reproduce.py`; here stand the paper's scale and other ends.
"""

import itertools

from item_rows import done

from experiments.balanced import augmentations, grids, seeds, similarities
from hypersphere_jax import plots
from hypersphere_jax.data.views import long_tailed_counts


def configs(planned):
    return [one.config for one in planned]


def test_grids_train_what_the_paper_says(plan):
    for item, network, epochs, protocol, k in (
        ("balanced/figure4", "resnet50", 100, "simclr", 200),
        ("balanced/figure5", "resnet18", 200, "balanced", 1),
    ):
        planned = plan(item, "paper")
        for one in planned:
            rule, model = one.config.optimizer, one.config.model
            assert (rule.optimizer, rule.learning_rate, rule.scaling) == ("sgd", 0.1, "none")
            assert (rule.epochs, rule.batch_size, rule.schedule) == (epochs, 512, "cosine")
            assert (rule.momentum, rule.weight_decay) == (0.9, 1e-4)
            assert (model.name, model.head, model.dim) == (network, "balanced", 2048)
            assert (one.measures.protocol, one.measures.neighbours) == (protocol, (k,))
            assert one.measures.layers == ("backbone",)
            loss = one.config.objective
            about = (one.about["alpha"], one.about["lam"])
            assert about == (loss.loss_alpha, loss.loss_lam)
        found = {
            (c.objective.loss, c.objective.loss_alpha, c.objective.loss_lam)
            for c in configs(planned)
        }
        powers, names = (1, 2, 4, 8), ("balanced_contrastive", "generalized_nt_xent")
        assert len(planned) == 32 and found == set(itertools.product(names, powers, powers))


def test_five_seeds_of_the_best(plan):
    for scale, count in (("laptop", 15), ("paper", 25)):
        found = configs(plan("balanced/table3", scale))
        assert len({(c.data.name, c.objective, c.seed) for c in found}) == len(found) == count
        assert {config.seed for config in found} == set(range(5))
    best = {
        (c.data.name, c.objective.loss_alpha, c.objective.loss_lam)
        for c in found
        if c.objective.loss == "balanced_contrastive"
    }
    assert best == {("imagenet2012", 4, 2), ("cifar10", 2, 4)}
    assert {c.objective.loss_tau for c in found if c.objective.loss == "nt_xent"} == {0.5}
    shared = [{c.name for c in configs(plan(f"balanced/{i}"))} for i in ("figure4", "table3")]
    assert len(shared[0] & shared[1]) == 2


def test_other_items_train_what_the_paper_says(plan):
    five = plan("balanced/figure3", "paper")
    assert [one.config.data.recipe for one in five] == list(augmentations.RECIPES.values())
    assert all(one.measures.prototype for one in five)
    found = [c.objective.similarity for c in configs(plan("balanced/table1", "paper"))]
    assert found == [None, "dot", "neg_euclidean"]
    subsets_of = plan("balanced/table4", "paper")
    assert [one.config.data.subset for one in subsets_of] == ["uniform", "long_tailed"]
    assert [one.about["paper_top1"] for one in subsets_of] == [20.82, 13.65]
    counts = long_tailed_counts(1000)
    assert (counts[0], counts[-1], counts.sum()) == (1280, 5, 115_846)
    laptop = configs(plan("balanced/table4"))  # another subset for each seed
    assert [(c.seed, c.data.subset_seed) for c in laptop] == 2 * [(0, 0), (1, 1), (2, 2)]


def test_grids_at_the_papers_scale(context, monkeypatch):
    """Another layer, and k of the data; a grid that is not whole concludes nothing."""
    monkeypatch.setattr(plots, "heat_maps", lambda *_, **__: None)
    context = context._replace(scale="paper")
    for figure, k in (("balanced/figure4", 200), ("balanced/figure5", 1)):
        rows = [
            done(kind=loss, alpha=alpha, lam=lam, backbone_linear=50.0 + lam)
            | {f"backbone_knn{k}": 40.0 + alpha}
            for loss, alpha, lam in itertools.product(grids.NAMES, grids.GRID, grids.GRID)
        ]
        shown = grids.show(figure, context, rows)
        assert shown.rows[0][1:3] == ["1, 8", 58.0] and shown.rows[0][6] == 48 and shown.verdict
        assert not grids.show(figure, context, rows[:-1]).verdict


def test_seeds_at_the_papers_scale(context):
    rows = [
        done(data=data, loss=kind, kind=kind, backbone_linear=70 + seed + gain)
        | {f"backbone_knn{k}": 60.0 + k / 100}
        for data, k in (("imagenet2012", 200), ("cifar10", 1))
        for kind, gain in (("nt_xent", 0), ("balanced_contrastive", 9))
        for seed in range(5)
    ]
    shown = seeds.show(context._replace(scale="paper"), rows)
    cells = [[line[0], *line[2:5]] for line in shown.rows[::2]]
    assert cells == [
        ["imagenet2012", 5, "72.00 ± 1.96", "62.00 ± 0.00"],
        ["cifar10", 5, "72.00 ± 1.96", "60.01 ± 0.00"],
    ]
    assert shown.verdict.count("+9.00 points") == 2


def test_similarities_conclude(context):
    rows = [
        done(similarity=label, output_linear=value + seed, backbone_linear=98.0, paper_top1=1.0)
        for label, value in zip(similarities.SIMILARITIES, (95.0, 60.0, 94.9), strict=True)
        for seed in range(3)
    ]
    first, second = similarities.show(context, rows).verdict.split("; ")
    assert "+35.00" in first and "+0.10" in second
    assert first.rpartition(": ")[2] != second.rpartition(": ")[2]  # one is told, the other is not
    lost = [each | {"status": "failed", "reason": "loss nan"} for each in rows[3:6]]
    shown = similarities.show(context, [*rows[:3], *lost, *rows[6:]])
    assert shown.rows[1] == ["dot product", "no", 0, 3, None, None, 1.0]
    assert "+0.10" in shown.verdict and "35.00" not in shown.verdict
