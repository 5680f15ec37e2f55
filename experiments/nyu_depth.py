"""Encoders of NYU-Depth-V2, and depth from their features: Table 2 of Wang & Isola (2020).

    python run.py pretrain nyu_depth/align_uniform --data-dir nyu_depth_v2_labeled.mat
    python run.py depth nyu_depth_align_uniform --layer conv5
    python run.py depth nyu_depth_align_uniform --layer conv4
    python run.py depth nyu_depth_contrastive nyu_depth_align_uniform --folds 5

The first takes the 1,449 labelled images, in the authors' split if their `splits.mat` lies beside
the file (795 and 654 images). The last compares the two by cross-validation, by which the paper
picks its encoders.

Settings: Section B.1 and Table 9: batch 128, 400 epochs, rate 0.12 per 256 pairs (0.06) times 0.1
at epochs 310, 340 and 370, momentum 0.9, weight decay 0.0001, 128 dimensions. Not said there, and
taken here: images of 64 pixels, and the encoder of the STL-10 and CIFAR-10 experiments. (The
paper's divides the sides of an image by a power of 2, after Tian et al. 2019; this one makes 15 in
conv4 and 7 in conv5 of 64.)

Expected score, mean squared error on the test split from conv5 and conv4 (Table 2; Table 9 has all
64 encoders), in square metres as far as one can tell:

    contrastive    0.5 contrastive (tau = 0.1)                  0.7024  0.7575
    align_uniform  0.75 align (alpha 2) + 0.5 uniform (t 2)     0.7014  0.7592

Not measured here.

Expected time: not measured. Estimate: 2,400 steps of 128 pairs. A forward pass of 64 pixels is
1.65e9 FLOP, a step three times that for each of 256 images, all of them 3.0e15 FLOP: minutes on a
GPU, and 8 hours at the 100 GFLOP/s of 2 CPU cores.
"""

from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig

OBJECTIVES = {
    "contrastive": ObjectiveConfig(
        contrastive_weight=0.5, contrastive_tau=0.1, align_weight=0, uniform_weight=0
    ),
    "align_uniform": ObjectiveConfig(
        align_weight=0.75, align_alpha=2, uniform_weight=0.5, uniform_t=2
    ),
}

CONFIGS = {
    variant: PretrainConfig(
        name=f"nyu_depth_{variant}",
        data="nyu_depth_v2",
        recipe="nyu_depth",
        model="small_alexnet",
        dim=128,
        image_size=64,
        init="authors",
        **vars(objective),
        epochs=400,
        batch_size=128,
        learning_rate=0.12,
        decay_at=(310 / 400, 340 / 400, 370 / 400),
        momentum=0.9,
        weight_decay=1e-4,
    )
    for variant, objective in OBJECTIVES.items()
}
