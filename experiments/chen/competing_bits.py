"""Section E of Chen, Luo & Li (Figure E.1): random bits beside the image, which both views share.

A few bits in channels of their own are enough to tell images apart, so that a contrastive loss can
be minimized without a look at the picture.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence

from experiments import inference, rates
from experiments.chen import settings
from experiments.inference import difference
from experiments.plots import comparisons
from experiments.plots.comparisons import Point
from experiments.predictions import right
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by, done
from experiments.sweeps import Planned
from hypersphere_jax.configs import MocoConfig, ObjectiveConfig

# What the paper varies; its own values are in its picture only.
BITS = {"paper": (0, 2, 4, 6, 8, 10, 12, 15), "laptop": (0, 4, 8, 12)}
SEEDS = range(5)  # at the laptop's scale
BATCHES = {"paper": (256, 512, 1024), "laptop": (64, 256)}  # beside 128
QUEUE = {"paper": 4096, "laptop": 1024}
DECOUPLED, SWD = "Decoupled NT-Xent", "SWD (uniform hypersphere)"  # of Table D.1
CHANCE = 10.0  # percent, of ten classes
FEW = 8  # bits
BASE = "NT-Xent, tau 0.2"


def _encoders(scale: str) -> dict[str, dict]:
    """What is trained with each number of bits: changes to an encoder, by label."""
    moco = ObjectiveConfig(
        contrastive_weight=1, contrastive_tau=0.2, align_weight=0, uniform_weight=0
    )
    queue = MocoConfig(queue_size=QUEUE[scale], ema_decay=0.99)
    return {
        BASE: {"objective": settings.nt_xent(0.2)},
        "NT-Xent, tau 0.05": {"objective": settings.nt_xent(0.05)},
        **{
            f"NT-Xent, tau 0.2, batch {size}": {"batch": size, "objective": settings.nt_xent(0.2)}
            for size in BATCHES[scale]
        },
        DECOUPLED: {"objective": settings.LOSSES[DECOUPLED], "rate": DECOUPLED},
        SWD: {"objective": settings.LOSSES[SWD], "rate": SWD},
        "SWD, lambda 50": {"objective": settings.swd("hypersphere", 50.0), "rate": SWD},
        "MoCo, tau 0.2": {"objective": moco, **vars(queue)},
    }


def _plan(context: Context, rows: Rows) -> list[Planned]:
    base = settings.LAPTOP if context.laptop else settings.RESNET18
    planned = []
    for (label, change), bits, seed in itertools.product(
        _encoders(context.scale).items(),
        BITS[context.scale],
        SEEDS if context.laptop else [0],
    ):
        others = {key: value for key, value in change.items() if key not in ("batch", "rate")}
        batch = change.get("batch", base.batch_size)
        one = settings.encoder(
            context,
            base,
            f"{settings.slug(label)}_with{bits}bits_seed{seed}",
            about={"label": label, "bits": bits},
            seed=seed,
            # Bits of its own for each seed.
            bits=bits,
            subset_seed=seed,
            batch_size=batch,
            **others,
        )
        rate_of = change.get("rate", "NT-Xent")  # the loss whose rate it takes
        # What training gains is counted from the random initialization.
        initial = bits in (0, FEW)
        one = one._replace(evaluation=one.evaluation._replace(initial=initial))
        planned.append(settings.with_rate(one, rate_of, rows) if context.laptop else one)
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Accuracy over bits by each instrument, a curve for each loss, batch size and queue."""
    layers = ("backbone", "output") if context.laptop else ("backbone",)
    scores = inference.scores(layers)
    bits, choice = BITS[context.scale], rates.chosen(rows, "name")
    finals = done(rates.final(rows))
    groups = by([row for row in finals if row["step"]], "label", "bits")
    starts = by([row for row in finals if not row["step"]], "label", "bits")
    labels = list(dict.fromkeys(label for label, _ in groups))
    table: list[list] = []
    panels: dict[str, dict] = {name: {} for name in scores.values()}
    for label, (score, name) in itertools.product(labels, scores.items()):
        means = {
            k: difference(right(groups[label, k], score)) for k in bits if (label, k) in groups
        }
        panels[name][label] = [Point(k, of.value, of.low, of.high) for k, of in means.items()]
        cells = [inference.cell(means[k]) if k in means else None for k in bits]
        untrained = [
            inference.accuracy(starts[label, k], score) if (label, k) in starts else None
            for k in (0, FEW)
        ]
        gain = None
        if (label, FEW) in groups and (label, FEW) in starts:
            both = (right(of[label, FEW], score) for of in (groups, starts))
            gain = str(difference(*both, paired=True))
        table.append([label, name, *untrained, *cells, gain])
    comparisons.curves(
        panels,
        context.figure,
        x="random bits in each image",
        y="accuracy (%)",
        levels={"chance": CHANCE},
        across=len(inference.ALL),
    )
    images = "digits" if context.laptop else "CIFAR-10"
    seeds = max(map(len, groups.values()), default=0)
    many = f"{seeds} seeds of each encoder" if seeds > 1 else "one encoder each"
    text = [
        "The paper's claim: when each image carries a random number in extra channels, which is "
        "the same in both views, accuracy falls quickly with the bits of that number: the loss is "
        "content with telling images apart by it. Other losses, batch sizes or a queue of keys "
        "(MoCo) do not avoid it; a lower temperature or a larger weight lambda of the term that "
        "spreads the outputs helps a little, and costs accuracy without bits.",
        f"Here: {'small encoders of ' if context.laptop else ''}{images}, {many}, with bits of its "
        f"own for each seed. The bits are taken to spoil an encoder where with {FEW} of them "
        "accuracy is below that of its random initialization, on images with as many, by logistic "
        "regression and 5-NN. (How far it falls from training without bits is no measure: it falls "
        f"without training, too.) A remedy is taken to help where it is ahead of {BASE} with {FEW} "
        "bits by both. Intervals are over seeds and test images.",
        "Bits are counted by the size of the numbers' range: where images are many beside it, "
        "several have the same number, so that they carry fewer. Test images have random bits of "
        "their own. Batches are of 128 where nothing else is said.",
    ]
    text += [_ahead(groups, layer) for layer in layers[1:]]
    if choice:
        text.append(
            rates.told(choice, settings.RATES, rates.FOLDS)
            + " NT-Xent's is that of MoCo and of all its own variants, SWD's of both weights."
        )
    caption = "Accuracy over random bits; bars: 95% interval over seeds and test images"
    title = f"Random bits beside the image (Figure E.1; {images})"
    columns = ["encoder", "layer and instrument"]
    columns += [f"untrained, {k} bits (%)" for k in (0, FEW)]
    columns += [*(f"{k} bits (%)" for k in bits), f"gain of training, {FEW} bits (points)"]
    verdict, short = _verdict(groups, starts, labels, layers)
    return Result(title, columns, table, [(context.figure, caption)], text, verdict, short)


Groups = Mapping[tuple[str, int], Rows]  # seeds, by label and bits


def _verdict(
    groups: Groups, starts: Groups, labels: Sequence[str], layers: Sequence[str]
) -> tuple[str, str]:
    """Which encoders few bits spoil on each layer, and what is ahead of the usual loss."""
    cells = [(label, k) for label in labels for k in (0, FEW)]
    if not labels or any(cell not in groups or cell not in starts for cell in cells):
        return "", ""
    parts, shorts = [], []
    for layer in layers:
        pairs = [(groups[label, FEW], starts[label, FEW]) for label in labels]
        changes = [inference.compare(*pair, layer, paired=True) for pair in pairs]
        signs, names = inference.signs(changes), [*map(_short, labels)]
        alone = [inference.by_itself(*each) for each in zip(changes, signs, strict=True)]
        for kept, ends in ((parts, alone), (shorts, [""] * len(names))):
            told = []
            for sign, word in ((-1, "below"), (1, "above"), (0, "not told apart from")):
                some = [n + end for n, end, s in zip(names, ends, signs, strict=True) if s == sign]
                about = f"{word} the initialization's for {len(some)} ({'; '.join(some)})"
                told += [about] if some else []
            kept.append(f"{inference.where(layer)} {', '.join(told)}")
    found, short = (
        f"With {FEW} bits, training leaves accuracy {'; '.join(of)}." for of in (parts, shorts)
    )
    counted = (
        "By logistic regression and 5-NN; the table has the differences, and Holm's correction "
        f"counts the {len(labels)} encoders."
    )
    return f"{found} {counted} {_ahead(groups, layers[0])}", short


def _points(of: inference.Comparison) -> str:
    """By each instrument, such as `+1.2, -0.3, +0.0`."""
    return ", ".join(f"{each.value:+.1f}" for each in of.values())


def _short(label: str) -> str:
    """Such as `batch 64`, or `SWD`."""
    return label.removeprefix(f"{BASE}, ").partition(" (")[0]


def _ahead(groups: Groups, layer: str) -> str:
    """What is ahead of or behind the usual loss by both instruments, with few bits and without."""
    others = [label for label in dict.fromkeys(label for label, _ in groups) if label != BASE]
    cells = [(label, bits) for bits in (FEW, 0) for label in others]
    compared = {
        cell: inference.compare(groups[cell], groups[BASE, cell[1]], layer)
        for cell in cells
        if cell in groups and (BASE, cell[1]) in groups
    }
    found = dict(zip(compared, inference.signs([*compared.values()]), strict=True))
    parts, with_bits = [], {FEW: f"with {FEW} bits", 0: "without bits"}
    for bits in (FEW, 0):
        for sign, word in ((1, "ahead of"), (-1, "behind"), (0, "not told apart from")):
            some = [
                f"{_short(label)} ({_points(of)}){inference.by_itself(of, sign)}"
                for (label, k), of in compared.items()
                if k == bits and found[label, k] == sign
            ]
            if some or sign == 1:
                parts.append(f"{word} it {with_bits[bits]}: {'; '.join(some) or 'none'}")
    return (
        f"Beside {BASE}, {inference.where(layer)}, in points by logistic regression, 5-NN and the "
        "paper's probe, of which the first two decide, "
        f"{', '.join(parts)}. Holm's correction counts the {len(compared)} comparisons."
    )


REPRODUCTIONS = {
    "chen/figureE1": Reproduction(
        "accuracy of images with random bits in extra channels",
        result,
        laptop=scale(
            "digits",
            functools.partial(
                settings.choose, settings.LAPTOP, rates.FOLDS, ("NT-Xent", DECOUPLED, SWD)
            ),
            _plan,
        ),
        paper=scale("cifar10", _plan),
    )
}
