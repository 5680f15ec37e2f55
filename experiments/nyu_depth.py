"""Encoders of NYU-Depth-V2, and depth from their features: Table 2 of Wang & Isola (2020).

    python run.py pretrain nyu_depth/align_uniform --data-dir nyu_depth_v2_labeled.mat
    python run.py depth nyu_depth_align_uniform --layer conv5
    python run.py depth nyu_depth_contrastive nyu_depth_align_uniform --folds 5

The data are the 1,449 labelled images, in the authors' split (795 and 654 images): put their
`splits.mat` next to the file. The last command compares both by cross-validation, as the paper
does.

Settings: Section B.1 and Table 9. Not printed: images of 64 pixels, and the SmallAlexNet of STL-10.
(The paper's encoder divides sides by powers of 2; this one has sides of 15 in conv4 and 7 in
conv5.)

Expected score (Table 2, mean squared error on the test split from conv5 and conv4):

    contrastive    0.5 contrastive (tau = 0.1)                  0.7024  0.7575
    align_uniform  0.75 align (alpha 2) + 0.5 uniform (t 2)     0.7014  0.7592

Not measured here. Expected time: minutes on a GPU, 8 hours on 2 CPU cores (estimated).
"""

from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig

CONTRASTIVE = PretrainConfig(
    name="nyu_depth_contrastive",
    data="nyu_depth_v2",
    recipe="nyu_depth",
    model="small_alexnet",
    dim=128,
    image_size=64,
    init="authors",
    contrastive_weight=0.5,
    contrastive_tau=0.1,
    align_weight=0,
    uniform_weight=0,
    epochs=400,
    batch_size=128,
    learning_rate=0.12,
    decay_at=(310 / 400, 340 / 400, 370 / 400),
    momentum=0.9,
    weight_decay=1e-4,
)
OBJECTIVE = ObjectiveConfig(align_weight=0.75, align_alpha=2, uniform_weight=0.5, uniform_t=2)
ALIGN_UNIFORM = CONTRASTIVE.replace(name="nyu_depth_align_uniform", **vars(OBJECTIVE))
CONFIGS = {"nyu_depth/contrastive": CONTRASTIVE, "nyu_depth/align_uniform": ALIGN_UNIFORM}
