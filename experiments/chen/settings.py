"""Configs of Chen, Luo & Li, and the same at smaller scales.

From the paper (Appendices A, B and D): ResNet-50 (ResNet-18 where many settings are compared), a
projection head of two layers, outputs of 64 dimensions for CIFAR-10 and 128 for ImageNet, SimCLR's
augmentation, a rate proportional to the square root of the batch, and linear evaluation. NT-Xent
has tau 0.2, decoupled NT-Xent tau 1 and lambda 0.1, the sliced Wasserstein distances lambda 5. The
latter two have half the mean squared difference over samples *and dimensions* as alignment, and a
factor of 1000 where outputs are normalized. Batches are 128 for CIFAR-10 and 1,024 for ImageNet.

CIFAR-10's rate is the authors' published setting (google-research/simclr, issue 166): 0.2 times the
square root of the batch, which is 3.2 for 256 pairs. ImageNet's is SimCLR's, 0.075 times the square
root. Not printed, and taken from SimCLR: LARS, ten epochs of warm-up, a cosine, weight decay 1e-6
(ImageNet) and 1e-4 (CIFAR-10), and linear evaluation by LARS with batches of 4,096 for 90 epochs.
"""

from typing import Any

from experiments.lib import rates
from experiments.lib.evaluation import Evaluation
from experiments.lib.records import Rows
from experiments.lib.sweep import Run
from experiments.lib.tables import TableRow, printed_scores
from hypersphere_jax.configs import (
    DataConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    section,
)

FACTOR = 1000.0  # scales losses that use the mean squared difference of normalized outputs


def nt_xent(tau: float) -> ObjectiveConfig:
    """Return the standard contrastive loss, Eq. (1)."""
    return ObjectiveConfig(loss="nt_xent", loss_tau=tau)


def decoupled(tau: float, lam: float, self_similarity: bool = False) -> ObjectiveConfig:
    """Return decoupled NT-Xent, Eq. (5), in the scaling of the paper's numbers.

    The authors' notebook has `self_similarity`, which matters at the low temperatures of Figure
    B.2.
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
    """Return alignment and the sliced Wasserstein distance to a prior, Eq. (4), Algorithm 1."""
    return ObjectiveConfig(
        loss="generalized_contrastive",
        prior=prior,
        loss_lam=lam,
        align_scaling="per_dimension",
        loss_factor=FACTOR if prior == "hypersphere" else 1.0,
    )


# Names as in Tables D.1 to D.3.
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
    learning_rate=3.2,
    scaling="sqrt",
    schedule="cosine",
    warmup_epochs=10,
    weight_decay=1e-4,
    log_every_steps=100,
)
IMAGENET = CIFAR10.replace(
    name="chen_imagenet",
    data="imagenet2012",
    recipe="simclr_imagenet",
    dim=128,
    image_size=224,
    batch_size=1024,
    learning_rate=1.2,
    weight_decay=1e-6,
)
# Shared options of a table's rows. Figure B.2 has ResNet-18 and 200 epochs.
BASES = {
    "chen/tableD1": CIFAR10,
    "chen/tableD2": IMAGENET,
    "chen/tableD3": IMAGENET.replace(head="simclr3"),
    "chen/figureB2": CIFAR10.replace(model="resnet18", epochs=200),
}
RESNET18 = CIFAR10.replace(model="resnet18", epochs=400)  # Sections C and E
GPU = RESNET18.replace(
    name="chen_gpu",
    epochs=30,
    warmup_epochs=3,
    batch_size=512,
    dtype="bfloat16",
    log_every_steps=20,
)
# Laptop scale: a small network and digits, 20 epochs of 10 steps. Rates are chosen on training data
# except in Figure C.1, where no test data take part.
LAPTOP_OPTIMIZER = section(CIFAR10, OptimizerConfig).replace(
    epochs=20, learning_rate=4.0, warmup_epochs=2
)
LAPTOP = PretrainConfig(
    name="chen_laptop",
    data="digits",
    model="small_cnn",
    dim=32,
    width=0.5,
    head="simclr2",
    **vars(LOSSES["NT-Xent"]),
    **vars(LAPTOP_OPTIMIZER),
    devices=1,
    log_every_steps=10,
)
# A harder task for the same network: a tenth of CIFAR-10 in gray at 16 pixels, all test images.
GRAY = DataConfig("cifar10", channels=1, fraction=0.1)
GRAY_LAPTOP = LAPTOP.replace(
    name="chen_grey",
    **vars(GRAY.replace(recipe="simclr_cifar")),
    image_size=16,
    epochs=8,
    warmup_epochs=1,
)
RATES = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)
GPU_RATES = (0.8, 3.2, 12.8)
EVALUATION = Evaluation(layers=("backbone",), protocol="simclr", folds=None)
BOTH_LAYERS = Evaluation(layers=("backbone", "output"), protocol="simclr", folds=None)
BASE_OF_SCALE = {"laptop": LAPTOP, "gpu": GPU, "paper": CIFAR10}


def evaluation_of(scale: str) -> Evaluation:
    """Return the paper's evaluation; below paper scale also of the output."""
    return EVALUATION if scale == "paper" else BOTH_LAYERS


def loss_run(
    base: PretrainConfig, name: str, objective: ObjectiveConfig, scale: str, /, **labels: Any
) -> Run:
    """Return a run with a loss; its name starts with `chen`, and with the base where needed."""
    prefixes = {GRAY_LAPTOP.name: "chen_grey", GPU.name: "chen_gpu"}
    full_name = f"{prefixes.get(base.name, 'chen')}_{name}"
    config = base.replace(name=full_name, **vars(objective))
    return Run(config, labels, evaluation_of(scale))


def row_config(row: TableRow) -> PretrainConfig:
    """Return the config of a row of Tables D.1 to D.3, or of Figure B.2."""
    base = BASES[row.table]
    values = row.values
    if "tau" in values:
        objective = decoupled(values["tau"], values["lambda"], self_similarity=True)
    else:
        objective = LOSSES[values["loss"]]
        base = base.replace(batch_size=values["batch_size"], epochs=values["epochs"])
    name = f"{row.table.replace('/', '_')}_row{row.number}"
    return base.replace(name=name, **vars(objective))


def row_run(row: TableRow, **labels: Any) -> Run:
    """Return the run of a table's row, with the printed accuracy as `paper_top1`."""
    labels |= {"table": row.table, "row": row.number}
    labels |= {f"paper_{name}": value for name, value in printed_scores(row).items()}
    return Run(row_config(row), labels, EVALUATION)


def rate_candidates(base: PretrainConfig, folds: int, names: list[str], scale: str) -> list[Run]:
    """Return candidates of the rates of losses, a seed per fold."""
    planned = []
    for name in names:
        for fold in range(folds):
            run = loss_run(base, f"{slug(name)}_seed{fold}", LOSSES[name], scale, name=name)
            planned.append(run.replace(seed=fold, folds=rates.FOLDS, fold=fold))
    return rates.candidates(planned, RATES if scale == "laptop" else GPU_RATES)


def with_rate_of(run: Run, name: str, rows: Rows) -> Run:
    """Return the run at the rate that was chosen for a loss."""
    return rates.with_rate(run, rates.chosen(rows, "name")[name])


def slug(name: str) -> str:
    """Return a part of a run's name, e.g. `nt_xent_tau0.2` for `NT-Xent, tau 0.2`."""
    kept = "".join(c for c in name.lower() if c.isalnum() or c in " .-").replace("-", "_")
    for word, short in (("tau ", "tau"), ("lambda ", "lam"), ("batch ", "batch"), (" ", "_")):
        kept = kept.replace(word, short)
    return kept
