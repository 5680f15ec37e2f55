r"""Momentum Contrast with both losses of Wang & Isola (2020), for `python run.py pretrain`.

    python run.py pretrain moco_cifar10/contrastive --data-dir FOLDER
    python run.py probe moco_cifar10_contrastive --protocols knn --k 200 --vote similarity
    python run.py pretrain moco_imagenet100/align_uniform --data-dir IMAGENET --workers 16
    python run.py probe moco_imagenet100_align_uniform --layers backbone \
        --protocols moco_imagenet100 --as-printed
    python run.py pretrain moco_v2_imagenet/align_uniform --data-dir IMAGENET --workers 16
    python run.py probe moco_v2_imagenet_align_uniform --layers backbone \
        --protocols moco --as-printed

FOLDER contains train/CLASS/file and test/CLASS/file, IMAGENET train/WNID/file and val/WNID/file of
all 1000 classes. Both default to TensorFlow Datasets. Nothing here was measured; scores and times
are printed ones. A small run on CPU is in docs/moco.md.

`moco_imagenet100`: Table 3, Section B.2.1, the classes of Table 7. Not printed: 8 groups of batch
norm. Top-1 and top-5 of a linear classifier: contrastive 72.80 and 91.64%, align_uniform 74.60 and
92.74%. About 6 hours on 8 V100, estimated from ImageNet.

`moco_v2_imagenet`: Table 5, Section B.2.2, with MoCo v2's head and blur. The paper does not say
whether Table 5 uses Eq. (21) or (22); Eq. (22) is used here. MoCo v2's authors use
`--schedule cosine_epochs`. Top-1: contrastive 67.5 +- 0.1%, align_uniform 67.69%. 53 hours on 8
V100 (README of github.com/facebookresearch/moco).

`moco_cifar10`: "MoCo Demo: CIFAR-10", He et al.'s notebook (`colab/moco_cifar10_demo.ipynb` in
github.com/facebookresearch/moco), with its asymmetric loss. Differences: bfloat16 instead of
float32, and ImageNet's mean and deviation. k-NN with k = 200 on the output: 82.6% after 200 epochs,
86.3% after 400, 88.7% after 800; on the way 32.0% after 1, 48.0% after 10, 61.4% after 20, 71.3%
after 40. 20 s per epoch on one V100. `align_uniform` has the weights that are best on ImageNet; no
score for CIFAR-10 is published.
"""

from pathlib import Path

from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig

CIFAR10 = PretrainConfig(
    name="moco_cifar10",
    data="cifar10",
    # The notebook's crops, flips, jitter and grey: SimCLR's for CIFAR-10, normalized.
    recipe="balanced_cifar",
    model="resnet18",
    dim=128,
    init="torch",
    dtype="bfloat16",
    image_size=32,
    batch_norm="split",
    bn_groups=8,
    contrastive_weight=1,
    contrastive_tau=0.1,
    align_weight=0,
    uniform_weight=0,
    queue_size=4096,
    ema_decay=0.99,
    epochs=200,
    batch_size=512,
    learning_rate=0.06,
    scaling="none",
    schedule="cosine_epochs",
    momentum=0.9,
    weight_decay=5e-4,
)
IMAGENET100 = CIFAR10.replace(
    name="moco_imagenet100",
    data="imagenet2012",
    classes=str(Path(__file__).with_name("imagenet100_classes.txt")),
    recipe="moco",
    model="resnet50",
    dtype="float32",
    image_size=224,
    contrastive_tau=0.07,
    queue_size=16384,
    ema_decay=0.999,
    epochs=240,
    batch_size=128,
    learning_rate=0.03,
    schedule="step",
    decay_at=(120 / 240, 160 / 240, 200 / 240),
    weight_decay=1e-4,
    log_every_steps=100,
)
IMAGENET = IMAGENET100.replace(
    name="moco_v2_imagenet",
    classes=None,
    recipe="moco_v2",
    head="moco_v2",
    contrastive_tau=0.2,
    queue_size=65536,
    epochs=200,
    batch_size=256,
    decay_at=(120 / 200, 160 / 200),
)
ALIGN_UNIFORM = ObjectiveConfig(align_weight=3, align_alpha=2, uniform_weight=1, uniform_t=3)
CONFIGS: dict[str, PretrainConfig] = {}
for base in (CIFAR10, IMAGENET100, IMAGENET):
    name = f"{base.name}_align_uniform"
    CONFIGS[f"{base.name}/contrastive"] = base.replace(name=f"{base.name}_contrastive")
    CONFIGS[f"{base.name}/align_uniform"] = base.replace(name=name, **vars(ALIGN_UNIFORM))
