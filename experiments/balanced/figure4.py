"""Figure 4 of the balanced paper: alpha against lambda in two losses.

Claim: repulsion needs a weight lambda besides alpha (1 / tau): the best accuracy is not at lambda =
1, where the generalized NT-Xent is NT-Xent. The balanced contrastive loss has the higher best
accuracy.

    python run.py reproduce balanced/figure4 --scale laptop

laptop: 2 losses x 16 cells x 5 seeds on digits, a rate per alpha chosen on training data; the best
        cells by held-out images are trained again with 10 fresh seeds. 35 minutes on one CPU core.
paper:  the grid on ImageNet (ResNet-50, 100 epochs).
Result (laptop): inconclusive. All settings are within 98 to 99% on digits, which leaves little
room.

`balanced/figure5` is the same on CIFAR-10, with a gpu scale.
"""

from collections.abc import Sequence

from experiments.balanced import grids, settings
from experiments.lib.sweep import Run

SCALES = ("laptop", "paper")
SETTINGS = grids.SETTINGS
analyze = grids.analyze
plot = grids.plot


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return candidates of each alpha's rate, the grid, then the selected cells again."""
    if scale == "paper":
        return grids.grid(settings.IMAGENET, seeds=(0,))
    return grids.selected_again(settings.DIGITS, scale, rows, seeds=range(5))
