"""Options of depth prediction."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from hypersphere_jax.configs import base
from hypersphere_jax.configs.base import Auto, require
from hypersphere_jax.configs.optimizer import OptimizerConfig

EPOCHS = 120  # of Wang & Isola, B.1
DECAY_AT = (70, 90, 100, 110)  # epochs


@dataclass(frozen=True)
class DepthConfig(base.Config):
    """Depth maps from frozen features (Wang & Isola, B.1, Table 6; NYU-Depth-V2)."""

    runs: Annotated[
        Positional[tuple[str, ...]], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
    ]
    """Runs: folders, or names in RUNS_DIR. Cross-validation chooses among several."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    layer: str = "conv5"
    """Input layer of the predictor: `conv5` or `conv4` in the paper, or any [h, w, channels]."""
    data: Auto[str] = None
    """Images with depth maps, such as `nyu_depth_v2` or FILE.mat. Defaults to the run's data."""
    data_dir: Auto[str] = None
    """nyu_depth_v2_labeled.mat, or the folder of TensorFlow Datasets. Defaults to the run's."""
    folds: int = 0
    """Folds of cross-validation on the training images; 5 in the paper, 0 for none."""
    step: Auto[int] = None
    """Checkpoint; 0 is the random initialization. Defaults to the newest."""
    epochs: int = EPOCHS
    """Passes over the training images. The rate decays at 70, 90, 100 and 110 of 120."""
    batch_size: int = 128
    """Images in a batch; all of them if there are fewer."""
    learning_rate: float = 3e-3
    """Initial learning rate of Adam."""
    seed: int = 0
    """Seed of the predictor, its batches and the folds."""
    devices: Auto[int] = None
    """Devices for the features. Defaults to all; the predictor is trained on one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        base.check_at_least(self, 1, "epochs", "batch_size", "devices")
        base.check_at_least(self, 0, "step")
        base.check_positive(self, "learning_rate")
        base.check_seed(self, "seed")
        require(bool(self.runs), "name a run, such as runs/nyu_depth_align_uniform")
        require(self.folds == 0 or self.folds >= 2, f"folds={self.folds}: must be 0, 2 or more")
        can_choose = len(self.runs) == 1 or self.folds > 0
        require(can_choose, "several runs need folds=, the cross-validation that compares them")

    @property
    def optimizer(self) -> OptimizerConfig:
        """Adam as in Wang & Isola, B.1."""
        return OptimizerConfig(
            epochs=self.epochs,
            batch_size=max(2, self.batch_size),
            optimizer="adam",
            learning_rate=self.learning_rate,
            scaling="none",
            decay_at=tuple(epoch / EPOCHS for epoch in DECAY_AT),
            decay_factor=0.2,
            weight_decay=0.0,
            adam_betas=(0.5, 0.999),
            adam_eps=1e-8,
        )
