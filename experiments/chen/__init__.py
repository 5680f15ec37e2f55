"""Chen, Luo & Li, *Intriguing Properties of Contrastive Losses*: its tables and figures."""

from experiments.chen import competing_bits, loss_tables, projections, saturation, tau_lambda

MODULES = (loss_tables, tau_lambda, projections, saturation, competing_bits)

# What the appendix has besides, and where it is.
OTHERS = {
    "chen/figureA1": "an illustration of the three priors: `generalized_contrastive_loss`",
    "chen/algorithm1": "the sliced Wasserstein distance: `sliced_wasserstein_loss`",
}
