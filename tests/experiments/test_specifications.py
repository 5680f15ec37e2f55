"""The configs that rows of the papers' tables give, and those of the experiments, as printed.

Numbers here are typed from the papers' text, not from the files of `paper_tables/`.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from processes import ROOT

import experiments
from experiments.items import kind
from experiments.specifications import BASES, DETAILS, config_of, formula, initial, refusal
from experiments.specifications import specified as full_row
from experiments.tables import TABLES, expected, row_of, rows
from hypersphere_jax import runs
from hypersphere_jax.config import ObjectiveConfig, PretrainConfig, UserError, from_dict, to_dict
from hypersphere_jax.data.files import read_classes
from hypersphere_jax.optimizers import make_schedule

STL10, NYU, IMAGENET100, BOOKS = (f"wang-isola/table{number}" for number in (8, 9, 10, 11))
# Two printed results, by which a row is found.
RESULTS = {
    STL10: ("val_output_linear", "val_fc7_linear"),
    NYU: ("val_conv5_mse", "val_conv4_mse"),
    IMAGENET100: ("val_top1", "val_top5"),
    BOOKS: ("val_mr", "val_cr"),
}
# Results; formula; epochs, batch, rate, dimension; and of ImageNet-100 whether pairs inside the
# batch count too, and the queue.
ROWS = """
8  | 19.31 47.58   | 1.25 align (alpha 2) + uniform (t 2)   | 200 2 0.0009375 128
8  | 74.75 77.84   | 1.25 align (alpha 1) + uniform (t 2)   | 200 16 0.0075 128
8  | 67.30 71.53   | contrastive (tau 0.5)                  | 200 16 0.12 128
8  | 81.48 82.88   | 0.5 align (alpha 2) + uniform (t 2)    | 200 64 0.03 1024
8  | 74.13 79.81   | contrastive (tau 0.687)                | 200 128 0.12 128
8  | 29.46 59.95   | contrastive (tau 0.07)                 | 200 768 0.36 2
8  | 78.64 83.26 |contrastive (tau 0.1) + 0.4 align (alpha 2) + 0.2 uniform (t 2) | 200 768 0.36 128
8  | 20.50 24.64   | uniform (t 2)                          | 200 768 0.36 128
8  | 50.91 61.58   | 0.05 align (alpha 2) + 5 uniform (t 2) | 200 768 0.36 128
8  | 70.35 80.41   | contrastive (tau 1)                    | 200 786 0.12 128
8  | 61.53 76.83   | 0.005 align (alpha 2)                  | 12 256 0.12 128
8  | 70.43 76.08   | 0.05 contrastive (tau 0.5)             | 12 768 0.36 128
9  | 0.7378 0.7969 | 0.5 align (alpha 2) + uniform (t 2)    | 400 128 0.06 128
9  | 0.7028 0.7624 | 0.5 contrastive (tau 0.07)             | 400 128 0.06 128
9  | 0.8717 0.8918 | 4.875 align (alpha 1) + uniform (t 2)  | 400 128 0.06 128
10 | 64.14 86.12   | contrastive (tau 0.01)                 | 240 128 0.03 128 | 1 16384
10 | 73.54 92.74   | 2 align (alpha 2) + uniform (t 2)      | 240 128 0.03 128 | 0 32768
10 | 72.32 91.86   | 7 align (alpha 2) + uniform (t 7)      | 240 128 0.03 128 | 1 16384
11 | 77.23 83.07   | contrastive (tau 1)                    | 1 400 0.0005 1200
"""
# Data, recipe, network, and the epochs at which the rate falls to a tenth (B.1, B.2.1).
COMMON = {
    STL10: ("stl10", "stl10", "small_alexnet", (155, 170, 185)),
    NYU: ("nyu_depth_v2", "nyu_depth", "small_alexnet", (310, 340, 370)),
    IMAGENET100: ("imagenet2012", "moco", "resnet50", (120, 160, 200)),
    BOOKS: ("books", None, "sentence_gru", ()),
}
# Tables 1, 2, 3 and 5, row by row.
BEST = {
    "wang-isola/table1": [
        ("contrastive (tau 0.19)", (80.46, 78.75, 83.89, 76.33)),
        ("0.98 align (alpha 2) + 0.96 uniform (t 2)", (81.15, 78.89, 84.43, 76.78)),
        ("contrastive (tau 0.5) + uniform (t 2)", (81.06, 79.05, 84.14, 76.48)),
    ],
    "wang-isola/table2": [
        ("0.5 contrastive (tau 0.1)", (0.7024, 0.7575)),
        *[("0.75 align (alpha 2) + 0.5 uniform (t 2)", (0.7014, 0.7592))] * 2,
    ],
    "wang-isola/table3": [
        ("contrastive (tau 0.07)", (72.80, 91.64)),
        *[("3 align (alpha 2) + uniform (t 3)", (74.60, 92.74))] * 2,
    ],
    "wang-isola/table5": [
        ("contrastive (tau 0.2)", (67.5, 0.1)),
        ("3 align (alpha 2) + uniform (t 3)", (67.69, 67.694)),
    ],
}
# Rows that give no config, as the paper's text lost or garbled a setting.
NO_UNIFORM = {*range(110, 142), 155, 157, 160, 167, 168, 170, 171, 172, 173}
FINETUNED = {235, 237, 238, 242, 244, 245, 246, 251, 252, 253, 254, 262, 263, 264, 269, 270}
REFUSED = {
    STL10: {64, *NO_UNIFORM, *FINETUNED, 271, 272},
    NYU: {26},
    IMAGENET100: {43, 44, 45},
    BOOKS: {59},
}
# Of the experiments: batch, epochs, rate, weight decay, queue, decay of the momentum encoder; its
# temperature; network and head. Wang & Isola B.2.1, B.2.2; of CIFAR-10 the notebook it names.
MOCO = {
    "moco_cifar10": (512, 200, 0.06, 5e-4, 4096, 0.99, 0.1, "resnet18", "linear"),
    "moco_imagenet100": (128, 240, 0.03, 1e-4, 16384, 0.999, 0.07, "resnet50", "linear"),
    "moco_v2_imagenet": (256, 200, 0.03, 1e-4, 65536, 0.999, 0.2, "resnet50", "moco_v2"),
}
# Weights of contrastive, alignment and uniformity; tau; unit norm in training: B.3 and Table 4.
QUICK_THOUGHT = {
    "contrastive": ((1, 0, 0), 0.075, True),
    "contrastive_cr": ((1, 0, 0), 0.05, True),
    "align_uniform": ((0, 0.9, 0.1), None, True),
    "unnormalized": ((1, 0, 0), 1, False),
}


def found(table, results):
    """The row with these results."""
    (row,) = [
        r for r in rows(table) if tuple(expected(r).get(n) for n in RESULTS[table]) == results
    ]
    return row


def decays(config, steps_per_epoch=7):
    """Epochs at whose beginning the learning rate drops, and the factors."""
    rule = config.optimizer
    schedule = make_schedule(rule, rule.epochs * steps_per_epoch)
    rates = [float(schedule(epoch * steps_per_epoch)) for epoch in range(rule.epochs)]
    assert rates[0] == pytest.approx(rule.learning_rate)
    drops = {epoch: rates[epoch] / rates[epoch - 1] for epoch in range(1, rule.epochs)}
    return {epoch: round(drop, 4) for epoch, drop in drops.items() if abs(drop - 1) > 1e-4}


def weights(objective):
    return (objective.contrastive_weight, objective.align_weight, objective.uniform_weight)


def test_rows_are_the_papers():
    for line in ROWS.strip().splitlines():
        number, results, losses, settings, *of_queue = (cell.strip() for cell in line.split("|"))
        table = f"wang-isola/table{number}"
        config = config_of(found(table, tuple(map(float, results.split()))))
        rule, objective = config.optimizer, config.objective
        printed = [rule.epochs, rule.batch_size, rule.learning_rate, config.model.dim]
        assert printed == [*map(float, settings.split())], line
        assert formula(objective) == losses and rule.scaling == "none", line
        data, recipe, network, drops = COMMON[table]
        assert (config.data.name, config.data.recipe, config.model.name) == (data, recipe, network)
        assert decays(config) == dict.fromkeys(drops if rule.epochs > 12 else (), 0.1), line
        if table != BOOKS:
            assert (rule.optimizer, rule.momentum, rule.weight_decay) == ("sgd", 0.9, 1e-4), line
        queue = f"{objective.uniform_intra_batch:d} {config.moco.queue_size}"
        assert queue == (of_queue or ["1 0"])[0] and config.moco.ema_decay == 0.999, line


def test_best_rows_are_the_papers():
    for table, printed in BEST.items():
        for row, (losses, results) in zip(rows(table), printed, strict=True):
            values = {name: value for name, value in expected(row).items() if name != "n_runs"}
            assert tuple(values.values()) == results
            config, same = config_of(row), full_row(row)
            assert formula(config.objective) == losses and config == config_of(same)
            assert expected(same).items() >= expected(row).items()
            if table == "wang-isola/table1":  # its caption
                assert (config.optimizer.batch_size, config.model.dim) == (768, 128)
                assert config.init_from is None and config.optimizer.epochs == 200
    config = config_of(row_of("wang-isola/table5", 2))
    rule, model = config.optimizer, config.model
    assert (rule.epochs, rule.batch_size, rule.learning_rate) == (200, 256, 0.03)
    assert (config.moco.queue_size, model.dim, model.head) == (65536, 128, "moco_v2")
    assert decays(config) == {120: 0.1, 160: 0.1}  # B.2.2 has no epoch 200 among them


def test_losses_are_printed_with_their_settings():
    balanced, dot = {"loss": "balanced_contrastive"}, {"loss": "nt_xent", "similarity": "dot"}
    weighted = {"contrastive_weight": 0.5, "contrastive_tau": 0.07, "align_weight": 0}
    for options, printed, name in (
        (balanced | {"loss_alpha": 2}, "balanced_contrastive (alpha 2, lam 2)", None),
        (balanced | {"loss_factor": 10}, "10 balanced_contrastive (alpha 4, lam 2)", None),
        (weighted, "0.5 contrastive (tau 0.07) + uniform (t 2)", "contrastive+uniform"),
        (dot, "nt_xent (tau 0.5, similarity dot)", "nt_xent"),
        (dot | {"supervised_weight": 1}, "nt_xent (tau 0.5, similarity dot) + supervised", None),
    ):
        objective = ObjectiveConfig(**options)
        assert formula(objective) == printed
        assert name in (None, kind(PretrainConfig(objective=objective)))


def test_finetuned_rows_begin_where_their_mark_says():
    """Table 8's last rows: ★ is tau = 2 and • is tau = 3, both with batch 786."""
    star, bullet = (found(STL10, results) for results in ((64.19, 78.11), (55.04, 74.95)))
    losses = [formula(config_of(row).objective) for row in (star, bullet)]
    assert losses == ["contrastive (tau 2)", "contrastive (tau 3)"]
    for results, start in (((61.53, 76.83), star), ((70.00, 74.15), bullet)):
        row = found(STL10, results)
        config = config_of(row, runs_dir="elsewhere")
        assert initial(row) == start and config.runs_dir == "elsewhere"
        assert config.init_from == f"elsewhere/{config_of(start).name}"
        assert config_of(start).model == config.model
    assert initial(star) is None and config_of(star).init_from is None
    with pytest.raises(UserError, match="begins from an encoder marked 'diamond'"):
        config_of(found(STL10, (77.63, 81.75)))


def test_every_row_gives_a_config_or_a_reason():
    names, seeds = set(), {}
    for table in TABLES:
        refused, made = set(), []
        for row in rows(table):
            reason = refusal(row)
            if reason is None:
                config = config_of(row)
                assert from_dict(PretrainConfig, to_dict(config)) == config
                seeds[table, row.number] = config.seed
                made.append(to_dict(config) | {"name": ""})
                names |= {config.name} if table in BASES else set()
            else:
                refused.add(row.number)
                assert reason.startswith(f"{table}, row {row.number}: ") and "\n" not in reason
                with pytest.raises(UserError) as error:
                    config_of(row)
                assert str(error.value) == reason
        whole = {row.number for row in rows(table)} if table not in (*BASES, *DETAILS) else set()
        assert refused == REFUSED.get(table, whole), table
        # No two rows of a table train the same encoder.
        assert table in DETAILS or all(one not in made[:place] for place, one in enumerate(made))
    assert len(names) == 2 + 279 - 60 + 64 - 1 + 45 - 3 + 114 - 1
    # Pairs of rows that the paper prints with the same settings and other results.
    assert {key for key, seed in seeds.items() if seed} == {
        ("wang-isola/table1", 3),
        *((STL10, number) for number in (92, 109, 225, 256)),
        *((BOOKS, number) for number in (43, 44)),
    }


def test_doubtful_rows_are_taken_when_asked():
    with pytest.raises(UserError, match="doubtful in the paper's text: align_weight, align_alpha"):
        config_of(row_of(STL10, 64))
    losses = formula(config_of(row_of(STL10, 64), doubtful=True).objective)
    assert losses == "align (alpha 2.5) + uniform (t 2)"
    assert config_of(row_of(IMAGENET100, 43), doubtful=True).seed == 1  # row 23 again
    with pytest.raises(UserError, match="lost in the paper's text: uniform_weight, uniform_t"):
        config_of(row_of(STL10, 110), doubtful=True)
    # What is doubtful or lost among the results alone refuses nothing.
    row = found(STL10, (80.03, 84.20))
    assert row.suspect == ("val_output_linear",) and config_of(row).objective.align_weight == 0.5
    assert expected(row_of(NYU, 25)) == {} and config_of(row_of(NYU, 25)).seed == 0


def test_laptop_keeps_what_the_row_is_about():
    row = found(STL10, (61.53, 76.83))
    paper, laptop = config_of(row), config_of(row, "laptop")
    assert laptop.objective == paper.objective and laptop.model.dim == paper.model.dim
    assert laptop.name != paper.name and laptop.data.name == "digits"
    assert laptop.init_from == f"runs/{config_of(initial(row), 'laptop').name}"
    for number, scale, settings in (
        (row.number, "laptop", (1, 64, 0.03)),
        (row.number, "cifar10", (1, 42, 0.12 * 42 / 256)),
        (2, "laptop", (25, 2, 2 * 0.12 / 256)),  # 3 pairs in the paper
    ):
        rule = config_of(row_of(STL10, number), scale).optimizer
        assert (rule.epochs, rule.batch_size) == settings[:2]
        assert rule.learning_rate == pytest.approx(settings[2])
    books = config_of(row_of(BOOKS, 1), "laptop")
    assert (books.model.dim, books.model.embedding, books.optimizer.epochs) == (100, 100, 2)
    assert books.optimizer.learning_rate == 4 * 5e-4 and not books.model.unit_norm
    with pytest.raises(UserError, match="which has no such scale"):
        config_of(row_of(NYU, 1), "laptop")
    with pytest.raises(UserError, match="must be one of paper, laptop, cifar10"):
        config_of(row, "moon")


def test_experiments_are_the_papers():
    listed = [f"{file}/{loss}" for file in MOCO for loss in ("contrastive", "align_uniform")]
    listed += ["nyu_depth/contrastive", "nyu_depth/align_uniform"]
    assert [*listed, *(f"quick_thought/{name}" for name in QUICK_THOUGHT)] == [
        *experiments.PRETRAIN
    ]
    for name, config in experiments.PRETRAIN.items():
        file, variant = name.split("/")
        rule, loss, model, moco = config.optimizer, config.objective, config.model, config.moco
        assert config.name == name.replace("/", "_")
        found = (rule.batch_size, rule.epochs, rule.learning_rate, rule.weight_decay)
        if file in MOCO:
            *first, tau, network, head = MOCO[file]
            assert [*found, moco.queue_size, moco.ema_decay] == first, name
            assert (model.name, model.head, model.dim, model.bn_groups) == (network, head, 128, 8)
            assert (rule.optimizer, rule.momentum, rule.scaling) == ("sgd", 0.9, "none")
            expected_loss = ((1, 0, 0), tau) if variant == "contrastive" else ((0, 3, 1), 2, 3)
            drops = {"moco_imagenet100": (120, 160, 200), "moco_v2_imagenet": (120, 160)}
            if file in drops:
                assert decays(config) == dict.fromkeys(drops[file], 0.1), name
        elif file == "nyu_depth":
            assert found == (128, 400, 0.12, 1e-4) and (rule.scaling, model.dim) == ("linear", 128)
            expected_loss = (
                ((0.5, 0, 0), 0.1) if variant == "contrastive" else ((0, 0.75, 0.5), 2, 2)
            )
        else:
            assert found == (400, 1, 5e-4, 0) and (rule.optimizer, rule.clip_norm) == ("adam", 0.5)
            assert (rule.adam_betas, rule.adam_eps, rule.scaling) == ((0.9, 0.999), 1e-8, "none")
            assert decays(config) == {} and (model.dim, model.embedding) == (1200, 620)
            shares, tau, unit = QUICK_THOUGHT[variant]
            expected_loss = (shares, tau) if tau else (shares, 2, 5)
            assert model.unit_norm == unit, name
        options = (loss.align_alpha, loss.uniform_t)
        options = (loss.contrastive_tau,) if loss.contrastive_weight else options
        assert (weights(loss), *options) == expected_loss and loss.uniform_intra_batch, name


def test_classes_are_found_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    listed = read_classes(ROOT / "experiments" / "imagenet100_classes.txt")
    named = experiments.find("moco_imagenet100/contrastive").data.classes
    assert read_classes(Path(named)) == listed
    assert [row.text["wnid"] for row in rows("wang-isola/table7")] == list(listed)


@pytest.mark.slow
def test_experiments_train_when_shrunk(monkeypatch, tmp_path):
    """Two steps with a small encoder, from another folder; of 101 classes ImageNet-100 has 100."""
    from test_cli import run_py

    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    classes = read_classes(ROOT / "experiments" / "imagenet100_classes.txt")
    for folder in (f"{split}/{name}" for split in ("train", "val") for name in (*classes, "n0")):
        (tmp_path / "images" / folder).mkdir(parents=True)
        pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / folder / "0.png")
    small = "--model small_cnn --width 0.1 --dim 4 --image-size 16 --batch-size 40 --epochs 1"
    few = "--queue-size 100 --devices 1 --log-every-steps 1 --dtype float32"
    places = "--data-dir images --cache-dir cache"
    for name, total in (
        ("moco_cifar10/contrastive", 101),
        ("moco_imagenet100/align_uniform", 100),
        ("moco_v2_imagenet/contrastive", 101),
    ):
        assert run_py.main(["pretrain", name, *f"{places} {small} {few}".split()]) == 0
        folder = tmp_path / "runs" / name.replace("/", "_")
        assert runs.read_config(folder).objective == experiments.find(name).objective
        assert len(runs.load_data(folder).train) == total
        lines = runs.read_metrics(folder)
        assert [line["queue_filled"] for line in lines] == pytest.approx([0, 0.4])
        assert all(math.isfinite(line["loss"]) for line in lines)
