"""Table 3 of the balanced paper: linear and k-NN evaluation of the losses, five seeds each."""

import functools
from collections.abc import Mapping

from experiments import inference, rates
from experiments.balanced import alpha_lambda, settings
from experiments.balanced.settings import SIMCLR, Tasks
from experiments.predictions import right
from experiments.reproduction import OF_GREY, Context, Reproduction, Result, scale
from experiments.statistics import Rows, by
from experiments.sweeps import Planned

SEEDS = range(5)
NEIGHBOURS = {"imagenet2012": 200}  # the paper's k; 1 of other data
# Alpha and lambda of the losses beside NT-Xent: the paper's best of ImageNet, or of CIFAR-10.
BEST = {
    "imagenet2012": alpha_lambda.BEST[alpha_lambda.FIGURE4],
    "digits": alpha_lambda.BEST[alpha_lambda.FIGURE4],
    "cifar10": alpha_lambda.BEST[alpha_lambda.FIGURE5],
}
# With the paper's k, too.
LAPTOP = [
    task._replace(evaluation=task.evaluation._replace(neighbours=(5, 1)))
    for task in (settings.DIGITS, settings.GREY)
]


def _runs(tasks: Tasks, context: Context) -> list[Planned]:
    planned = []
    for setting, seeds in tasks:
        for seed in seeds:
            planned.append(settings.run(setting, context, "nt_xent", SIMCLR, {}, seed))
            for loss, (alpha, lam) in BEST[setting.base.data].items():
                planned.append(settings.run_of_grid(setting, context, loss, alpha, lam, seed))
    return planned


def choose(tasks: Tasks, context: Context, rows: Rows) -> list[Planned]:
    """Candidates of the rate of each loss."""
    return rates.candidates(_runs(tasks, context), settings.RATES)


def plan(tasks: Tasks, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent, and the other losses with the paper's best alpha and lambda."""
    planned = _runs(tasks, context)
    return settings.at_chosen(planned, rows, "data", "kind") if context.laptop else planned


def result(context: Context, rows: Rows) -> Result:
    """Accuracy of each loss, and how far the others are from NT-Xent."""
    layers = ("backbone", "output") if context.laptop else ("backbone",)
    choice, rows = rates.chosen(rows, "data", "kind"), rates.final(rows)
    groups = by(rows, "data", "kind")
    columns = ["data", "loss", "seeds", *inference.columns(layers)]
    columns.append("before the head: paper's k-NN (%)")
    lines = []
    for (data, _), group in groups.items():
        line = [data, group[0]["loss"], len(group)]
        line += inference.accuracies(group, layers)
        nearest = f"backbone_knn{NEIGHBOURS.get(data, 1)}"
        lines.append([*line, inference.accuracy(group, nearest)])
    pairs = {
        (data, kind): (group, groups[data, "nt_xent"])
        for (data, kind), group in groups.items()
        if kind != "nt_xent" and (data, "nt_xent") in groups
    }
    names = {
        (data, kind): f"The {alpha_lambda.NAMES[kind]} loss against NT-Xent ({data})"
        for data, kind in pairs
    }
    compared = {
        layer: {names[of]: inference.compare(*pair, layer) for of, pair in pairs.items()}
        for layer in layers
    }
    text = [
        "With the best alpha and lambda of its grid, the balanced contrastive loss is better than "
        "SimCLR's NT-Xent (tau 0.5), by a linear classifier as by nearest neighbours (k = 200 on "
        "ImageNet, 1 on CIFAR-10). The numbers of the paper's Table 3 were lost in its text.",
        _what_was_done(context, groups),
        "±: half of the 95% interval over seeds and test images.",
    ]
    if choice:
        text += [_precision(names, compared[layers[0]]), rates.told(_named(choice), settings.RATES)]
    told = [inference.sentences(of, layer) for layer, of in compared.items() if of]
    told += [_by_papers_neighbours(pairs)] if pairs else []
    title = "Standard evaluation of the losses (Table 3)"
    return Result(title, columns, lines, [], text, " ".join(told), inference.short(compared))


def _what_was_done(context: Context, groups: Mapping) -> str:
    seeds = max(map(len, groups.values()), default=0)
    each = f"{seeds} seeds of each loss, with alpha and lambda as the paper found them best"
    if not context.laptop:
        return f"Here: {each}, its networks and its rates."
    return (
        f"Here: {each}, and rates that were chosen for each on training images. Small encoders of "
        f"digits, and on a harder task those of {OF_GREY}."
    )


def _by_papers_neighbours(pairs: Mapping[tuple[str, str], tuple[Rows, Rows]]) -> str:
    """How far the losses are ahead of NT-Xent by the k-NN with the paper's k."""
    told = []
    for (data, kind), pair in pairs.items():
        k = NEIGHBOURS.get(data, 1)
        ahead = inference.difference(*(right(rows, f"backbone_knn{k}") for rows in pair))
        told.append(f"the {alpha_lambda.NAMES[kind]} loss on {data} (k = {k}) {ahead}")
    return f"Less NT-Xent by the paper's own k-NN, before the head, in points: {', '.join(told)}."


def _precision(
    names: Mapping[tuple[str, str], str], compared: Mapping[str, inference.Comparison]
) -> str:
    """How small a difference each data set would have shown."""
    halves: dict[str, float] = {}
    for (data, _), name in names.items():
        widest = max((each.high - each.low) / 2 for each in inference.deciding(compared[name]))
        halves[data] = max(halves.get(data, 0), widest)
    told = ", ".join(f"{half:.1f} on {data}" for data, half in halves.items())
    return (
        f"Half of the 95% interval of a difference before the head is at most, in points: {told}."
    )


def _named(choice: Mapping[tuple[str, str], float]) -> dict[str, float]:
    names = {"nt_xent": "NT-Xent", **alpha_lambda.NAMES}
    return {f"{names[kind]} ({data})": rate for (data, kind), rate in choice.items()}


REPRODUCTIONS = {
    "balanced/table3": Reproduction(
        "standard evaluation of the losses, five seeds",
        result,
        laptop=scale(
            "digits, cifar10",
            functools.partial(choose, [(settings.DIGITS, range(2)), (settings.GREY, range(1))]),
            functools.partial(plan, [(task, SEEDS) for task in LAPTOP]),
        ),
        paper=scale(
            "imagenet2012, cifar10",
            functools.partial(plan, [(settings.IMAGENET, SEEDS)]),
            functools.partial(plan, [(settings.CIFAR10, SEEDS)]),
        ),
    )
}
