"""Wang & Isola (2020): its tables, figures and theorems, as items of `python run.py reproduce`."""

from experiments.items import Item
from experiments.wang_isola import best, circle, plane, sentences, theory, trajectories, weights

ITEMS: dict[str, Item] = {
    name: item
    for module in (best, circle, plane, sentences, theory, trajectories, weights)
    for name, item in module.ITEMS.items()
}

# What the paper has besides, and where it is.
ELSEWHERE = {
    "wang-isola/figure1": "an illustration of alignment and uniformity",
    "wang-isola/figure2": "an illustration of linear separability",
    "wang-isola/figure6": "code of the two losses: `align_loss`, `uniform_loss`",
    "wang-isola/table6": "the layers of the depth predictor: `models/depth_predictor.py`",
    "wang-isola/table7": "the classes of ImageNet-100: `experiments/paper_tables/`",
}
