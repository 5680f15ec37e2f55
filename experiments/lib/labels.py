"""Columns that describe a run."""

from typing import Any

from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig
from hypersphere_jax.configs.objective import WEIGHTS
from hypersphere_jax.training.objectives import settings


def labels_of(config: PretrainConfig) -> dict[str, Any]:
    """Return the columns that every row has."""
    loss = formula(config)
    if not config.unit_norm:
        loss += ", no unit norm"
    return {
        "data": config.data,
        "loss": loss,
        "kind": kind(config),
        "dim": config.dim,
        "batch": config.batch_size,
        "epochs": config.epochs,
        "seed": config.seed,
    }


def kind(objective: ObjectiveConfig) -> str:
    """Return the terms of the loss, such as `align+uniform`, or its name, such as `nt_xent`."""
    if objective.loss != "weighted":
        return objective.loss + ("+supervised" if objective.supervised_weight else "")
    terms = [name.removesuffix("_weight") for name in WEIGHTS if getattr(objective, name)]
    return "+".join(terms)


def formula(objective: ObjectiveConfig) -> str:
    """Return the loss as text, such as `0.98 align (alpha 2) + 0.96 uniform (t 2)`."""
    if objective.loss == "weighted":
        terms = [
            (objective.contrastive_weight, f"contrastive (tau {objective.contrastive_tau:g})"),
            (objective.align_weight, f"align (alpha {objective.align_alpha:g})"),
            (objective.uniform_weight, f"uniform (t {objective.uniform_t:g})"),
        ]
    else:
        options = []
        for name, value in settings(objective).items():
            options.append(f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}")
        terms = [(objective.loss_factor, f"{objective.loss} ({', '.join(options)})")]
    terms.append((objective.supervised_weight, "supervised"))
    return " + ".join(term if w == 1 else f"{w:g} {term}" for w, term in terms if w)
