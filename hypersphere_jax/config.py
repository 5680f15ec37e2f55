"""What shapes a run: frozen dataclasses with their validation.

The command line is generated from these classes: a field's name is its flag, the text below it
its help. Everything but `RuntimeConfig` shapes the numbers of a run, so a run folder may only be
continued with the same values.
"""

import ast
import dataclasses
import inspect
import itertools
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Fixed, Positional, arg


class UserError(Exception):
    """A mistake that the user can mend: one line that says what is wrong, where, and what to do."""


class Stopped(Exception):
    """A run that was asked to stop and has saved its state; the text says how to continue."""


def require(condition: bool, message: str) -> None:
    """Raise `UserError(message)` unless the condition holds."""
    if not condition:
        raise UserError(message)


def _positive(flag: str, value: float) -> None:
    name = flag.replace("_", "-")
    require(0 < value < math.inf, f"--{name} {value}: must be finite and positive")


def _at_least_one(flag: str, value: int | None) -> None:
    require(value is None or value >= 1, f"--{flag.replace('_', '-')} {value}: must be at least 1")


def _seed(seed: int, flag: str = "seed") -> None:
    require(0 <= seed < 2**32, f"--{flag} {seed}: must be from 0 to 2^32 - 1")


def _config(cls: type) -> type:
    """A frozen dataclass; the text below each field is its help, in one line."""
    made = dataclasses.dataclass(frozen=True)(cls)
    (definition,) = ast.parse(inspect.getsource(cls)).body
    for field, text in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            # Otherwise tyro would break lines where the source does.
            help_text = " ".join(text.value.value.split())
            made.__dataclass_fields__[field.target.id].metadata = {"help": help_text}
    return made


@_config
class DataConfig:
    """The images, and how two views are made of each."""

    name: Annotated[str, arg(name="data")] = "digits"
    """`digits` (embedded); a folder or .zip of images in SPLIT/CLASS/file; an .npz file, or a
    folder of .npy files, with train_images, train_labels, test_images, test_labels (uint8
    [n, h, w, c] and integers [n]); an .npy file of images alone; `random_bits`; or a data set of
    TensorFlow Datasets by name: cifar10, stl10, … (`run.py data list`)."""
    data_dir: str | None = None
    """Where a data set with a name lies: the folder it was prepared in, or a folder or .zip of its
    images. None: TensorFlow Datasets' own folder."""
    recipe: str | None = None
    """Augmentation recipe: `digits`; for photographs `stl10`, `cifar10`, `nyu_depth`, `moco`,
    `moco_v2`, `simclr_cifar`, `simclr_imagenet`, `balanced_cifar`, `balanced_imagenet` (and
    `balanced_no_blur`, `_no_color`, `_cutout`, `_rotation`); or `none` (both views are the image
    itself). None: the one that suits the data."""
    classes: str | None = None
    """A file with the names of the classes to keep, one a line."""
    subset: Literal["all", "long_tailed", "uniform"] = "all"
    """Training images to keep: all; long-tailed over the classes as in ImageNet-LT (Pareto, alpha
    6, 1280 to 5 a class); or equally many of each class."""
    subset_size: int | None = None
    """How many images a `long_tailed` or `uniform` subset has. None: as the former gives."""
    fraction: float = 1.0
    """Share of the training images to keep, of each class alike."""
    folds: int = 1
    """Above 1, the training images are cut in as many folds, and one of them takes the place of
    the test split."""
    fold: int = 0
    """Which one, counted from 0."""
    bits: int = 0
    """Random bits of each image: those of `random_bits`, or as channels added to other data (Chen
    et al., C and E)."""
    subset_seed: int = 0
    """Seed of subset, fraction, folds and bits."""
    bad_images: Literal["error", "skip"] = "error"
    """What to do with an image that cannot be read: stop, or count it and take the next one in
    training, none in evaluation."""

    def __post_init__(self):
        require(0 < self.fraction <= 1, f"--fraction {self.fraction}: must be in (0, 1]")
        _at_least_one("subset_size", self.subset_size)
        require(
            self.subset_size is None or self.subset != "all",
            "--subset-size needs --subset long_tailed or uniform",
        )
        require(
            self.folds >= 1 and 0 <= self.fold < self.folds,
            f"--fold {self.fold} of --folds {self.folds}: folds are counted from 0",
        )
        require(0 <= self.bits <= 256, f"--bits {self.bits}: must be from 0 to 256")
        require(
            self.name != "random_bits" or self.bits > 0, "--data random_bits needs --bits above 0"
        )
        _seed(self.subset_seed, "subset-seed")

    @property
    def extra_channels(self) -> int:
        """Channels that `bits` adds to images of something else."""
        return 0 if self.name == "random_bits" else self.bits


@_config
class LookedAt(DataConfig):
    """Data to look at; the name stands by itself."""

    name: Annotated[Positional[str], arg(metavar="NAME|PATH")] = "digits"
    """As `--data` of `pretrain`: the name of a data set, or a folder or file."""


@_config
class PrepareConfig:
    """Data to download and prepare."""

    name: Positional[str]
    """A data set of TensorFlow Datasets: cifar10, stl10, imagenet2012, nyu_depth_v2, …"""
    data_dir: str | None = None
    """Folder to put it in; None: TensorFlow Datasets' own."""


@_config
class ModelConfig:
    """The encoder."""

    name: Annotated[
        Literal["small_cnn", "small_alexnet", "resnet18", "resnet34", "resnet50"],
        arg(name="model"),
    ] = "small_cnn"
    """`small_cnn` for images of 8 to 16 pixels, `small_alexnet` (Wang & Isola's) for 32 and 64,
    ResNets for all sizes."""
    dim: int = 32
    """Dimension d of the output on the unit hypersphere."""
    width: float = 1.0
    """Factor on all channel counts but the head's."""
    stem: Literal["cifar", "imagenet"] | None = None
    """First layer of a ResNet: `cifar` (3x3 convolution), or `imagenet` (7x7 convolution with
    stride 2, then a maximum pool). None: `cifar` for images below 64 pixels."""
    zero_init_residual: bool = False
    """In a ResNet, start the last scale of every block at zero, so that it begins as identity."""
    head: Literal["linear", "moco_v2", "simclr2", "simclr3", "balanced"] = "linear"
    """From the backbone to the output: a linear map; MoCo v2's MLP; SimCLR's projection of 2 or 3
    layers with batch norm; or the balanced contrastive loss's of 3 layers (take --dim 2048)."""
    head_hidden: int | None = None
    """Width of the head's hidden layers. None: that of the features which enter it (2048 for
    ResNet-50, 512 for ResNet-18), and 2048 for `balanced`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What convolutions and linear maps compute in. Parameters, statistics, the output and the
    loss are float32 either way."""
    image_size: int | None = None
    """Side of the square images that enter the network, pixels. None: as the data."""
    channels: Fixed[int | None] = None
    """Channels of these images; a run takes them from its data."""
    num_classes: Fixed[int] = 0
    """Classes of a linear classifier on the output (layer `logits`), 0 for none; a run has one
    when its objective is supervised."""
    batch_norm: Literal["sync", "local", "split"] = "sync"
    """Statistics of batch norm over the global batch; over each device's part alone; or over
    `bn_groups` equal parts of the global batch, however many devices there are."""
    bn_groups: int = 8
    """Parts of the global batch under `--batch-norm split`."""

    def __post_init__(self):
        require(self.dim >= 2, f"--dim {self.dim}: the hypersphere needs at least 2 dimensions")
        require(0 < self.width < 100, f"--width {self.width}: must be above 0 and below 100")
        require(
            self.image_size is None or self.image_size >= 4,
            f"--image-size {self.image_size}: must be at least 4 pixels",
        )
        for flag in ("head_hidden", "bn_groups"):
            _at_least_one(flag, getattr(self, flag))
        resnet = self.name.startswith("resnet")
        require(resnet or self.stem is None, f"--stem is for ResNets, and {self.name} is none")
        require(
            resnet or not self.zero_init_residual,
            f"--zero-init-residual is for ResNets, and {self.name} is none",
        )
        require(
            self.head != "linear" or self.head_hidden is None,
            "--head-hidden needs a --head with hidden layers",
        )


@_config
class ObjectiveConfig:
    """The loss: a weighted sum, as in Tables 8 and 9 of Wang & Isola."""

    contrastive_weight: float = 0.0
    """Weight of the contrastive loss (B.1: symmetric, in the batch)."""
    contrastive_tau: float = 0.5
    """Its temperature."""
    align_weight: float = 1.0
    """Weight of the alignment loss."""
    align_alpha: float = 2.0
    """Power of the distance in the alignment loss (and in the logged `align`)."""
    uniform_weight: float = 1.0
    """Weight of the uniformity loss."""
    uniform_t: float = 2.0
    """Scale t of the Gaussian potential in the uniformity loss (and in the logged `uniform`)."""
    uniform_intra_batch: bool = True
    """With a queue: whether pairs inside the batch count in the uniformity, too."""
    supervised_weight: float = 0.0
    """Weight of the cross entropy of a linear classifier on the output, trained along."""

    def __post_init__(self):
        weights = (
            self.contrastive_weight,
            self.align_weight,
            self.uniform_weight,
            self.supervised_weight,
        )
        require(
            all(math.isfinite(w) and w >= 0 for w in weights) and any(w > 0 for w in weights),
            f"the loss weights are {weights}: all must be finite and >= 0, and one of them > 0",
        )
        for flag in ("contrastive_tau", "align_alpha", "uniform_t"):
            value = getattr(self, flag)
            _positive(flag, value)


@_config
class OptimizerConfig:
    """The optimizer and its schedule; by default SGD as in Wang & Isola B.1."""

    epochs: int = 200
    """Passes over the training images."""
    batch_size: int = 256
    """Positive pairs in the global batch."""
    optimizer: Literal["sgd", "lars", "adam"] = "sgd"
    """`sgd` with momentum; `lars` (You et al., as in SimCLR); `adam`."""
    learning_rate: float = 0.12
    """Learning rate for 256 pairs."""
    scaling: Literal["linear", "sqrt", "none"] = "linear"
    """Its growth with the batch: times `batch_size / 256`; times the square root of that (SimCLR's
    0.075 sqrt(batch size) is 1.2 for 256 pairs); or none at all."""
    schedule: Literal["step", "cosine"] = "step"
    """`step`: times `decay_factor` at each of `decay_at`; `cosine`: to zero over the run."""
    decay_at: tuple[float, ...] = (0.775, 0.85, 0.925)
    """Shares of the run after which the rate decays: epochs 155, 170 and 185 of 200. None at all:
    a constant rate."""
    decay_factor: float = 0.1
    """Factor of each decay."""
    warmup_epochs: float = 0.0
    """Epochs, or a fraction of one, in which the rate first rises linearly from 0. They are part of
    the run; the cosine begins after them."""
    momentum: float = 0.9
    """Momentum of SGD and LARS."""
    nesterov: bool = False
    """Nesterov's form of that momentum."""
    weight_decay: float = 1e-4
    """L2 decay; goes into the gradient before all else but clipping, as in PyTorch's optimizers."""
    exclude_norm_and_bias: bool = False
    """Leave biases and the parameters of normalization out of weight decay. LARS always leaves them
    out of it, and of its adaptation too."""
    clip_norm: float | None = None
    """Largest norm of the gradient of all parameters together; a longer one is shortened to it."""
    lars_trust: float = 0.001
    """Trust coefficient of LARS (eta)."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's first and second moments."""
    adam_eps: float = 1e-8
    """Added to the denominator in Adam."""

    def __post_init__(self):
        require(self.epochs >= 1, f"--epochs {self.epochs}: must be at least 1")
        require(self.batch_size >= 2, f"--batch-size {self.batch_size}: needs at least 2 pairs")
        require(
            self.learning_rate >= 0 and math.isfinite(self.learning_rate),
            f"--learning-rate {self.learning_rate}: must be finite and >= 0",
        )
        for flag in ("decay_factor", "lars_trust", "adam_eps"):
            _positive(flag, getattr(self, flag))
        if self.clip_norm is not None:
            _positive("clip_norm", self.clip_norm)
        require(0 <= self.momentum < 1, f"--momentum {self.momentum}: must be in [0, 1)")
        require(
            0 <= self.weight_decay < math.inf,
            f"--weight-decay {self.weight_decay}: must be finite and >= 0",
        )
        require(
            all(0 <= beta < 1 for beta in self.adam_betas),
            f"--adam-betas {self.adam_betas}: both must be in [0, 1)",
        )
        require(
            not self.nesterov or (self.optimizer != "adam" and self.momentum > 0),
            "--nesterov needs --optimizer sgd or lars, and --momentum above 0",
        )
        require(
            all(0 < share <= 1 for share in self.decay_at),
            f"--decay-at {self.decay_at}: shares of the run, each in (0, 1]",
        )
        require(
            0 <= self.warmup_epochs < self.epochs,
            f"--warmup-epochs {self.warmup_epochs} of --epochs {self.epochs}: "
            "must be at least 0, and less than the run",
        )
        require(
            self.schedule != "step"
            or all(self.warmup_epochs <= share * self.epochs for share in self.decay_at),
            f"--decay-at {self.decay_at} of --epochs {self.epochs}: the rate decays before "
            f"--warmup-epochs {self.warmup_epochs} are over; shorten these, or decay later",
        )


@_config
class MocoConfig:
    """Momentum Contrast: keys by a slowly moving encoder, kept in a queue."""

    queue_size: int = 0
    """Keys in the queue; 0: no queue and no momentum encoder. With a queue, contrastive weighs
    InfoNCE, and uniformity is that of the queries and the queue."""
    ema_decay: float = 0.999
    """Decay of the momentum encoder's parameters."""
    ema_schedule: Literal["constant", "cosine"] = "constant"
    """`cosine`: the decay goes to 1 over the run."""
    ema_stats: Literal["own", "averaged"] = "own"
    """Running statistics of the momentum encoder's batch norm: those of the keys, as in MoCo's
    code, or averaged like the parameters."""

    def __post_init__(self):
        require(self.queue_size >= 0, f"--queue-size {self.queue_size}: must be at least 0")
        require(0 <= self.ema_decay <= 1, f"--ema-decay {self.ema_decay}: must be in [0, 1]")


@_config
class RuntimeConfig:
    """How the run is carried out: may differ when it is continued.

    This changes the numbers by rounding at most; only with `--batch-norm local` the number of
    devices shapes them.
    """

    devices: int | None = None
    """Local devices to use; None: all. On CPU this many virtual devices are made."""
    hosts: Literal["one", "auto"] = "one"
    """`auto`: this process is one of several that JAX finds by itself (TPU pod, Slurm, Open MPI,
    Kubernetes). Each reads its part of every batch; `--devices` counts those of each."""
    coordinator: str | None = None
    """Where JAX finds no hosts by itself: HOST:PORT of host 0, for all of them."""
    num_hosts: int | None = None
    """With `--coordinator`: how many hosts there are."""
    host_index: int | None = None
    """With `--coordinator`: which one this is, counted from 0. Host 0 writes the run's folder."""
    resume: Literal["auto", "never"] = "auto"
    """`auto`: continue the run that is in the folder; `never`: refuse a folder with a run."""
    pipeline: Literal["auto", "resident", "streaming"] = "auto"
    """Where the training images are: `resident` decodes all of them once and keeps them on the
    devices; `streaming` reads them from batch to batch. `auto`: resident if they fit."""
    workers: int = 0
    """Processes that read images while streaming; 0: threads of this process."""
    cache_dir: str = "~/.cache/hypersphere_jax"
    """Where decoded images and compiled programs are kept for the next run."""
    log_every_steps: int = 10
    """Steps between two lines of metrics."""
    checkpoint_every_steps: int = 100
    """Steps between two checkpoints."""
    keep_last: int = 3
    """Newest checkpoints to keep."""
    keep_every_steps: int | None = None
    """Besides these, keep every checkpoint whose step is a multiple. Step 0 always stays."""

    def __post_init__(self):
        for flag in ("devices", "log_every_steps", "checkpoint_every_steps", "keep_every_steps"):
            _at_least_one(flag, getattr(self, flag))
        self._check_hosts()
        require(0 <= self.workers <= 1024, f"--workers {self.workers}: must be from 0 to 1024")
        require(
            self.keep_last >= 2,
            f"--keep-last {self.keep_last}: at least 2, so that a damaged newest checkpoint "
            "has one to fall back to",
        )

    def _check_hosts(self):
        named = (self.coordinator, self.num_hosts, self.host_index)
        if named == (None, None, None):
            return
        require(
            None not in named, "--coordinator, --num-hosts and --host-index are given all or none"
        )
        require(self.hosts == "one", "--hosts auto finds the hosts: leave --coordinator out")
        host, _, port = self.coordinator.rpartition(":")
        require(
            bool(host) and port.isdecimal() and 0 < int(port) < 2**16,
            f"--coordinator {self.coordinator}: must be HOST:PORT, such as 10.0.0.1:7000",
        )
        _at_least_one("num_hosts", self.num_hosts)
        require(
            0 <= self.host_index < self.num_hosts,
            f"--host-index {self.host_index} of --num-hosts {self.num_hosts}: counted from 0",
        )

    @property
    def has_hosts(self) -> bool:
        """Whether this process is one of several hosts."""
        return self.hosts == "auto" or self.coordinator is not None


@_config
class PretrainConfig:
    """All of a training run."""

    name: str = "default"
    """Name of the run: its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    seed: int = 0
    """Seed of initialization, order of the images, and augmentation."""
    init_from: str | None = None
    """A run (folder) whose newest checkpoint gives the initial parameters (finetuning). Of a run
    that `import-torch` made: the file."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    moco: MocoConfig = MocoConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def __post_init__(self):
        require(
            bool(self.name) and self.name not in (".", "..") and "/" not in self.name,
            f"--name {self.name!r}: must be a plain folder name",
        )
        require(
            not (self.moco.queue_size and self.objective.supervised_weight),
            "--queue-size and --supervised-weight do not go together: the queue has no labels",
        )
        _seed(self.seed)


@_config
class ImportConfig:
    """An encoder that was trained in PyTorch, and the data that it is to be evaluated on."""

    file: Positional[Path]
    """Its state dict: a file of PyTorch (.pth, .pt, .pth.tar), or an .npz file of the same names
    and arrays, such as `export-npz` writes."""
    name: str
    """Name of the run that is made: its folder is RUNS_DIR/NAME."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    prefix: str | None = None
    """What stands before the encoder's names in the file, such as `module.encoder_k`; the rest of
    the file is left aside. None: it is found, and of MoCo's two encoders the query's is taken."""
    fresh_head: bool = False
    """Leave the file's head aside, if it has one, and make a random one: for classifiers, or
    files of a backbone alone. Probe layers before the head then, such as `backbone` or `fc7`."""
    seed: int = 0
    """Seed of the random head."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()

    def __post_init__(self):
        _seed(self.seed)


@_config
class ExportConfig:
    """A run's encoder for PyTorch."""

    run: Positional[str]
    """The run: its folder, or its name under `runs/`."""
    out: Path
    """The .npz file to write: parameters and statistics under PyTorch's names, in its layouts."""
    step: int | None = None
    """Checkpoint to take; None: the newest."""

    def __post_init__(self):
        require(
            self.out.suffix.lower() == ".npz", f"--out {self.out}: must be a file that ends in .npz"
        )


@_config
class ProbeConfig:
    """Linear probe and k-NN on the frozen features of a run's checkpoint."""

    run: Positional[str]
    """The run: its folder, or its name under `runs/`."""
    layer: str = "output"
    """Layer whose (flattened) output is classified: `output`, `fc7`, `conv5`, `backbone`, …"""
    protocol: Literal["lbfgs", "adam"] = "lbfgs"
    """`lbfgs`: full-batch logistic regression; `adam`: Wang & Isola's B.1. Both choose their
    regularization on a held-out part of the training split."""
    k: int = 5
    """Neighbours of the k-NN classifier."""
    step: int | None = None
    """Checkpoint to take; None: the newest. 0 is the random initialization."""
    data_dir: str | None = None
    """Where the run's data are now, if they were moved."""
    seed: int = 0
    """Seed of the held-out part and of Adam's batches."""
    devices: int | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        for flag in ("k", "devices"):
            _at_least_one(flag, getattr(self, flag))
        _seed(self.seed)


@_config
class MetricsConfig:
    """Alignment and uniformity of a run's encoder over a whole split, or of anybody's features."""

    run: Annotated[Positional[str], arg(metavar="RUN|FILE.npy")]
    """A run (its folder, or its name under `runs/`), or a file of features [n, d] of unit norm,
    which may be larger than memory."""
    pairs: Path | None = None
    """Of a file: the features of its positives, row by row, in another .npy file. Without it there
    is no alignment."""
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
    """Of a run: seed of the two views that make a positive pair."""
    out: Path | None = None
    """Of a file: also write the result there, as JSON. (That of a run goes into its folder.)"""
    devices: int | None = None
    """Local devices to use; None: all."""

    def __post_init__(self):
        _positive("alpha", self.alpha)
        _positive("t", self.t)
        _at_least_one("devices", self.devices)
        _seed(self.seed)
        require(self.t <= 1e6, f"--t {self.t}: at most 1e6")
        require(
            self.out is None or self.out.suffix.lower() != ".npy",
            f"--out {self.out}: would be JSON in a file for arrays; name it .json",
        )
        standard = {field.name: field.default for field in dataclasses.fields(self)}
        if self.of_file:
            other, names = "a run", ("split", "step", "seed", "data_dir")
        else:
            other, names = "an .npy file", ("pairs", "normalize", "out")
        for name in names:
            given = getattr(self, name) != standard[name]
            require(
                not given, f"--{name.replace('_', '-')} is for {other}, and {self.run!r} is none"
            )

    @property
    def of_file(self) -> bool:
        return self.run.lower().endswith((".npy", ".npz")) and not Path(self.run).is_dir()


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON values."""
    plain = dataclasses.asdict(config)
    return _lists(plain)


def from_dict(cls: type, values: dict[str, Any]) -> Any:
    """Inverse of `to_dict`.

    Raises:
      UserError: when a key is unknown, as in a file of another version.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    require(not unknown, f"unknown entries in the {cls.__name__} of a config file: {unknown}")
    made = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(fields[name].type):
            value = from_dict(fields[name].type, value)
        made[name] = tuple(value) if isinstance(value, list) else value
    return cls(**made)


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Lines such as `optimizer.epochs: 200 -> 100` for what differs between two config dicts."""
    lines = []
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
