"""Configs of the papers' encoders against numbers typed from the papers' text."""

from pathlib import Path

import pytest

import experiments
from experiments.lib.labels import formula
from experiments.lib.tables import printed_scores, table_rows
from experiments.wang_isola.encoders import BASES, config_of, is_certain
from hypersphere_jax.configs import UserError, to_dict
from hypersphere_jax.data.image_files import read_classes
from hypersphere_jax.training.optimizers import make_schedule

STL10, NYU, IMAGENET100, BOOKS = (f"wang-isola/table{number}" for number in (8, 9, 10, 11))
# Two printed results, by which a row is known.
RESULTS = {STL10: ("val_output_linear", "val_fc7_linear"), BOOKS: ("val_mr", "val_cr")}
RESULTS |= {NYU: ("val_conv5_mse", "val_conv4_mse"), IMAGENET100: ("val_top1", "val_top5")}
# Results; formula; epochs, batch, rate, dimension; and for ImageNet-100 whether pairs within the
# batch count, and the queue.
ROWS = """
8  | 19.31 47.58   | 1.25 align (alpha 2) + uniform (t 2)   | 200 2 0.0009375 128
8  | 74.75 77.84   | 1.25 align (alpha 1) + uniform (t 2)   | 200 16 0.0075 128
8  | 29.46 59.95   | contrastive (tau 0.07)                 | 200 768 0.36 2
8  | 78.64 83.26 |contrastive (tau 0.1) + 0.4 align (alpha 2) + 0.2 uniform (t 2) | 200 768 0.36 128
8  | 61.53 76.83   | 0.005 align (alpha 2)                  | 12 256 0.12 128
8  | 70.43 76.08   | 0.05 contrastive (tau 0.5)             | 12 768 0.36 128
9  | 0.8717 0.8918 | 4.875 align (alpha 1) + uniform (t 2)  | 400 128 0.06 128
10 | 64.14 86.12   | contrastive (tau 0.01)                 | 240 128 0.03 128 | 1 16384
10 | 73.54 92.74   | 2 align (alpha 2) + uniform (t 2)      | 240 128 0.03 128 | 0 32768
11 | 77.23 83.07   | contrastive (tau 1)                    | 1 400 0.0005 1200
"""
# Data, recipe, network, side of images, epochs at which the rate falls to a tenth (B.1, B.2.1).
COMMON = {
    STL10: ("stl10", "stl10", "small_alexnet", 64, (155, 170, 185)),
    NYU: ("nyu_depth_v2", "nyu_depth", "small_alexnet", 64, (310, 340, 370)),
    IMAGENET100: ("imagenet2012", "moco", "resnet50", 224, (120, 160, 200)),
    BOOKS: ("books", None, "sentence_gru", None, ()),
}
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
# Recipe, and the learning rate at the beginning and after half of the run.
BEGINNINGS = {
    "moco_cifar10": ("balanced_cifar", 0.06, 0.03),
    "moco_imagenet100": ("moco", 0.03, 0.003),
    "moco_v2_imagenet": ("moco_v2", 0.03, 0.03),
    "nyu_depth": ("nyu_depth", 0.06, 0.06),
    "quick_thought": (None, 5e-4, 5e-4),
}


def row_with(table, results):
    """Return the row with these results."""
    (row,) = [
        row
        for row in table_rows(table)
        if tuple(map(printed_scores(row).get, RESULTS[table])) == results
    ]
    return row


@pytest.mark.parametrize("line", ROWS.strip().splitlines())
def test_rows_are_the_papers(line):
    number, results, losses, settings, *queue = (cell.strip() for cell in line.split("|"))
    table = f"wang-isola/table{number}"
    config = config_of(row_with(table, tuple(map(float, results.split()))))
    printed = [config.epochs, config.batch_size, config.learning_rate, config.dim]
    assert printed == [*map(float, settings.split())]
    assert formula(config) == losses and config.scaling == "none"
    *names, drops = COMMON[table]
    assert [config.data, config.recipe, config.model, config.image_size] == names
    decays = [share * config.epochs for share in config.decay_at]
    assert decays == pytest.approx([*drops] if config.epochs > 12 else [])
    assert config.decay_factor == 0.1
    is_sgd = (config.optimizer, config.momentum, config.weight_decay) == ("sgd", 0.9, 1e-4)
    assert is_sgd == (table != BOOKS)
    assert [f"{config.uniform_intra_batch:d} {config.queue_size}"] == (queue or ["1 0"])


@pytest.mark.parametrize("table", BASES)
def test_certain_rows_give_distinct_configs(table):
    """No two rows of a table train the same encoder with the same seed."""
    made = []
    for row in table_rows(table):
        if is_certain(row):
            made.append(to_dict(config_of(row)) | {"name": ""})
        else:
            with pytest.raises(UserError, match=f"{table}, row {row.number}: "):
                config_of(row)
    assert made and all(one not in made[:place] for place, one in enumerate(made))


@pytest.mark.parametrize("line", EXPERIMENTS.strip().splitlines())
def test_pretrain_configs_are_the_papers(line):
    name, settings, losses = (cell.strip() for cell in line.split("|"))
    config = experiments.PRETRAIN[name]
    actual = [config.batch_size, config.epochs, config.learning_rate, config.weight_decay]
    actual += [config.queue_size, config.ema_decay]
    found = [f"{value:g}" for value in actual] + [config.model, f"{config.dim}"]
    assert found == settings.split()
    if "(" in losses:
        assert losses == formula(config)
    else:
        weights = (config.align_weight, config.uniform_weight, config.uniform_t)
        assert [*map(float, losses.split())] == [*weights]
        assert (config.align_alpha, config.contrastive_weight) == (2, 0)
    schedule = make_schedule(config, 2 * config.epochs)
    start_and_half = [pytest.approx(float(schedule(step))) for step in (0, config.epochs)]
    assert BEGINNINGS[name.partition("/")[0]] == (config.recipe, *start_and_half)


def test_imagenet100_has_the_classes_of_table_7():
    classes = read_classes(Path(experiments.PRETRAIN["moco_imagenet100/contrastive"].classes))
    assert (len({*classes}), *classes[::99]) == (100, "n02869837", "n02090622")
