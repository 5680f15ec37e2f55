"""Configs of the papers' encoders against numbers typed from the papers' text."""

import hashlib
from pathlib import Path

import pytest

import experiments
from experiments.lib.evaluation import Evaluation
from experiments.lib.labels import formula
from experiments.lib.tables import FOLDER, TABLES, printed_scores, table_row, table_rows
from experiments.wang_isola.encoders import (
    BASES,
    DETAILS,
    config_of,
    detailed,
    initial_row,
    refusal,
    run_of,
)
from hypersphere_jax import configs as C
from hypersphere_jax.configs import PretrainConfig, UserError, from_dict, to_dict
from hypersphere_jax.data.image_files import read_classes
from hypersphere_jax.training.optimizers import make_schedule

STL10, NYU, IMAGENET100, BOOKS = (f"wang-isola/table{number}" for number in (8, 9, 10, 11))
# Two printed results, by which a row is known.
RESULTS = {STL10: ("val_output_linear", "val_fc7_linear"), BOOKS: ("val_mr", "val_cr")}
RESULTS |= {NYU: ("val_conv5_mse", "val_conv4_mse"), IMAGENET100: ("val_top1", "val_top5")}
# Results; formula; epochs, batch, rate, dimension; and of ImageNet-100 whether pairs inside the
# batch count too, and the queue.
ROWS = """
8  | 19.31 47.58   | 1.25 align (alpha 2) + uniform (t 2)   | 200 2 0.0009375 128
8  | 74.75 77.84   | 1.25 align (alpha 1) + uniform (t 2)   | 200 16 0.0075 128
8  | 81.48 82.88   | 0.5 align (alpha 2) + uniform (t 2)    | 200 64 0.03 1024
8  | 29.46 59.95   | contrastive (tau 0.07)                 | 200 768 0.36 2
8  | 78.64 83.26 |contrastive (tau 0.1) + 0.4 align (alpha 2) + 0.2 uniform (t 2) | 200 768 0.36 128
8  | 50.91 61.58   | 0.05 align (alpha 2) + 5 uniform (t 2) | 200 768 0.36 128
8  | 70.35 80.41   | contrastive (tau 1)                    | 200 786 0.12 128
8  | 61.53 76.83   | 0.005 align (alpha 2)                  | 12 256 0.12 128
8  | 70.43 76.08   | 0.05 contrastive (tau 0.5)             | 12 768 0.36 128
9  | 0.7028 0.7624 | 0.5 contrastive (tau 0.07)             | 400 128 0.06 128
9  | 0.8717 0.8918 | 4.875 align (alpha 1) + uniform (t 2)  | 400 128 0.06 128
10 | 64.14 86.12   | contrastive (tau 0.01)                 | 240 128 0.03 128 | 1 16384
10 | 73.54 92.74   | 2 align (alpha 2) + uniform (t 2)      | 240 128 0.03 128 | 0 32768
10 | 72.32 91.86   | 7 align (alpha 2) + uniform (t 7)      | 240 128 0.03 128 | 1 16384
11 | 77.23 83.07   | contrastive (tau 1)                    | 1 400 0.0005 1200
"""
# Data, recipe, network, side of images, epochs at which the rate falls to a tenth (B.1, B.2.1).
COMMON = {
    STL10: ("stl10", "stl10", "small_alexnet", 64, (155, 170, 185)),
    NYU: ("nyu_depth_v2", "nyu_depth", "small_alexnet", 64, (310, 340, 370)),
    IMAGENET100: ("imagenet2012", "moco", "resnet50", 224, (120, 160, 200)),
    BOOKS: ("books", None, "sentence_gru", None, ()),
}
# Rows that give no config, as the paper's text lost or garbled a setting.
NO_UNIFORM = {*range(110, 142), 155, 157, 160, 167, 168, 170, 171, 172, 173}
FINETUNED = {235, 237, 238, 242, 244, 245, 246, 251, 252, 253, 254, 262, 263, 264, 269, 270}
REFUSED = {STL10: {64, *NO_UNIFORM, *FINETUNED, 271, 272}}
REFUSED |= {NYU: {26}, IMAGENET100: {43, 44, 45}, BOOKS: {59}}
# Pretrain configs: batch, epochs, rate, weight decay, queue, momentum encoder's decay, network,
# dimension; formula. Wang & Isola B.2.1 to B.3 and Table 4; of CIFAR-10 the notebook it names.
EXPERIMENTS = """
moco_cifar10/contrastive | 512 200 0.06 0.0005 4096 0.99 resnet18 128 | contrastive (tau 0.1)
moco_cifar10/align_uniform | 512 200 0.06 0.0005 4096 0.99 resnet18 128 | 3 1 3
moco_imagenet100/contrastive | 128 240 0.03 0.0001 16384 0.999 resnet50 128 | contrastive (tau 0.07)
moco_imagenet100/align_uniform | 128 240 0.03 0.0001 16384 0.999 resnet50 128 | 3 1 3
moco_v2_imagenet/contrastive | 256 200 0.03 0.0001 65536 0.999 resnet50 128 | contrastive (tau 0.2)
moco_v2_imagenet/align_uniform | 256 200 0.03 0.0001 65536 0.999 resnet50 128 | 3 1 3
nyu_depth/contrastive | 128 400 0.12 0.0001 0 0.999 small_alexnet 128 | 0.5 contrastive (tau 0.1)
nyu_depth/align_uniform | 128 400 0.12 0.0001 0 0.999 small_alexnet 128 | 0.75 0.5 2
quick_thought/contrastive | 400 1 0.0005 0 0 0.999 sentence_gru 1200 | contrastive (tau 0.075)
quick_thought/contrastive_cr | 400 1 0.0005 0 0 0.999 sentence_gru 1200 | contrastive (tau 0.05)
quick_thought/align_uniform | 400 1 0.0005 0 0 0.999 sentence_gru 1200 | 0.9 0.1 5
quick_thought/unnormalized | 400 1 0.0005 0 0 0.999 sentence_gru 1200 | contrastive (tau 1)
"""
DROPS = {"moco_imagenet100": (120, 160, 200), "moco_v2_imagenet": (120, 160), "quick_thought": ()}
# Recipe, side of images, and the learning rate at the beginning and after half of the run.
BEGINNINGS = {
    "moco_cifar10": ("balanced_cifar", 32, 0.06, 0.03),
    "moco_imagenet100": ("moco", 224, 0.03, 0.003),
    "moco_v2_imagenet": ("moco_v2", 224, 0.03, 0.03),
    "nyu_depth": ("nyu_depth", 64, 0.06, 0.06),
    "quick_thought": (None, None, 5e-4, 5e-4),
}


def row_with(table, results):
    """The row with these results."""
    (row,) = [
        r for r in table_rows(table) if tuple(map(printed_scores(r).get, RESULTS[table])) == results
    ]
    return row


def decays(config, steps_per_epoch=7):
    """Epochs at whose beginning the learning rate drops, and the factors."""
    schedule = make_schedule(config, config.epochs * steps_per_epoch)
    rates = [float(schedule(epoch * steps_per_epoch)) for epoch in range(config.epochs)]
    assert rates[0] == pytest.approx(config.learning_rate)
    drops = {epoch: rates[epoch] / rates[epoch - 1] for epoch in range(1, config.epochs)}
    return {epoch: round(drop, 4) for epoch, drop in drops.items() if abs(drop - 1) > 1e-4}


def test_rows_are_the_papers():
    for line in ROWS.strip().splitlines():
        number, results, losses, settings, *of_queue = (cell.strip() for cell in line.split("|"))
        table = f"wang-isola/table{number}"
        config = config_of(row_with(table, tuple(map(float, results.split()))))
        printed = [config.epochs, config.batch_size, config.learning_rate, config.dim]
        assert printed == [*map(float, settings.split())], line
        assert formula(config) == losses and config.scaling == "none", line
        *names, drops = COMMON[table]
        assert [config.data, config.recipe, config.model, config.image_size] == names
        assert decays(config) == dict.fromkeys(drops if config.epochs > 12 else (), 0.1), line
        sgd = (config.optimizer, config.momentum, config.weight_decay) == ("sgd", 0.9, 1e-4)
        assert sgd == (table != BOOKS) and config.ema_decay == 0.999, line
        assert [f"{config.uniform_intra_batch:d} {config.queue_size}"] == (of_queue or ["1 0"])


def test_finetuned_rows_begin_where_their_mark_says():
    """Table 8's last rows: ★ is tau = 2 and • is tau = 3, both with batch 786."""
    star, bullet = (row_with(STL10, results) for results in ((64.19, 78.11), (55.04, 74.95)))
    for results, start in (((61.53, 76.83), star), ((70.00, 74.15), bullet)):
        row = row_with(STL10, results)
        config = config_of(row)
        assert initial_row(row) == start and config.init_from == config_of(start).name
        assert C.section(config_of(start), C.ModelConfig) == C.section(config, C.ModelConfig)
    assert initial_row(star) is None and config_of(star).init_from is None
    with pytest.raises(UserError, match="marked 'diamond'"):
        config_of(row_with(STL10, (77.63, 81.75)))


def test_every_row_gives_a_config_or_a_reason():
    names, seeds = set(), {}
    for table in TABLES:
        refused, made = {row.number for row in table_rows(table) if refusal(row)}, []
        for row in table_rows(table):
            if row.number in refused:
                with pytest.raises(UserError, match=f"{table}, row {row.number}: "):
                    config_of(row)
                continue
            config = config_of(row)
            assert from_dict(PretrainConfig, to_dict(config)) == config
            seeds[table, row.number] = config.seed
            made.append(to_dict(config) | {"name": ""})
            names |= {config.name} if table in BASES else set()
        whole = (
            {row.number for row in table_rows(table)} if table not in (*BASES, *DETAILS) else set()
        )
        assert refused == REFUSED.get(table, whole), table
        # No two rows of a table train the same encoder.
        assert table in DETAILS or all(one not in made[:place] for place, one in enumerate(made))
    assert len(names) == 2 + 279 - 60 + 64 - 1 + 45 - 3 + 114 - 1
    # Pairs of rows that the paper prints with the same settings and other results.
    repeats = [(STL10, number) for number in (92, 109, 225, 256)] + [(BOOKS, 43), (BOOKS, 44)]
    assert {key for key, seed in seeds.items() if seed} == {("wang-isola/table1", 3), *repeats}


def test_laptop_keeps_what_the_row_is_about():
    row = row_with(STL10, (61.53, 76.83))
    paper, laptop = config_of(row), config_of(row, "laptop")
    assert formula(laptop) == formula(paper) and laptop.dim == paper.dim
    assert laptop.name != paper.name and laptop.data == "digits"
    assert laptop.init_from == config_of(initial_row(row), "laptop").name
    for scale in ("laptop", "cifar10"):
        assert config_of(row_with(STL10, (81.48, 82.88)), scale).dim == 1024
    for number, scale, *settings in (
        (row.number, "laptop", 1, 64, 0.03),
        (row.number, "cifar10", 1, 42, 0.12 * 42 / 256),
        (2, "laptop", 25, 2, 2 * 0.12 / 256),  # 3 pairs in the paper
    ):
        config = config_of(table_row(STL10, number), scale)
        assert [config.epochs, config.batch_size, config.learning_rate] == pytest.approx(settings)
    books = config_of(table_row(BOOKS, 1), "laptop")
    assert (books.dim, books.embedding, books.epochs) == (100, 100, 1)
    assert books.learning_rate == 4 * 5e-4 and not books.unit_norm


def test_table_files_are_complete():
    counts = (3, 3, 3, 3, 2, 100, 304 - 25, 306 - 304, 64, 45, 108 + 6)  # Wang & Isola
    counts += (5 * 4 * 4, 5 * 3 * 4, 5 * 3 * 4, 8 * 12, 3, 2)  # Chen et al.; the balanced paper
    assert tuple(len(table_rows(table)) for table in TABLES) == counts
    whole = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.csv")))
    assert hashlib.sha256(whole).hexdigest()[:16] == "8cf7334e9691c24e"


def test_runs_have_the_printed_results():
    row = table_row("wang-isola/table2", 2)
    run = run_of(row, "paper", Evaluation())
    assert run.config == config_of(detailed(row))
    assert {"paper_val_conv5_mse", "paper_cv_conv5_mse"} <= run.labels.keys()
    assert run.labels["table"] == "wang-isola/table9"


def test_pretrain_configs_are_the_papers():
    lines = [[cell.strip() for cell in line.split("|")] for line in EXPERIMENTS.split("\n")[1:-1]]
    assert [name for name, *_ in lines] == list(experiments.PRETRAIN)
    for name, settings, losses in lines:
        config, file = experiments.PRETRAIN[name], name.partition("/")[0]
        actual = [config.batch_size, config.epochs, config.learning_rate, config.weight_decay]
        actual += [config.queue_size, config.ema_decay, config.model, config.dim]
        assert [f"{v:g}" if isinstance(v, float) else str(v) for v in actual] == settings.split()
        terms = f"{config.align_weight:g} {config.uniform_weight:g} {config.uniform_t:g}"
        assert losses == (formula(config) if "(" in losses else terms), name
        assert "(" in losses or (config.align_alpha, config.contrastive_weight) == (2, 0), name
        assert config.uniform_intra_batch and config.unit_norm == (name[-12:] != "unnormalized"), (
            name
        )
        schedule = make_schedule(config, 2 * config.epochs)
        rates = [pytest.approx(float(schedule(step))) for step in (0, config.epochs)]
        assert BEGINNINGS[file] == (config.recipe, config.image_size, *rates), name
        assert file not in DROPS or decays(config) == dict.fromkeys(DROPS[file], 0.1), name
        if file == "quick_thought":
            assert (config.optimizer, config.clip_norm, config.embedding) == ("adam", 0.5, 620), (
                name
            )
        else:
            head = "moco_v2" if file == "moco_v2_imagenet" else "linear"
            assert (config.optimizer, config.momentum, config.head) == ("sgd", 0.9, head), name
        if file == "moco_imagenet100":  # Table 7
            classes = read_classes(Path(config.classes))
            assert (len({*classes}), *classes[::99]) == (100, "n02869837", "n02090622"), name
