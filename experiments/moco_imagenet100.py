r"""MoCo on ImageNet-100 with a ResNet-50: the best encoders of Table 3 of Wang & Isola (2020).

    python run.py pretrain moco_imagenet100/align_uniform --data-dir IMAGENET --workers 16
    python run.py probe moco_imagenet100_align_uniform --layers backbone \
        --protocols moco_imagenet100 --as-printed

IMAGENET contains train/WNID/file and val/WNID/file of all 1000 classes; the 100 classes of Table 7
are used. It defaults to TensorFlow Datasets.

Settings: Section B.2.1 and Table 10. Not printed: 8 groups of batch norm (16 images each), the same
on 1, 2, 4 or 8 devices.

Expected score (Table 3, top-1 and top-5 of the validation split; a linear classifier by SGD, 60
epochs):

    contrastive    tau = 0.07                                       72.80%  91.64%
    align_uniform  3 align (alpha 2) + uniform (t 3, Eq. (22))      74.60%  92.74%

Not measured here. Expected time: 6 hours on 8 V100, estimated from moco_v2_imagenet.py.
"""

from pathlib import Path

from experiments.moco_objectives import objectives
from hypersphere_jax.configs import PretrainConfig

CONFIGS = {
    variant: PretrainConfig(
        name=f"moco_imagenet100_{variant}",
        data="imagenet2012",
        recipe="moco",
        classes=str(Path(__file__).with_name("imagenet100_classes.txt")),
        model="resnet50",
        dim=128,
        image_size=224,
        init="torch",
        batch_norm="split",
        bn_groups=8,
        **vars(objective),
        queue_size=16384,
        ema_decay=0.999,
        epochs=240,
        batch_size=128,
        learning_rate=0.03,
        scaling="none",
        decay_at=(120 / 240, 160 / 240, 200 / 240),
        momentum=0.9,
        weight_decay=1e-4,
        log_every_steps=100,
    )
    for variant, objective in objectives(tau=0.07).items()
}
