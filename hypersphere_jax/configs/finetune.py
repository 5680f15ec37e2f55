"""Fine-tuning on labels."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from hypersphere_jax.configs.base import Auto, Config, check_folder_name, check_range, require
from hypersphere_jax.configs.evaluation import EvaluateConfig
from hypersphere_jax.configs.runtime import RuntimeConfig


@dataclass(frozen=True)
class FinetuneOptions(Config):
    """Fine-tuning."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """Run of the encoder: a folder, or a name in RUNS_DIR."""
    step: Auto[int] = None
    """Checkpoint to start from; 0 is the supervised baseline. Defaults to the newest."""
    name: Auto[str] = None
    """Name of the new run: its folder is RUNS_DIR/NAME. Defaults to RUN-finetune-FRACTION."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    fraction: float = 1.0
    """Share of the training labels to use, the same of each class; usually 0.01 or 0.1."""
    layer: Auto[str] = None
    """Layer of the classifier, such as `output`. Defaults to the layer before the head."""
    learning_rates: Annotated[tuple[float, ...], arg(metavar="RATE [RATE ...]")] = (0.05,)
    """Learning rate for 256 images. Several are compared on a held-out 20% of the labels."""
    epochs: Auto[int] = None
    """Passes over the images. Defaults to 60 up to 1% of the labels, otherwise to 30."""
    batch_size: Auto[int] = None
    """Images in the global batch. Defaults to 256, or fewer if there are fewer images."""
    weight_decay: float = 0.0
    """L2 decay of all parameters."""
    recipe: Auto[str] = None
    """Augmentation recipe. Defaults to crop and flip of the run's recipe (`RECIPE:crop_flip`)."""
    data_dir: str | None = None
    """Folder of the run's data, if it was moved."""
    seed: int = 0
    """Seed of the classifier's initialization, the order of the images, and augmentation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None:
            check_folder_name(self, "name")
        check_range(self, "fraction", above=0, at_most=1)
        check_range(self, "learning_rates", above=0)
        check_range(self, "epochs", "batch_size", at_least=1)
        check_range(self, "step", "weight_decay", at_least=0)
        check_range(self, "seed", at_least=0, below=2**32)
        rates = self.learning_rates
        are_distinct = 0 < len(rates) == len(set(rates))
        require(are_distinct, f"learning_rates={rates}: give one or more, each once")


@dataclass(frozen=True)
class FinetuneConfig(RuntimeConfig, EvaluateConfig, FinetuneOptions):
    """Fine-tune an encoder and a classifier, on all labels or a share of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_allowed = len(self.learning_rates) == 1 or not self.multi_process
        require(is_allowed, "learning_rates=: several are tried in one process only; give one")
