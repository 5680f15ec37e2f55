"""Wang & Isola (2020): its tables, figures and theorems."""

from experiments.wang_isola import (
    best_encoders,
    circle,
    encoder_tables,
    plane,
    sentence_planes,
    sentences,
    theory_figures,
    trajectories,
    weights,
)

MODULES = (best_encoders, encoder_tables, circle, plane, sentences, theory_figures, trajectories)
MODULES += (sentence_planes, weights)

# What the paper has besides, and where it is.
OTHERS = {
    "wang-isola/figure1": "an illustration of alignment and uniformity",
    "wang-isola/figure2": "an illustration of linear separability",
    "wang-isola/figure6": "code of the two losses: `align_loss`, `uniform_loss`",
    "wang-isola/table6": "the layers of the depth predictor: `depth/predictor.py`",
    "wang-isola/table7": "the classes of ImageNet-100: `experiments/paper_tables/`",
}
