"""Tables of encoders: each row's numbers in the paper beside ours."""

from collections.abc import Callable

import numpy as np

from experiments import inference, tables
from experiments.correlations import FEWEST, correlated
from experiments.inference import INSTRUMENTS, PAPERS
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, Scale, planned_row, scale
from experiments.specifications import config_of, formula, initial, refusal
from experiments.statistics import Rows, by, done, interval, values
from experiments.sweeps import Planned
from hypersphere_jax.configs import require

TABLE8 = "wang-isola/table8"
# What the paper evaluates of its encoders.
STL10 = Evaluation(layers=("output", "fc7"))
NYU = Evaluation(layers=("conv5", "conv4"), depth=True)
IMAGENET100 = Evaluation(layers=("backbone",), protocol="moco_imagenet100", folds=3)
IMAGENET = Evaluation(layers=("backbone",), protocol="moco", folds=None)
BOOKCORPUS = Evaluation(protocol="quick_thought", tasks=("mr", "cr"))
DIGITS = Evaluation()  # at the laptop's scale, in the place of STL-10
TEXT = "books, sentiment"
# Tables whose rows are encoders: title; data and evaluation at the paper's scale.
TABLES = {
    2: ("best encoders of NYU-Depth-V2", "nyu_depth_v2", NYU),
    3: ("best encoders of ImageNet-100 (MoCo)", "imagenet2012", IMAGENET100),
    5: ("encoders of ImageNet (MoCo v2)", "imagenet2012", IMAGENET),
    8: ("all STL-10 encoders, the grid behind Figure 5a", "stl10", STL10),
    9: ("all NYU-Depth-V2 encoders, the grid behind Figure 5b", "nyu_depth_v2", NYU),
    10: (
        "all ImageNet-100 encoders, the grid behind Figure 9a",
        "imagenet2012",
        IMAGENET100,
    ),
    11: (
        "all sentence encoders of BookCorpus, the grid behind Figure 9b",
        TEXT,
        BOOKCORPUS,
    ),
}
# Instruments of sentences, by the endings of their columns. The first is the paper's protocol.
OF_TEXT = {"": INSTRUMENTS["logistic"], "_knn5": INSTRUMENTS["knn5"]}
# The paper's numbers with which ours are compared at the laptop's scale: our columns by instrument.
BESIDE = {
    8: {
        f"val_{name}": {label: f"output_{key}" for key, label in (INSTRUMENTS | PAPERS).items()}
        for name in ("output_linear", "output_knn5")
    },
    11: {
        f"val_{task}": {label: task + ending for ending, label in OF_TEXT.items()}
        for task in BOOKCORPUS.tasks
    },
}

# Rows of the tables of the best encoders, and which kinds of loss take part in each.
SELECTIONS = {
    "best contrastive only": lambda kind: kind == "contrastive",
    "best align and uniform only": lambda kind: kind == "align+uniform",
    "best among all encoders": lambda kind: True,
}


def stage_of(table: str, evaluation: Evaluation) -> Callable[[Context, Rows], list[Planned]]:
    """The encoders of a table's rows, or of the one that was asked for, and their initial ones."""

    def stage(context: Context, rows: Rows) -> list[Planned]:
        if context.row is None:
            chosen = [row for row in tables.rows(table) if refusal(row) is None]
        else:
            chosen = [tables.row_of(table, context.row)]
            reason = refusal(chosen[0])
            require(reason is None, f"--row {context.row}: {reason}")
        planned = {}
        for row in (*filter(None, map(initial, chosen)), *chosen):
            one = planned_row(row, context, evaluation)
            planned.setdefault(one.config.name, one)
        return list(planned.values())

    return stage


def our_column(printed: str) -> str:
    """Our column of what the papers print as `val_output_linear` or `cv_top1`."""
    split, _, score = printed.partition("_")
    score = {"top1": "backbone_linear", "top5": "backbone_linear_top5"}.get(score, score)
    return f"{score}_cv" if split == "cv" else score


def formula_of(row: tables.Row) -> str:
    """The loss of a row as its table prints it."""
    return formula(config_of(row))


def rows_result(table: str, title: str, context: Context, rows: Rows) -> Result:
    """Each row and each of its printed numbers: paper, ours, difference."""
    columns = ["row", "loss", "d", "seed", "what", "paper", "ours", "95% interval", "difference"]
    lines = []
    for row in done(rows):
        about = [row.get(name) for name in ("row", "loss", "dim", "seed")]
        if row.get("paper_diverged"):
            lines.append([*about, "training", "NaN", "none", None, None])
        for name in (name for name in row if name.startswith("paper_")):
            printed = name.removeprefix("paper_")
            ours, paper = our_column(printed), row[name]
            if (score := row.get(ours)) is not None:
                what, ends = printed.replace("_", " "), interval(row, ours)
                lines.append([*about, what, paper, score, ends, score - paper])
    text = [
        "The paper's number of each encoder beside ours, as its columns name them.",
        *_failed(rows),
    ]
    return Result(f"{title} ({table})", columns, lines, [], text)


# Of the sign that a rank correlation shows.
ORDER = {1: "the orders agree", 0: "no agreement shows", -1: "the orders are opposite"}


def order_result(number: int, title: str, context: Context, rows: Rows) -> Result:
    """Whether our encoders are in the order of the paper's: rank correlations of accuracies."""
    encoders = done(rows)
    first = next(iter(BESIDE[number].values()))
    columns = ["the paper's number", "encoders", "its range (%)", *first]
    table, own = [], {}
    for name, beside in BESIDE[number].items():
        paper = f"paper_{name}"
        both = [row for row in encoders if paper in row]
        if len(both) < FEWEST:
            continue
        ends = min(values(both, paper)), max(values(both, paper))
        what = name.removeprefix("val_").replace("_", " ").replace("knn5", "5-NN")
        count, spread = len(by(both, "row")), "{:.2f} to {:.2f}".format(*ends)
        for half in (0, 1) if count >= 2 * FEWEST else (0,):
            found = {
                label: correlated(both, column, (paper,), np.ones((1, 1)), half=half)[0]
                for label, column in beside.items()
            }
            of = f"better half of {count}" if half else count
            table.append([what, of, None if half else spread, *map(str, found.values())])
            own.setdefault(what, found)
    text = [
        "The paper lists all its encoders with their accuracies, from which its Figures 5 and 9 "
        "are drawn. It claims nothing of this table; what is asked is whether small encoders of "
        "other data come in its order.",
        f"The rows were trained on {encoders[0]['data']}, one seed each, with a smaller encoder "
        "(Figure 5a has more seeds; rows that are one setting at this scale count here each): "
        "accuracies cannot be compared with the paper's, but the order can. The table has the "
        "rank correlation (Spearman) of ours, by each instrument, with each number of the paper; "
        "intervals: 95%, by the bootstrap over encoders and test samples, which lie too near to "
        "zero, as drawing samples adds noise to accuracies that are noisy already. The better half "
        "is that of our accuracies. The numbers of each encoder are in results.csv.",
    ]
    text += _failed(rows)
    signs = inference.signs([*own.values()])
    parts, shorts = [], []
    for (what, of), sign in zip(own.items(), signs, strict=True):
        parts.append(
            f"The rank correlation of our accuracies with the paper's ({what}) is "
            f"{inference.told(of)}: {ORDER[sign]}."
        )
        numbers = [f"{of[x].value:.2f} by {x}" for x in of if x not in PAPERS.values()]
        shorts.append(f"{what}: {' and '.join(numbers)}")
    parts += [f"Holm's correction counts the {len(own)} comparisons."] if len(own) > 1 else []
    verdict = " ".join(parts) if own else ""
    short = f"Rank correlation with the paper's accuracies, {'; '.join(shorts)}." if own else ""
    return Result(f"{title} (Table {number})", columns, table, [], text, verdict, short)


def _failed(rows: Rows) -> list[str]:
    """A paragraph on the rows that failed, if there are some."""
    failed = []
    for row in rows:
        if row["status"] == "failed":
            as_there = ", as in the paper" if row.get("paper_diverged") else ""
            failed.append(f"row {row['row']}: {row['reason']}{as_there}")
    return [f"Failed: {'; '.join(failed)}."] if failed else []


def reproduction(number: int, laptop: Scale | None = None) -> Reproduction:
    """A table: each row beside the paper's, or, at the laptop's scale, the order of all."""
    table, (title, *needs, evaluation) = f"wang-isola/table{number}", TABLES[number]
    paper = scale(*needs, stage_of(table, evaluation))

    def result(context: Context, rows: Rows) -> Result:
        if context.laptop and len(done(rows)) >= FEWEST:
            return order_result(number, title, context, rows)
        return rows_result(table, title, context, rows)

    scales = ("paper", "laptop") if laptop else ("paper",)
    return Reproduction(title, result, laptop, paper, by_row=scales)


# Table 11 is in sentences.py, with what is trained of it at the laptop's scale.
REPRODUCTIONS = {
    f"wang-isola/table{number}": reproduction(
        number, scale("digits", stage_of(TABLE8, DIGITS)) if number == 8 else None
    )
    for number in TABLES
    if number != 11
}
