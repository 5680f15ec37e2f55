"""Time and memory of runs, before they begin: from step_costs.json, without opening any data.

The time of a step is that of its FLOP and of the elements of everything else (step_costs.py), at
what this machine is taken to do in a second.
"""

import functools
import json
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from experiments import workers
from experiments.reproduction import folder_of
from experiments.sweeps import Planned
from hypersphere_jax import data
from hypersphere_jax.configs import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    PretrainConfig,
    section,
)
from hypersphere_jax.data import image_files, tfds
from hypersphere_jax.data.subsets import long_tailed_counts
from hypersphere_jax.data.threads import end_with_parent
from hypersphere_jax.text.corpus import open_corpus
from hypersphere_jax.text.labelled import TASKS as TEXT_TASKS
from hypersphere_jax.text.text_data import is_text
from hypersphere_jax.text.text_files import text_files
from hypersphere_jax.training import distributed

FILE = Path(__file__).with_name("step_costs.json")
# Number, side and channels of the images to train on, as published.
IMAGES = {
    "digits": (1_400, 8, 1),
    "random_bits": (data.BITS_COUNT, data.BITS_SIZE, 0),
    "cifar10": (50_000, 32, 3),
    "stl10": (105_000, 96, 3),
    "nyu_depth_v2": (795, 480, 3),
    "imagenet2012": (1_281_167, 224, 3),  # their sizes differ
}
IMAGENET100 = 126_689  # images of the 100 classes of Table 7
SENTENCES, VOCABULARY = 52_799_513, 50_001  # of BookCorpus
NOVELS = 120_529  # sentences of the eight novels of docs/results.md
SENTENCE = {True: 42, False: 115}  # bytes in a file, whether that is compressed
# Of all counted steps, as these hardly matter to them: one is counted for a whole sweep.
DIM, QUEUE = 128, 4096
EVERY_TERM = ObjectiveConfig(contrastive_weight=1)
# What a core of a CPU does in a second: FLOP, and elements of other operations. With the seconds of
# a run beside its steps, and those for each image (or labelled sentence) that is evaluated, the
# times of docs/results/*/results.csv, of runs on one core each, come out within a factor of two; a
# step of ResNet-18 (CIFAR-10) and one of SmallAlexNet (64 pixels) take 0.6 and 0.7 of theirs.
CORE_FLOP, CORE_ELEMENTS = 80e9, 1e9
START, EVALUATED, TASKS = 18.0, 1e-3, 15_000
# FLOP a second that training in float32 is taken to sustain, all else included, by what the
# device's kind contains. V100: MoCo v2 in 53 hours on 8 (moco_v2_imagenet.py); the others are
# scaled from it by the bandwidth of their memory, 1.6, 3.35 and 4.8 TB/s against 0.9: not measured.
SUSTAINED = {"V100": 5.5e12, "A100": 10e12, "H100": 20e12, "H200": 29e12}
PROCESS = 0.8e9  # bytes of a process that trains, beside its arrays
RESIDENT = 0.25  # share of the memory up to which images stay there


class Machine(NamedTuple):
    """What trains: a CPU's cores, or all accelerators of this process."""

    name: str
    devices: int  # 0: it is a CPU
    flop: float  # a second; of one device
    elements: float  # of other operations, likewise
    memory: int  # bytes, of one device
    part: int = 1  # of a CPU: how many processes share it

    def shared(self, jobs: int) -> "Machine":
        """What each of so many processes has."""
        if self.devices:
            on_each = self.jobs_on_each(jobs)
            return self if jobs == 1 else self._replace(devices=1, flop=self.flop / on_each)
        flop, elements = self.flop / jobs, self.elements / jobs
        return self._replace(flop=flop, elements=elements, part=jobs)

    def jobs_on_each(self, jobs: int) -> int:
        """Processes that share the memory of a device, of so many in all."""
        return math.ceil(jobs / max(self.devices, 1))


class Cost(NamedTuple):
    """What a run takes."""

    steps: int
    step: float  # seconds of one
    seconds: float  # of training and evaluation
    memory: float  # bytes, on each device


def machine(apart: bool = False) -> Machine:
    """This machine; `apart`: GPUs are asked in another process, so that they stay free."""
    if apart and workers.nvidia_gpus():
        with ProcessPoolExecutor(1, get_context("spawn"), initializer=end_with_parent) as pool:
            return pool.submit(machine).result()
    devices = distributed.local_devices()
    memory = distributed.device_memory(devices[:1])
    if devices[0].platform == "cpu":
        cores = workers.core_count()
        name = f"{cores} CPU core{'s' * (cores > 1)}"
        return Machine(name, 0, cores * CORE_FLOP, cores * CORE_ELEMENTS, memory)
    kind = devices[0].device_kind
    gpu = next((gpu for gpu in SUSTAINED if gpu in kind), "A100")
    name = f"{len(devices)} {kind}" + ("" if gpu in kind else f" (taken for {gpu})")
    return Machine(name, len(devices), SUSTAINED[gpu], math.inf, memory)


def cost(one: Planned, here: Machine, laptop: bool, step: float | str | None = None) -> Cost:
    """Steps, time and memory of a run.

    Args:
      one: the run.
      here: what it runs on.
      laptop: whether text that is not here is that of a few novels.
      step: measured seconds of a step, on CPU with all cores; or why there are none, and then the
        run is without a time. None: by the stored cost.
    """
    config, needs = one.config, _stored()[key(one.config)]
    batch = config.batch_size
    n = sentences(config, laptop) if config.reads_text else images(config)
    steps = config.epochs * max(1, n // batch)
    devices = max(1, min(config.devices or here.devices, here.devices))
    flop, elements, memory = (
        whole + each * batch / (1 if config.reads_text else devices)
        for whole, each in (needs[name] for name in ("flop", "elements", "bytes"))
    )
    estimate = flop / here.flop + elements / here.elements
    kept = 0 if config.reads_text else n * math.prod(shape_of(config))
    memory += PROCESS + (kept if kept < RESIDENT * here.memory else 0)
    if isinstance(step, str):
        return Cost(steps, math.nan, 0.0, memory)
    step = estimate if step is None else step * here.part
    return Cost(steps, step, START + steps * step + _evaluation(one, n, steps), memory)


def _evaluation(one: Planned, n: int, steps: int) -> float:
    """Seconds; of n images to train on."""
    how, every = one.evaluation, one.config.keep_every_steps
    if how.logged:
        return 0.0
    checkpoints = 1 + how.initial + (steps // every if how.all_steps and every else 0)
    return checkpoints * EVALUATED * (TASKS if how.tasks else n)


@functools.cache
def _stored() -> dict[str, dict[str, list[float]]]:
    return json.loads(FILE.read_text())["steps"]


def plain(config: PretrainConfig) -> PretrainConfig:
    """Of a config what matters to the cost of a step of some pairs."""
    queue = QUEUE if config.queue_size else 0
    return PretrainConfig(
        **vars(section(config, DataConfig).replace(data_dir=None)),
        **vars(section(config, ModelConfig).replace(dim=config.dim if config.reads_text else DIM)),
        queue_size=queue,
        **vars(EVERY_TERM),
        batch_size=config.batch_size,
        optimizer=config.optimizer,
    )


def key(config: PretrainConfig) -> str:
    """The name of a config's entry among the stored costs."""
    model, rule = config, config.optimizer
    if model.reads_text:
        parts = (model.dim, model.embedding, rule, config.batch_size)
        return "{} {} of {}, {}, batch {}".format(model.model, *parts)
    side, _, channels = shape_of(config)
    head = f"{model.head}{model.head_hidden or ''}"
    views = f"{channels}x{side} to {model.image_size or side}"
    recipe = config.recipe or data.NAMED[config.data]
    network = f"{model.model} x{model.width:g} {head}, {views}, {recipe}, {rule}"
    return network + (", MoCo" if config.queue_size else "")


def shape_of(config: DataConfig) -> tuple[int, int, int]:
    """Shape of the images to train on."""
    _, side, channels = IMAGES[config.data]
    bits = config.bits if config.data == "random_bits" else config.extra_channels
    return side, side, (config.channels or channels) + bits


def images(config: DataConfig) -> int:
    """Number of the images to train on, as published."""
    if config.subset != "all":
        classes = 1000 if config.data == "imagenet2012" else 10
        return config.subset_size or int(long_tailed_counts(classes).sum())
    return IMAGENET100 if config.classes else round(IMAGES[config.data][0] * config.fraction)


def sentences(config: DataConfig, laptop: bool) -> int:
    """Number of the sentences to train on: by the size of their files, or as published."""
    if not is_here(config.data, config.data_dir):
        return NOVELS if laptop else SENTENCES
    where = Path(config.data_dir).expanduser()
    if (where / "corpus.json").is_file():
        return len(open_corpus(where)[0])
    files = text_files(where)
    return round(sum(file.stat().st_size / SENTENCE[file.suffix == ".gz"] for file in files))


def is_here(name: str, data_dir: str | None) -> bool:
    """Whether a data set seems to be there, by its files' names."""
    if name in data.EMBEDDED:
        return True
    place = folder_of(name, data_dir)
    where = None if place is None else Path(place).expanduser()
    if name == "books":
        return where is not None and is_text(where)
    if name == "sentiment":
        files = [f"{stem}.pos*" for stem in TEXT_TASKS.values()]
        return where is not None and all(any(where.glob(file)) for file in files)
    if where is not None and (where.is_file() or image_files.is_image_tree(where)):
        return True
    return any((tfds.data_root(where) / name).glob("*/dataset_info.json"))


def time_text(seconds: float) -> str:
    """Such as `40 s`, `12 min`, `1.5 h` or `1,300 h`."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    if seconds < 3600 * 0.95:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    if hours < 9.95:
        return f"{hours:.1f} h"
    digits = max(0, len(str(round(hours))) - 2)
    return f"{round(hours, -digits):,.0f} h"


def memory_text(size: float) -> str:
    """Such as `0.7 GB`."""
    return f"{size / 1e9:.1f} GB" if size < 9.95e9 else f"{size / 1e9:,.0f} GB"
