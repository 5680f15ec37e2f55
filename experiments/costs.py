"""What a run would cost: the FLOP of a step, counted or its measured time, times the steps."""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.config import (
    DataConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    UserError,
)
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.data.subsets import long_tailed_counts
from hypersphere_jax.moco import queue_init
from hypersphere_jax.packing import END, SPECIAL, pack
from hypersphere_jax.training import resolve, sharding
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import Momentum, init_state, make_step_of

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
# FLOP and, on CPU, time of a step of images grow in proportion to its pairs; this many are counted.
MOST_PAIRS = 32
# Of all counted steps, as these hardly matter to them: one is counted for a whole sweep.
DIM = 128
EVERY_TERM = ObjectiveConfig(contrastive_weight=1)
REPEATS = 3
# FLOP a second that training in float32 is taken to sustain, by what the device's kind contains. Of
# a CPU: each core. V100: MoCo v2 in 53 hours on 8 (moco_v2_imagenet.py); the others are scaled from
# it by the bandwidth of their memory, 1.6, 3.35 and 4.8 TB/s against 0.9: not measured.
CPU_CORE = 50e9
SUSTAINED = {"V100": 5.5e12, "A100": 10e12, "H100": 20e12, "H200": 29e12}


class Cost(NamedTuple):
    """Steps of a run, and the seconds of one."""

    steps: int
    seconds: float


def cost(config: PretrainConfig, measure: bool = False) -> Cost:
    """Steps of a run, and the seconds of one on this machine's first device.

    Args:
      config: of the run.
      measure: run a step and take its time, rather than counting its FLOP.
    """
    batch = config.optimizer.batch_size
    steps = config.optimizer.epochs * _steps_per_epoch(config)
    # The update of the words is most of a small step of text, and does not grow with the batch.
    whole = config.model.reads_text or (measure and jax.default_backend() != "cpu")
    pairs = batch if whole else min(batch, MOST_PAIRS)
    model = config.model
    plain = PretrainConfig(
        data=config.data,
        model=model if model.reads_text else dataclasses.replace(model, dim=DIM),
        moco=config.moco,
        objective=EVERY_TERM,
        # Its numbers do not matter to the cost.
        optimizer=OptimizerConfig(batch_size=pairs, optimizer=config.optimizer.optimizer),
    )
    seconds = _seconds(plain) if measure else _flop(plain) / _sustained()[1]
    return Cost(steps, seconds * batch / pairs)


def notes(hours: float, measure: bool = False) -> list[str]:
    """What one should know of these numbers, and of the hours of all runs."""
    name, here = _sustained()
    if measure:
        lines = [
            f"s / step: measured on {name} with random images or words; on CPU {MOST_PAIRS} pairs "
            "of images at most, scaled to the batch."
        ]
    else:
        gpus = [f"{gpu} {hours * here / speed:,.2g}" for gpu, speed in SUSTAINED.items()]
        speeds = ", ".join(f"{speed / 1e12:g}" for speed in SUSTAINED.values())
        lines = [
            f"s / step: FLOP of its products and convolutions, at {here / 1e12:g} TFLOP/s, taken "
            f"for {name}, of which small networks reach a part; --measure takes the time of a step "
            "here.",
            f"Hours on one GPU, taken for {speeds} TFLOP/s in float32: {', '.join(gpus)}.",
        ]
    return [
        *lines,
        "Training alone: reading data, compiling and evaluation come on top. Of data that are not "
        "here the paper's number is counted.",
    ]


def _sustained() -> tuple[str, float]:
    """This machine's first device, and its FLOP a second."""
    kind = jax.devices()[0].device_kind
    if kind == "cpu":
        cores = os.cpu_count() or 1
        return f"{cores} CPU cores", cores * CPU_CORE
    known = [gpu for gpu in SUSTAINED if gpu in kind] or ["A100"]
    return f"{kind} as {known[0]}", SUSTAINED[known[0]]


def _steps_per_epoch(config: PretrainConfig) -> int:
    batch = config.optimizer.batch_size
    if not config.model.reads_text:
        return max(1, _images(config.data)[0] // batch)
    corpus = _source(config.data)
    if corpus is None:
        return SENTENCES // batch
    return make_sampler(corpus, batch, config.seed).steps_per_epoch


@functools.cache
def _source(config: DataConfig) -> Any:
    """What is trained on; None where the data are not here."""
    try:
        return data.load(config).pretrain
    except UserError:
        return None


def _images(config: DataConfig) -> tuple[int, tuple[int, int, int]]:
    """Number and shape of the images to train on; those of ImageNet differ in size."""
    source = None if config.name == "imagenet2012" else _source(config)
    if source is not None:
        return len(source), source.image_shape
    count, side = ABSENT[config.name]
    count = IMAGENET100 if config.classes else round(count * config.fraction)
    if config.subset != "all":
        count = int(long_tailed_counts(1000).sum())
    return count, (side, side, 3 + config.extra_channels)


@functools.cache
def _flop(config: PretrainConfig) -> float:
    """FLOP of a step, from its program: nothing is computed or compiled."""
    step, start, batch = _step(config, None)
    key = jax.eval_shape(jax.random.key, 0)
    return flop(jax.make_jaxpr(step)(jax.eval_shape(start), *batch, key).jaxpr)


def flop(jaxpr: Any) -> float:
    """FLOP of a program's matrix products and convolutions, with all turns of its loops.

    (XLA's own `cost_analysis` counts the body of a loop once, and so a recurrent network's words.)
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, equation.params
        shapes = [variable.aval.shape for variable in equation.invars]
        size = sum(math.prod(variable.aval.shape) for variable in equation.outvars)
        if name == "dot_general":
            (contracted, _), _ = given["dimension_numbers"]
            total += 2 * size * math.prod(shapes[0][axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, outputs = shapes[1], given["dimension_numbers"].rhs_spec[0]
            # Of a dilated image all but one in so many are zeros.
            taps = math.prod(kernel) / kernel[outputs] / math.prod(given["lhs_dilation"])
            total += 2 * size * taps
        inner = [getattr(leaf, "jaxpr", leaf) for leaf in jax.tree.leaves(list(given.values()))]
        turns = given["length"] if name == "scan" else 1
        total += turns * sum(flop(each) for each in inner if hasattr(each, "eqns"))
    return total


@functools.cache
def _seconds(config: PretrainConfig) -> float:
    """Measured seconds of a step."""
    devices = sharding.local_devices(1)
    step, start, batch = _step(config, sharding.AXIS)
    step = sharding.pmap(step, devices, donate=(0,))
    batch = sharding.replicate((*batch, jax.random.key(2)), devices)
    state = sharding.replicate(start(), devices)
    times = []
    for _ in range(1 + REPEATS):  # the first one compiles
        began = time.perf_counter()
        state, metrics = step(state, *batch)
        jax.block_until_ready(metrics)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _step(config: PretrainConfig, axis_name: str | None) -> tuple[Callable, Callable, tuple]:
    """Step, what makes its first state, and a batch of random images or words."""
    random, pairs = np.random.default_rng(0), config.optimizer.batch_size
    if config.model.reads_text:
        source = None
        model = dataclasses.replace(config.model, vocabulary=VOCABULARY)
        config = dataclasses.replace(config, model=model)
        sentences = [
            np.append(random.integers(len(SPECIAL), VOCABULARY, n - 1), END).astype(np.int32)
            for n in np.resize(LENGTHS, pairs)
        ]
        batch = *pack(sentences, max(LENGTHS)), np.zeros(0, np.int32), np.zeros(0, np.int32)
    else:
        shape = (2 * pairs, *_images(config.data)[1])
        images = random.integers(0, 256, shape, dtype=np.uint8)
        labels = np.arange(len(images), dtype=np.int32) % 2
        source = data.Arrays(images, labels, ("a", "b"), "random images")
        recipe = config.data.recipe or data.NAMED[config.data.name]
        few = DataConfig(recipe=config.data.recipe, bits=config.data.extra_channels)
        config = dataclasses.replace(config, data=few)
        config = resolve.resolve(config, data.Dataset(source, source, source, recipe))
        batch = images, labels, np.arange(pairs, dtype=np.int32)
    apply, _, _ = models.abstract(config.model)
    optimizer = make_optimizer(config.optimizer, make_schedule(config.optimizer, 1000))

    def start():
        _, params, stats = models.create(config.model, jax.random.key(0))
        state = init_state(params, stats, optimizer)
        if not config.moco.queue_size:
            return state
        queue = queue_init(jax.random.key(1), config.moco.queue_size, DIM)
        return state._replace(momentum=Momentum(params, stats, queue))

    return make_step_of(config, source, apply, optimizer, 1000, axis_name=axis_name), start, batch
