"""What is measured of a trained encoder."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.config.base import at_least_one, config, positive, require, valid_seed

Part = Literal["rank", "classes", "distances", "projections", "views", "prototype"]
Column = Literal["run", "step", "task", "layer", "protocol", "valid", "top1", "top5", "seconds"]
Protocol = Literal[
    *("lbfgs", "knn", "stl10", "moco", "moco_imagenet100", "simclr", "balanced", "quick_thought")
]


@config
class ProbeConfig:
    """Linear probes and k-NN on frozen features, of checkpoints or of anybody.

    Hyper-parameters are chosen on the training split; the test split is scored once.
    """

    runs: Annotated[
        Positional[tuple[str, ...]], arg(metavar="RUN|FEATURES [...]", help_behavior_hint="")
    ]
    """One or several: runs (folders, or names under `runs/`), folders of runs, or features: an .npz
    file with train_x, train_y, test_x, test_y ([n, d] and integers [n]), or a folder with these as
    .npy files, which may be larger than memory."""
    data: tuple[str, ...] = ()
    """Of sentence encoders, the labelled sentences to classify: `mr`, `cr` or `mpqa`, whose files
    are in `--data-dir`; the start of a pair of files, START.pos and START.neg, one sentence a line;
    a .tsv file of labels and sentences; or a folder with train.tsv and test.tsv."""
    layers: Annotated[tuple[str, ...], arg(aliases=["--layer"])] = ("output",)
    """Layers whose (flattened) outputs are classified: `output`, `fc7`, `conv5`, `backbone`, …"""
    pool: Literal["none", "mean", "max"] = "none"
    """What is done over the space of layers that have one, before they are flattened."""
    protocols: Annotated[tuple[Protocol, ...], arg(aliases=["--protocol"])] = ("lbfgs", "knn")
    """`lbfgs`: full-batch logistic regression, L2 chosen; `knn`; and with minibatches, rate and
    weight decay chosen, `stl10` (Adam; Wang & Isola B.1), `moco` and `moco_imagenet100` (SGD;
    B.2), `simclr` (LARS), `balanced` (SGD; the balanced paper's of CIFAR-10)."""
    folds: int | None = None
    """Choose hyper-parameters by cross-validation with this many folds of the training split. None:
    on one held-out part of it."""
    as_printed: bool = False
    """Take the rate and weight decay that the paper prints for a protocol with minibatches, instead
    of choosing among several."""
    l2: tuple[float, ...] | None = None
    """Of `lbfgs`: strengths to choose from, of the penalty l2 / 2 |W|^2 beside the mean cross
    entropy. None: powers of 10."""
    augment: bool = False
    """Train the protocols with minibatches on random crops and flips of the images, fresh each
    epoch: a forward pass of all images in each epoch of each fit (of each fold, and the last)."""
    k: tuple[int, ...] = (5,)
    """Neighbours of k-NN; one result for each number."""
    metric: Literal["cosine", "euclidean"] = "cosine"
    """By what k-NN calls neighbours near."""
    vote: Literal["majority", "similarity"] = "majority"
    """How neighbours vote: alike, or by exp(similarity / temperature)."""
    temperature: float = 0.1
    """Of `--vote similarity`."""
    step: int | None = None
    """Checkpoint to take; None: the newest. 0 is the random initialization."""
    all_steps: bool = False
    """Take every checkpoint that is saved."""
    sort: (
        Literal["run", "step", "task", "layer", "protocol", "valid", "top1", "top5", "seconds"]
        | None
    ) = None
    """Order of the results: by this column, scores from the best on; `valid` is that on held-out
    training images, by which encoders may be chosen. None: as they were made."""
    out: Path | None = None
    """Also write all results into this .csv or .json file. (Each goes into its run's `eval/`.)"""
    data_dir: str | None = None
    """Where the runs' data are now, if they were moved; with `--data`, where those are."""
    seed: int = 0
    """Seed of held-out parts and folds, of minibatches, and of random crops."""
    devices: int | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        for name in ("runs", "layers", "protocols", "k"):
            what = "name at least one run" if name == "runs" else f"--{name}: give at least one"
            require(bool(getattr(self, name)), what)
        for k in self.k:
            at_least_one("k", k)
        at_least_one("devices", self.devices)
        positive("temperature", self.temperature)
        valid_seed(self.seed)
        require(self.folds is None or self.folds >= 2, f"--folds {self.folds}: must be at least 2")
        require(
            not self.all_steps or self.step is None, "--step and --all-steps do not go together"
        )
        self._check_protocols()
        require(
            self.out is None or self.out.suffix.lower() in (".csv", ".json"),
            f"--out {self.out}: must be a file that ends in .csv or .json",
        )

    def _check_protocols(self):
        """No option is given that nothing would take."""
        standard = {field.name: field.default for field in dataclasses.fields(self)}
        given = [name for name in standard if getattr(self, name) != standard[name]]
        minibatch = set(self.protocols) - {"lbfgs", "knn", "quick_thought"}
        for name, takes, what in (
            ("augment", minibatch, "--protocols stl10, moco, simclr or balanced"),
            ("as_printed", minibatch, "--protocols stl10, moco, simclr or balanced"),
            ("l2", "lbfgs" in self.protocols, "--protocols lbfgs"),
            ("folds", set(self.protocols) - {"knn"}, "--protocols with something to choose"),
            ("k", "knn" in self.protocols, "--protocols knn"),
            ("metric", "knn" in self.protocols, "--protocols knn"),
            ("vote", "knn" in self.protocols, "--protocols knn"),
            ("temperature", self.vote == "similarity", "--vote similarity"),
        ):
            flag = name.replace("_", "-")
            require(bool(takes) or name not in given, f"--{flag} needs {what}")
        require(
            "quick_thought" not in self.protocols or bool(self.data),
            "--protocols quick_thought needs --data: the sentences to classify, such as mr",
        )


@config
class MetricsConfig:
    """Alignment, uniformity and geometry of a run's features over a split, or of anybody's."""

    run: Annotated[Positional[str], arg(metavar="RUN|FILE.npy")]
    """A run (its folder, or its name under `runs/`), or a file of features [n, d] of unit norm,
    which may be larger than memory."""
    parts: tuple[Part, ...] | None = None
    """What to measure beside alignment and uniformity. `rank`: effective rank and singular values;
    `classes`: uniformity by class; `distances`: histogram of positive pairs; `projections`:
    histograms along random directions; `views`: uniformity of the augmented views; `prototype`:
    prototype representation bias, for which a run's images pass the network again. None: the first
    four, as far as the data allow."""
    pairs: Path | None = None
    """Of a file: the features of its positives, row by row, in another .npy file. Without it there
    is no alignment."""
    labels: Path | None = None
    """Of a file: the integer class of each row, in another .npy file; below zero: unknown."""
    normalize: bool = False
    """Of a file: divide the features by their norm first."""
    split: Literal["test", "train"] = "test"
    """Of a run: split of the data."""
    alpha: float = 2.0
    """Power of the distance in the alignment."""
    t: float = 2.0
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
    devices: int | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        positive("alpha", self.alpha)
        positive("t", self.t)
        at_least_one("devices", self.devices)
        valid_seed(self.seed)
        require(self.t <= 1e6, f"--t {self.t}: at most 1e6")
        require(
            self.out is None or self.out.suffix.lower() != ".npy",
            f"--out {self.out}: would be JSON in a file for arrays; name it .json",
        )
        require(
            self.figure is None or self.figure.suffix.lower() == ".png",
            f"--figure {self.figure}: pictures are PNG; name it .png",
        )
        standard = {field.name: field.default for field in dataclasses.fields(self)}
        if self.of_file:
            other, names = "a run", ("split", "step", "data_dir")
        else:
            other, names = "an .npy file", ("pairs", "labels", "normalize", "out", "figure")
        for name in names:
            given = getattr(self, name) != standard[name]
            require(
                not given, f"--{name.replace('_', '-')} is for {other}, and {self.run!r} is none"
            )

    @property
    def of_file(self) -> bool:
        return self.run.lower().endswith((".npy", ".npz")) and not Path(self.run).is_dir()
