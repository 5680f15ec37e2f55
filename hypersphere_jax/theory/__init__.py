"""Optima, bounds, limits and entropy estimates from the papers."""

from hypersphere_jax.theory.bounds import (
    AttractingBound,
    RepellingBound,
    attracting_bound,
    prototype_bias,
    repelling_bound,
)
from hypersphere_jax.theory.optima import (
    contrastive_limit,
    sphere_log_area,
    uniform_sphere,
    uniformity_lower_bound,
    uniformity_optimum,
    uniformity_with_self,
    uniformity_without_self,
    vmf_kde_entropy,
    vmf_log_normalizer,
)

__all__ = [
    "AttractingBound",
    "RepellingBound",
    "attracting_bound",
    "contrastive_limit",
    "prototype_bias",
    "repelling_bound",
    "sphere_log_area",
    "uniform_sphere",
    "uniformity_lower_bound",
    "uniformity_optimum",
    "uniformity_with_self",
    "uniformity_without_self",
    "vmf_kde_entropy",
    "vmf_log_normalizer",
]
