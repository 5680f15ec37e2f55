"""Section E of Chen, Luo & Li (Figure E.1): random bits beside the image, which both views share.

A few bits in channels of their own are enough to tell images apart, so that a contrastive loss can
be minimized without a look at the picture.
"""

import dataclasses
from collections.abc import Mapping

from experiments.chen import settings
from experiments.plots import comparisons
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by
from experiments.sweeps import Planned
from hypersphere_jax.config import MocoConfig, ObjectiveConfig

# What the paper varies; its own values are in its picture only.
BITS = {"paper": (0, 2, 4, 6, 8, 10, 12, 15), "laptop": (0, 2, 4, 6, 8, 12)}
BATCHES = {"paper": (256, 512, 1024), "laptop": (64, 256)}  # beside 128
QUEUE = {"paper": 4096, "laptop": 1024}
CHANCE = 10.0  # percent, of ten classes
SCORE = "backbone_linear"


def _encoders(scale: str) -> dict[str, dict]:
    """What is trained with each number of bits: changes to an encoder, by label."""
    moco = ObjectiveConfig(
        contrastive_weight=1, contrastive_tau=0.2, align_weight=0, uniform_weight=0
    )
    queue = MocoConfig(queue_size=QUEUE[scale], ema_decay=0.99)
    return {
        "NT-Xent, tau 0.2": {"objective": settings.nt_xent(0.2)},
        "NT-Xent, tau 0.05": {"objective": settings.nt_xent(0.05)},
        **{
            f"NT-Xent, tau 0.2, batch {size}": {"batch": size, "objective": settings.nt_xent(0.2)}
            for size in BATCHES[scale]
        },
        "Decoupled NT-Xent": {"objective": settings.LOSSES["Decoupled NT-Xent"]},
        "SWD (uniform hypersphere)": {"objective": settings.swd("hypersphere", 5.0)},
        "SWD, lambda 50": {"objective": settings.swd("hypersphere", 50.0)},
        "MoCo, tau 0.2": {"objective": moco, "moco": queue},
    }


def _plan(context: Context, rows: Rows) -> list[Planned]:
    base = settings.LAPTOP if context.laptop else settings.RESNET18
    planned = []
    for label, change in _encoders(context.scale).items():
        rule = dataclasses.replace(
            base.optimizer, batch_size=change.pop("batch", base.optimizer.batch_size)
        )
        for bits in BITS[context.scale]:
            one = settings.encoder(
                context,
                base,
                f"{settings.slug(label)}_with{bits}bits",
                about={"label": label, "bits": bits},
                data=dataclasses.replace(base.data, bits=bits),
                optimizer=rule,
                **change,
            )
            planned.append(one)
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Accuracy over bits, a curve for each loss, batch size and queue."""
    bits = BITS[context.scale]
    columns = ["encoder", *(f"{k} bits (%)" for k in bits)]
    table, curves, accuracies = [], {}, {}
    for label, group in by(rows, "label").items():
        scores = {row["bits"]: row[SCORE] for row in group}
        accuracies[label] = scores
        table.append([label, *(f"{scores[k]:.1f}" if k in scores else None for k in bits)])
        curves[label] = sorted(comparisons.point(row, "bits", SCORE) for row in group)
    images = "digits" if context.laptop else "CIFAR-10"
    comparisons.curves(
        {f"{images} with random bits": curves},
        context.figure,
        x="random bits added to each image",
        y="linear accuracy before the head (%)",
        levels={"chance": CHANCE},
    )
    text = [
        "The paper's claim: when each image carries a random number in extra channels, which is "
        "the same in both views, accuracy falls quickly with the bits of that number: the loss is "
        "content with telling images apart by it. Other losses, batch sizes or a queue of keys "
        "(MoCo) do not help; a lower temperature or a larger weight lambda of the term that "
        "spreads the outputs helps a little, and costs accuracy without bits. With fewer than 15 "
        "bits the picture is ignored altogether.",
        "Bits are counted by the size of the numbers' range: where images are many beside it, "
        "several have the same number, so that they carry fewer. Test images have random bits of "
        "their own.",
    ]
    if context.laptop:
        text.append(
            "Ours are small encoders of digits: 1,400 images, 20 epochs; batches of 128 where "
            "nothing else is said."
        )
    caption = "Linear accuracy over random bits; shaded: 95% interval over test images"
    title = f"Random bits beside the image (Figure E.1; {images})"
    return Result(title, columns, table, [(context.figure, caption)], text, _verdict(accuracies))


def _verdict(accuracies: Mapping[str, Mapping[int, float]]) -> str:
    """How many encoders fall below half of their accuracy, and which of them keeps the most."""
    ends = {
        label: (scores[0], scores[max(scores)], max(scores))
        for label, scores in accuracies.items()
        if min(scores) == 0 < max(scores)
    }
    if not ends:
        return ""
    lower = sum(last < first for first, last, _ in ends.values())
    half = sum(last < first / 2 for first, last, _ in ends.values())
    most = max(ends, key=lambda label: ends[label][1])
    numbers = "; ".join(
        f"{label}: {first:.1f}% to {last:.1f}% with {bits}"
        for label, (first, last, bits) in ends.items()
    )
    return (
        f"with the most bits {lower} of {len(ends)} encoders are worse than without, {half} of "
        f"them by more than half; {most} keeps the most ({numbers})"
    )


REPRODUCTIONS = {
    "chen/figureE1": Reproduction(
        "accuracy of images with random bits in extra channels",
        result,
        laptop=scale("digits", _plan),
        paper=scale("cifar10", _plan),
    )
}
