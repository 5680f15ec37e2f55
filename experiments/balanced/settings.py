"""What the balanced paper trains, and the same at the laptop's scale.

From the paper (A.3.1): ImageNet, ResNet-50 with a projector of three layers of 2,048 (batch norm
after each, ReLU after the first two), 100 epochs of 512 pairs, SGD with rate 0.1, momentum 0.9,
weight decay 0.0001 and a cosine; then a linear classifier on the backbone (LARS, batches of 4,096,
90 epochs), and k-NN with k = 200. Section 5 trains NT-Xent with tau 0.5. CIFAR-10 (A.4.1): the same
rule for 200 epochs; a classifier by SGD with rate 30 and a cosine, batches of 256, 90 epochs; k-NN
with k = 1. Its network was lost in the paper's text: ResNet-18 here, with a stem for small images.
"""

import dataclasses

from experiments.measures import Measures
from hypersphere_jax.config import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    RuntimeConfig,
)

BALANCED, GENERALIZED = "balanced_contrastive", "generalized_nt_xent"
SIMCLR = ObjectiveConfig(loss="nt_xent", loss_tau=0.5)


def of_grid(loss: str, alpha: float, lam: float) -> ObjectiveConfig:
    """The balanced contrastive loss, Eq. (17), or the generalized NT-Xent."""
    return ObjectiveConfig(loss=loss, loss_alpha=float(alpha), loss_lam=float(lam))


IMAGENET = PretrainConfig(
    name="balanced_imagenet",
    data=DataConfig("imagenet2012", recipe="balanced_imagenet"),
    model=ModelConfig("resnet50", dim=2048, head="balanced", image_size=224),
    objective=SIMCLR,
    optimizer=OptimizerConfig(
        epochs=100,
        batch_size=512,
        learning_rate=0.1,
        scaling="none",
        schedule="cosine",
        weight_decay=1e-4,
    ),
    runtime=RuntimeConfig(log_every_steps=100, checkpoint_every_steps=2000),
)
IMAGENET_MEASURES = Measures(layers=("backbone",), protocol="simclr", folds=None, neighbours=(200,))
CIFAR10 = dataclasses.replace(
    IMAGENET,
    name="balanced_cifar10",
    data=DataConfig("cifar10", recipe="balanced_cifar"),
    model=ModelConfig("resnet18", dim=2048, head="balanced", image_size=32),
    optimizer=dataclasses.replace(IMAGENET.optimizer, epochs=200),
)
CIFAR10_MEASURES = Measures(layers=("backbone",), protocol="balanced", folds=None, neighbours=(1,))

# The laptop's scale. Digits: a small network, 20 epochs of 10 steps.
DIGITS = PretrainConfig(
    name="balanced_digits",
    data=DataConfig("digits"),
    model=ModelConfig("small_cnn", dim=64, width=0.5, head="balanced", head_hidden=128),
    objective=SIMCLR,
    optimizer=dataclasses.replace(IMAGENET.optimizer, epochs=20, batch_size=128),
    runtime=RuntimeConfig(devices=1, log_every_steps=10, checkpoint_every_steps=1000),
)
# Before the head nearly every encoder of digits has 97% and more: its output tells them apart.
DIGITS_MEASURES = Measures(layers=("output", "backbone"), folds=None, neighbours=(1,))
# CIFAR-10, where colour matters: a fifth of the images, at 16 pixels.
COLORS = dataclasses.replace(
    DIGITS,
    name="balanced_colors",
    data=DataConfig("cifar10", recipe="balanced_imagenet", fraction=0.2),
    model=dataclasses.replace(DIGITS.model, image_size=16),
    optimizer=dataclasses.replace(DIGITS.optimizer, epochs=4),
)
COLORS_MEASURES = Measures(layers=("output", "backbone"), folds=None, neighbours=(1,))
