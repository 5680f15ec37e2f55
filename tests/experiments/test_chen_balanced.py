"""Chen, Luo & Li, and the balanced paper: what is trained, as these say it; the grid's verdict."""

import itertools

import numpy as np
import pytest
from run_rows import configs, done

from experiments import tables
from experiments.balanced import augmentations
from experiments.chen import competing_bits, settings, tau_lambda
from hypersphere_jax import data
from hypersphere_jax.data.subsets import long_tailed_counts
from hypersphere_jax.training.optimizers import make_schedule

# (loss, tau, lambda, prior, factor, alignment): Appendix A of Chen et al., "Experimental setup".
SWD = "generalized_contrastive", None, 5.0
PRINTED = {
    "NT-Xent": ("nt_xent", 0.2, None, None, 1, None),
    "Decoupled NT-Xent": ("decoupled_nt_xent", 1.0, 0.1, None, 1000, "per_dimension"),
    "SWD (normal)": (*SWD, "normal", 1, "per_dimension"),
    "SWD (uniform hypercube)": (*SWD, "hypercube", 1, "per_dimension"),
    "SWD (uniform hypersphere)": (*SWD, "hypersphere", 1000, "per_dimension"),
}


def test_chen_tables_train_what_the_paper_says(plan):
    imagenet = "simclr_imagenet", 224, 1e-6
    for table, dim, head, count, *images in (
        ("chen/tableD1", 64, "simclr2", 80, "simclr_cifar", 32, 1e-4),
        ("chen/tableD2", 128, "simclr2", 60, *imagenet),
        ("chen/tableD3", 128, "simclr3", 60, *imagenet),
    ):
        planned = plan(table, "paper")
        assert len({config.name for config in configs(planned)}) == len(planned) == count
        for row, one in zip(tables.rows(table), planned, strict=True):
            model, rule, loss = one.config.model, one.config.optimizer, one.config.objective
            assert (model.name, model.dim, model.head) == ("resnet50", dim, head)
            assert (rule.optimizer, rule.scaling) == ("lars", "sqrt")
            assert [one.config.data.recipe, model.image_size, rule.weight_decay] == images
            printed = [row.values[name] for name in ("batch_size", "epochs", "top1")]
            assert [rule.batch_size, rule.epochs, one.about["paper_top1"]] == printed
            actual = (loss.loss, loss.loss_tau, loss.loss_lam, loss.prior, loss.loss_factor)
            assert (*actual, loss.align_scaling) == PRINTED[row.values["loss"]]
            assert one.evaluation.layers == ("backbone",) and one.evaluation.protocol == "simclr"
    # 0.075 times the square root of the batch, at its peak after ten epochs.
    rule = settings.config_of(tables.row_of("chen/tableD1", 16)).optimizer
    schedule = make_schedule(rule, rule.epochs)  # a step an epoch
    assert rule.batch_size == 1024
    assert schedule(9) < schedule(10) == pytest.approx(0.075 * 1024**0.5, rel=1e-3)
    laptop = configs(plan("chen/tableD1"))
    assert len({(config.objective, config.seed) for config in laptop}) == len(laptop) == 5 * 8


def test_figure_b2_trains_the_grid(plan):
    for scale, number in (("paper", 96), ("laptop", 5 * 6)):
        losses = [config.objective for config in configs(plan("chen/figureB2", scale))]
        actual = {(loss.loss_tau, loss.loss_lam) for loss in losses}
        rows = {(row.values["tau"], row.values["lambda"]) for row in tables.rows("chen/figureB2")}
        assert len(actual) == number and actual <= rows
    rule = settings.BASES["chen/figureB2"].optimizer
    assert (rule.epochs, rule.batch_size, rule.learning_rate) == (200, 128, 1.2)
    assert {c.optimizer for c in configs(plan("chen/figureB2", "paper"))} == {rule}


def test_bits(plan):
    """Section C: 32 x 32 pixels, no augmentation, no alignment, 400 epochs of ResNet-18."""
    paper = configs(plan("chen/figureC1", "paper"))
    for config in paper:
        assert (config.model.name, config.optimizer.epochs) == ("resnet18", 400)
        assert (config.data.name, config.data.recipe) == ("random_bits", "none")
        assert config.objective.loss in ("logsumexp", "prior_matching")
    assert data.load(paper[0].data).train.image_shape == (32, 32, 1)
    shapes = {data.load(c.data).train.image_shape for c in configs(plan("chen/figureE1"))}
    assert shapes == {(8, 8, 1 + bits) for bits in competing_bits.BITS["laptop"]}


def test_the_grid(context, drawn):
    """Scores that are best along d lambda = tau, and along its opposite."""
    best = tau_lambda.best_weights(tau_lambda.printed())
    assert best[0.2] == 0.002 and best[2.0] in (0.5, 1.0)

    def shown(loss):
        pairs = itertools.product(tau_lambda.TAUS, tau_lambda.LAMBDAS)
        rows = [done(tau=t, lam=w, output_linear=90 - loss(t, w)) for t, w in pairs]
        return tau_lambda.result(context, rows)

    assert "correlation -0.9" in shown(lambda tau, lam: abs(np.log(tau * lam / 0.005))).verdict
    result = shown(lambda tau, lam: abs(np.log(32 * lam / tau)))
    assert result.rows[0][:3] == ["0.05", "0.001", "0.6"] and "correlation 0.95" in result.verdict
    ours, _ = drawn["heat_maps"][0].values()
    assert ours.ridge == [(tau / 32, tau) for tau in tau_lambda.TAUS]
    assert ours.scores[1, 2] == 90 - abs(np.log(32 * tau_lambda.LAMBDAS[2] / tau_lambda.TAUS[1]))


def test_balanced_grids_train_what_the_paper_says(plan):
    powers, names = (1, 2, 4, 8), ("balanced_contrastive", "generalized_nt_xent")
    for item, network, epochs, protocol, k, *images in (
        ("balanced/figure4", "resnet50", 100, "simclr", 200, "balanced_imagenet", 224),
        ("balanced/figure5", "resnet18", 200, "balanced", 1, "balanced_cifar", 32),
    ):
        planned = plan(item, "paper")
        for config, how in ((one.config, one.evaluation) for one in planned):
            rule, model = config.optimizer, config.model
            assert (rule.optimizer, rule.learning_rate, rule.scaling) == ("sgd", 0.1, "none")
            assert (rule.epochs, rule.batch_size, rule.schedule) == (epochs, 512, "cosine")
            assert (rule.momentum, rule.weight_decay) == (0.9, 1e-4)
            assert (model.name, model.head, model.dim) == (network, "balanced", 2048)
            assert [config.data.recipe, model.image_size] == images
            actual = (how.protocol, how.neighbours, how.layers)
            assert actual == (protocol, (k,), ("backbone",))
        losses = [config.objective for config in configs(planned)]
        actual = {(loss.loss, loss.loss_alpha, loss.loss_lam) for loss in losses}
        assert len(planned) == 32 and actual == set(itertools.product(names, powers, powers))


def test_five_seeds_of_the_best(plan):
    for scale, count in (("laptop", 15), ("paper", 25)):
        actual = configs(plan("balanced/table3", scale))
        assert len({(c.data.name, c.objective, c.seed) for c in actual}) == len(actual) == count
        assert {config.seed for config in actual} == set(range(5))
    losses = [(c.objective, c.data.name) for c in actual]
    best = {(of.loss_alpha, of.loss_lam, name) for of, name in losses if "balanced" in of.loss}
    assert best == {(4, 2, "imagenet2012"), (2, 4, "cifar10")}
    assert {loss.loss_tau for loss, _ in losses if loss.loss == "nt_xent"} == {0.5}
    shared = [{c.name for c in configs(plan(f"balanced/{i}"))} for i in ("figure4", "table3")]
    assert len(shared[0] & shared[1]) == 2


def test_other_balanced_items_train_what_the_paper_says(plan):
    five = plan("balanced/figure3", "paper")
    assert [one.config.data.recipe for one in five] == list(augmentations.RECIPES.values())
    assert all(one.evaluation.prototype for one in five)
    actual = [c.objective.similarity for c in configs(plan("balanced/table1", "paper"))]
    assert actual == [None, "dot", "neg_euclidean"]
    planned = plan("balanced/table4", "paper")
    subsets = [(one.config.data.subset, one.about["paper_top1"]) for one in planned]
    assert subsets == [("uniform", 20.82), ("long_tailed", 13.65)]
    counts = long_tailed_counts(1000)
    assert (counts[0], counts[-1], counts.sum()) == (1280, 5, 115_846)
    laptop = configs(plan("balanced/table4"))  # another subset for each seed
    assert [(c.seed, c.data.subset_seed) for c in laptop] == 2 * [(0, 0), (1, 1), (2, 2)]
