"""All of a training run."""

import dataclasses
import os
import textwrap
from typing import Any

from hypersphere_jax.config.base import UserError, config, did_you_mean, refuse, require
from hypersphere_jax.config.data import DataConfig
from hypersphere_jax.config.evaluation import EvaluateConfig
from hypersphere_jax.config.model import ModelConfig
from hypersphere_jax.config.objective import MocoConfig, ObjectiveConfig
from hypersphere_jax.config.optimizer import OptimizerConfig
from hypersphere_jax.config.runtime import RuntimeConfig
from hypersphere_jax.config.values import Name

# Parts that a name stands for: `--data`, `--model`, `--optimizer`.
NAMED = {"data": "name", "model": "name", "optimizer": "optimizer"}


@config
class PretrainConfig:
    """All of a training run."""

    name: Name = "default"
    """Name of the run: its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    seed: int = 0
    """Seed of initialization, order of the images, and augmentation."""
    init_from: str | None = None
    """A run (folder) whose newest checkpoint gives the initial parameters."""
    init_step: int | None = None
    """Another checkpoint of that run; 0 is its random initialization."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    moco: MocoConfig = MocoConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    def __init__(self, **fields: Any):
        """Takes the parts, or their fields as the command line's flags: `epochs=10, model="…"`.

        Raises:
          UserError: for a field that no part has, or an invalid value.
        """
        self._set({field.name: field.default for field in dataclasses.fields(self)}, fields)

    def replace(self, **fields: Any) -> "PretrainConfig":
        """A copy with other values, given as to the constructor."""
        copy = object.__new__(PretrainConfig)
        copy._set(dict(vars(self)), fields)
        return copy

    def _set(self, values: dict[str, Any], fields: dict[str, Any]) -> None:
        changes: dict[str, dict[str, Any]] = {}
        for name, value in fields.items():
            if name in NAMED and isinstance(value, str | os.PathLike):
                changes.setdefault(name, {})[NAMED[name]] = value
            elif name in values:
                values[name] = value
            else:
                changes.setdefault(_part_with(name), {})[name] = value
        for part, change in changes.items():
            values[part] = dataclasses.replace(values[part], **change)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self):
        require(
            not (self.moco.queue_size and self.objective.supervised_weight),
            "queue_size= and supervised_weight= do not go together: the queue has no labels",
        )
        plain = self.objective.loss == "weighted"
        require(
            plain or not (self.moco.queue_size or self.model.reads_text),
            f"loss={self.objective.loss} is of two views in a batch of images, and goes neither "
            f"with queue_size= nor with model=sentence_gru: take loss=weighted",
        )
        if self.moco.queue_size == 0:
            refuse(self.objective, ["uniform_intra_batch"], "needs queue_size= above 0")
        if self.init_from is None:
            refuse(self, ["init_step"], "is a checkpoint of init_from=, which is not given")
        if not (self.objective.supervised_weight or self.model.num_classes):
            refuse(self.model, ["classifier_layer"], "needs supervised_weight= above 0")


PARTS = [part for part in dataclasses.fields(PretrainConfig) if dataclasses.is_dataclass(part.type)]


def _options() -> str:
    """The options of all parts, as `help` shows them."""
    lines = ["All of a training run.", "", "Options may be given by name, without their parts.", ""]
    for part in dataclasses.fields(PretrainConfig):
        fields = dataclasses.fields(part.type) if part in PARTS else [part]
        for field in fields:
            name = part.name if NAMED.get(part.name) == field.name else field.name
            text = field.metadata.get("help", "")
            if not text.endswith(("from Python only.", "a run takes them from its data.")):
                lines += textwrap.wrap(f"{name} = {field.default!r}: {text}", 96)
    return "\n".join(lines)


PretrainConfig.__doc__ = _options()


def _part_with(name: str) -> str:
    """The part of the config that has a field."""
    for part in PARTS:
        for field in dataclasses.fields(part.type):
            if field.name == name:
                return part.name
    known = [field.name for part in PARTS for field in (part, *dataclasses.fields(part.type))]
    raise UserError(f"PretrainConfig has no field {name!r}{did_you_mean(name, known)}")
