"""Chen, Luo & Li: what is trained, as the paper says it, and what is concluded from it.

What our own results give is in `test_reproduce.py`; here stand the paper's scale and other ends.
"""

import itertools

import jax
import numpy as np
import pytest
from item_rows import done

from experiments import tables
from experiments.chen import competing_bits, grid, losses, projections, saturation, settings
from hypersphere_jax import data, logsumexp_loss, plots, prior_matching_loss, theory
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
    paper = configs(plan("chen/figureB2", "paper"))
    rows = [(row.values["tau"], row.values["lambda"]) for row in tables.rows("chen/figureB2")]
    assert [(c.objective.loss_tau, c.objective.loss_lam) for c in paper] == rows
    assert {(c.model.name, c.optimizer.epochs) for c in paper} == {("resnet18", 200)}
    small = {(c.objective.loss_tau, c.objective.loss_lam) for c in configs(plan("chen/figureB2"))}
    assert len(small) == 5 * 6 and small <= set(rows)


def test_bits(plan):
    """Section C: 32 x 32 pixels, no augmentation, no alignment, 400 epochs of ResNet-18."""
    paper = configs(plan("chen/figureC1", "paper"))
    for config in paper:
        assert (config.model.name, config.optimizer.epochs) == ("resnet18", 400)
        assert (config.data.name, config.data.recipe) == ("random_bits", "none")
        assert config.objective.loss in ("logsumexp", "prior_matching")
    assert data.load(paper[0].data).train.image_shape == (32, 32, 1)
    beside = configs(plan("chen/figureE1", "paper"))
    assert {config.model.name for config in beside} == {"resnet18"}
    assert {config.moco.queue_size for config in beside} == {0, 4096}
    for one in (*plan("chen/figureE1"), *plan("chen/figureC1")):  # tau and batch as they are named
        label = one.about.get("label") or one.about["name"]
        loss, rule = one.config.objective, one.config.optimizer
        tau = label.partition("tau ")[2].partition(",")[0]
        assert not tau or float(tau) in (loss.loss_tau, loss.contrastive_tau)
        assert "batch " not in label or f"batch {rule.batch_size}" in label
        assert "lambda" not in label or f"lambda {loss.loss_lam:g}" in label
    shapes = {data.load(c.data).train.image_shape for c in configs(plan("chen/figureE1"))}
    assert shapes == {(8, 8, 1 + bits) for bits in competing_bits.BITS["laptop"]}


def test_rows_of_the_tables(context):
    rows = [
        done(row=3, name="NT-Xent", batch=128, epochs=400, paper_top1=93.0, backbone_linear=92.5)
    ]
    shown = losses.show("chen/tableD1", "", context._replace(scale="paper"), rows)
    assert shown.rows == [[3, "NT-Xent", 128, 400, 93.0, 92.5, None]]


def test_the_grid(context, monkeypatch):
    """Scores that are best along d lambda = tau, and along its opposite."""
    best = grid.best_weights(grid.printed())
    assert best[0.2] == 0.002 and best[2.0] in (0.5, 1.0)
    assert len(grid.printed()) == 96 - 3  # that were lost
    drawn = {}
    monkeypatch.setattr(plots, "heat_maps", lambda grids, path, **_: drawn.update(grids))
    rows = [done(tau=tau, lam=lam) for tau, lam in itertools.product(grid.TAUS, grid.LAMBDAS)]
    for row in rows:
        row["output_linear"] = 90 - abs(np.log(32 * row["lam"] / row["tau"]))
    shown = grid.show(context, rows)
    assert shown.rows[0][:3] == ["0.05", "0.001", "0.6"] and "correlation 0.95" in shown.verdict
    ours, theirs = drawn.values()
    assert ours.ridge == [(tau / 32, tau) for tau in grid.TAUS] and len(theirs.rows) == 8
    assert ours.scores[1, 2] == rows[len(grid.LAMBDAS) + 2]["output_linear"]
    for row in rows:
        row["output_linear"] = 90 - abs(np.log(row["tau"] * row["lam"] / 0.005))
    assert "correlation -0.9" in grid.show(context, rows).verdict


def test_reference_values():
    """Those of the losses themselves, of equal outputs and of points of the whole sphere."""
    n, d = 128, 16
    same = np.repeat(np.asarray(theory.uniform_sphere(jax.random.key(1), 1, d)), n, axis=0)
    uniform = theory.uniform_sphere(jax.random.key(2), n, d)
    for name in list(saturation.LOSSES)[::2]:
        worst, best = saturation.reference(name, n, d)
        if name == saturation.SWD:
            found = [prior_matching_loss(jax.random.key(3), z) for z in (same, uniform)]
        else:
            tau = saturation.LOSSES[name].loss_tau
            found = [logsumexp_loss(z, tau) for z in (same, uniform)]
        shares = [(worst - float(value)) / (worst - best) for value in found]
        np.testing.assert_allclose(shares, [0, 1], atol=0.05, err_msg=name)
        assert name == saturation.SWD or worst == pytest.approx(float(found[0]), rel=1e-5)


def test_saturation(context, monkeypatch):
    monkeypatch.setattr(saturation, "reference", lambda name, n, d: (5.0, 1.0))
    monkeypatch.setattr(plots, "curves", lambda *_, **__: None)
    assert saturation.saturated({1: 0.2, 4: 0.94, 8: 0.96, 16: 1.0}) == 8
    assert saturation.saturated({1: -0.3, 16: -0.2}) == 16
    rows = []
    for name, batch, bits in itertools.product(
        saturation.LOSSES, saturation.BATCHES["laptop"], saturation.BITS["laptop"]
    ):
        share = min(1.0, bits / 4) if name == saturation.SWD else bits / 20
        loss = (5 - 4 * share) * saturation.LOSSES[name].loss_factor
        about = {"name": name, "batch": batch, "dim": 32, "bits": bits, "final_loss": loss}
        rows.append(done(**about) | {"run": f"{name} {batch} {bits}"})
    shown = saturation.show(context, rows)
    assert shown.rows[0][2] == "0.050" and (shown.rows[0][-1], shown.rows[-1][-1]) == (16, 4)
    assert "1 of 3" in shown.verdict and not saturation.show(context, rows[:-1]).verdict


def test_projections(context, plan, monkeypatch):
    """Each number stands in its column, and six directions of each encoder are drawn."""
    drawn = []
    monkeypatch.setattr(plots, "projection_sheet", lambda *given: drawn.append(given))
    planned = plan("chen/figureB1")

    def measure(config):
        place = [one.config.name for one in planned].index(config.run.rpartition("/")[2])
        assert config.parts == ("projections",)
        found = {"projection_ks_sphere": 0.5 - place / 10, "projection_half_width": 4.0}
        found |= {"sliced_wasserstein": 0.25, "uniform": -3.0, "uniform_optimum": -3.8}
        return found | {"projections": [{"counts": [1, 2, 1]}] * 8}

    monkeypatch.setattr(projections, "measure", measure)
    rows = [done(**one.about) | {"run": one.config.name} for one in planned]
    shown = projections.show(context, rows)
    assert shown.rows[1] == [
        *("SWD (uniform hypersphere)", "lambda 0.5"),
        *("0.4000", "0.2500", -3.0, -3.8),
    ]
    (histograms, width, _) = drawn[0]
    assert width == 4 and {len(counts) for of in histograms.values() for counts in of.values()} == {
        6
    }
    lams = [one.config.objective.loss_lam for one in planned[:3]]
    taus = [one.config.objective.loss_tau for one in planned[3:]]
    assert lams == [0.05, 0.5, 5.0] and taus == [2.0, 0.5, 0.1]
    assert shown.verdict != projections.show(context, rows[::-1]).verdict
