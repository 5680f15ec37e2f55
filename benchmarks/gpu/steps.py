"""The check `resnet50`: training steps at 224 pixels, and hours of 200 epochs of ImageNet."""

import dataclasses
import functools
from typing import Any

from benchmarks import roofline
from benchmarks.gpu.record import Check, Record
from benchmarks.gpu.runs import CONTRASTIVE
from benchmarks.timing import Stepper, pace, random_run, seconds_of
from hypersphere_jax.configs import PretrainConfig

IMAGENET_IMAGES = 1_281_167
EPOCHS = 200
CARDS = 8
SIMCLR = {"head": "simclr2", "loss": "nt_xent", "loss_tau": 0.1, "recipe": "simclr_imagenet"}
MOCO = {**CONTRASTIVE, "head": "moco_v2", "contrastive_tau": 0.2, "recipe": "moco_v2"}


@dataclasses.dataclass
class ResNet50(Check):
    """Time training steps of ResNet-50 on synthetic images of 224 pixels, in bfloat16."""

    minutes: float = 3
    batch_size: int = 256  # Positive pairs in a batch

    def run(self) -> None:
        record = Record("resnet50", self)
        size: dict[str, Any] = {"model": "resnet50", "dtype": "bfloat16", "image_size": 224}
        size |= {"batch_size": self.batch_size, "dim": 128, "devices": 1}
        moco = MOCO | {"queue_size": 65_536}
        if self.toy:
            size |= {"model": "small_cnn", "dtype": "float32", "width": 0.2}
            size |= {"image_size": 8, "batch_size": 8, "recipe": "none"}
            moco["queue_size"] = 64
        peaks = roofline.peaks(64 if self.toy else None, size["dtype"])
        for method, options in {"SimCLR": SIMCLR, "MoCo v2": moco}.items():
            config = PretrainConfig(name="unused", runs_dir=record.runs_dir, **(options | size))
            labels = {"method": method, "batch_size": config.batch_size}
            record.measure(labels, measure, config, peaks[config.dtype])
        columns = ("method", "batch_size", "ms", "images_per_s", "share", "compile_s")
        record.finish("Training steps", *columns, "imagenet_hours")


def measure(config: PretrainConfig, peak: float) -> dict[str, Any]:
    """Return time, images/s and share of the peak of a step, augmentation included."""
    setup, batch = random_run(config)
    stepper = Stepper(setup)
    flops = roofline.step_flops(stepper, batch)
    step = functools.partial(stepper, *batch)
    compile_s = seconds_of(step)
    seconds = pace(step)
    images_per_s = config.batch_size / seconds
    hours = IMAGENET_IMAGES * EPOCHS / images_per_s / CARDS / 3600
    return {
        "ms": round(1e3 * seconds, 2),
        "images_per_s": round(images_per_s),
        "share": round(flops / peak / seconds, 3),
        "compile_s": round(compile_s, 1),
        "imagenet_hours": round(hours, 1),
    }
