"""Chen, Luo & Li: what is trained, as the paper says it, and what is concluded."""

import itertools
from unittest.mock import Mock

import numpy as np
import pytest
import scipy
from run_rows import both, configs, done, predicted, split

from experiments import inference, rates, tables
from experiments.chen import (
    competing_bits,
    loss_tables,
    projections,
    saturation,
    settings,
    tau_lambda,
)
from experiments.plots import comparisons
from hypersphere_jax import configs as C
from hypersphere_jax import data
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
            config = one.config
            assert (config.model, config.dim, config.head) == ("resnet50", dim, head)
            assert (config.optimizer, config.scaling) == ("lars", "sqrt")
            assert [config.recipe, config.image_size, config.weight_decay] == images
            printed = [row.values[name] for name in ("batch_size", "epochs", "top1")]
            assert [config.batch_size, config.epochs, one.about["paper_top1"]] == printed
            actual = (config.loss, config.loss_tau, config.loss_lam, config.prior)
            actual += (config.loss_factor, config.align_scaling)
            assert actual == PRINTED[row.values["loss"]]
            assert one.evaluation.layers == ("backbone",) and one.evaluation.protocol == "simclr"
    # 0.075 times the square root of the batch, at its peak after ten epochs.
    rule = settings.config_of(tables.row_of("chen/tableD1", 16))
    schedule = make_schedule(rule, rule.epochs)  # a step an epoch
    assert rule.batch_size == 1024
    assert schedule(9) < schedule(10) == pytest.approx(0.075 * 1024**0.5, rel=1e-3)
    choice, laptop = split(plan("chen/tableD1"))
    for config in configs(laptop + choice):  # a tenth of CIFAR-10, in grey, at 16 pixels
        assert (config.data, config.fraction, config.channels) == ("cifar10", 0.1, 1)
        assert config.image_size == 16
    assert (
        len({(C.section(c, C.ObjectiveConfig), c.seed) for c in configs(laptop)})
        == len(laptop)
        == 5 * 8
    )
    assert {(c.folds, c.learning_rate) for c in configs(choice)} == {
        (5, rate) for rate in settings.RATES
    }
    # The items of digits choose by the same runs, each fold held out once.
    of_b1, of_e1 = (configs(split(plan(f"chen/figure{item}"))[0]) for item in ("B1", "E1"))
    assert {c.name for c in of_b1} < {c.name for c in of_e1}
    assert {(c.fold, c.seed) for c in of_b1} == {(k, k) for k in range(5)}


def test_the_paper_s_probe_measures_what_is_compared(plan):
    """SimCLR's for Chen et al.; not what chooses rates, nor what has no accuracies."""
    for item in ("chen/figureB2", "chen/figureE1", "chen/tableD1"):
        choice, final = split(plan(item))
        assert {one.evaluation.protocol for one in choice} == {None}
        assert {one.evaluation.protocol for one in final} == {"simclr"}
        assert {one.evaluation.layers for one in final} == {("backbone", "output")}
    assert {one.evaluation.protocol for one in plan("chen/figureB1")} == {None}


def test_figure_b2_trains_the_grid(plan):
    for scale, number in (("paper", 96), ("laptop", 8 * 6)):
        _, grid = split(plan("chen/figureB2", scale))
        actual = {(config.loss_tau, config.loss_lam) for config in configs(grid)}
        rows = {(row.values["tau"], row.values["lambda"]) for row in tables.rows("chen/figureB2")}
        assert len(actual) == number and actual <= rows
    rule = C.section(settings.BASES["chen/figureB2"], C.OptimizerConfig)
    assert (rule.epochs, rule.batch_size, rule.learning_rate) == (200, 128, 1.2)
    planned = configs(plan("chen/figureB2", "paper"))
    assert {C.section(config, C.OptimizerConfig) for config in planned} == {rule}


def test_bits(plan):
    """Section C: 32 x 32 pixels, no augmentation, no alignment, 400 epochs of ResNet-18."""
    paper = configs(plan("chen/figureC1", "paper"))
    for config in paper:
        assert (config.model, config.epochs) == ("resnet18", 400)
        assert (config.data, config.recipe) == ("random_bits", "none")
        assert config.loss in ("logsumexp", "prior_matching")
    assert data.load(paper[0]).train.image_shape == (32, 32, 1)
    _, laptop = split(plan("chen/figureE1"))
    some = {C.section(c, C.DataConfig) for c in configs(laptop) if c.seed == 0}
    shapes = {data.load(one).train.image_shape for one in some}
    assert shapes == {(8, 8, 1 + bits) for bits in competing_bits.BITS["laptop"]}
    assert all(c.subset_seed == c.seed for c in configs(laptop))


def test_rates_are_chosen_on_training_images(plan):
    choice, _ = split(plan("chen/figureB2"))
    folds = [(one.config.folds, one.config.fold, one.config.seed) for one in choice]
    assert set(folds) == {(5, k, k) for k in range(4)}  # a weight has a fold
    assert {one.evaluation.layers for one in choice} == {("backbone",)}
    how = {"held_out": 0, "name": "a"}
    rows = [
        *(done(**how, rate=1, backbone_logistic=x) for x in (90, 92)),
        *(done(**how, rate=4, backbone_logistic=x) for x in (91, 91)),
        done(**how, rate=16, backbone_logistic=99),
        {**how, "rate": 16, "status": "failed", "run": "r"},  # counts as 0
        done(name="a", rate=64, backbone_logistic=100),  # of the test split
    ]
    assert rates.chosen(rows, "name") == {"a": 1} and rates.final(rows) == rows[-1:]
    assert "At the edge" in rates.told({"a": 1}, (1, 4, 16))
    assert "edge" not in rates.told({"a": 4}, (1, 4, 16))
    assert "each held out once" in rates.told({"a": 4}, (1, 4, 16), folds=5)
    one = settings.with_rate(plan("chen/tableD1")[0], "a", rows)
    assert one.config.learning_rate == one.about["rate"] == 1


def test_the_grid(context, drawn):
    """Accuracies that are best along d lambda = tau, along its opposite, or before the head."""
    taus, weights = tau_lambda.TAUS[2:7], tau_lambda.LAMBDAS
    best = tau_lambda.best_weights(tau_lambda.printed())
    assert best[0.2] == 0.002 and best[2.0] in (0.5, 1.0)

    def along(tau, lam):
        return 96 - 4 * abs(np.log(32 * lam / tau))

    def shown(before, output=along):
        cells = itertools.product(taus, weights, range(2))
        return tau_lambda.result(
            context,
            [
                done(tau=t, lam=w, **predicted(seed, **both(before(t, w), output(t, w))))
                for t, w, seed in cells
            ],
        )

    def each_higher(tau, lam):
        return 96 - 4 * abs(taus.index(tau) - weights.index(lam))

    # Of five temperatures nothing but a strict order is beyond chance: 2 of 120 orders.
    rising = shown(along, each_higher)
    assert rising.short.endswith("does not show before the head, and shows on the output.")
    assert "+0.95 (+0" in rising.verdict and rising.rows[0][2].startswith("0.001: ")
    assert "p = 0.067 by 5-NN" in rising.verdict and "p = 0.017 by 5-NN" in rising.verdict
    assert rising.verdict.count("p = 1 by the paper's probe") == 2  # which tells nothing here
    ties = rising.text[3].partition("independent")[0]
    assert "over 29 settings, 95% interval" in ties and ties.count(" to ") == 6
    assert "ahead of the next by 3.88 points (the median), where half of a cell's interval" in ties
    panels, *_ = drawn["heat_maps"]
    ours, _, probe, *_, theirs = panels.values()
    assert ours.ridge == [(tau / 32, tau) for tau in taus]
    assert theirs.ridge[0] == (0.05 / 64, 0.05) and np.isnan(theirs.scores).sum() == 1
    assert np.all(probe.scores == 50) and len(panels) == 7
    accuracy = along(taus[1], weights[2])
    assert ours.scores[1, 2] == pytest.approx(accuracy, abs=0.2)
    falling = dict(zip(taus, taus[::-1], strict=True))
    against = shown(lambda tau, lam: each_higher(falling[tau], lam), lambda tau, lam: 98)
    assert "the opposite shows before the head, and does not show on the output" in against.short


def test_five_losses_are_equally_good_or_not(context):
    """All ten pairs lie within the paper's own 0.6 points, intervals included, or they do not."""

    def shown(worst):
        levels = dict.fromkeys(settings.LOSSES, 97) | {"SWD (normal)": worst}
        rows = [
            done(name=name, rate=4, **predicted(seed, n=4000, **both(level, 90, probe)))
            for name, level in levels.items()
            for probe in [20 if name == "NT-Xent" else 50]
            for seed in range(3)
        ]
        return loss_tables.result(loss_tables.TABLE_D1, "Five losses", context, rows)

    one, near, far = shown(96.9), shown(96.5), shown(85)
    assert one.short.startswith("Before the head, equivalence within 0.6 points shows (means up to")
    assert "they are equal within 0.16 points: equivalence" in one.verdict
    # The probe stands beside them, and whatever it says decides nothing.
    assert (
        one.verdict.count("By the paper's probe they are up to 30.00 points apart, and equal") == 2
    )
    # Half a point and 1.96 standard errors apart: neither equal nor beyond the margin.
    assert "equal within 0.63 points: neither equivalence within 0.6" in near.verdict
    assert near.short.startswith("Before the head, neither equivalence within 0.6 points nor a")
    assert "a difference of more than 0.6 points shows (means up to 12.00 points" in far.short
    assert far.short.endswith("five are 2.7 points apart after 100 epochs, 0.6 after 800.")
    assert "12.00 points apart" in far.verdict and "err on 5.4%" in far.text[1]
    before, output = far.verdict.split("On the output")
    assert before.count("is ahead of SWD (normal)") == 4 and "SWD (normal) is" not in before
    assert "by the first two, none is ahead" in output


def test_bits_take_accuracy_away(context, monkeypatch):
    panels = Mock()
    monkeypatch.setattr(comparisons, "curves", panels)
    level = {"NT-Xent, tau 0.2": 20, "NT-Xent, tau 0.05": 30, "MoCo, tau 0.2": 80}

    def accuracies(label, bits):
        reached = level[label] if bits >= 8 else 98 - bits
        nearest = {"backbone_knn5": 10} if "MoCo" in label and bits >= 8 else {}
        return both(reached, reached) | nearest

    rows = [
        done(label=label, bits=bits, step=step, **predicted(seed, **scores))
        for label in level
        for bits in competing_bits.BITS["laptop"]
        for seed in range(3)
        for step, scores in ((0, both(26 - 2 * bits, 98)), (200, accuracies(label, bits)))
        if step or bits in (0, competing_bits.FEW)
    ]
    result = competing_bits.result(context, rows)
    before, after = result.short.split("; on the output ")
    assert before == (
        "With 8 bits, training leaves accuracy before the head above the initialization's for 2 "
        "(NT-Xent, tau 0.2; NT-Xent, tau 0.05), not told apart from the initialization's for 1 "
        "(MoCo, tau 0.2)"
    )
    assert after.startswith("below the initialization's for 3 (NT-Xent, tau 0.2; ")
    told = "ahead of it with 8 bits: NT-Xent, tau 0.05 (+10.0, +10.0, +0.0)"
    assert (
        f"{told}, not told apart from it with 8 bits: MoCo" in result.verdict
        and f"{told}; MoCo, tau 0.2 (" in result.text[3]
    )
    cells = {(row[0], row[1]): (row[2], row[3], row[-1]) for row in result.rows}
    start, with_bits, gain = cells["NT-Xent, tau 0.05", "before the head: 5-NN"]
    assert start.startswith("26.00 ±") and with_bits.startswith("10.00 ±")
    assert gain.startswith("+20.00 (+1")
    of = panels.call_args.args[0]["output: 5-NN"]["MoCo, tau 0.2"]
    assert [point.x for point in of] == [0, 4, 8, 12] and of[2].low < 80 < of[2].high


def test_saturation_has_an_interval_over_seeds(context, monkeypatch):
    monkeypatch.setattr(comparisons, "curves", Mock())
    monkeypatch.setattr(saturation, "reference", lambda name, n, d: (10.0, 0.0))
    gains = {"LogSumExp, tau 0.1": 0.8, "LogSumExp, tau 0.5": 0.95, saturation.SWD: 0.99}
    rows = [
        done(name=name, batch=batch, bits=bits, dim=32, seed=seed)
        | {"final_loss": (10 - 10 * (gain + 0.01 * (seed - 2)) * (bits >= 8 or 0.5)) * factor}
        for name, most in gains.items()
        for factor in [saturation.LOSSES[name].loss_factor]
        for batch in (64, 256)
        for bits in saturation.BITS["laptop"]
        for gain in [most if bits == 8 else 1.0]
        for seed in range(5)
    ]
    result = saturation.result(context, rows)
    told = "8 bits are shown to saturate 2 of 6 losses and batches, and not to saturate 2."
    assert result.short == told
    assert "SWD (uniform hypersphere), batches of 256: 99.0% (9" in result.verdict
    few, most = [0.5, 0.52, 0.54], [1.0, 1.02, 1.04]
    share = saturation.few_of_most(few, most)  # the variance of a ratio, by the delta method
    ratio = 0.52 / 1.02
    error = 100 / 1.02 * (np.var(few, ddof=1) / 3 * (1 + ratio**2)) ** 0.5
    assert share.value == pytest.approx(100 * ratio)
    freedom = 2 * (1 + ratio**2) ** 2 / (1 + ratio**4)
    half = scipy.stats.t.ppf(0.975, freedom) * error
    assert [share.low, share.high] == pytest.approx([share.value - half, share.value + half])


def test_outputs_come_nearer_to_uniform_or_not(context, monkeypatch):
    """By a Welch test over seeds, whose number Holm's correction counts."""
    one = {"sliced_wasserstein": 0.1, "uniform": -3.0, "uniform_optimum": -3.8}
    one |= {"projection_half_width": 4.0, "projection_counts": "1 2 1; 0 4 0"}
    rows = []
    for group, of in projections.ENCODERS.items():
        for place, label in enumerate(of):
            for seed in range(5):
                falls = 0.05 * place if group != "NT-Xent" else 0.001 * place
                distance = {"projection_ks_sphere": 0.3 - falls + 0.005 * seed}
                distance["uniform"] = -3 - 0.1 * place * (label != "tau 0.1") + 0.01 * seed
                rows.append(done(group=group, label=label, **one | distance))
    monkeypatch.setattr(projections, "draw_histograms", drawing := Mock())
    result = projections.result(context, rows)
    assert drawing.call_args.args[0]["NT-Xent\ntau 2"] == (4.0, [[1, 2, 1], [0, 4, 0]])
    told = "falls in 2 of 4 steps, and rises in none; L_uniform falls in 3 of the 4 steps."
    assert result.short.endswith(told)
    assert "lambda 0.05 to lambda 0.5 -0.050 (-0.0" in result.verdict
    expected = scipy.stats.ttest_ind([1, 2, 4.0], [3, 5, 8, 9.0], equal_var=False)
    found, ends = inference.of_seeds([1, 2, 4], [3, 5, 8, 9]), expected.confidence_interval()
    assert [found.p, found.low, found.high] == pytest.approx([expected.pvalue, *ends])
