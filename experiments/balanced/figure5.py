"""Figure 5 of the balanced paper: alpha against lambda in two losses, on CIFAR-10.

Claim: on CIFAR-10, too, attraction and repulsion need to be balanced by alpha and lambda; the
balanced contrastive loss is best at alpha 2 and lambda 4.

    python run.py reproduce balanced/figure5 --scale gpu --data-dir DATA

gpu:    2 losses x 16 cells x 1 seed, ResNet-18, 5 epochs, and the best cells with 5 fresh seeds;
        about an hour on one H100 (estimated).
paper:  the grid on CIFAR-10 (ResNet-18, 200 epochs).
Not run.
"""

from collections.abc import Sequence

from experiments.balanced import grids, settings
from experiments.lib.sweep import Run

SCALES = ("gpu", "paper")
SETTINGS = grids.SETTINGS
GPU = settings.GPU._replace(base=settings.GPU.base.replace(epochs=5))
analyze = grids.analyze
plot = grids.plot


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the grid, then the selected cells again."""
    if scale == "paper":
        return grids.grid(settings.CIFAR10, seeds=(0,))
    return grids.selected_again(GPU, scale, rows, seeds=(0,))
