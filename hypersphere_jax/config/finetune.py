"""Training all of an encoder on labels."""

from typing import Annotated

from tyro.conf import Positional, arg

from hypersphere_jax.config.base import config, require
from hypersphere_jax.config.evaluation import EvaluateConfig
from hypersphere_jax.config.runtime import RuntimeConfig
from hypersphere_jax.config.values import Count, Name, NotNegative, Positive, Share


@config
class FinetuneConfig:
    """A classifier and the whole encoder of a run, trained on all labels or a part of them."""

    run: Positional[str]
    """The run that gives the encoder: its folder, or its name in RUNS_DIR."""
    step: int | None = None
    """Checkpoint to start from; None: the newest. 0, the random one: the supervised baseline."""
    name: Name | None = None
    """Name of the run that is made: its folder is RUNS_DIR/NAME. None: RUN-finetune-FRACTION."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    fraction: Share = 1.0
    """Share of the training images whose labels are used, of each class; usual: 0.01 and 0.1."""
    layer: str | None = None
    """Layer of the classifier: the one that enters the head, one of the head's, or `output`. None:
    the first of these, so that the head is left out."""
    learning_rates: Annotated[tuple[Positive, ...], arg(metavar="RATE [RATE ...]")] = (0.05,)
    """Learning rate for 256 images. Of several, each is tried on 80% of these labels, and the best
    on the other 20% (of equals the smallest, none that diverged) trains on all of them."""
    epochs: Count | None = None
    """Passes over the images. None: 60 up to 1% of the labels, 30 above."""
    batch_size: Count | None = None
    """Images in the global batch. None: 256, or the largest power of two of so many images."""
    weight_decay: NotNegative = 0.0
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
        rates = self.learning_rates
        distinct = 0 < len(rates) == len(set(rates))
        require(distinct, f"learning_rates={rates}: give one or more, each once")
        one = len(rates) == 1 or not self.runtime.multi_process
        require(one, "learning_rates=: several are tried in one process; train with the best one")
