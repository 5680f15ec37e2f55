"""The papers' experiments: configs for `pretrain`, and items for `reproduce`."""

from experiments import moco, nyu_depth, quick_thought
from hypersphere_jax.configs import PretrainConfig, require
from hypersphere_jax.configs.base import did_you_mean

# First argument of `python run.py pretrain`: EXPERIMENT/VARIANT.
PRETRAIN: dict[str, PretrainConfig] = moco.CONFIGS | nyu_depth.CONFIGS | quick_thought.CONFIGS


def find(name: str) -> PretrainConfig:
    """Return the config of an experiment.

    Raises:
      UserError: for an unknown name.
    """
    hint = did_you_mean(name, PRETRAIN) or f"; there are {', '.join(PRETRAIN)}"
    require(name in PRETRAIN, f"no experiment {name!r}{hint}")
    return PRETRAIN[name]
