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

import itertools
from typing import Any

from experiments import laptop
from experiments.lib import Evaluation, Run, rates, tables
from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig

FACTOR = 1000.0  # scales losses that use the mean squared difference of normalized outputs
# Names as in Tables D.1 to D.3.
NT_XENT = "NT-Xent"
DECOUPLED = "Decoupled NT-Xent"
SWD = "SWD (uniform hypersphere)"
# Alignment and the sliced Wasserstein distance to a prior, Eq. (4), Algorithm 1.
HYPERSPHERE = ObjectiveConfig(
    loss="generalized_contrastive",
    prior="hypersphere",
    loss_lam=5.0,
    align_scaling="per_dimension",
    loss_factor=FACTOR,
)
LOSSES = {
    NT_XENT: ObjectiveConfig(loss="nt_xent", loss_tau=0.2),  # Eq. (1)
    DECOUPLED: ObjectiveConfig(  # Eq. (5)
        loss="decoupled_nt_xent",
        loss_tau=1.0,
        loss_lam=0.1,
        align_scaling="per_dimension",
        loss_factor=FACTOR,
    ),
    "SWD (normal)": HYPERSPHERE.replace(prior="normal", loss_factor=1.0),
    "SWD (uniform hypercube)": HYPERSPHERE.replace(prior="hypercube", loss_factor=1.0),
    SWD: HYPERSPHERE,
}
# The form of the authors' notebook, which matters at the low temperatures of Figure B.2.
NOTEBOOK = LOSSES[DECOUPLED].replace(self_similarity=True)

CIFAR10 = PretrainConfig(
    name="chen",
    data="cifar10",
    recipe="simclr_cifar",
    model="resnet50",
    dim=64,
    head="simclr2",
    image_size=32,
    init="simclr",
    **vars(LOSSES[NT_XENT]),
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
# Rates are chosen on training data, except in Figure C.1, where no test data take part.
LAPTOP = CIFAR10.replace(**laptop.DIGITS, dim=32, learning_rate=4.0, warmup_epochs=2)
GRAY = LAPTOP.replace(**laptop.GRAY, name="chen_grey", recipe="simclr_cifar", warmup_epochs=1)
# Shorter training where many settings are compared.
SHORT = {"laptop": LAPTOP, "gpu": GPU.replace(epochs=10, warmup_epochs=1), "paper": RESNET18}
RATES = {"laptop": (0.25, 1.0, 4.0, 16.0, 64.0, 256.0), "gpu": (0.8, 3.2, 12.8)}
PAPERS_LAYER = Evaluation(layers=("backbone",), protocol="simclr", folds=None)
BOTH_LAYERS = Evaluation(layers=("backbone", "output"), protocol="simclr", folds=None)


def loss_run(
    base: PretrainConfig, name: str, objective: ObjectiveConfig, seed: int, /, **labels: Any
) -> Run:
    """Return a run with a loss, with the name of its base in front."""
    config = base.replace(name=f"{base.name}_{name}_seed{seed}", seed=seed, **vars(objective))
    return Run(config, labels, BOTH_LAYERS)


def row_run(row: tables.TableRow, **labels: Any) -> Run:
    """Return the run of a row of Tables D.1 to D.3 or Figure B.2, with the printed accuracy."""
    base = BASES[row.table]
    values = row.values
    if "tau" in values:
        objective = NOTEBOOK.replace(loss_tau=values["tau"], loss_lam=values["lambda"])
    else:
        objective = LOSSES[values["loss"]]
        base = base.replace(batch_size=values["batch_size"], epochs=values["epochs"])
    name = f"{row.table.replace('/', '_')}_row{row.number}"
    config = base.replace(name=name, **vars(objective))
    return Run(config, labels | tables.printed_labels(row), PAPERS_LAYER)


def rate_candidates(base: PretrainConfig, folds: int, names: list[str], scale: str) -> list[Run]:
    """Return candidates of the rates of losses, a seed per fold."""
    planned = []
    for name, fold in itertools.product(names, range(folds)):
        run = loss_run(base, slug(name), LOSSES[name], fold, name=name)
        planned.append(run.replace(folds=rates.FOLDS, fold=fold))
    return rates.candidates(planned, RATES[scale])


def slug(name: str) -> str:
    """Return a part of a run's name, e.g. `nt_xent_tau0.2` for `NT-Xent, tau 0.2`."""
    kept = "".join(c for c in name.lower() if c.isalnum() or c in " .-").replace("-", "_")
    for word, short in (("tau ", "tau"), ("lambda ", "lam"), ("batch ", "batch"), (" ", "_")):
        kept = kept.replace(word, short)
    return kept
