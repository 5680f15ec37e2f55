"""Scalar hyper-parameters, arguments of the step: runs with other values share a program."""

import dataclasses

import numpy as np

from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.configs.objective import WEIGHTS

SCALARS = (
    *WEIGHTS,
    "contrastive_tau",
    "align_alpha",
    "uniform_t",
    "loss_tau",
    "loss_alpha",
    "loss_lam",
    "loss_factor",
    "learning_rate",
    "weight_decay",
    "momentum",
)
# Options that identify a run and do not enter the program.
IDENTITY = ("name", "runs_dir", "seed", "init_from", "init_step")


def structure(config: PretrainConfig) -> PretrainConfig:
    """Compilation key: the config without traced scalars, seed and run identity.

    It includes whether a weight is zero, because such a term is left out of the loss.
    """
    standard = PretrainConfig()
    shared = {name: getattr(standard, name) for name in (*SCALARS, *IDENTITY)}
    shared |= {name: float(getattr(config, name) > 0) for name in WEIGHTS}
    return dataclasses.replace(config, **shared)


def scalars_of(config: PretrainConfig) -> dict[str, np.ndarray]:
    """Return the scalar hyper-parameters of a config's loss as float32."""
    values = {name: getattr(config, name) for name in SCALARS}
    return {
        name: np.asarray(value, np.float32) for name, value in values.items() if value is not None
    }
