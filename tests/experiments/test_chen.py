"""Chen, Luo & Li: what is trained, as the paper says it, and what is concluded from it.

What our own results give is in `test_reproduce.py`; here stand the paper's scale and other ends.
"""

import itertools

import numpy as np
import pytest
from item_rows import done

from experiments import tables
from experiments.chen import competing_bits, grid, settings
from hypersphere_jax import data, plots
from hypersphere_jax.optimizers import make_schedule

# (loss, tau, lambda, prior, factor, alignment): Appendix A, "Experimental setup".
PRINTED = {
    "NT-Xent": ("nt_xent", 0.2, None, None, 1, None),
    "Decoupled NT-Xent": ("decoupled_nt_xent", 1.0, 0.1, None, 1000, "per_dimension"),
    **{
        f"SWD ({name})": ("generalized_contrastive", None, 5.0, prior, factor, "per_dimension")
        for name, prior, factor in (
            ("normal", "normal", 1),
            ("uniform hypercube", "hypercube", 1),
            ("uniform hypersphere", "hypersphere", 1000),
        )
    },
}


def configs(planned):
    return [one.config for one in planned]


def test_tables_train_what_the_paper_says(plan):
    for table, dim, head, count in (
        ("chen/tableD1", 64, "simclr2", 80),
        ("chen/tableD2", 128, "simclr2", 60),
        ("chen/tableD3", 128, "simclr3", 60),
    ):
        planned = plan(table, "paper")
        assert len({config.name for config in configs(planned)}) == len(planned) == count
        for row, one in zip(tables.rows(table), planned, strict=True):
            model, rule, loss = one.config.model, one.config.optimizer, one.config.objective
            assert (model.name, model.dim, model.head) == ("resnet50", dim, head)
            assert (rule.optimizer, rule.scaling) == ("lars", "sqrt")
            assert rule.batch_size == row.values["batch_size"]
            assert rule.epochs == row.values["epochs"]
            found = (loss.loss, loss.loss_tau, loss.loss_lam, loss.prior, loss.loss_factor)
            assert (*found, loss.align_scaling) == PRINTED[row.values["loss"]]
            assert one.about["paper_top1"] == row.values["top1"]
            assert one.measures.layers == ("backbone",) and one.measures.protocol == "simclr"
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
        found = {(loss.loss_tau, loss.loss_lam) for loss in losses}
        rows = {(row.values["tau"], row.values["lambda"]) for row in tables.rows("chen/figureB2")}
        assert len(found) == number and found <= rows


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


def test_the_grid(context, monkeypatch):
    """Scores that are best along d lambda = tau, and along its opposite."""
    best = grid.best_weights(grid.printed())
    assert best[0.2] == 0.002 and best[2.0] in (0.5, 1.0)
    drawn = {}
    monkeypatch.setattr(plots, "heat_maps", lambda grids, path, **_: drawn.update(grids))

    def shown(loss):
        pairs = itertools.product(grid.TAUS, grid.LAMBDAS)
        return grid.show(
            context, [done(tau=t, lam=w, output_linear=90 - loss(t, w)) for t, w in pairs]
        )

    assert "correlation -0.9" in shown(lambda tau, lam: abs(np.log(tau * lam / 0.005))).verdict
    found = shown(lambda tau, lam: abs(np.log(32 * lam / tau)))
    assert found.rows[0][:3] == ["0.05", "0.001", "0.6"] and "correlation 0.95" in found.verdict
    ours, _ = drawn.values()
    assert ours.ridge == [(tau / 32, tau) for tau in grid.TAUS]
    expected = 90 - abs(np.log(32 * grid.LAMBDAS[2] / grid.TAUS[1]))
    assert ours.scores[1, 2] == expected
