"""All options of a training run."""

from dataclasses import dataclass

from hypersphere_jax.configs.base import Config, check_folder_name, check_range, refuse, require
from hypersphere_jax.configs.data import DataConfig
from hypersphere_jax.configs.evaluation import EvaluateConfig
from hypersphere_jax.configs.model import ModelConfig
from hypersphere_jax.configs.objective import MocoConfig, ObjectiveConfig
from hypersphere_jax.configs.optimizer import OptimizerConfig
from hypersphere_jax.configs.runtime import RuntimeConfig

# Custom parts: their names as arguments of `hypersphere_jax.train`, and as fields of a config.
CUSTOM = {
    "network": "network",
    "loss": "function",
    "augment": "augment",
    "preprocess": "preprocess",
    "data": "source",
}


@dataclass(frozen=True)
class RunConfig(Config):
    """Name, seed and initial parameters of the run."""

    name: str = "default"
    """Name of the run: its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    seed: int = 0
    """Seed of initialization, order of the images, and augmentation."""
    init_from: str | None = None
    """Run (name or folder) whose newest checkpoint gives the initial parameters."""
    init_step: int | None = None
    """Another checkpoint of that run; 0 is its random initialization."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_folder_name(self, "name")
        check_range(self, "seed", at_least=0, below=2**32)
        check_range(self, "init_step", at_least=0)
        if self.init_from is None:
            refuse(self, ["init_step"], "is a checkpoint of init_from=, which is not given")


@dataclass(frozen=True)
class PretrainConfig(
    RunConfig,
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    MocoConfig,
    OptimizerConfig,
    RuntimeConfig,
    EvaluateConfig,
):
    """All options of a training run, e.g. `PretrainConfig(name="mine", epochs=10)`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_labels = not (self.queue_size and self.supervised_weight)
        require(has_labels, "queue_size= has no labels for supervised_weight=: leave one out")
        is_weighted = self.loss == "weighted" or not (self.queue_size or self.reads_text)
        excluded = "queue_size= and model=sentence_gru"
        require(is_weighted, f"loss={self.loss} excludes {excluded}: use loss=weighted with them")
        if self.microbatch_size is not None:
            is_plain = not (self.queue_size or self.reads_text or self.batch_norm == "split")
            excluded = "queue_size=, model=sentence_gru and batch_norm=split"
            require(is_plain, f"microbatch_size= excludes {excluded}: leave one out")
        if self.queue_size == 0:
            refuse(self, ["uniform_intra_batch"], "needs queue_size= above 0")
        if not (self.supervised_weight or self.num_classes):
            refuse(self, ["classifier_layer"], "needs supervised_weight= above 0")
