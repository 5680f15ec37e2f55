"""The two objectives that Wang & Isola compare with a queue (Tables 3 and 5)."""

from hypersphere_jax.configs import ObjectiveConfig


def objectives(tau: float) -> dict[str, ObjectiveConfig]:
    """InfoNCE at a temperature, and the weights of alignment and uniformity that are best there."""
    return {
        "contrastive": ObjectiveConfig(
            contrastive_weight=1, contrastive_tau=tau, align_weight=0, uniform_weight=0
        ),
        "align_uniform": ObjectiveConfig(
            align_weight=3, align_alpha=2, uniform_weight=1, uniform_t=3
        ),
    }
