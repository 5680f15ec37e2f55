"""Training from Python, with custom data, network, augmentation or loss."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypersphere_jax.augment import Recipe
from hypersphere_jax.configs import PretrainConfig, require
from hypersphere_jax.configs.base import Custom
from hypersphere_jax.data import Dataset
from hypersphere_jax.data.custom import as_source
from hypersphere_jax.data.source import name_classes
from hypersphere_jax.encoder import Encoder, load
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.utils import xla


class Run:
    """A trained run.

    Attributes:
      folder: Folder of its config, checkpoints and log (docs/runs.md).
    """

    def __init__(self, folder: Path, custom: dict[str, Any] | None = None):
        self.folder = folder
        self._custom = custom or {}

    @property
    def encoder(self) -> Encoder:
        """Encoder of the newest checkpoint."""
        return self.load()

    def load(self, step: int | None = None) -> Encoder:
        """Load the encoder of a checkpoint, see `hypersphere_jax.load`."""
        network = self._custom.get("network")
        preprocess = self._custom.get("preprocess")
        return load(self.folder, step, network=network, preprocess=preprocess)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Records of the log, see docs/runs.md."""
        return read_metrics(self.folder)

    @distributed.isolated()
    def report(self) -> Path:
        """Draw its pictures, write its page `report.html`, and return the page's path."""
        from hypersphere_jax.reporting import run_page

        config = run_dir.read_config(self.folder).replace(**self._custom)
        return run_page.draw_run_page(self.folder, config)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


def train(
    config: PretrainConfig | None = None,
    *,
    images: Any = None,
    labels: Any = None,
    data: Any = None,
    test: Any = None,
    network: Any = None,
    augment: Any = None,
    preprocess: Any = None,
    loss: Callable | None = None,
    overwrite: bool = False,
) -> Run:
    """Train an encoder, or resume the run in the folder of its name.

    Custom parts can be combined. The run's `config.json` records their names, and resuming needs
    them again. Compiled programs are cached in the config's `cache_dir`, unless
    `jax_compilation_cache_dir` is set; afterwards JAX's settings are restored.

    Args:
      config: Config of the run. Defaults to `PretrainConfig()`, on the embedded digits.
      images: `[n, h, w, c]` or `[n, h, w]`, uint8 or floats from 0 to 1, see
        `data.inputs.as_images`.
      labels: Labels of images or data, integers or strings `[n]`; -1 for none. Only a loss that
        takes them trains on them: as class ids, 0 to C - 1 for the C labels in ascending order.
      data: Alternative to `images`: an object with `__len__` and `__getitem__` whose items are an
        image or (image, label), see `data.custom.as_source`.
      test: Held-out data for evaluation, also during training; data or `(images, labels)`.
      network: A module of Flax (NNX or Linen) or of Equinox (of one image), or a pair of functions
        `init(key, x)` and `apply(params, x)` or `apply(params, stats, x, train)`. `x` is float32
        `[n, h, w, c]`; it returns features `[n, d]`, or a dict of layers that contains "output". A
        module of NNX or Equinox starts with the parameters that it has.
      augment: (key, uint8 image `[h, w, c]`) -> image of the network's size, for one view; or a
        `Recipe`, or its operations, see `augment`. Integers are divided by 255.
      preprocess: image -> image, for evaluation. Defaults to the config's recipe, and with
        `augment` to "none": resizing and division by 255.
      loss: `(x, y) -> scalar` of the outputs of both views, `[n, d]` of unit norm; or
        `(view1, view2, labels, key) -> scalar` of dicts of all layers; with a queue
        `(query, key, queue) -> scalar`. With an argument `axis_name` it receives the features of
        one device and must return the loss of all; otherwise it receives all devices' features.
      overwrite: Start again, and remove the run of this name once all arguments are checked. Call
        without it to resume.

    Returns:
      The run.

    Raises:
      UserError: for an invalid argument; the message says what to do.
      Diverged: for a loss, gradient or parameter that is not finite.
      Stopped: a `KeyboardInterrupt`, after Ctrl-C, SIGTERM or SIGHUP during the steps: the current
        step is saved, and the same call resumes. Before the first step Ctrl-C raises an ordinary
        `KeyboardInterrupt`.
    """
    config = PretrainConfig() if config is None else config
    is_config = isinstance(config, PretrainConfig)
    require(is_config, f"config is a {type(config).__name__}: give a PretrainConfig(epochs=10, …)")
    require(isinstance(overwrite, bool), f"overwrite={overwrite!r}: must be True or False")
    _check_custom(network, augment, preprocess, loss)
    if isinstance(augment, Recipe):
        preprocess = preprocess or augment.evaluate
        augment = augment.train
    custom = {"network": network, "augment": augment, "preprocess": preprocess, "function": loss}
    custom = {name: value for name, value in custom.items() if value is not None}
    require(images is None or data is None, "give images or data, not both")
    given = data if images is None else images
    require(labels is None or given is not None, "labels go with images or data")
    require(given is not None or test is None, "test goes with images or data")
    if given is not None:
        custom |= {"data": "python", "source": _dataset(given, labels, test)}
        if test is not None and config.eval_split is None:
            custom["eval_split"] = "test"
    config = config.replace(**custom)
    if overwrite:
        config = config.replace(resume="overwrite")
    xla.prepare(config.devices, config.deterministic)
    with xla.kept_compiled(config.cache_dir):
        folder = training.train(config, "hypersphere_jax.train(...)")
    return Run(folder, custom)


def _check_custom(network: Any, augment: Any, preprocess: Any, loss: Any) -> None:
    for name, part in (("loss", loss), ("preprocess", preprocess)):
        require(part is None or callable(part), f"{name}={part!r}: must be a function")
    is_recipe = isinstance(augment, Sequence | Recipe) and not isinstance(augment, str)
    require(
        augment is None or callable(augment) or is_recipe,
        f"augment={augment!r}: give a function or a Recipe; a name is PretrainConfig(recipe=…)",
    )
    require(
        not isinstance(network, str),
        f"network={network!r}: give a network; a name is PretrainConfig(model=…)",
    )


def _dataset(data: Any, labels: Any, test: Any) -> Custom:
    train = as_source(data, labels, "the data")
    held_out = None
    if test is not None:
        test_labels = None
        if isinstance(test, tuple | list) and len(test) == 2:
            test, test_labels = test
        held_out = as_source(test, test_labels, "the test data")
        splits = ((train, data), (held_out, test))
        names = next((split.class_names for split, given in splits if split is given), ())
        name_classes(*(split for split, given in splits if split is not given), names=names)
    is_grey = train.image_shape is not None and train.image_shape[-1] == 1
    recipe = "digits" if is_grey else "stl10"
    return Custom(Dataset(train, held_out, train, recipe), Custom(data).name)
