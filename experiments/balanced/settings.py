"""Configs of the balanced paper, and the same at smaller scales.

From the paper (A.3.1): ImageNet, ResNet-50 with a projector of three layers of 2,048, 100 epochs of
512 pairs, SGD with rate 0.1, momentum 0.9, weight decay 0.0001 and a cosine; a linear classifier on
the backbone (LARS, batches of 4,096, 90 epochs), and k-NN with k = 200. NT-Xent has tau 0.5.
CIFAR-10 (A.4.1): the same optimizer for 200 epochs; a classifier by SGD with rate 30, batches of
256, 90 epochs; k-NN with k = 1. The name of its network was lost in the paper's text: ResNet-18
here.
"""

from typing import Any

from experiments import laptop
from experiments.lib import Evaluation, Run
from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig

BALANCED = "balanced_contrastive"
GENERALIZED = "generalized_nt_xent"
NAMES = {BALANCED: "balanced contrastive", GENERALIZED: "generalized NT-Xent"}
SIMCLR = ObjectiveConfig(loss="nt_xent", loss_tau=0.5)
# Learning rates that are tried; the paper's is 0.1.
RATES = {"laptop": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0), "gpu": (0.03, 0.1, 0.3)}
# (alpha, lambda) with the highest accuracy, from the paper's text; its grids are pictures.
BEST_IMAGENET = {BALANCED: (4, 2), GENERALIZED: (2, 2)}
BEST_CIFAR10 = {BALANCED: (2, 4)}


IMAGENET = PretrainConfig(
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
CIFAR10 = IMAGENET.replace(
    name="balanced_cifar10",
    data="cifar10",
    recipe="balanced_cifar",
    model="resnet18",
    image_size=32,
    epochs=200,
)
GPU = CIFAR10.replace(
    name="balanced_gpu", epochs=30, dtype="bfloat16", log_every_steps=20, devices=1
)
DIGITS = IMAGENET.replace(
    **laptop.DIGITS, name="balanced_digits", dim=64, head_hidden=128, batch_size=128
)
GRAY = DIGITS.replace(**laptop.GRAY, name="balanced_grey", recipe="balanced_cifar")
# Color matters for augmentations.
COLOR = GRAY.replace(name="balanced_colors", recipe="balanced_imagenet", channels=None)
# All images, of which subsets are taken.
SUBSETS = COLOR.replace(name="balanced_tail", fraction=1.0)
# ImageNet's probe, in batches of 4,096, would take few steps on few images.
EVALUATE_IMAGENET = Evaluation(("backbone",), protocol="simclr", folds=None, neighbours=(5, 200))
EVALUATE_OTHERS = Evaluation(("backbone", "output"), protocol="balanced", folds=None)


def make_run(
    base: PretrainConfig, name: str, objective: ObjectiveConfig, seed: int, /, **labels: Any
) -> Run:
    """Return a run with a loss and a seed, with the name of its base in front."""
    config = base.replace(name=f"{base.name}_{name}_seed{seed}", seed=seed, **vars(objective))
    is_imagenet = base.data == IMAGENET.data
    return Run(config, labels, EVALUATE_IMAGENET if is_imagenet else EVALUATE_OTHERS)


def grid_run(base: PretrainConfig, loss: str, alpha: int, lam: int, seed: int = 0) -> Run:
    """Return a run with the balanced contrastive loss, Eq. (17), or the generalized NT-Xent."""
    objective = ObjectiveConfig(loss=loss, loss_alpha=float(alpha), loss_lam=float(lam))
    name = f"{loss}_alpha{alpha}_lam{lam}"
    return make_run(base, name, objective, seed, alpha=alpha, lam=lam)
