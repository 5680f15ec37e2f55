"""The paper of the balanced contrastive loss: its tables, figures and theorems."""

from experiments.balanced import (
    alpha_lambda,
    augmentations,
    long_tailed,
    seeds,
    similarities,
    theorems,
)

MODULES = (augmentations, alpha_lambda, seeds, similarities, long_tailed, theorems)

# What the paper has besides, and where it is.
OTHERS = {
    "balanced/figure1": "an illustration of the framework",
    "balanced/figure2": "an illustration of the approximation",
    "balanced/table2": "which part of SimCLR corresponds to which of the derivation",
}
