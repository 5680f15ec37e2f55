"""What the balanced paper trains, and the same at the laptop's scale.

From the paper (A.3.1): ImageNet, ResNet-50 with a projector of three layers of 2,048 (batch norm
after each, ReLU after the first two), 100 epochs of 512 pairs, SGD with rate 0.1, momentum 0.9,
weight decay 0.0001 and a cosine; then a linear classifier on the backbone (LARS, batches of 4,096,
90 epochs), and k-NN with k = 200. Section 5 trains NT-Xent with tau 0.5. CIFAR-10 (A.4.1): the same
rule for 200 epochs; a classifier by SGD with rate 30 and a cosine, batches of 256, 90 epochs; k-NN
with k = 1. Its network was lost in the paper's text: ResNet-18 here, with a stem for small images.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments import rates, reproduction
from experiments.protocols import Evaluation
from experiments.reproduction import Context
from experiments.reproduction import run as planned_run
from experiments.statistics import Rows
from experiments.sweeps import Planned
from hypersphere_jax.configs import (
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    section,
)

BALANCED, GENERALIZED = "balanced_contrastive", "generalized_nt_xent"
SIMCLR = ObjectiveConfig(loss="nt_xent", loss_tau=0.5)
# Of which the laptop's runs take the best; the paper's is 0.1.
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Setting(NamedTuple):
    """What is trained but for its loss, and what is evaluated of it."""

    base: PretrainConfig
    evaluation: Evaluation


Tasks = Sequence[tuple[Setting, Sequence[int]]]  # with the seeds of each

_IMAGENET = PretrainConfig(
    name="balanced_imagenet",
    data="imagenet2012",
    recipe="balanced_imagenet",
    model="resnet50",
    dim=2048,
    head="balanced",
    image_size=224,
    init="torch",
    **vars(SIMCLR),
    epochs=100,
    batch_size=512,
    learning_rate=0.1,
    scaling="none",
    schedule="cosine",
    weight_decay=1e-4,
    log_every_steps=100,
)
IMAGENET = Setting(
    _IMAGENET, Evaluation(layers=("backbone",), protocol="simclr", folds=None, neighbours=(5, 200))
)
CIFAR10 = Setting(
    dataclasses.replace(
        _IMAGENET,
        name="balanced_cifar10",
        data="cifar10",
        recipe="balanced_cifar",
        model="resnet18",
        dim=2048,
        head="balanced",
        image_size=32,
        init="torch",
        epochs=200,
    ),
    Evaluation(layers=("backbone",), protocol="balanced", folds=None, neighbours=(5, 1)),
)

# The laptop's scale. Digits: a small network, 20 epochs of 10 steps.
# The probe is that of CIFAR-10: that of ImageNet, in batches of 4,096, has few steps on few images.
_BOTH_LAYERS = Evaluation(layers=("backbone", "output"), protocol="balanced", folds=None)
DIGITS = Setting(
    PretrainConfig(
        name="balanced_digits",
        data="digits",
        model="small_cnn",
        dim=64,
        width=0.5,
        head="balanced",
        head_hidden=128,
        **vars(SIMCLR),
        **vars(section(_IMAGENET, OptimizerConfig).replace(epochs=20, batch_size=128)),
        devices=1,
        log_every_steps=10,
    ),
    _BOTH_LAYERS,
)
# The same network on a harder task.
GREY = DIGITS._replace(
    base=dataclasses.replace(
        DIGITS.base,
        name="balanced_grey",
        **vars(reproduction.GREY.replace(recipe="balanced_cifar")),
        image_size=reproduction.GREY_PIXELS,
        epochs=8,
    )
)
# CIFAR-10, where colour matters: a tenth of the images, at 16 pixels.
COLORS = Setting(
    dataclasses.replace(
        DIGITS.base,
        name="balanced_colors",
        data="cifar10",
        recipe="balanced_imagenet",
        fraction=0.1,
        image_size=16,
        epochs=8,
    ),
    _BOTH_LAYERS,
)
# The same of all images, of which subsets are taken: more epochs, as these are small.
SUBSETS = COLORS._replace(
    base=dataclasses.replace(
        COLORS.base,
        name="balanced_tail",
        fraction=1.0,
        epochs=8,
    )
)


def run(
    setting: Setting,
    context: Context,
    name: str,
    objective: ObjectiveConfig,
    about: Mapping[str, Any],
    seed: int,
    **data: Any,
) -> Planned:
    """A run with this loss and seed, and these changes of the data's config."""
    config = setting.base.replace(
        name=f"{setting.base.name}_{name}_seed{seed}",
        seed=seed,
        **vars(objective),
        **data,
    )
    return planned_run(config, context, setting.evaluation, about)


def run_of_grid(
    setting: Setting, context: Context, loss: str, alpha: int, lam: int, seed: int = 0
) -> Planned:
    """A run with the balanced contrastive loss, Eq. (17), or the generalized NT-Xent."""
    objective = ObjectiveConfig(loss=loss, loss_alpha=float(alpha), loss_lam=float(lam))
    about = {"alpha": alpha, "lam": lam}
    return run(setting, context, f"{loss}_alpha{alpha}_lam{lam}", objective, about, seed)


def at_chosen(planned: Sequence[Planned], rows: Rows, *names: str) -> list[Planned]:
    """The runs at the rates chosen for the values of these columns; before that, at the paper's."""
    choice = rates.chosen(rows, *names)
    moved = []
    for one in planned:
        key = one.about[names[0]] if len(names) == 1 else tuple(one.about[name] for name in names)
        moved.append(rates.at(one, choice.get(key, one.config.learning_rate)))
    return moved
