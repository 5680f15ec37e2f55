"""The balanced paper: what is trained, as the paper says it, and what is concluded from it.

What our own results give is in `test_reproduce.py`; here stand the paper's scale and other ends.
"""

import itertools

from experiments.balanced import augmentations
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
        losses = [one.config.objective for one in planned]
        found = {(loss.loss, loss.loss_alpha, loss.loss_lam) for loss in losses}
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
