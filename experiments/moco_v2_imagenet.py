r"""MoCo v2 on ImageNet with a ResNet-50: both losses of Table 5 of Wang & Isola (2020).

    python run.py pretrain moco_v2_imagenet/align_uniform --data-dir IMAGENET --workers 16
    python run.py probe moco_v2_imagenet_align_uniform --layers backbone \
        --protocols moco --as-printed

IMAGENET holds train/WNID/file and val/WNID/file. Leave `--data-dir` out for TensorFlow Datasets'
copy.

Settings: Section B.2.2: ResNet-50, batch 256, 200 epochs, rate 0.03 times 0.1 at epochs 120 and
160, momentum 0.9, weight decay 0.0001, momentum encoder's decay 0.999, queue 65,536, 128
dimensions; MoCo v2's MLP head and blur; 8 groups of batch norm (32 images each) for its 8 GPUs.
Whether Table 5 has the uniformity of Eq. (21) or (22) is not said: here it is (22), that of the
best encoder of Table 10.

Expected score, top-1 of the validation split (Table 5):

    contrastive    tau = 0.2                                        67.5% +- 0.1%
    align_uniform  3 align (alpha 2) + uniform (t 3)                67.69%

The former is that of MoCo v2's authors, five runs, whose command (README of
github.com/facebookresearch/moco) has a cosine by epochs: `--schedule cosine_epochs`. Both are of a
linear classifier trained with SGD for 100 epochs (batch 256, rate 30, times 0.1 at epochs 60 and
80); so does the command above. Not measured here.

Expected time: 53 hours on 8 V100 (the same README, for its own code). Not measured here. In FLOP:
8.2e9 a forward pass of 224 pixels, times 4 for the query's and key's passes, times 1,281,167
images, times 200 epochs: 8.4e18, so those 8 V100 sustained 5.5 TFLOP/s each. `--dtype bfloat16` is
faster, with other numbers.
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
