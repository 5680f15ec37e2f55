"""Chen, Luo & Li: what is trained, as the paper says it, and what is concluded from it."""

import itertools

import jax
import numpy as np
import pytest

from experiments import tables
from experiments.chen import competing_bits, grid, losses, projections, saturation, settings
from experiments.items import Context
from experiments.reproduce import ELSEWHERE, ITEMS
from hypersphere_jax import data, logsumexp_loss, prior_matching_loss, theory
from hypersphere_jax.plots import Grid, heat_maps, projection_sheet

NAMES = [
    "figureA1",
    "figureB1",
    "figureB2",
    "figureC1",
    "figureE1",
    "tableD1",
    "tableD2",
    "tableD3",
]


@pytest.fixture
def context(tmp_path):
    return Context("laptop", tmp_path / "runs", tmp_path / "item")


def plan(item, context, scale="laptop"):
    (stage,) = ITEMS[f"chen/{item}"].scales[scale].stages
    return [one.config for one in stage(context._replace(scale=scale), [])]


def test_everything_is_listed_once():
    listed = [name for name in (*ITEMS, *ELSEWHERE) if name.startswith("chen/")]
    assert sorted(listed) == sorted(f"chen/{name}" for name in (*NAMES, "algorithm1"))


# (loss, tau, lambda, prior, factor): Appendix A, "Experimental setup".
PRINTED = {
    "NT-Xent": ("nt_xent", 0.2, None, None, 1),
    "Decoupled NT-Xent": ("decoupled_nt_xent", 1.0, 0.1, None, 1000),
    "SWD (normal)": ("generalized_contrastive", None, 5.0, "normal", 1),
    "SWD (uniform hypercube)": ("generalized_contrastive", None, 5.0, "hypercube", 1),
    "SWD (uniform hypersphere)": ("generalized_contrastive", None, 5.0, "hypersphere", 1000),
}


@pytest.mark.parametrize(
    ("table", "dim", "head", "rows"),
    [("D1", 64, "simclr2", 80), ("D2", 128, "simclr2", 60), ("D3", 128, "simclr3", 60)],
)
def test_tables_train_what_the_paper_says(table, dim, head, rows, context):
    configs = plan(f"table{table}", context, "paper")
    assert len(configs) == rows and len({config.name for config in configs}) == rows
    for row, config in zip(tables.rows(f"chen/table{table}"), configs, strict=True):
        model, rule, loss = config.model, config.optimizer, config.objective
        assert (model.name, model.dim, model.head) == ("resnet50", dim, head)
        assert (rule.optimizer, rule.scaling) == ("lars", "sqrt")
        assert [rule.batch_size, rule.epochs] == [row.values[n] for n in ("batch_size", "epochs")]
        found = (loss.loss, loss.loss_tau, loss.loss_lam, loss.prior, loss.loss_factor)
        assert found == PRINTED[row.values["loss"]]
        scaling = None if loss.loss == "nt_xent" else "per_dimension"
        assert loss.align_scaling == scaling


def test_the_rate_is_simclrs():
    """0.075 times the square root of the batch."""
    from hypersphere_jax.optimizers import make_schedule

    rule = settings.config_of(tables.row_of("chen/tableD1", 16)).optimizer
    assert rule.batch_size == 1024
    peak = max(float(make_schedule(rule, 800)(step)) for step in range(9, 12))  # a step an epoch
    np.testing.assert_allclose(peak, 0.075 * np.sqrt(1024), rtol=1e-3)


def test_figure_b2_trains_the_grid(context):
    configs = plan("figureB2", context, "paper")
    assert len(configs) == 8 * 12
    for row, config in zip(tables.rows("chen/figureB2"), configs, strict=True):
        values = config.objective.loss_tau, config.objective.loss_lam
        assert values == (row.values["tau"], row.values["lambda"])
        assert (config.model.name, config.optimizer.epochs) == ("resnet18", 200)
    small = {(c.objective.loss_tau, c.objective.loss_lam) for c in plan("figureB2", context)}
    assert len(small) == 5 * 6 and small <= {
        (row.values["tau"], row.values["lambda"]) for row in tables.rows("chen/figureB2")
    }


def test_bits(context):
    """Section C: 32 x 32 pixels, no augmentation, no alignment, 400 epochs of ResNet-18."""
    for config in plan("figureC1", context, "paper"):
        assert (config.model.name, config.optimizer.epochs) == ("resnet18", 400)
        assert (config.data.name, config.data.recipe) == ("random_bits", "none")
        assert config.objective.loss in ("logsumexp", "prior_matching")
    dataset = data.load(plan("figureC1", context, "paper")[0].data)
    assert dataset.train.image_shape == (32, 32, 1)
    paper = plan("figureE1", context, "paper")
    assert all(config.model.name == "resnet18" for config in paper)
    assert {config.moco.queue_size > 0 for config in paper} == {False, True}
    shapes = {data.load(config.data).train.image_shape for config in plan("figureE1", context)}
    assert shapes == {(8, 8, 1 + bits) for bits in competing_bits.BITS["laptop"]}


def row(**values):
    return {"status": "done", "run": "r", **values}


def test_the_five_losses(context):
    accuracies = dict(zip(settings.LOSSES, (90.0, 91.0, 92.0, 93.0, 94.0), strict=True))
    rows = [
        row(name=name, seed=seed, output_linear=value + seed / 10, backbone_linear=99.0)
        for name, value in accuracies.items()
        for seed in range(3)
    ]
    shown = losses.show("chen/tableD1", "five losses", context, rows)
    assert [line[0] for line in shown.rows] == list(settings.LOSSES)
    assert shown.rows[0][3:] == ["90.10 ± 0.25", "99.00 ± 0.00", "87.4, 91.0, 93.0, 93.9"]
    assert "times 1000" in shown.rows[1][1] and "times" not in shown.rows[2][1]
    assert "of the five on the output: +4.00 points (95% interval +3.77 to +4.23" in shown.verdict
    assert "the five are 0.00 points apart, in the paper 2.7 after 100" in shown.verdict
    assert "the last two are NT-Xent and Decoupled" in shown.verdict
    assert shown.verdict.endswith("SWD (uniform hypercube) and SWD (normal)")
    assert not losses.show("chen/tableD1", "", context, rows[::3]).verdict


def test_rows_of_the_tables(context):
    rows = [
        row(row=3, name="NT-Xent", batch=128, epochs=400, paper_top1=93.0, backbone_linear=92.5)
    ]
    shown = losses.show("chen/tableD1", "", context._replace(scale="paper"), rows)
    assert shown.rows == [[3, "NT-Xent", 128, 400, 93.0, 92.5, None]]


def test_the_papers_ridge_rises():
    best = grid.best_weights(grid.printed())
    assert best[0.2] == 0.002 and best[2.0] in (0.5, 1.0)
    assert len(grid.printed()) == 96 - sum(bool(r.lost) for r in tables.rows("chen/figureB2"))


def test_the_grid(context):
    """Scores that are best along d lambda = tau."""
    rows = [
        row(tau=tau, lam=lam, output_linear=90 - abs(np.log(32 * lam / tau)))
        for tau in grid.TAUS
        for lam in grid.LAMBDAS
    ]
    shown = grid.show(context, rows)
    assert shown.rows[0][:3] == ["0.05", "0.001", "0.6"]
    assert "the best weight rises with the temperature" in shown.verdict
    assert shown.figures[0][0].is_file()
    falling = [
        each | {"output_linear": 90 - abs(np.log(each["tau"] * each["lam"] / 0.005))}
        for each in rows
    ]
    assert "the claim does not show" in grid.show(context, falling).verdict


def test_heat_maps_have_numbers_a_ridge_and_the_best_framed():
    scores = np.array([[1.0, 2.0], [np.nan, 9.0]])
    figure = heat_maps(
        {"t": Grid((0.1, 1.0), (0.01, 0.1), scores, [(0.01, 0.1), (1.0, 1.0)])},
        row="tau",
        column="lambda",
        score="%",
        ridge="r",
    )
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("lambda", "tau")
    assert sorted(text.get_text() for text in axes.texts) == ["1.0", "2.0", "9.0"]
    (frame,) = axes.patches
    assert frame.get_xy() == (0.5, 0.5)
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_xdata(), [0.0, 2.0])  # a decade beyond the last column
    np.testing.assert_allclose(line.get_ydata(), [0.0, 1.0])


@pytest.mark.parametrize("name", saturation.LOSSES)
def test_reference_values(name):
    """Those of the losses themselves, of equal outputs and of points of the whole sphere."""
    n, d = 128, 16
    worst, best = saturation.reference(name, n, d)
    same = np.repeat(np.asarray(theory.uniform_sphere(jax.random.key(1), 1, d)), n, axis=0)
    uniform = theory.uniform_sphere(jax.random.key(2), n, d)
    if name == saturation.SWD:
        found = [prior_matching_loss(jax.random.key(3), z) for z in (same, uniform)]
    else:
        tau = saturation.LOSSES[name].loss_tau
        found = [logsumexp_loss(z, tau) for z in (same, uniform)]
    np.testing.assert_allclose((worst - found[0]) / (worst - best), 0, atol=0.02)
    np.testing.assert_allclose((worst - found[1]) / (worst - best), 1, atol=0.05)


def test_saturation(context, monkeypatch):
    monkeypatch.setattr(saturation, "reference", lambda name, n, d: (5.0, 1.0))
    assert saturation.saturated({1: 0.2, 4: 0.96, 8: 0.98, 16: 1.0}) == 4
    assert saturation.saturated({1: -0.3, 16: -0.2}) == 16
    rows = []
    for name, batch, bits in itertools.product(
        saturation.LOSSES, saturation.BATCHES["laptop"], saturation.BITS["laptop"]
    ):
        worst, best = saturation.reference(name, batch, 32)
        share = min(1.0, bits / 4) if name == saturation.SWD else bits / 20
        loss = (worst + share * (best - worst)) * saturation.LOSSES[name].loss_factor
        about = {"name": name, "batch": batch, "dim": 32, "bits": bits, "final_loss": loss}
        rows.append(row(**about) | {"run": f"{name} {batch} {bits}"})
    shown = saturation.show(context, rows)
    assert shown.rows[0][2] == "0.050" and (shown.rows[0][-1], shown.rows[-1][-1]) == (16, 4)
    assert shown.verdict.startswith("saturation shows for 1 of 3 losses")
    assert shown.figures[0][0].is_file() and not saturation.show(context, rows[:-1]).verdict


def test_competing_bits(context):
    rows = [
        row(
            label=label,
            bits=bits,
            backbone_linear=95.0 - bits * slope,
            backbone_linear_low=0.0,
            backbone_linear_high=99.0,
        )
        for label, slope in (("NT-Xent", 7.0), ("MoCo", 2.0))
        for bits in (0, 2, 12)
    ]
    shown = competing_bits.show(context, rows)
    assert shown.rows[0] == ["NT-Xent", "95.0", "81.0", None, None, None, "11.0"]
    assert "2 of 2 encoders are worse than without, 1 of them by more than half; MoCo keeps" in (
        shown.verdict
    )
    assert "(NT-Xent: 95.0% to 11.0% with 12; MoCo: 95.0% to 71.0% with 12)" in shown.verdict


def test_projections_conclude_from_distances():
    falling = {group: [0.3, 0.2, 0.1] for group in projections.ENCODERS}
    assert projections._verdict(falling).count("the distance falls from") == 2
    assert "does not fall" in projections._verdict({"NT-Xent": [0.3, 0.1, 0.2]})
    figure = projection_sheet({"NT-Xent": {"tau 1": np.ones((3, 10))}}, 4.0)
    assert len(figure.axes) == 3 and "tau 1" in figure.axes[0].get_ylabel()
