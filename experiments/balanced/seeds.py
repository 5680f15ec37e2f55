"""Table 3 of the balanced paper: linear and k-NN evaluation of the losses, five seeds each."""

import functools
from collections.abc import Mapping

from scipy import stats

from experiments.balanced import grids, settings
from experiments.balanced.settings import SIMCLR, Setting
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, by, with_interval
from experiments.specifications import formula
from experiments.sweeps import Planned

SEEDS = range(5)
Best = Mapping[str, tuple[int, int]]


def plan(setting: Setting, best: Best, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent, and the other losses with the paper's best alpha and lambda."""
    planned = []
    for seed in SEEDS:
        planned.append(settings.run(setting, context, "nt_xent", SIMCLR, {}, seed))
        for loss, (alpha, lam) in best.items():
            planned.append(settings.run_of_grid(setting, context, loss, alpha, lam, seed))
    return planned


def show(context: Context, rows: Rows) -> Shown:
    """Mean and standard deviation of each loss, as in the table, and the interval of the mean."""
    columns = ["data", "loss", "seeds", "linear (%)", "k-NN (%)"]
    layers = ["backbone"]
    if context.scale == "laptop":
        columns[3:] = ["linear (%)", "1-NN (%)", "linear before the head (%)"]
        layers = ["output", "backbone"]
    lines, accuracies = [], {}
    for (data, loss), group in by(rows, "data", "loss").items():
        k = "knn200" if data == "imagenet2012" else "knn1"
        scores = [
            f"{layers[0]}_linear",
            f"{layers[0]}_{k}",
            *(f"{each}_linear" for each in layers[1:]),
        ]
        cells = [with_interval([row[score] for row in group]) for score in scores]
        lines.append([data, loss, len(group), *cells])
        accuracies[data, group[0]["kind"]] = [row[scores[0]] for row in group]
    text = [
        "The paper's claim: with the best alpha and lambda of its grid, the balanced contrastive "
        "loss is better than SimCLR's NT-Xent (tau 0.5), by a linear classifier as by nearest "
        "neighbours (k = 200 on ImageNet, 1 on CIFAR-10), over five independent runs. The numbers "
        "of its Table 3 were lost in the paper's text.",
        f"NT-Xent is {formula(SIMCLR)}; the others have the settings that the paper found best. "
        "±: half of the 95% interval of the mean over seeds, by Student's t.",
    ]
    title = "Standard evaluation of the losses (Table 3)"
    return Shown(title, columns, lines, [], text, _verdict(accuracies))


def _verdict(accuracies: Mapping[tuple[str, str], list[float]]) -> str:
    parts = []
    for data in dict.fromkeys(data for data, _ in accuracies):
        ours, simclr = (accuracies.get((data, kind), []) for kind in (settings.BALANCED, "nt_xent"))
        if min(len(ours), len(simclr)) < 2:
            continue
        test = stats.ttest_ind(ours, simclr, equal_var=False)
        interval = test.confidence_interval(0.95)
        sure = interval.low > 0 or interval.high < 0
        difference = sum(ours) / len(ours) - sum(simclr) / len(simclr)
        parts.append(
            f"{data}: balanced contrastive is {difference:+.2f} points from NT-Xent (95% interval "
            f"{interval.low:+.2f} to {interval.high:+.2f}, Welch, over seeds)"
            + ("" if sure else ": the seeds do not tell the two apart")
        )
    return "; ".join(parts)


def _stage(setting: Setting, figure: str):
    return functools.partial(plan, setting, grids.BEST[figure])


ITEMS = {
    "balanced/table3": Item(
        "standard evaluation of the losses, five seeds",
        {
            "laptop": Scale(("digits",), 0.1, (_stage(settings.DIGITS, "balanced/figure4"),)),
            "paper": Scale(
                ("imagenet2012", "cifar10"),
                260_000,
                (
                    _stage(settings.IMAGENET, "balanced/figure4"),
                    _stage(settings.CIFAR10, "balanced/figure5"),
                ),
            ),
        },
        show,
    )
}
