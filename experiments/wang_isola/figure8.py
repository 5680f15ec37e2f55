"""Figure 8 of Wang & Isola: an encoder with too high a temperature, finetuned in three ways.

Claim: finetuning with one of the two metrics improves it and makes the other metric and the
accuracy worse. Finetuning with both improves accuracy steadily.

    python run.py reproduce wang-isola/figure8 --scale laptop --data-dir DATA

laptop: 3 encoders of CIFAR-10 at 16 pixels (tau 2.5), each finetuned for one epoch by 4 objectives;
        84 minutes on one CPU core.
gpu:    the same with SmallAlexNet, 10 epochs and 1 more; 20 minutes on one H100 (estimated).
paper:  row 278 of Table 8 (tau 2) and the encoders that start from it.
Result (laptop): inconclusive. With 3 starts only very large differences can be significant.

The control continues with the contrastive loss, which separates the objective from longer training.
"""

from pathlib import Path

from experiments.lib.evaluation import Evaluation
from experiments.lib.plots import accuracy_lines, curves, metric_lines
from experiments.lib.records import Rows, column, group_by
from experiments.lib.stats import Claim, judge_accuracies
from experiments.lib.sweep import Run
from experiments.lib.tables import table_row
from experiments.wang_isola.encoders import run_of
from hypersphere_jax.configs import ObjectiveConfig, section

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("panel", "step")
TABLE = "wang-isola/table8"
START_ROW = 87  # tau = 2.5
# The paper's text says tau = 2.5. Of the rows that Table 8 marks as starts (tau = 1, 2, 3), only
# tau = 2 has finetuned encoders of all three objectives.
PAPER_START_ROW = 278
PAPER_ROWS = {"align only": 255, "uniform only": 258, "align + uniform": 265}
CONTROL = "contrastive"
OBJECTIVES = {
    "align only": ObjectiveConfig(align_weight=1, uniform_weight=0),
    "uniform only": ObjectiveConfig(align_weight=0, uniform_weight=1),
    "align + uniform": ObjectiveConfig(align_weight=1, uniform_weight=1),
}
SEEDS = (0, 1, 2)
CHECKPOINT_STEPS = {"laptop": 130, "gpu": 20, "paper": 136}
ALONG = Evaluation(folds=None, all_steps=True)


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return starts, and for each start the control and three finetuned encoders."""
    if scale == "paper":
        return paper_runs()
    planned = []
    config_scale = {"laptop": "cifar10", "gpu": "gpu"}[scale]
    for seed in SEEDS:
        row = table_row(TABLE, START_ROW)
        start = run_of(row, config_scale, Evaluation(folds=None), seed)
        planned.append(start)
        objectives = {CONTROL: section(start.config, ObjectiveConfig), **OBJECTIVES}
        for panel, objective in objectives.items():
            config = start.config.replace(init_from=start.config.name, epochs=1, **vars(objective))
            name = f"{panel} seed{seed}" if scale == "laptop" else f"{panel} {scale} seed{seed}"
            planned.append(finetuned(Run(config), name, panel, CHECKPOINT_STEPS[scale]))
    return planned


def paper_runs() -> list[Run]:
    """Return row 278, the control, and the encoders that start from that row."""
    start = run_of(table_row(TABLE, PAPER_START_ROW), "paper", Evaluation())
    rows = {panel: table_row(TABLE, number) for panel, number in PAPER_ROWS.items()}
    others = {panel: run_of(row, "paper", ALONG) for panel, row in rows.items()}
    objective = section(start.config, ObjectiveConfig)
    control = Run(others["align + uniform"].config.replace(**vars(objective)))
    every = CHECKPOINT_STEPS["paper"]
    return [start] + [
        finetuned(run, panel, panel, every) for panel, run in {CONTROL: control, **others}.items()
    ]


def finetuned(run: Run, name: str, panel: str, every: int) -> Run:
    """Return a run that keeps checkpoints, under another name than in Table 8."""
    slug = name.replace(" + ", "_").replace(" ", "_")
    run = run.replace({"panel": panel}, name=f"figure8_{slug}", keep_every_steps=every)
    return Run(run.config, run.labels, ALONG)


def analyze(rows: Rows) -> Rows:
    """Compare each end with the start and with the control, paired by start."""
    panels = panels_of(rows)
    first = next(iter(panels.values()))
    groups = {"the start": [row for row in first if row["step"] == 0]}
    for panel, checkpoints in panels.items():
        last = column(checkpoints, "step").max()
        name = "the control" if panel == CONTROL else panel
        groups[name] = [row for row in checkpoints if row["step"] == last]
    align, uniform, both = OBJECTIVES
    pairs = [("the control", "the start"), (both, "the start"), (both, "the control")]
    for worse in (align, uniform):
        pairs += [("the start", worse), ("the control", worse)]
    claims = [Claim(f"{a} is better than {b}", groups[a], groups[b]) for a, b in pairs]
    return judge_accuracies(claims, ["output"], paired=True)


def panels_of(rows: Rows) -> dict[str, Rows]:
    """Return the checkpoints of finetuned encoders by objective."""
    return group_by([row for row in rows if row.get("panel")], "panel")


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracies and metrics over the finetuning steps, a column per objective."""
    above = {}
    below = {}
    own = {}
    for panel, group in panels_of(rows).items():
        checkpoints = group_by(group, "step")
        above[panel] = accuracy_lines(checkpoints, "output")
        below[f"{panel}, metrics"] = metric_lines(checkpoints)
        own[panel] = {"ylabel": "accuracy on the output (%)"}
        own[f"{panel}, metrics"] = {"xlabel": "finetuning step", "ylabel": "metric"}
    curves(above | below, path, across=len(above), share=("col", "row"), own=own)
