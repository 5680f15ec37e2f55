"""All of a training run."""

from hypersphere_jax.config.base import SEEDS, check_range, config, refuse, require
from hypersphere_jax.config.data import DataConfig
from hypersphere_jax.config.evaluation import EvaluateConfig
from hypersphere_jax.config.model import ModelConfig
from hypersphere_jax.config.objective import MocoConfig, ObjectiveConfig
from hypersphere_jax.config.optimizer import OptimizerConfig
from hypersphere_jax.config.runtime import RuntimeConfig


@config
class PretrainConfig:
    """All of a training run."""

    name: str = "default"
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

    def __post_init__(self):
        require(
            bool(self.name) and self.name not in (".", "..") and "/" not in self.name,
            f"--name {self.name!r}: must be a plain folder name",
        )
        require(
            not (self.moco.queue_size and self.objective.supervised_weight),
            "--queue-size and --supervised-weight do not go together: the queue has no labels",
        )
        plain = self.objective.loss == "weighted"
        require(
            plain or not (self.moco.queue_size or self.model.reads_text),
            f"--loss {self.objective.loss} is of two views in a batch of images, and goes neither "
            f"with --queue-size nor with --model sentence_gru: take --loss weighted",
        )
        if self.moco.queue_size == 0:
            refuse(self.objective, ["uniform_intra_batch"], "needs --queue-size above 0")
        if self.init_from is None:
            refuse(self, ["init_step"], "is a checkpoint of --init-from, which is not given")
        check_range(self, SEEDS, "seed")
