"""What Chen, Luo & Li train, and the same at the laptop's scale.

From the paper (Appendix A, B and D): ResNet-50 (ResNet-18 in the sections that try many settings),
a projection head of two layers after its average pool, outputs of 64 dimensions for CIFAR-10 and
128 for ImageNet, SimCLR's augmentation, a learning rate that grows with the square root of the
batch, and linear evaluation. NT-Xent has tau 0.2, decoupled NT-Xent tau 1 and lambda 0.1, the
sliced Wasserstein distances lambda 5; the last two kinds have half the mean squared difference over
samples *and dimensions* as their alignment, and are multiplied by 1000 where the outputs are
normalized. Batches are of 128 for CIFAR-10 and 1,024 for ImageNet unless said otherwise.

Not printed there, and as in SimCLR: the rate of 0.075 times the square root of the batch, LARS with
ten epochs of warmup and a cosine, weight decay 1e-6 for ImageNet and 1e-4 for CIFAR-10; and the
linear evaluation by LARS, batches of 4,096, 90 epochs (`--protocols simclr`).
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import rates, reproduction
from experiments.protocols import Evaluation
from experiments.reproduction import Context, run
from experiments.statistics import Rows
from experiments.sweeps import Planned
from experiments.tables import Row, expected
from hypersphere_jax.configs import (
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    section,
)

FACTOR = 1000.0  # of losses of normalized outputs with the mean squared difference
EVALUATION = Evaluation(layers=("backbone",), protocol="simclr", folds=None)


def nt_xent(tau: float) -> ObjectiveConfig:
    """The standard contrastive loss, Eq. (1)."""
    return ObjectiveConfig(loss="nt_xent", loss_tau=tau)


def decoupled(tau: float, lam: float, self_similarity: bool = False) -> ObjectiveConfig:
    """Decoupled NT-Xent, Eq. (5), in the scaling of the paper's numbers.

    With `self_similarity` as in the authors' notebook: it matters at the low temperatures of
    Figure B.2, and at tau = 1 of the tables changes the repulsion by a hundredth.
    """
    return ObjectiveConfig(
        loss="decoupled_nt_xent",
        loss_tau=tau,
        loss_lam=lam,
        align_scaling="per_dimension",
        self_similarity=self_similarity,
        loss_factor=FACTOR,
    )


def swd(prior: str, lam: float) -> ObjectiveConfig:
    """Alignment and the sliced Wasserstein distance to a prior, Eq. (4) and Algorithm 1."""
    return ObjectiveConfig(
        loss="generalized_contrastive",
        prior=prior,
        loss_lam=lam,
        align_scaling="per_dimension",
        loss_factor=FACTOR if prior == "hypersphere" else 1.0,
    )


# By the names of Tables D.1 to D.3.
LOSSES = {
    "NT-Xent": nt_xent(0.2),
    "Decoupled NT-Xent": decoupled(1.0, 0.1),
    "SWD (normal)": swd("normal", 5.0),
    "SWD (uniform hypercube)": swd("hypercube", 5.0),
    "SWD (uniform hypersphere)": swd("hypersphere", 5.0),
}

CIFAR10 = PretrainConfig(
    name="chen_cifar10",
    data="cifar10",
    recipe="simclr_cifar",
    model="resnet50",
    dim=64,
    head="simclr2",
    image_size=32,
    init="simclr",
    **vars(LOSSES["NT-Xent"]),
    optimizer="lars",
    epochs=100,
    batch_size=128,
    learning_rate=1.2,
    scaling="sqrt",
    schedule="cosine",
    warmup_epochs=10,
    weight_decay=1e-4,
    log_every_steps=100,
)
IMAGENET = dataclasses.replace(
    CIFAR10,
    name="chen_imagenet",
    data="imagenet2012",
    recipe="simclr_imagenet",
    model="resnet50",
    dim=128,
    head="simclr2",
    image_size=224,
    init="simclr",
    batch_size=1024,
    weight_decay=1e-6,
)
# What the tables do not say in their rows. Figure B.2: ResNet-18, 200 epochs.
BASES = {
    "chen/tableD1": CIFAR10,
    "chen/tableD2": IMAGENET,
    "chen/tableD3": dataclasses.replace(IMAGENET, head="simclr3"),
    "chen/figureB2": dataclasses.replace(
        CIFAR10,
        model="resnet18",
        epochs=200,
    ),
}
# ResNet-18 for 400 epochs, of Sections C and E.
RESNET18 = dataclasses.replace(BASES["chen/figureB2"], epochs=400)

# The laptop's scale: a small network and digits, 20 epochs of 10 steps. The rate is that of the
# images of random bits alone; the others are chosen among RATES (`choose`).
LAPTOP_RATE = {"epochs": 20, "learning_rate": 4.0, "warmup_epochs": 2}
LAPTOP = PretrainConfig(
    name="chen_laptop",
    data="digits",
    model="small_cnn",
    dim=32,
    width=0.5,
    head="simclr2",
    **vars(LOSSES["NT-Xent"]),
    **vars(section(CIFAR10, OptimizerConfig).replace(**LAPTOP_RATE)),
    devices=1,
    log_every_steps=10,
)
LAPTOP_EVALUATION = EVALUATION._replace(layers=("backbone", "output"))
# The same network on a harder task, for 8 epochs of 39 steps.
GREY = LAPTOP.replace(
    name="chen_grey",
    **vars(reproduction.GREY.replace(recipe="simclr_cifar")),
    image_size=reproduction.GREY_PIXELS,
    epochs=8,
    warmup_epochs=1,
)
RATES = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)


def config_of(row: Row) -> PretrainConfig:
    """The config that trains the encoder of a row of Tables D.1 to D.3, or of Figure B.2."""
    base, values = BASES[row.table], row.values
    if "tau" in values:
        objective = decoupled(values["tau"], values["lambda"], self_similarity=True)
    else:
        objective = LOSSES[values["loss"]]
        base = base.replace(batch_size=values["batch_size"], epochs=values["epochs"])
    name = f"{row.table.replace('/', '_')}_row{row.number}"
    return base.replace(name=name, **vars(objective))


def of_row(row: Row, context: Context, **about: Any) -> Planned:
    """The run of a table's row, with the printed accuracy as `paper_top1`."""
    about |= {"table": row.table, "row": row.number}
    about |= {f"paper_{name}": value for name, value in expected(row).items()}
    return run(config_of(row), context, EVALUATION, about)


def encoder(
    context: Context,
    base: PretrainConfig,
    name: str,
    objective: ObjectiveConfig,
    about: Mapping[str, Any],
    **changes: Any,
) -> Planned:
    """A run with this loss, and these changes of the config."""
    prefix = "chen_grey" if base is GREY else "chen"
    config = base.replace(name=f"{prefix}_{name}", **(vars(objective) | changes))
    return run(config, context, LAPTOP_EVALUATION if context.laptop else EVALUATION, about)


def choose(
    base: PretrainConfig, folds: int, names: Sequence[str], context: Context, rows: Rows
) -> list[Planned]:
    """A stage: candidates of the rates of these losses, a seed for each fold."""
    runs = []
    for name, fold in itertools.product(names, range(folds)):
        run_name, about = f"{slug(name)}_seed{fold}", {"name": name}
        held_out = {"folds": rates.FOLDS, "fold": fold}
        one = encoder(context, base, run_name, LOSSES[name], about, seed=fold, **held_out)
        runs.append(one)
    return rates.candidates(runs, RATES)


def with_rate(one: Planned, name: str, rows: Rows) -> Planned:
    """The run at the rate that was chosen for a loss; before it is, at that of LAPTOP."""
    usual = LAPTOP.learning_rate
    return rates.at(one, rates.chosen(rows, "name").get(name, usual))


def slug(name: str) -> str:
    """A part of a run's name: of `NT-Xent, tau 0.2` it is `nt_xent_tau0.2`."""
    kept = "".join(c for c in name.lower() if c.isalnum() or c in " .-").replace("-", "_")
    for word, short in (("tau ", "tau"), ("lambda ", "lam"), ("batch ", "batch"), (" ", "_")):
        kept = kept.replace(word, short)
    return kept
