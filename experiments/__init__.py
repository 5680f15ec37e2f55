"""The papers' experiments: configs for `pretrain`, and items for `reproduce`."""

from experiments import moco_cifar10, moco_imagenet100, moco_v2_imagenet, nyu_depth, quick_thought
from hypersphere_jax.configs import PretrainConfig, require
from hypersphere_jax.configs.base import did_you_mean

# First argument of `python run.py pretrain`: FILE/VARIANT.
PRETRAIN: dict[str, PretrainConfig] = {
    f"{module.__name__.rpartition('.')[2]}/{variant}": config
    for module in (moco_cifar10, moco_imagenet100, moco_v2_imagenet, nyu_depth, quick_thought)
    for variant, config in module.CONFIGS.items()
}


def find(name: str) -> PretrainConfig:
    """Return the config of an experiment.

    Raises:
      UserError: for an unknown name.
    """
    hint = did_you_mean(name, PRETRAIN) or f"; there are {', '.join(PRETRAIN)}"
    require(name in PRETRAIN, f"no experiment {name!r}{hint}")
    return PRETRAIN[name]
