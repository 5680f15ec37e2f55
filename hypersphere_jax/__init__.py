"""Alignment, uniformity and contrastive representation learning on the unit hypersphere, in JAX.

Losses: `from hypersphere_jax import align_loss, uniform_loss`. They need jax and numpy only.
Training, loading and evaluating encoders needs `pip install ".[train]"` in a clone of the
repository. Names are imported when they are first used.
"""

TYPE_CHECKING = False  # importing `typing` for its constant takes long
if TYPE_CHECKING:
    from typing import Any

    from hypersphere_jax.augment import Recipe as Recipe
    from hypersphere_jax.configs import Diverged as Diverged
    from hypersphere_jax.configs import PretrainConfig as PretrainConfig
    from hypersphere_jax.configs import Stopped as Stopped
    from hypersphere_jax.configs import UserError as UserError
    from hypersphere_jax.encoder import Encoder as Encoder
    from hypersphere_jax.encoder import load as load
    from hypersphere_jax.evaluation.knn import knn_probe as knn_probe
    from hypersphere_jax.evaluation.knn import retrieval_scores as retrieval_scores
    from hypersphere_jax.evaluation.linear import linear_probe as linear_probe
    from hypersphere_jax.evaluation.metrics import measure as measure
    from hypersphere_jax.evaluation.metrics import rankme as rankme
    from hypersphere_jax.losses import *  # noqa: F403  one list of names, in losses/__init__.py
    from hypersphere_jax.losses import __all__ as __all__
    from hypersphere_jax.run import Run as Run
    from hypersphere_jax.run import train as train

__version__ = "0.2.0"

# Modules of the public names, except losses.
_MODULES = {
    **dict.fromkeys(("Diverged", "PretrainConfig", "Stopped", "UserError"), "configs"),
    **dict.fromkeys(("Encoder", "load"), "encoder"),
    **dict.fromkeys(("Run", "train"), "run"),
    "Recipe": "augment",
    **dict.fromkeys(("knn_probe", "retrieval_scores"), "evaluation.knn"),
    "linear_probe": "evaluation.linear",
    **dict.fromkeys(("measure", "rankme"), "evaluation.metrics"),
}


def __getattr__(name: str) -> "Any":
    import importlib

    from hypersphere_jax.utils.extras import how_to_install

    if name not in _MODULES:
        return _loss(name)
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        how = how_to_install(error.name)
        if how is None:
            raise
        message = f"hypersphere_jax.{name} needs {error.name}, which is not installed: {how}"
        raise ImportError(message) from error
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_loss("__all__")})


def _loss(name: str) -> "Any":
    """Return a loss, the module `losses`, or `__all__`."""
    import importlib.util

    other = name != "losses" and importlib.util.find_spec(f"{__name__}.{name}") is not None
    if not other and (name == "__all__" or not name.startswith("__")):
        losses = importlib.import_module(f"{__name__}.losses")
        if name == "losses":
            return losses
        if name in ("__all__", *losses.__all__):
            globals()[name] = value = getattr(losses, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
