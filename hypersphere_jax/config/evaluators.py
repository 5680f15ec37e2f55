"""What is evaluated while a run trains."""

from typing import Literal

from hypersphere_jax.config.base import at_least_one, config, require


@config
class EvaluateConfig:
    """What is evaluated while a run trains; it shapes no number of the run itself."""

    eval_every_epochs: int | None = None
    """Epochs between two evaluations, which add `eval/…` to the metrics; the last step has one,
    too. None: no evaluation."""
    evaluators: tuple[Literal["knn", "linear", "align_uniform", "classifier"], ...] = (
        "knn",
        "linear",
        "align_uniform",
    )
    """`knn`: 5 nearest neighbours; `linear`: logistic regression; `align_uniform`: alignment and
    uniformity; `classifier`: that of a supervised run."""
    eval_images: int = 2000
    """Images that they see, the same share of each class. One half of them is searched by k-NN
    and fits the regression, the other half is classified."""
    eval_layer: str = "output"
    """Layer whose (flattened) output k-NN and regression classify."""
    eval_split: Literal["train", "test"] | None = None
    """Where the classified half is from: the training images, or the test split, whose scores must
    choose nothing (with `--folds` it is the fold that is held out, which may choose). A supervised
    run, as fine-tuning is, trains on the labels of the training images, so that those are refused.
    None: `train`; of a supervised run the fold held out, and without `--folds` it must be said."""

    def __post_init__(self):
        at_least_one("eval_every_epochs", self.eval_every_epochs)
        require(
            len(self.evaluators) > 0,
            "--evaluators: name one, or leave --eval-every-epochs out to have none",
        )
        require(self.eval_images >= 20, f"--eval-images {self.eval_images}: must be at least 20")
