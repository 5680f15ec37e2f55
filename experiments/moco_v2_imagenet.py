r"""MoCo v2 on ImageNet with a ResNet-50: both losses of Table 5 of Wang & Isola (2020).

    python run.py pretrain moco_v2_imagenet/align_uniform --data-dir IMAGENET --workers 16
    python run.py probe moco_v2_imagenet_align_uniform --layers backbone \
        --protocols moco --as-printed

IMAGENET contains train/WNID/file and val/WNID/file. It defaults to TensorFlow Datasets.

Settings: Section B.2.2, with MoCo v2's head and blur and 8 groups of batch norm (32 images each).
The
paper does not say whether Table 5 uses Eq. (21) or (22); Eq. (22) is used here. MoCo v2's authors
use `--schedule cosine_epochs`.

Expected score (Table 5, top-1 of the validation split; a linear classifier by SGD, 100 epochs):

    contrastive    tau = 0.2                                        67.5% +- 0.1%
    align_uniform  3 align (alpha 2) + uniform (t 3)                67.69%

Not measured here. Expected time: 53 hours on 8 V100 (README of github.com/facebookresearch/moco).
"""

from experiments.moco_objectives import objectives
from hypersphere_jax.configs import PretrainConfig

CONFIGS = {
    variant: PretrainConfig(
        name=f"moco_v2_imagenet_{variant}",
        data="imagenet2012",
        recipe="moco_v2",
        model="resnet50",
        dim=128,
        head="moco_v2",
        image_size=224,
        init="torch",
        batch_norm="split",
        bn_groups=8,
        **vars(objective),
        queue_size=65536,
        ema_decay=0.999,
        epochs=200,
        batch_size=256,
        learning_rate=0.03,
        scaling="none",
        decay_at=(120 / 200, 160 / 200),
        momentum=0.9,
        weight_decay=1e-4,
        log_every_steps=100,
    )
    for variant, objective in objectives(tau=0.2).items()
}
