r"""MoCo on ImageNet-100 with a ResNet-50: the best encoders of Table 3 of Wang & Isola (2020).

    python run.py pretrain moco_imagenet100/align_uniform --data-dir IMAGENET --workers 16
    python run.py probe moco_imagenet100_align_uniform --layers backbone \
        --protocols moco_imagenet100 --as-printed

IMAGENET holds train/WNID/file and val/WNID/file of ImageNet's 1000 classes; the 100 of Table 7 are
taken. Leave `--data-dir` out for TensorFlow Datasets' copy.

Settings: Section B.2.1 and Table 10: ResNet-50, batch 128, 240 epochs, rate 0.03 times 0.1 at
epochs 120, 160 and 200, momentum 0.9, weight decay 0.0001, momentum encoder's decay 0.999, queue
16,384, 128 dimensions. Not said there, and taken here: 8 groups of batch norm (16 images each),
the same on 1, 2, 4 or 8 devices.

Expected score, top-1 and top-5 of the validation split (Table 3; Table 10 has all 45 encoders):

    contrastive    tau = 0.07                                       72.80%  91.64%
    align_uniform  3 align (alpha 2) + uniform (t 3, Eq. (22))      74.60%  92.74%

That is a linear classifier trained with SGD for 60 epochs (batch 256, rate 10, times 0.2 at epochs
30, 40 and 50), as the command above fits one; on what layer is not said. Not measured here.

Expected time: not measured. Estimate: about 127,000 images times 240 epochs are 0.12 of the work
of MoCo v2 on ImageNet, which took its authors 53 hours on 8 V100 (moco_v2_imagenet.py): 6 hours.
In FLOP: 8.2e9 a forward pass of 224 pixels, times 4 for the query's and key's passes, times 3.0e7
images: 1.0e18. `--dtype bfloat16` is faster, with other numbers.
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
