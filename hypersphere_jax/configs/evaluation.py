"""Evaluation of encoders, while they train and afterwards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.configs.base import (
    Auto,
    Config,
    check_at_least,
    check_at_most,
    check_output,
    check_positive,
    check_seed,
    refuse,
    require,
)

Measurement = Literal["rank", "classes", "distances", "projections", "retrieval", "prototype"]
Column = Literal["run", "step", "task", "layer", "protocol", "valid", "top1", "top5", "seconds"]
Protocol = Literal[
    "lbfgs",
    "knn",
    "knn_weighted",
    "stl10",
    "moco",
    "moco_imagenet100",
    "simclr",
    "balanced",
    "quick_thought",
]
Evaluator = Literal["knn", "knn_weighted", "linear", "align_uniform", "rankme", "classifier"]
NEIGHBOURS = {"knn", "knn_weighted"}
# Protocols without minibatches.
WITHOUT_BATCHES = {"lbfgs", "quick_thought", *NEIGHBOURS}


@dataclass(frozen=True)
class ProbeConfig(Config):
    """Linear probes and k-NN on frozen features, of checkpoints or from files.

    Hyper-parameters are chosen on the training split; the test split is scored once.
    """

    runs: Annotated[
        Positional[tuple[str, ...]],
        arg(metavar="RUN|FEATURES [...]", help_behavior_hint="(required)"),
    ]
    """Runs (folders, or names in RUNS_DIR), folders of runs, or features: an .npz file with
    train_x, train_y, test_x, test_y ([n, d] and integers [n]), or a folder with these as .npy
    files, which may be larger than memory."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    data: Annotated[tuple[str, ...], arg(help_behavior_hint="")] = ()
    """Labelled sentences for sentence encoders: `mr` or `cr` in `--data-dir`; or STEM of the files
    STEM.pos and STEM.neg, one sentence per line."""
    layers: Annotated[tuple[str, ...], arg(aliases=["--layer"])] = ("output",)
    """Layers to classify, flattened: `output`, `fc7`, `conv5`, `backbone`, …"""
    pool: Literal["none", "mean", "max"] = "none"
    """Spatial pooling of layers before they are flattened."""
    protocols: Annotated[tuple[Protocol, ...], arg(aliases=["--protocol"])] = ("lbfgs", "knn")
    """`lbfgs`: full-batch logistic regression with a chosen L2; `knn`: 5 nearest neighbours,
    majority vote; `knn_weighted`: 200 neighbours with votes exp(similarity / 0.1) (Wu et al. 2018).
    With minibatches and a chosen rate and weight decay: `stl10` (Adam; Wang & Isola B.1), `moco`
    and `moco_imagenet100` (SGD; B.2), `simclr` (LARS), `balanced` (SGD; balanced paper)."""
    folds: Auto[int] = None
    """Folds of cross-validation on the training split, by which hyper-parameters are chosen.
    Defaults to one held-out part."""
    as_printed: bool = False
    """Use the paper's learning rate and weight decay in minibatch protocols; choose nothing."""
    l2: Auto[tuple[float, ...]] = None
    """Candidates of `lbfgs` for the penalty l2 / 2 |W|^2 on the mean cross-entropy. Defaults to
    powers of 10."""
    standardize: bool = False
    """Divide each dimension by its standard deviation in `lbfgs`, not all by a common one."""
    augment: bool = False
    """Train minibatch protocols on random crops and flips, fresh each epoch (one forward pass of
    all images per epoch of each fit)."""
    k: tuple[int, ...] = (5,)
    """Numbers of neighbours of `knn`; one result for each."""
    metric: Literal["cosine", "euclidean"] = "cosine"
    """Distance metric of `knn`."""
    vote: Literal["majority", "similarity"] = "majority"
    """Votes of the neighbours of `knn`: equal, or exp(similarity / temperature)."""
    temperature: float = 0.1
    """Temperature of `--vote similarity`."""
    ignore_label: int | None = None
    """Label of rows of a features file to leave out, e.g. -1. Unlabelled images of a run are always
    left out."""
    step: Auto[int] = None
    """Checkpoint; 0 is the random initialization. Defaults to the newest."""
    all_steps: bool = False
    """Probe all saved checkpoints."""
    sort: Auto[Column] = None
    """Column to sort by, best score first; `valid` is the accuracy on held-out training images, by
    which encoders may be chosen. Defaults to the order of evaluation."""
    out: Path | None = None
    """Also write all results to this .csv or .json file."""
    data_dir: str | None = None
    """Folder of the runs' data, if it was moved; with `--data`, folder of those."""
    seed: int = 0
    """Seed of held-out parts, folds, minibatches and random crops."""
    devices: Auto[int] = None
    """Local devices. Defaults to all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "folds")
        check_at_least(self, 1, "k", "devices")
        check_at_least(self, 0, "step")
        check_positive(self, "temperature")
        check_seed(self, "seed")
        for name in ("runs", "layers", "protocols", "k"):
            require(bool(getattr(self, name)), f"{name}=: give at least one")
        is_one = not self.all_steps or self.step is None
        require(is_one, "step= and all_steps=True exclude each other")
        self._check_protocols()

    def _check_protocols(self) -> None:
        """Refuse options that no protocol uses."""
        protocols = set(self.protocols)
        if protocols <= WITHOUT_BATCHES:
            reason = "needs protocols=stl10, moco, simclr or balanced"
            refuse(self, ["augment", "as_printed"], reason)
        if "lbfgs" not in protocols:
            refuse(self, ["l2", "standardize"], "needs protocols=lbfgs")
        if "knn" not in protocols:
            refuse(self, ["k", "metric", "vote"], "needs protocols=knn")
        if protocols <= NEIGHBOURS:
            refuse(self, ["folds"], "needs a protocol with something to choose")
        if self.vote != "similarity":
            refuse(self, ["temperature"], "needs vote=similarity")
        require(
            "quick_thought" not in protocols or bool(self.data),
            "protocols=quick_thought needs data=: the sentences to classify, such as mr",
        )


@dataclass(frozen=True)
class FeaturesConfig(Config):
    """Features of images by a trained encoder, in a file."""

    run: Annotated[Positional[str], arg(metavar="RUN|ENCODER")]
    """A run (folder, or name in RUNS_DIR), a folder that `Encoder.save` wrote, or a file of weights
    (.safetensors, .npz, .pth)."""
    out: Path
    """File to write. `.npy`: the features [n, d] in the order of the images. `.npz`: `features`,
    `labels`, `names` (of the classes) and `files`; for two splits `train_x`, `train_y`, `test_x`,
    `test_y`, for `probe`."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    images: Auto[str] = None
    """A folder, .zip, .npy or .npz file of images, the name of a data set, or one image. Defaults
    to the run's data."""
    data_dir: str | None = None
    """Folder of a data set given by name, or of the run's data if it was moved."""
    split: Literal["all", "train", "test"] = "all"
    """Split of the images; `all`: train, then test."""
    layer: str = "output"
    """Layer to write, flattened: `output`, `fc7`, `conv5`, `backbone`, …"""
    pool: Literal["none", "mean", "max"] = "none"
    """Spatial pooling of the layer before it is flattened."""
    step: Auto[int] = None
    """Checkpoint of a run; 0 is the random initialization. Defaults to the newest."""
    bad_images: Literal["error", "skip"] = "error"
    """Unreadable images: stop, or leave them out."""
    devices: Auto[int] = None
    """Local devices. Defaults to all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "devices")
        check_at_least(self, 0, "step")


@dataclass(frozen=True)
class MetricsConfig(Config):
    """Alignment, uniformity and geometry of the features of a run, or of a file."""

    run: Annotated[Positional[str], arg(metavar="RUN|FILE.npy")]
    """A run (folder, or name in RUNS_DIR), or a file of unit-norm features [n, d]: .npy, of any
    size, or .npz with `features` (and `labels`)."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    parts: Auto[tuple[Measurement, ...]] = None
    """Further measurements. `rank`: effective rank and singular values; `classes`: uniformity by
    class; `distances`: histogram of positive pairs; `projections`: histograms along random
    directions; `retrieval`: recall@k and MAP@R by class; `prototype`: prototype representation
    bias. Defaults to the first four, as far as the data allow."""
    pairs: Auto[Path] = None
    """.npy file of the positives of a file's rows. Defaults to none, and no alignment."""
    labels: Path | None = None
    """.npy file of the integer classes of a file's rows; -1: unknown."""
    normalize: bool = False
    """Normalize the features of a file first."""
    split: Literal["test", "train"] = "test"
    """Split of a run's data."""
    alpha: float = 2.0
    """Power of the distance in the alignment."""
    t: float = 2.0
    """Scale of the Gaussian potential in the uniformity."""
    step: Auto[int] = None
    """Checkpoint of a run; 0 is the random initialization. Defaults to the newest."""
    data_dir: str | None = None
    """Folder of the run's data, if it was moved."""
    seed: int = 0
    """Seed of augmented views, random directions and class mates."""
    out: Path | None = None
    """JSON file to write the result of a file to. (A run's is written to its folder.)"""
    figure: Path | None = None
    """PNG file to draw the result of a file to. (A run's is drawn in its folder.)"""
    devices: Auto[int] = None
    """Local devices. Defaults to all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "alpha", "t")
        check_at_most(self, 1e6, "t")
        check_seed(self, "seed")
        check_at_least(self, 1, "devices")
        check_at_least(self, 0, "step")
        if self.of_file:
            refused = ["runs_dir", "split", "step", "data_dir", "devices"]
            refuse(self, refused, f"is for a run, and {self.run!r} is a file")
        else:
            refused = ["pairs", "labels", "normalize", "out", "figure"]
            refuse(self, refused, f"is for an .npy or .npz file, and {self.run!r} is none")

    @property
    def of_file(self) -> bool:
        return self.run.lower().endswith((".npy", ".npz")) and not Path(self.run).is_dir()


@dataclass(frozen=True)
class ReportConfig(Config):
    """Page of one run, or of several runs."""

    runs: Annotated[
        Positional[tuple[str, ...]], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
    ]
    """Runs: folders, or names in RUNS_DIR. The page of one run is written to its folder."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    out: Auto[Path] = None
    """Page of several runs; their table as .csv and their curves as .png are written next to it.
    Defaults to RUNS_DIR/report.html."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.runs), "runs=: name at least one")
        require(self.out is None or len(self.runs) > 1, "out= is for several runs: leave it out")
        check_output(self.out, ".html")


@dataclass(frozen=True)
class EvaluateConfig(Config):
    """Evaluation during training; does not change the numbers of a run."""

    eval_every_epochs: Auto[int] = None
    """Epochs between evaluations, which add `eval/…` to the metrics; one follows the last step.
    Defaults to none."""
    evaluators: tuple[Evaluator, ...] = ("knn", "linear", "align_uniform", "rankme")
    """`knn`: 5 nearest neighbours, majority vote; `knn_weighted`: 200 neighbours with votes
    exp(similarity / 0.1); `linear`: logistic regression; `align_uniform`: alignment and uniformity;
    `rankme`: effective rank; `classifier`: the classifier of a supervised run."""
    eval_k: int = 5
    """Number of neighbours of `knn`."""
    eval_vote: Literal["majority", "similarity"] = "majority"
    """Votes of the neighbours of `knn`: equal, or exp(similarity / temperature)."""
    eval_temperature: float = 0.1
    """Temperature of `--eval-vote similarity`."""
    eval_images: int | Literal["all"] = 2000
    """Number of images, the same share of each class: half of them are searched by k-NN and fit the
    regression, the others are classified. `all`: every image; with `--eval-split test` the training
    split is searched and the test split classified."""
    eval_layer: str = "output"
    """Layer to classify, flattened."""
    eval_split: Auto[Literal["train", "test"]] = None
    """Split of the classified images. Scores on the test split must choose nothing (with `--folds`
    it is the held-out fold, which may choose). Supervised runs refuse `train`, whose labels they
    have seen. Defaults to `train`, and for supervised runs to the held-out fold."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "eval_every_epochs", "eval_k")
        check_positive(self, "eval_temperature")
        if self.eval_images != "all":
            check_at_least(self, 20, "eval_images")
        require(bool(self.evaluators), "evaluators=: name one or more")
        if "knn" not in self.evaluators:
            refuse(self, ["eval_k", "eval_vote"], "needs evaluators=knn")
        if self.eval_vote != "similarity":
            refuse(self, ["eval_temperature"], "needs eval_vote=similarity")
