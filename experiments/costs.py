"""What a run would cost: the measured time of a step, times the steps."""

import dataclasses
import functools
import time
from typing import NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.config import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    UserError,
)
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.data.subsets import long_tailed_counts
from hypersphere_jax.moco import queue_init
from hypersphere_jax.packing import END, SPECIAL, pack
from hypersphere_jax.train import resolve, sharding
from hypersphere_jax.train.optimizers import make_optimizer, make_schedule
from hypersphere_jax.train.step import Momentum, init_state, make_step_of

# Number and side of the images, where they are not here.
ABSENT = {
    "stl10": (105_000, 96),
    "nyu_depth_v2": (795, 480),
    "imagenet2012": (1_281_167, 224),
    "cifar10": (50_000, 32),
}
SENTENCES, VOCABULARY = 52_799_513, 50_001  # of BookCorpus, likewise
LENGTHS = (4, 8, 12, 16, 20, 24, 34, 64)  # words of sentences: those of novels, roughly
IMAGENET100 = 126_689  # images of the 100 classes of Table 7
# On CPU a step takes time in proportion to its pairs; this many are measured at most.
MOST_PAIRS = 32
# Of all measured steps, as these hardly matter to their time: one is measured for a whole sweep.
DIM = 128
EVERY_TERM = ObjectiveConfig(contrastive_weight=1)
REPEATS = 3


class Cost(NamedTuple):
    """Steps of a run, and the seconds of one."""

    steps: int
    seconds: float


def cost(config: PretrainConfig) -> Cost:
    """Steps of a run, and the measured seconds of one on this machine's first device."""
    batch = config.optimizer.batch_size
    steps = config.optimizer.epochs * _steps_per_epoch(config)
    # The update of the words is most of a small step of text, and does not grow with the batch.
    whole = jax.default_backend() != "cpu" or config.model.reads_text
    pairs = batch if whole else min(batch, MOST_PAIRS)
    plain = PretrainConfig(
        data=config.data,
        model=config.model if config.model.reads_text else _with_dim(config.model),
        moco=config.moco,
        objective=EVERY_TERM,
        # Its numbers do not matter to time.
        optimizer=OptimizerConfig(batch_size=pairs, optimizer=config.optimizer.optimizer),
    )
    return Cost(steps, _seconds(plain) * batch / pairs)


def notes() -> list[str]:
    """What one should know of these numbers."""
    how = f"s / step: measured on one {jax.devices()[0].device_kind} with random images or words"
    if jax.default_backend() == "cpu":
        how += f", {MOST_PAIRS} pairs of images at most, and scaled to the batch"
    return [
        f"{how}.",
        "Training alone: reading data, compiling and evaluation come on top. Of data that are not "
        "here the paper's number is counted.",
    ]


def _with_dim(model: ModelConfig) -> ModelConfig:
    return dataclasses.replace(model, dim=DIM)


def _steps_per_epoch(config: PretrainConfig) -> int:
    batch = config.optimizer.batch_size
    if not config.model.reads_text:
        return max(1, _images(config.data)[0] // batch)
    source = _corpus(config.data)
    if source is None:
        return SENTENCES // batch
    return make_sampler(source, batch, config.seed).steps_per_epoch


@functools.cache
def _corpus(config: DataConfig) -> data.Corpus | None:
    """The text to train on; None where it is not here."""
    try:
        return data.load(config).pretrain
    except UserError:
        return None


@functools.cache
def _images(config: DataConfig) -> tuple[int, tuple[int, int, int]]:
    """Number and shape of the images to train on."""
    if config.name == "imagenet2012":
        count = IMAGENET100 if config.classes else ABSENT[config.name][0]
        if config.subset != "all":
            count = long_tailed_counts(1000).sum()
        return int(count), (224, 224, 3)
    try:
        source = data.load(config).pretrain
        return len(source), source.image_shape
    except UserError:
        count, side = ABSENT[config.name]
        return round(count * config.fraction), (side, side, 3 + config.extra_channels)


@functools.cache
def _seconds(config: PretrainConfig) -> float:
    devices = sharding.local_devices(1)
    step, state, given = (_of_text if config.model.reads_text else _of_images)(config)
    step = sharding.pmap(step, devices, donate=(0,))
    given = sharding.replicate((*given, jax.random.key(2)), devices)
    state = sharding.replicate(state, devices)
    times = []
    for _ in range(1 + REPEATS):  # the first one compiles
        began = time.perf_counter()
        state, metrics = step(state, *given)
        jax.block_until_ready(metrics)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _of_text(config: PretrainConfig) -> tuple:
    """Step, state and batch of random words, in sentences of usual lengths."""
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, vocabulary=VOCABULARY)
    )
    random = np.random.default_rng(0)
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(config.optimizer.batch_size)]
    sentences = [
        np.append(random.integers(len(SPECIAL), VOCABULARY, n - 1), END).astype(np.int32)
        for n in lengths
    ]
    (packed,) = pack(sentences, max(LENGTHS))
    nothing = np.zeros(0, np.int32)
    return *_step_and_state(config, None), (packed, nothing, nothing)


def _of_images(config: PretrainConfig) -> tuple:
    """Step, state and batch of random images."""
    pairs = config.optimizer.batch_size
    shape = (2 * pairs, *_images(config.data)[1])
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels = np.arange(len(images), dtype=np.int32) % 2
    source = data.Arrays(images, labels, ("a", "b"), "random images")
    dataset = data.Dataset(
        source, source, source, config.data.recipe or data.NAMED[config.data.name]
    )
    few = DataConfig(recipe=config.data.recipe, bits=config.data.extra_channels)
    plain = dataclasses.replace(config, data=few)
    config = resolve.resolve(plain, dataset)
    batch = np.arange(pairs, dtype=np.int32)
    return *_step_and_state(config, dataset), (images, labels, batch)


def _step_and_state(config: PretrainConfig, dataset: data.Dataset | None) -> tuple:
    apply, params, stats = models.create(config.model, jax.random.key(0))
    optimizer = make_optimizer(config.optimizer, make_schedule(config.optimizer, 1000))
    state = init_state(params, stats, optimizer)
    if config.moco.queue_size:
        queue = queue_init(jax.random.key(1), config.moco.queue_size, DIM)
        state = state._replace(momentum=Momentum(params, stats, queue))
    source = dataset and dataset.pretrain
    return make_step_of(config, source, apply, optimizer, 1000, axis_name=sharding.AXIS), state
