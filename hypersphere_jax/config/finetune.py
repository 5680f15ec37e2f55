"""Training all of an encoder on labels."""

import math
from typing import Annotated

from tyro.conf import Positional, arg

from hypersphere_jax.config.base import at_least_one, config, require, valid_seed
from hypersphere_jax.config.evaluators import EvaluateConfig
from hypersphere_jax.config.runtime import RuntimeConfig


@config
class FinetuneConfig:
    """A classifier and the whole encoder of a run, trained on all labels or a part of them."""

    run: Positional[str]
    """The run that gives the encoder: its folder, or its name under `runs/`."""
    step: int | None = None
    """Checkpoint to start from; None: the newest. 0 is the random initialization: the supervised
    baseline at the same budget."""
    name: str | None = None
    """Name of the run that is made: its folder is RUNS_DIR/NAME. None: RUN-finetune-FRACTION."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    fraction: float = 1.0
    """Share of the training images whose labels are used, of each class alike: 0.01 and 0.1 are
    the usual ones."""
    layer: str | None = None
    """Layer that the classifier is on: the one that enters the head, one of the head's, or
    `output`. None: the first of these, so that the head is left out."""
    learning_rates: Annotated[tuple[float, ...], arg(metavar="RATE [RATE ...]")] = (0.05,)
    """Learning rate for 256 images. Of several, each is tried on 80% of these labels, the one
    with the best top-1 on the other 20% is chosen (of equals the smallest, none that diverged),
    and trained with on all of them."""
    epochs: int | None = None
    """Passes over the images. None: 60 up to 1% of the labels, 30 above."""
    batch_size: int | None = None
    """Images in the global batch. None: 256, or the largest power of two that there are images
    for."""
    weight_decay: float = 0.0
    """L2 decay of all parameters."""
    recipe: str | None = None
    """Augmentation recipe. None: of the run's recipe, crop and flip alone (`RECIPE:crop_flip`)."""
    data_dir: str | None = None
    """Where the run's data are now, if they were moved."""
    seed: int = 0
    """Seed of the classifier's initialization, the order of the images, and augmentation."""
    runtime: RuntimeConfig = RuntimeConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    def __post_init__(self):
        require(0 < self.fraction <= 1, f"--fraction {self.fraction}: must be in (0, 1]")
        at_least_one("epochs", self.epochs)
        rates = self.learning_rates
        require(
            len(rates) > 0 and all(0 < rate < math.inf for rate in rates),
            f"--learning-rates {rates}: give one or more, finite and positive",
        )
        require(len(set(rates)) == len(rates), f"--learning-rates {rates}: one stands there twice")
        require(
            len(rates) == 1 or not self.runtime.has_hosts,
            "--learning-rates: several are tried on one host; then train on many with the best",
        )
        valid_seed(self.seed)
