"""MoCo on CIFAR-10 with a ResNet-18, for one GPU.

    python run.py pretrain moco_cifar10/contrastive --data-dir FOLDER
    python run.py probe moco_cifar10_contrastive --protocols knn --k 200 --vote similarity

FOLDER contains train/CLASS/file and test/CLASS/file, or zips of them. It defaults to TensorFlow
Datasets.

Settings: "MoCo Demo: CIFAR-10", He et al.'s notebook (`colab/moco_cifar10_demo.ipynb` in
github.com/facebookresearch/moco), with its asymmetric loss. Differences: bfloat16 instead of
float32, and ImageNet's mean and deviation. `align_uniform` has the best weights of Tables 3 and 5
of Wang & Isola; no score for CIFAR-10 is published.

Expected score (notebook): k-NN with k = 200 on the output 82.6% after 200 epochs, 86.3% after 400,
88.7% after 800; on the way 32.0% after 1, 48.0% after 10, 61.4% after 20, 71.3% after 40. Not
measured here.

Expected time (notebook): 20 s per epoch on one V100, 67 minutes in all. A small run on CPU is in
docs/moco.md.
"""

from experiments.moco_objectives import objectives
from hypersphere_jax.configs import PretrainConfig

CONFIGS = {
    variant: PretrainConfig(
        name=f"moco_cifar10_{variant}",
        # The notebook's crops, flips, jitter and grey: SimCLR's for CIFAR-10, normalized.
        data="cifar10",
        recipe="balanced_cifar",
        model="resnet18",
        dim=128,
        init="torch",
        dtype="bfloat16",
        image_size=32,
        batch_norm="split",
        bn_groups=8,
        **vars(objective),
        queue_size=4096,
        ema_decay=0.99,
        epochs=200,
        batch_size=512,
        learning_rate=0.06,
        scaling="none",
        schedule="cosine_epochs",
        weight_decay=5e-4,
    )
    for variant, objective in objectives(tau=0.1).items()
}
