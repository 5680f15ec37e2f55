"""Configs of the balanced paper, and the same at smaller scales.

From the paper (A.3.1): ImageNet, ResNet-50 with a projector of three layers of 2,048, 100 epochs of
512 pairs, SGD with rate 0.1, momentum 0.9, weight decay 0.0001 and a cosine; a linear classifier on
the backbone (LARS, batches of 4,096, 90 epochs), and k-NN with k = 200. NT-Xent has tau 0.5.
CIFAR-10 (A.4.1): the same optimizer for 200 epochs; a classifier by SGD with rate 30, batches of
256, 90 epochs; k-NN with k = 1. The name of its network was lost in the paper's text: ResNet-18
here.
"""

from typing import Any, NamedTuple

from experiments.lib import rates
from experiments.lib.evaluation import Evaluation
from experiments.lib.sweep import Run
from hypersphere_jax.configs import ObjectiveConfig, OptimizerConfig, PretrainConfig, section

BALANCED = "balanced_contrastive"
GENERALIZED = "generalized_nt_xent"
NAMES = {BALANCED: "balanced contrastive", GENERALIZED: "generalized NT-Xent"}
SIMCLR = ObjectiveConfig(loss="nt_xent", loss_tau=0.5)
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
GPU_RATES = (0.03, 0.1, 0.3)
# (alpha, lambda) with the highest accuracy, from the paper's text; its grids are pictures.
BEST_IMAGENET = {BALANCED: (4, 2), GENERALIZED: (2, 2)}
BEST_CIFAR10 = {BALANCED: (2, 4)}


class Task(NamedTuple):
    """Everything of a run but its loss, and its evaluation."""

    base: PretrainConfig
    evaluation: Evaluation


IMAGENET = Task(
    PretrainConfig(
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
    ),
    Evaluation(layers=("backbone",), protocol="simclr", folds=None, neighbours=(5, 200)),
)
CIFAR10 = Task(
    IMAGENET.base.replace(
        name="balanced_cifar10",
        data="cifar10",
        recipe="balanced_cifar",
        model="resnet18",
        image_size=32,
        epochs=200,
    ),
    Evaluation(layers=("backbone",), protocol="balanced", folds=None, neighbours=(5, 1)),
)
BOTH_LAYERS = Evaluation(layers=("backbone", "output"), protocol="balanced", folds=None)
GPU = Task(
    CIFAR10.base.replace(
        name="balanced_gpu", epochs=30, dtype="bfloat16", log_every_steps=20, devices=1
    ),
    BOTH_LAYERS,
)
# Laptop scale. ImageNet's probe, in batches of 4,096, would take few steps on few images: the probe
# is CIFAR-10's.
DIGITS = Task(
    PretrainConfig(
        name="balanced_digits",
        data="digits",
        model="small_cnn",
        dim=64,
        width=0.5,
        head="balanced",
        head_hidden=128,
        **vars(SIMCLR),
        **vars(section(IMAGENET.base, OptimizerConfig).replace(epochs=20, batch_size=128)),
        devices=1,
        log_every_steps=10,
    ),
    BOTH_LAYERS,
)
# The same network on a tenth of CIFAR-10 at 16 pixels, tested on all 10,000 images: in gray, and in
# color where that matters.
GRAY = Task(
    DIGITS.base.replace(
        name="balanced_grey",
        data="cifar10",
        recipe="balanced_cifar",
        channels=1,
        fraction=0.1,
        image_size=16,
        epochs=8,
    ),
    BOTH_LAYERS,
)
COLOR = Task(
    GRAY.base.replace(name="balanced_colors", recipe="balanced_imagenet", channels=None),
    BOTH_LAYERS,
)
# All images, of which subsets are taken.
SUBSETS = Task(COLOR.base.replace(name="balanced_tail", fraction=1.0), BOTH_LAYERS)


def task_run(
    task: Task,
    name: str,
    objective: ObjectiveConfig,
    seed: int,
    labels: dict[str, Any],
    **data: Any,
) -> Run:
    """Return a run of a task with a loss and a seed, and changes of its data."""
    config = task.base.replace(
        name=f"{task.base.name}_{name}_seed{seed}", seed=seed, **vars(objective), **data
    )
    return Run(config, labels, task.evaluation)


def simclr_run(task: Task, seed: int) -> Run:
    """Return a run with NT-Xent."""
    return task_run(task, "nt_xent", SIMCLR, seed, {})


def grid_run(task: Task, loss: str, alpha: int, lam: int, seed: int = 0) -> Run:
    """Return a run with the balanced contrastive loss, Eq. (17), or the generalized NT-Xent."""
    objective = ObjectiveConfig(loss=loss, loss_alpha=float(alpha), loss_lam=float(lam))
    labels = {"alpha": alpha, "lam": lam}
    return task_run(task, f"{loss}_alpha{alpha}_lam{lam}", objective, seed, labels)


def candidate_rates(scale: str) -> tuple[float, ...]:
    """Return the learning rates that are tried; the paper's is 0.1."""
    return RATES if scale == "laptop" else GPU_RATES


def choose_then_train(candidates: list[Run], planned: list[Run], rows, *names: str) -> list[Run]:
    """Return the candidates of rates and, when they have ended, the runs at the chosen rates."""
    if not rates.is_complete(candidates, rows):
        return candidates
    return [*candidates, *rates.at_chosen(planned, rows, *names)]
