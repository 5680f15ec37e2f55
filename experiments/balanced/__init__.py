"""The paper of the balanced contrastive loss: its tables, figures and theorems."""

from experiments.balanced import augmentations, grids, seeds, similarities, subsets, theorems
from experiments.items import Item

ITEMS: dict[str, Item] = {
    name: item
    for module in (augmentations, grids, seeds, similarities, subsets, theorems)
    for name, item in module.ITEMS.items()
}

# What the paper has besides, and where it is.
ELSEWHERE = {
    "balanced/figure1": "an illustration of the framework",
    "balanced/figure2": "an illustration of the approximation",
    "balanced/table2": "which part of SimCLR stands for which of the derivation",
}
