"""MoCo on CIFAR-10 with a ResNet-18, for one GPU.

    python run.py pretrain moco_cifar10/contrastive --data-dir FOLDER
    python run.py probe moco_cifar10_contrastive --protocols knn --k 200 --vote similarity

FOLDER holds train/CLASS/file and test/CLASS/file, or train.zip and test.zip of these; leave it out
for TensorFlow Datasets' copy.

Settings: those of "MoCo Demo: CIFAR-10", He et al.'s notebook (`colab/moco_cifar10_demo.ipynb`
in github.com/facebookresearch/moco), with its asymmetric loss. Here they are in bfloat16 (there
float32: `--dtype float32`), and ImageNet's mean and deviation normalize the images. The notebook
counts epochs from 1, so that its last one has rate 0, and replaces the first convolution after
torchvision's initialization: that is nn.Conv2d's there, and as all others here.

Expected score: 82.6% after 200 epochs, 86.3% after 400, 88.7% after 800, says the notebook. Its
protocol is k-NN with k = 200 on the output, votes weighted by exp(similarity / 0.1), as
the command above asks. Not measured here. On the way the notebook's log of
200 epochs shows 32.0% after epoch 1, 48.0% after 10, 61.4% after 20 and 71.3% after 40.
`align_uniform` has the weights that are best in Tables 3 and 5 of Wang & Isola, for ImageNet: no
score for CIFAR-10 is published.

Expected time: the notebook's log shows 20 s an epoch on one V100, 67 minutes in all. Not measured
here. Estimate: a ResNet-18 takes 1.1 GFLOP for an image of 32 pixels; forward and backward of the
query and forward of the key are 4 times that, 4.5e16 FLOP for 200 epochs of 50,000 images: 7 to 8
minutes on a GPU that sustains 100 TFLOP/s in bfloat16. A run on CPU that is small enough is in
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
