"""Rows of the papers' tables, and the configs that they give, against the papers' text."""

import csv
import hashlib
import io
import math

import numpy as np
import pytest

import experiments
from experiments.items import kind
from experiments.specifications import (
    BASES,
    DETAILS,
    LOSSES,
    SETTINGS,
    config_of,
    formula,
    initial,
    refusal,
    specified,
)
from experiments.tables import FOLDER, TABLES, expected, row_of, rows
from hypersphere_jax.config import ObjectiveConfig, PretrainConfig, UserError, from_dict, to_dict
from hypersphere_jax.data.files import read_classes
from hypersphere_jax.optimizers import make_schedule

STL10, NYU, IMAGENET100 = (f"wang-isola/table{number}" for number in (8, 9, 10))
# Rows that are there: of Table 8 the caption says 304, of which 25 were lost.
COUNTS = {
    "wang-isola/table1": 3,
    "wang-isola/table2": 3,
    "wang-isola/table3": 3,
    "wang-isola/table4": 3,
    "wang-isola/table5": 2,
    "wang-isola/table7": 100,
    STL10: 304 - 25,
    "wang-isola/table8-withdrawn": 306 - 304,
    NYU: 64,
    IMAGENET100: 45,
    "wang-isola/table11": 108 + 6,
    "chen/tableD1": 5 * 4 * 4,
    "chen/tableD2": 5 * 3 * 4,
    "chen/tableD3": 5 * 3 * 4,
    "chen/figureB2": 8 * 12,
    "balanced/table1": 3,
    "balanced/table4": 2,
}

# Typed from the papers' text, not from the files. A row is found by two of its printed results.
# Results, formula, epochs, batch, rate, dimension: Table 8.
FROM_STL10 = [
    ((19.31, 47.58), "1.25 align (alpha 2) + uniform (t 2)", 200, 2, 0.0009375, 128),
    ((43.97, 56.89), "1.25 align (alpha 2) + uniform (t 2)", 200, 3, 0.00140625, 128),
    ((74.75, 77.84), "1.25 align (alpha 1) + uniform (t 2)", 200, 16, 0.0075, 128),
    ((67.30, 71.53), "contrastive (tau 0.5)", 200, 16, 0.12, 128),
    ((81.48, 82.88), "0.5 align (alpha 2) + uniform (t 2)", 200, 64, 0.03, 1024),
    ((74.13, 79.81), "contrastive (tau 0.687)", 200, 128, 0.12, 128),
    ((78.40, 83.46), "0.75 align (alpha 2) + uniform (t 2)", 200, 256, 0.12, 64),
    ((29.46, 59.95), "contrastive (tau 0.07)", 200, 768, 0.36, 2),
    ((80.46, 83.89), "contrastive (tau 0.19)", 200, 768, 0.36, 128),
    (
        (78.64, 83.26),
        "contrastive (tau 0.1) + 0.4 align (alpha 2) + 0.2 uniform (t 2)",
        *(200, 768, 0.36, 128),
    ),
    ((75.69, 80.93), "0.9075 align (alpha 2) + 0.185 uniform (t 2)", 200, 768, 0.36, 128),
    ((36.28, 47.04), "0.0025 align (alpha 2) + uniform (t 2)", 200, 768, 0.36, 128),
    ((20.50, 24.64), "uniform (t 2)", 200, 768, 0.36, 128),
    ((75.78, 79.15), "0.4 align (alpha 2) + 1.2 uniform (t 2)", 200, 768, 0.36, 128),
    ((50.91, 61.58), "0.05 align (alpha 2) + 5 uniform (t 2)", 200, 768, 0.36, 128),
    ((82.33, 83.91), "0.375 align (alpha 2) + uniform (t 2)", 200, 768, 0.36, 512),
    ((70.35, 80.41), "contrastive (tau 1)", 200, 786, 0.12, 128),
    ((61.53, 76.83), "0.005 align (alpha 2)", 12, 256, 0.12, 128),
    ((70.00, 74.15), "0.5 align (alpha 1) + uniform (t 2)", 12, 256, 0.12, 128),
    ((70.43, 76.08), "0.05 contrastive (tau 0.5)", 12, 768, 0.36, 128),
    ((66.14, 75.29), "0.0005 align (alpha 2) + 0.0005 uniform (t 2)", 12, 768, 0.36, 128),
]
# Results of conv5 and conv4, formula: Table 9.
FROM_NYU = [
    ((0.7378, 0.7969), "0.5 align (alpha 2) + uniform (t 2)"),
    ((0.7259, 0.7761), "contrastive (tau 0.25)"),
    ((0.7028, 0.7624), "0.5 contrastive (tau 0.07)"),
    ((0.8302, 0.8590), "0.5 align (alpha 2) + 7.5 uniform (t 2)"),
    ((0.8717, 0.8918), "4.875 align (alpha 1) + uniform (t 2)"),
]
# Results top-1 and top-5, formula, pairs inside the batch too, queue: Table 10.
FROM_IMAGENET100 = [
    ((64.14, 86.12), "contrastive (tau 0.01)", True, 16384),
    ((1.22, 5.42), "2 align (alpha 2)", True, 16384),
    ((67.42, 88.96), "align (alpha 2) + 0.125 uniform (t 8)", True, 16384),
    ((69.54, 91.14), "align (alpha 2) + uniform (t 1)", True, 16384),
    ((73.54, 92.74), "2 align (alpha 2) + uniform (t 2)", False, 32768),
    ((73.68, 92.46), "2 align (alpha 2) + uniform (t 2)", True, 32768),
    ((72.32, 91.86), "7 align (alpha 2) + uniform (t 7)", True, 16384),
]
# Tables 1, 2, 3 and 5: formula and results, row by row.
BEST = {
    "wang-isola/table1": [
        ("contrastive (tau 0.19)", (80.46, 78.75, 83.89, 76.33)),
        ("0.98 align (alpha 2) + 0.96 uniform (t 2)", (81.15, 78.89, 84.43, 76.78)),
        ("contrastive (tau 0.5) + uniform (t 2)", (81.06, 79.05, 84.14, 76.48)),
    ],
    "wang-isola/table2": [
        ("0.5 contrastive (tau 0.1)", (0.7024, 0.7575)),
        ("0.75 align (alpha 2) + 0.5 uniform (t 2)", (0.7014, 0.7592)),
        ("0.75 align (alpha 2) + 0.5 uniform (t 2)", (0.7014, 0.7592)),
    ],
    "wang-isola/table3": [
        ("contrastive (tau 0.07)", (72.80, 91.64)),
        ("3 align (alpha 2) + uniform (t 3)", (74.60, 92.74)),
        ("3 align (alpha 2) + uniform (t 3)", (74.60, 92.74)),
    ],
    "wang-isola/table5": [
        ("contrastive (tau 0.2)", (67.5, 0.1)),
        ("3 align (alpha 2) + uniform (t 3)", (67.69, 67.694)),
    ],
}
# The file's rows: what the OCR lost, and what it may have misread.
NO_UNIFORM = {*range(110, 142), 155, 157, 160, 167, 168, 170, 171, 172, 173}
FINETUNED = {235, 237, 238, 242, 244, 245, 246, 251, 252, 253, 254, 262, 263, 264, 269, 270}
REFUSED = {
    STL10: {64, *NO_UNIFORM, *FINETUNED, 271, 272},
    NYU: {26},
    IMAGENET100: {43, 44, 45},
    "wang-isola/table11": {59},
}


def found(table, columns, results):
    (row,) = [
        row for row in rows(table) if tuple(expected(row).get(name) for name in columns) == results
    ]
    return row


def decays(config, steps_per_epoch=7):
    """Epochs at whose beginning the learning rate drops, and the factors."""
    rule = config.optimizer
    schedule = make_schedule(rule, rule.epochs * steps_per_epoch)
    rates = [float(schedule(epoch * steps_per_epoch)) for epoch in range(rule.epochs)]
    assert rates[0] == pytest.approx(rule.learning_rate)
    return {
        epoch: round(rates[epoch] / rates[epoch - 1], 4)
        for epoch in range(1, rule.epochs)
        if not math.isclose(rates[epoch], rates[epoch - 1], rel_tol=1e-4)
    }


@pytest.mark.parametrize("case", FROM_STL10, ids=lambda case: str(case[0][0]))
def test_stl10_rows_are_the_papers(case):
    results, losses, *settings = case
    row = found(STL10, ("val_output_linear", "val_fc7_linear"), results)
    config = config_of(row)
    rule = config.optimizer
    assert formula(config.objective) == losses
    assert [rule.epochs, rule.batch_size, rule.learning_rate, config.model.dim] == settings
    assert (rule.optimizer, rule.momentum, rule.weight_decay) == ("sgd", 0.9, 1e-4)
    assert rule.scaling == "none"
    assert (config.data.name, config.data.recipe) == ("stl10", "stl10")
    assert (config.model.name, config.moco.queue_size) == ("small_alexnet", 0)
    assert decays(config) == ({155: 0.1, 170: 0.1, 185: 0.1} if rule.epochs == 200 else {})


@pytest.mark.parametrize("case", FROM_NYU, ids=lambda case: case[1])
def test_nyu_rows_are_the_papers(case):
    results, losses = case
    config = config_of(found(NYU, ("val_conv5_mse", "val_conv4_mse"), results))
    rule = config.optimizer
    assert formula(config.objective) == losses
    assert (rule.epochs, rule.batch_size, rule.learning_rate) == (400, 128, 0.06)
    assert rule.scaling == "none"
    assert (config.data.name, config.model.dim) == ("nyu_depth_v2", 128)
    assert decays(config) == {310: 0.1, 340: 0.1, 370: 0.1}


@pytest.mark.parametrize("case", FROM_IMAGENET100, ids=lambda case: case[1])
def test_imagenet100_rows_are_the_papers(case):
    results, losses, intra_batch, queue = case
    config = config_of(found(IMAGENET100, ("val_top1", "val_top5"), results))
    rule = config.optimizer
    assert formula(config.objective) == losses
    assert config.objective.uniform_intra_batch == intra_batch
    assert (config.moco.queue_size, config.moco.ema_decay) == (queue, 0.999)
    assert (rule.epochs, rule.batch_size, rule.learning_rate) == (240, 128, 0.03)
    assert rule.scaling == "none"
    assert (config.model.name, config.model.dim) == ("resnet50", 128)
    assert decays(config) == {120: 0.1, 160: 0.1, 200: 0.1}


def test_other_losses_are_printed_with_their_settings():
    def both(loss, **settings):
        objective = ObjectiveConfig(loss=loss, **settings)
        return formula(objective), kind(PretrainConfig(objective=objective))

    assert both("balanced_contrastive", loss_alpha=2) == (
        "balanced_contrastive (alpha 2, lam 2)",
        "balanced_contrastive",
    )
    assert both("nt_xent", similarity="dot", supervised_weight=0.3) == (
        "nt_xent (tau 0.5, similarity dot) + 0.3 supervised",
        "nt_xent+supervised",
    )
    assert both("generalized_contrastive", supervised_weight=1)[0] == (
        "generalized_contrastive (lam 5, prior hypersphere, scaling per_dimension) + supervised"
    )


@pytest.mark.parametrize("table", BEST)
def test_best_rows_are_the_papers(table):
    assert len(rows(table)) == len(BEST[table])
    for row, (losses, results) in zip(rows(table), BEST[table], strict=True):
        printed = expected(row)
        assert tuple(value for name, value in printed.items() if name != "n_runs") == results
        assert formula(config_of(row).objective) == losses
        same = specified(row)
        assert config_of(row) == config_of(same)
        assert expected(same) | printed == expected(same)


def test_best_rows_have_the_settings_of_their_captions():
    for row in rows("wang-isola/table1"):
        config = config_of(row)
        assert (config.optimizer.batch_size, config.model.dim) == (768, 128)
        assert config.init_from is None and config.optimizer.epochs == 200
    # B.2.2 has no epoch 200 among the decays.
    config = config_of(row_of("wang-isola/table5", 2))
    rule = config.optimizer
    assert (rule.epochs, rule.batch_size, rule.learning_rate) == (200, 256, 0.03)
    assert (config.moco.queue_size, config.model.dim, config.model.head) == (65536, 128, "moco_v2")
    assert decays(config) == {120: 0.1, 160: 0.1}


def test_same_as_the_experiments():
    """What is not in the row is the experiment's, and the rest agrees where both say it."""
    for table, number, name in (
        ("wang-isola/table2", 2, "nyu_depth/align_uniform"),
        ("wang-isola/table3", 1, "moco_imagenet100/contrastive"),
        ("wang-isola/table5", 2, "moco_v2_imagenet/align_uniform"),
    ):
        config, other = config_of(row_of(table, number)), experiments.find(name)
        for part in ("data", "model", "objective", "moco", "runtime"):
            assert getattr(config, part) == getattr(other, part), (name, part)
        steps = 5 * config.optimizer.epochs
        mine, theirs = (make_schedule(which.optimizer, steps) for which in (config, other))
        np.testing.assert_allclose(
            [mine(step) for step in range(0, steps, 50)],
            [theirs(step) for step in range(0, steps, 50)],
            rtol=1e-6,
        )


def test_finetuned_rows_begin_where_their_mark_says():
    """Table 8's last rows: ★ is tau = 2 and • is tau = 3, both with batch 786."""
    columns = ("val_output_linear", "val_fc7_linear")
    star, bullet = (found(STL10, columns, r) for r in ((64.19, 78.11), (55.04, 74.95)))
    assert [formula(config_of(row).objective) for row in (star, bullet)] == [
        "contrastive (tau 2)",
        "contrastive (tau 3)",
    ]
    for results, start in (((61.53, 76.83), star), ((70.00, 74.15), bullet)):
        row = found(STL10, columns, results)
        config = config_of(row, runs_dir="elsewhere")
        assert initial(row) == start and config.runs_dir == "elsewhere"
        assert config.init_from == f"elsewhere/{config_of(start).name}"
        assert config_of(start).model == config.model
    assert initial(star) is None and config_of(star).init_from is None
    with pytest.raises(UserError, match="begins from an encoder marked 'diamond'"):
        config_of(found(STL10, columns, (77.63, 81.75)))


def test_every_row_gives_a_config_or_a_reason():
    names, seeds = set(), {}
    for table in TABLES:
        refused = set()
        for row in rows(table):
            reason = refusal(row)
            if reason is None:
                config = config_of(row)
                assert from_dict(PretrainConfig, to_dict(config)) == config
                seeds[table, row.number] = config.seed
                if table in BASES:
                    names.add(config.name)
            else:
                refused.add(row.number)
                assert reason.startswith(f"{table}, row {row.number}: ") and "\n" not in reason
                with pytest.raises(UserError) as error:
                    config_of(row)
                assert str(error.value) == reason
        whole = {row.number for row in rows(table)} if table not in (*BASES, *DETAILS) else set()
        assert refused == REFUSED.get(table, whole), table
    assert len(names) == 2 + 279 - 60 + 64 - 1 + 45 - 3 + 114 - 1
    # Pairs of rows that the paper prints with the same settings and other results.
    assert {key for key, seed in seeds.items() if seed} == {
        ("wang-isola/table1", 3),
        *((STL10, number) for number in (92, 109, 225, 256)),
        *(("wang-isola/table11", number) for number in (43, 44)),
    }


def test_doubtful_rows_are_taken_when_asked():
    row = row_of(STL10, 64)
    with pytest.raises(UserError, match="doubtful in the paper's text: align_weight, align_alpha"):
        config_of(row)
    losses = formula(config_of(row, doubtful=True).objective)
    assert losses == "align (alpha 2.5) + uniform (t 2)"
    assert config_of(row_of(IMAGENET100, 43), doubtful=True).seed == 1  # row 23 again
    with pytest.raises(UserError, match="lost in the paper's text: uniform_weight, uniform_t"):
        config_of(row_of(STL10, 110), doubtful=True)
    # What is doubtful or lost among the results alone refuses nothing.
    row = found(STL10, ("val_output_linear", "val_fc7_linear"), (80.03, 84.20))
    assert row.suspect == ("val_output_linear",) and config_of(row).objective.align_weight == 0.5
    assert expected(row_of(NYU, 25)) == {} and config_of(row_of(NYU, 25)).seed == 0


def test_no_two_different_rows_train_the_same_encoder():
    for table in BASES:
        made = [config_of(row) for row in rows(table) if refusal(row) is None]
        bare = [{**to_dict(config), "name": ""} for config in made]
        assert all(config not in bare[:place] for place, config in enumerate(bare)), table


def test_laptop_keeps_what_the_row_is_about():
    row = found(STL10, ("val_output_linear", "val_fc7_linear"), (61.53, 76.83))
    paper, laptop = config_of(row), config_of(row, "laptop")
    assert laptop.objective == paper.objective and laptop.model.dim == paper.model.dim
    assert laptop.name != paper.name and laptop.data.name == "digits"
    assert laptop.init_from == f"runs/{config_of(initial(row), 'laptop').name}"
    rule = laptop.optimizer
    assert (rule.epochs, rule.batch_size, rule.learning_rate) == (1, 64, 0.03)
    smallest = config_of(row_of(STL10, 2), "laptop").optimizer  # 3 pairs in the paper
    assert (smallest.batch_size, smallest.learning_rate) == (2, pytest.approx(2 * 0.12 / 256))
    with pytest.raises(UserError, match="which has no such scale"):
        config_of(row_of(NYU, 1), "laptop")
    with pytest.raises(UserError, match="must be one of paper, laptop, cifar10"):
        config_of(row, "moon")


def test_counts():
    assert {table: len(rows(table)) for table in TABLES} == COUNTS
    files = {f"{name}.csv" for name in TABLES.values()}
    assert files == {path.name for path in FOLDER.glob("*.csv")}
    text = (FOLDER / "README.md").read_text()
    for table, file in TABLES.items():
        assert f"| `{table}` | `{file}.csv` |" in text


@pytest.mark.parametrize("table", TABLES)
def test_cells_come_through_unaltered(table):
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(rows(table)[0].text)
    writer.writerows(row.text.values() for row in rows(table))
    assert written.getvalue() == (FOLDER / f"{TABLES[table]}.csv").read_text()
    for row in rows(table):
        assert set(row.lost) | set(row.suspect) <= set(row.text)
        assert all(row.text[name] == "" and row.values[name] is None for name in row.lost)
        for name, value in row.values.items():
            cell = row.text[name]
            if isinstance(value, bool):
                assert cell == ("yes" if value else "no")
            elif isinstance(value, int | float):
                assert float(cell) == value and ("." in cell) == isinstance(value, float)
            else:
                assert cell == (value or "")


def test_the_files_are_those_that_were_read():
    whole = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.csv")))
    assert hashlib.sha256(whole).hexdigest()[:16] == "8cf7334e9691c24e"


def test_a_blank_setting_is_lost_or_does_not_apply():
    options = {"contrastive": "tau", "align": "alpha", "uniform": "t"}
    for table in BASES:
        for row in rows(table):
            absent = {
                name
                for loss, option in options.items()
                if row.values[f"{loss}_weight"] == 0
                for name in (f"{loss}_{option}", f"{loss}_intra_batch")
                if name in row.text
            }
            blank = {name for name in SETTINGS if row.text.get(name) == ""}
            assert blank == absent | (set(row.lost) & set(SETTINGS)), (table, row.number)


def test_classes_are_those_of_the_experiment():
    listed = [row.text["wnid"] for row in rows("wang-isola/table7")]
    assert listed == list(read_classes(FOLDER.parent / "imagenet100_classes.txt"))


def test_tables_for_others_are_typed():
    row = row_of("wang-isola/table11", 1)  # the only one that is not normalized
    assert row.values["l2_normalized"] is False and row.values["dim"] == 1200
    assert expected(row) == {"cv_mr": 76.33, "cv_cr": 81.90, "val_mr": 77.23, "val_cr": 83.07}
    assert sum(row.values["nan_occurred"] for row in rows("wang-isola/table11")) == 6
    lost = {
        (row.values["tau"], row.values["lambda"])
        for row in rows("chen/figureB2")
        if row.lost == ("top1",)
    }
    assert lost == {(0.05, 1.0), (0.1, 0.1), (0.2, 0.2)}
    assert [expected(row) for row in rows("balanced/table4")] == [
        {"linear_top1": 20.82},
        {"linear_top1": 13.65},
    ]


def test_mistakes():
    with pytest.raises(UserError, match="no table 'table8': there are wang-isola/table1"):
        rows("table8")
    for number in (0, 280):
        with pytest.raises(UserError, match=f"--row {number}: wang-isola/table8 has rows 1 to 279"):
            row_of(STL10, number)
    with pytest.raises(UserError, match="withdrawn by the authors"):
        config_of(row_of("wang-isola/table8-withdrawn", 1))
    with pytest.raises(UserError, match="table4, row 1: no config; the tables that have some are"):
        config_of(row_of("wang-isola/table4", 1))
    assert set(LOSSES) < set(SETTINGS)
