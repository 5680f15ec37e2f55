"""What is evaluated of an encoder, while it trains or afterwards."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.config.base import config, refuse, require
from hypersphere_jax.config.values import Count, Positive, Within

Part = Literal["rank", "classes", "distances", "projections", "views", "prototype"]
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
Evaluator = Literal["knn", "knn_weighted", "linear", "align_uniform", "classifier"]


@config
class ProbeConfig:
    """Linear probes and k-NN on frozen features, of checkpoints or user-supplied.

    Hyper-parameters are chosen on the training split; the test split is scored once.
    """

    runs: Annotated[
        Positional[tuple[str, ...]], arg(metavar="RUN|FEATURES [...]", help_behavior_hint="")
    ]
    """Runs (folders, or names in RUNS_DIR), folders of runs, or features: an .npz file with
    train_x, train_y, test_x, test_y ([n, d] and integers [n]), or a folder with these as .npy
    files, which may be larger than memory."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    data: tuple[str, ...] = ()
    """Of sentence encoders, the labelled sentences: `mr`, `cr`, `mpqa` or `subj`, in
    `--data-dir`; START of the files START.pos and START.neg, one sentence a line; a .tsv file of
    labels and sentences; or a folder with train.tsv and test.tsv."""
    layers: Annotated[tuple[str, ...], arg(aliases=["--layer"])] = ("output",)
    """Layers whose (flattened) outputs are classified: `output`, `fc7`, `conv5`, `backbone`, …"""
    pool: Literal["none", "mean", "max"] = "none"
    """Spatial pooling of layers, before they are flattened."""
    protocols: Annotated[tuple[Protocol, ...], arg(aliases=["--protocol"])] = ("lbfgs", "knn")
    """`lbfgs`: full-batch logistic regression, L2 chosen; `knn`: 5 nearest neighbours, majority
    vote; `knn_weighted`: 200 neighbours with votes exp(similarity / 0.1) (Wu et al. 2018). With
    minibatches, rate and weight decay chosen: `stl10` (Adam; Wang & Isola B.1), `moco` and
    `moco_imagenet100` (SGD; B.2), `simclr` (LARS), `balanced` (SGD; the balanced paper)."""
    folds: Annotated[int | None, Within("[2, inf)")] = None
    """Choose hyper-parameters by cross-validation in so many folds of the training split. None: on
    one held-out part of it."""
    as_printed: bool = False
    """Of minibatch protocols: use the paper's learning rate and weight decay, choose nothing."""
    l2: tuple[float, ...] | None = None
    """Of `lbfgs`: weights to choose from, of the penalty l2 / 2 |W|^2 beside mean cross-entropy.
    None: powers of 10."""
    standardize: bool = False
    """Of `lbfgs`: divide each dimension by its own standard deviation, not all by one number."""
    augment: bool = False
    """Of minibatch protocols: train on random crops and flips, fresh each epoch (a forward pass of
    all images in each epoch of each fit)."""
    k: tuple[Count, ...] = (5,)
    """Neighbours of k-NN; one result for each number."""
    metric: Literal["cosine", "euclidean"] = "cosine"
    """By what k-NN calls neighbours near."""
    vote: Literal["majority", "similarity"] = "majority"
    """How neighbours vote: alike, or by exp(similarity / temperature)."""
    temperature: Positive = 0.1
    """Of `--vote similarity`."""
    step: int | None = None
    """Checkpoint to take; None: the newest. 0 is the random initialization."""
    all_steps: bool = False
    """Take every checkpoint that is saved."""
    sort: Column | None = None
    """Column to sort the results by, scores from the best on; `valid` is on held-out training
    images, by which encoders may be chosen. None: as they were made."""
    out: Path | None = None
    """Also write all results into this .csv or .json file. (Each goes into its run's `eval/`.)"""
    data_dir: str | None = None
    """Where the runs' data are now, if they were moved; with `--data`, where those are."""
    seed: int = 0
    """Seed of held-out parts and folds, of minibatches, and of random crops."""
    devices: Count | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        for name in ("runs", "layers", "protocols", "k"):
            what = "name at least one run" if name == "runs" else f"{name}=: give at least one"
            require(bool(getattr(self, name)), what)
        one = not self.all_steps or self.step is None
        require(one, "step= and all_steps= do not go together")
        # Options that no protocol uses are refused.
        if not set(self.protocols) - {"lbfgs", "knn", "knn_weighted", "quick_thought"}:
            needed = "needs protocols=stl10, moco, simclr or balanced"
            refuse(self, ["augment", "as_printed"], needed)
        if "lbfgs" not in self.protocols:
            refuse(self, ["l2", "standardize"], "needs protocols=lbfgs")
        if "knn" not in self.protocols:
            refuse(self, ["k", "metric", "vote"], "needs protocols=knn")
        if set(self.protocols) <= {"knn", "knn_weighted"}:
            refuse(self, ["folds"], "needs protocols= with something to choose")
        if self.vote != "similarity":
            refuse(self, ["temperature"], "needs vote=similarity")
        require(
            "quick_thought" not in self.protocols or bool(self.data),
            "protocols=quick_thought needs data=: the sentences to classify, such as mr",
        )


@config
class FeaturesConfig:
    """Features of images by a trained encoder, in a file."""

    run: Annotated[Positional[str], arg(metavar="RUN|ENCODER")]
    """A run (folder, or name in RUNS_DIR), a folder that `Encoder.save` wrote, or a file of weights
    that others trained (.safetensors, .npz, .pth)."""
    out: Path
    """The file to write. `.npy`: the features [n, d] alone, in the order of the images, whose
    labels and files are in a .csv file of that name. `.npz`: `features`, `labels`, `names` (of the
    classes) and `files`; of two splits `train_x`, `train_y`, `test_x` and `test_y`, for `probe`."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    images: str | None = None
    """As `--data` of `pretrain`: a folder, .zip, .npy or .npz file of images, or a name; or one
    image. None: the run's own data."""
    data_dir: str | None = None
    """Of a data set with a name, its folder; of the run's own data, where they are now."""
    split: Literal["all", "train", "test"] = "all"
    """Of images in two splits: the one to take; `all`: train, then test."""
    layer: str = "output"
    """Layer whose (flattened) output is written: `output`, `fc7`, `conv5`, `backbone`, …"""
    pool: Literal["none", "mean", "max"] = "none"
    """Spatial pooling of the layer, before it is flattened."""
    step: int | None = None
    """Of a run: checkpoint to take; None: the newest. 0 is the random initialization."""
    bad_images: Literal["error", "skip"] = "error"
    """For unreadable images: stop, or leave them out."""
    devices: Count | None = None
    """Local devices to use; None: all."""


@config
class MetricsConfig:
    """Alignment, uniformity and geometry of a run's features over a split, or of a file's."""

    run: Annotated[Positional[str], arg(metavar="RUN|FILE.npy")]
    """A run (folder, or name in RUNS_DIR), or a file of unit-norm features [n, d]: .npy, of any
    size, or .npz with `features` (and `labels`)."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    parts: tuple[Part, ...] | None = None
    """Beside alignment and uniformity: `rank`: effective rank and singular values; `classes`:
    uniformity by class; `distances`: histogram of positive pairs; `projections`: histograms along
    random directions; `views`: uniformity of the augmented views; `prototype`: prototype
    representation bias, with another forward pass. None: the first four, as far as data allow."""
    pairs: Path | None = None
    """Of a file: the .npy file of its positives, row by row. None: there is no alignment."""
    labels: Path | None = None
    """Of a file: the .npy file of its rows' integer classes; -1: unknown."""
    normalize: bool = False
    """Of a file: divide the features by their norm first."""
    split: Literal["test", "train"] = "test"
    """Of a run: split of the data."""
    alpha: Positive = 2.0
    """Power of the distance in the alignment."""
    t: Annotated[float, Within("(0, 1e6]")] = 2.0
    """Scale of the Gaussian potential in the uniformity."""
    step: int | None = None
    """Of a run: checkpoint to take; None: the newest. 0 is the random initialization."""
    data_dir: str | None = None
    """Of a run: where its data are now, if they were moved."""
    seed: int = 0
    """Seed of a run's augmented views, of the directions, and of the draw of class mates."""
    out: Path | None = None
    """Of a file: also write the result there, as JSON. (That of a run goes into its folder.)"""
    figure: Path | None = None
    """Of a file: also draw the result there, as PNG. (That of a run goes into its folder.)"""
    devices: Count | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        refused, kind = ["pairs", "labels", "normalize", "out", "figure"], "an .npy file"
        if self.of_file:
            refused, kind = ["runs_dir", "split", "step", "data_dir"], "a run"
        refuse(self, refused, f"is for {kind}, and {self.run!r} is none")

    @property
    def of_file(self) -> bool:
        return self.run.lower().endswith((".npy", ".npz")) and not Path(self.run).is_dir()


@config
class EvaluateConfig:
    """What is evaluated while a run trains; it shapes no number of the run itself."""

    eval_every_epochs: Count | None = None
    """Epochs between evaluations, which add `eval/…` to the metrics, also at the last step. None:
    no evaluation."""
    evaluators: tuple[Evaluator, ...] = ("knn", "linear", "align_uniform")
    """`knn`: 5 nearest neighbours, majority vote; `knn_weighted`: 200 neighbours with votes
    exp(similarity / 0.1); `linear`: logistic regression; `align_uniform`: alignment and uniformity;
    `classifier`: the classifier of a supervised run."""
    eval_images: Annotated[int, Within("[20, inf)")] | Literal["all"] = 2000
    """Number of images, the same share of each class: half of them are searched by k-NN and fit the
    regression, the others are classified. `all`: every image; with `eval_split=test` the training
    split is searched and the test split classified."""
    eval_layer: str = "output"
    """Layer whose (flattened) output k-NN and regression classify."""
    eval_split: Literal["train", "test"] | None = None
    """Split of the classified half. Scores of the test split must choose nothing (with `--folds` it
    is the held-out fold, which may choose). Supervised runs have seen the training labels, so they
    refuse `train`. None: `train`; of supervised runs the held-out fold, required without it."""

    def __post_init__(self):
        require(len(self.evaluators) > 0, "evaluators=: name one or more")
