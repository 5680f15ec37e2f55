"""Figure 8 of Wang & Isola: an encoder with too high a temperature, finetuned in three ways.

Claim: finetuning with one of the two metrics improves it and makes the other metric and the
accuracy worse. Finetuning with both improves accuracy steadily.

    python run.py reproduce wang-isola/figure8 --scale laptop --data-dir DATA

laptop: 3 encoders of CIFAR-10 at 16 pixels (tau 2.5), each finetuned for one epoch by 4 objectives;
        84 minutes on one CPU core.
gpu:    the same with SmallAlexNet, 10 epochs and 1 more; 20 minutes on one H100 (estimated).
paper:  row 278 of Table 8 (tau 2) and the encoders that start from it.
Result (laptop): inconclusive. With 3 starts only very large differences can be significant. The
control continues with the contrastive loss.
"""

from pathlib import Path

from experiments.lib import Evaluation, Rows, Run, plots, records, stats, tables
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
        row = tables.table_row(TABLE, START_ROW)
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
    start = run_of(tables.table_row(TABLE, PAPER_START_ROW), "paper", Evaluation())
    planned = [start]
    for panel, number in PAPER_ROWS.items():
        run = run_of(tables.table_row(TABLE, number), "paper", ALONG)
        planned.append(finetuned(run, panel, panel, CHECKPOINT_STEPS["paper"]))
    objective = section(start.config, ObjectiveConfig)
    control = Run(planned[-1].config.replace(**vars(objective)))
    return [*planned, finetuned(control, CONTROL, CONTROL, CHECKPOINT_STEPS["paper"])]


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
        last = records.column(checkpoints, "step").max()
        name = "the control" if panel == CONTROL else panel
        groups[name] = [row for row in checkpoints if row["step"] == last]
    align, uniform, both = OBJECTIVES
    pairs = [("the control", "the start"), (both, "the start"), (both, "the control")]
    for worse in (align, uniform):
        pairs += [("the start", worse), ("the control", worse)]
    claims = [stats.Claim(f"{a} is better than {b}", groups[a], groups[b]) for a, b in pairs]
    return stats.judge_accuracies(claims, ["output"], paired=True)


def panels_of(rows: Rows) -> dict[str, Rows]:
    """Return the checkpoints of finetuned encoders by objective."""
    return records.group_by([row for row in rows if row.get("panel")], "panel")


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracies and metrics over the finetuning steps, a column per objective."""
    columns = {panel: records.group_by(group, "step") for panel, group in panels_of(rows).items()}
    plots.accuracy_and_metric_curves(columns, path, xlabel="finetuning step")
