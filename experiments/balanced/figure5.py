"""Figure 5 of the balanced paper: alpha against lambda in two losses, on CIFAR-10.

Claim: on CIFAR-10, too, attraction and repulsion need to be balanced by alpha and lambda; the
balanced contrastive loss is best at alpha 2 and lambda 4.

    python run.py reproduce balanced/figure5 --scale gpu --data-dir DATA

gpu:    2 losses x 16 cells x 1 seed, ResNet-18, 5 epochs, and the best cells with 5 fresh seeds; an
        hour on one H100 (estimated).
paper:  the grid on CIFAR-10 (ResNet-18, 200 epochs).
Not run.
"""

from experiments.balanced import figure4, settings
from experiments.lib import Rows, Run

SCALES = ("gpu", "paper")
SETTINGS = figure4.SETTINGS
GPU = settings.GPU.replace(epochs=5)
analyze = figure4.analyze
plot = figure4.plot


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the grid, then the selected cells again."""
    if scale == "paper":
        return figure4.grid(settings.CIFAR10, seeds=(0,))
    planned = figure4.grid(GPU, seeds=(0,))
    return [*planned, *figure4.selected_again(GPU, planned, rows, range(5, 10))]
