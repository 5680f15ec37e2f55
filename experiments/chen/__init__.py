"""Chen, Luo & Li, *Intriguing Properties of Contrastive Losses*: its tables and figures."""

from experiments.chen import competing_bits, grid, losses, projections, saturation
from experiments.items import Item

ITEMS: dict[str, Item] = {
    name: item
    for module in (losses, grid, projections, saturation, competing_bits)
    for name, item in module.ITEMS.items()
}

# What the appendix has besides, and where it is.
ELSEWHERE = {
    "chen/figureA1": "an illustration of the three priors: `generalized_contrastive_loss`",
    "chen/algorithm1": "the sliced Wasserstein distance: `sliced_wasserstein_loss`",
}
