"""Depth prediction on frozen features."""

from tyro.conf import Positional

from hypersphere_jax.config.base import config, require
from hypersphere_jax.config.optimizer import OptimizerConfig
from hypersphere_jax.config.values import Count, Positive

# Wang & Isola B.1.
EPOCHS = 120
DECAY_AT = (70, 90, 100, 110)


@config
class DepthConfig:
    """Depth maps from frozen features, after Wang & Isola (NYU-Depth-V2, B.1, Table 6)."""

    runs: Positional[tuple[str, ...]]
    """Folders, or names in RUNS_DIR. Of several, the best one by cross-validation is tested."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    layer: str = "conv5"
    """Layer of the predictor's input: `conv5` or `conv4` in the paper, or any [h, w, channels]."""
    data: str | None = None
    """Other images with depth maps than those of the run, such as `nyu_depth_v2` or FILE.mat."""
    data_dir: str | None = None
    """nyu_depth_v2_labeled.mat, or the folder of TensorFlow Datasets. None: as in the run."""
    folds: int = 0
    """Cross-validate on the training images in as many folds; 5 in the paper. 0: do not."""
    step: int | None = None
    """Checkpoint to take; None: the newest. 0 is the random initialization."""
    epochs: Count = EPOCHS
    """Passes over the training images. The rate decays at 70, 90, 100 and 110 of 120 of them."""
    batch_size: Count = 128
    """Images in a batch; all of them where there are fewer."""
    learning_rate: Positive = 3e-3
    """Of Adam, at first."""
    rows: Count = 6
    """Test images in the picture."""
    seed: int = 0
    """Seed of the predictor, its batches and the folds."""
    devices: Count | None = None
    """Local devices for the features; None: all. The predictor is trained on one."""

    def __post_init__(self):
        require(bool(self.runs), "name a run, such as runs/nyu_depth_align_uniform")
        require(self.folds == 0 or self.folds >= 2, f"folds={self.folds}: must be 0, 2 or more")
        one = len(self.runs) == 1
        require(one or self.folds > 0, "several runs are compared on training images: give folds=")
        distinct = len(set(self.runs)) == len(self.runs)
        require(distinct, f"a run is named twice: {', '.join(self.runs)}")

    @property
    def optimizer(self) -> OptimizerConfig:
        """Adam as in B.1."""
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
