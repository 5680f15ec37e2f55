"""The parts of `bench accelerator`: each gives records, one after the other.

`python -m benchmarks.accelerator_parts NAME FILE SETTINGS` is the process of one part: it writes
its records to FILE as they come, and why it ended early.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import float64, loss_forms, roofline, train_step, vmapped
from benchmarks.timing import median, ratio, take_turns
from hypersphere_jax import data
from hypersphere_jax.config import (
    DataConfig,
    ModelConfig,
    PretrainConfig,
    ProbeConfig,
    Stopped,
    UserError,
    require,
)
from hypersphere_jax.extras import how_to_install
from hypersphere_jax.files import write_json
from hypersphere_jax.tables import text_of
from hypersphere_jax.terminal import printable
from hypersphere_jax.training import checkpoint, run_folder, sharding

Record = dict[str, Any]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "torch")
SAMPLED = 64  # points whose gradients are compared
# Of float32 logits of size 1 / tau the rounding alone changes values and gradients by about
# eps / tau; this many times that is no rounding.
ROUNDINGS = 8


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of a part, as its process is given them."""

    toy: bool
    seconds: float  # that it may take
    out: str
    data_dir: str | None = None
    peaks: list | None = None  # of the part of that name, if it came before
    began: float = dataclasses.field(default_factory=time.monotonic)

    def of(self, full: Any, toy: Any) -> Any:
        return toy if self.toy else full

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def measured_peaks(self) -> roofline.Peaks:
        if self.peaks is not None:
            return roofline.Peaks(*self.peaks)
        return roofline.measure(*self.of(roofline.sizes(), (64, 1)))


def versions(settings: Settings) -> Iterator[Record]:
    """What runs here."""
    device = jax.devices()[0]
    yield {
        "device": device.device_kind,
        "devices": jax.device_count(),
        "platform": f"{device.platform} {getattr(device.client, 'platform_version', '')}".strip(),
        "memory_gb": (device.memory_stats() or {}).get("bytes_limit", 0) / 1e9 or None,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def peaks(settings: Settings) -> Iterator[Record]:
    """The speed of matrix products by type, and of a copy."""
    side, megabytes = settings.of(roofline.sizes(), (64, 1))
    measured = roofline.measure(side, megabytes)
    for name, speed in measured.flops_s.items():
        yield {"what": f"{name} product", "size": side, "tflop_s": speed / 1e12}
    yield {"what": "copy, MB", "size": megabytes, "tb_s": measured.bytes_s / 1e12}


def losses(settings: Settings) -> Iterator[Record]:
    """Every loss against float64, at tau = 0.005: errors of the value and of the gradient."""
    tau, dim = 0.005, settings.of(128, 8)
    sizes = settings.of((511, 8192, 50_001), (33,))
    for n in sizes:
        x, y, labels = float64.points(n, dim)
        at = np.sort(np.random.default_rng(1).permutation(n)[:SAMPLED])
        sums, every = float64.Sums(x, y, labels, tau), float64.cases(tau, dim)
        ways = [(name, "highest") for name in every]
        ways += [(name, "high") for name in every if n == sizes[-2:][0] and every[name].pairwise]
        given = jax.block_until_ready(jax.device_put((x, y, labels)))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # that compile
            called = [pool.submit(_compiled, every[name], how, given) for name, how in ways]
            references: dict[str, float64.Reference] = {}
            for (name, precision), compiled in zip(ways, called, strict=True):
                record = {"loss": name, "n": n, "precision": precision}
                if settings.left < 0:
                    pool.shutdown(wait=False, cancel_futures=True)
                    yield record | {"skipped": "no time left"}
                    return
                if name not in references:
                    references[name] = every[name].reference(sums, at)
                value, gradients = jax.device_get(compiled.result()(*given))
                wanted, wanted_gradients = references[name]
                errors = {
                    "value": float(value),
                    "value_error": abs(float(value) - wanted) / max(1.0, abs(wanted)),
                    "gradient_error": float64.error([g[at] for g in gradients], wanted_gradients),
                }
                bound = ROUNDINGS * float(np.finfo(np.float32).eps) / tau
                exact = max(errors["value_error"], errors["gradient_error"]) <= bound
                yield record | errors | ({"float32": exact} if precision == "highest" else {})


def _compiled(case: float64.Case, precision: str, given: Any) -> Callable:
    """Value and gradients."""
    how = {"precision": precision} if case.pairwise else {}

    def loss(x, y, labels):
        return case.loss(x, y, labels, **how)

    function = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(case.sides))))
    return function.lower(*given).compile()


def scaling(settings: Settings) -> Iterator[Record]:
    """Uniform and contrastive from few points to a million: value and gradient, d = 128."""
    sizes = settings.of((1024, 4096, 16_384, 65_536, 262_144, 1_000_000), (64, 96))
    dim, dense = settings.of((128, 16_384), (16, 64))
    best = settings.measured_peaks()
    torch = importlib.util.find_spec("torch") is not None
    for n in sizes:
        for name in ("uniform", "contrastive"):
            loss = loss_forms.LOSSES[name]
            arrays = loss_forms.unit_vectors(loss.inputs, n, dim)
            ways = {p: _with_precision(loss, p) for p in ("highest", "high")}
            limits = {form: _limit(loss, n, dim, best, form) for form in ways}
            # One call to compile, one to measure.
            needed, left = 2 * sum(limits.values()), settings.left
            if needed > left:
                why = f"needs {needed:.0f} s by the roofline, and {left:.0f} s are left"
                yield {"loss": name, "n": n, "skipped": why}
                continue
            forms = {p: loss_forms.make_form(of, loss_forms.OURS, arrays) for p, of in ways.items()}
            if torch and n <= dense:
                forms[loss_forms.TORCH] = loss_forms.make_form(loss, loss_forms.TORCH, arrays)
            times = take_turns(forms, 1)
            if max(map(median, times.values())) < 1:
                times = take_turns(forms, 4)
            for form, seconds in times.items():
                yield {
                    "loss": name,
                    "n": n,
                    "form": form,
                    "ms": 1e3 * median(seconds),
                    "times_highest": ratio(times, form, "highest"),
                    "roofline_ms": 1e3 * limits[form] if form in limits else None,
                }


def _with_precision(loss: loss_forms.Loss, precision: str) -> loss_forms.Loss:
    def ours(*arrays):
        return loss.ours(*arrays, precision=precision)

    return dataclasses.replace(loss, ours=ours)


def _limit(loss: loss_forms.Loss, n: int, dim: int, best: roofline.Peaks, precision: str) -> float:
    """Seconds: of the products, or of logits that are written once and read twice in each pass."""
    passes = {1.5: 0.5, 4: 2}[loss.linear]  # uniformity has one, over half of the pairs
    flops = loss.flops(loss_forms.OURS, n, dim)
    return best.seconds(flops, 3 * 4 * n * n * passes, best.of_precision(precision))


def steps(settings: Settings) -> Iterator[Record]:
    """The align+uniform step of three networks in float32 and bfloat16, beside the roofline."""
    best = settings.measured_peaks()
    networks = settings.of(
        [
            ({"name": "resnet18", "image_size": 32}, 512, "simclr_cifar_torchvision"),
            ({"name": "small_alexnet", "image_size": 64}, 768, "stl10"),
            ({"name": "resnet50", "image_size": 224}, 128, "moco_v2"),
        ],
        [({"name": "small_cnn", "image_size": 8, "width": 0.1}, 4, "stl10")],
    )
    for dtype in settings.of(("bfloat16", "float32"), ("float32",)):
        for network, pairs, recipe in networks:
            network = {**network, "dtype": dtype}
            if settings.left < 0:
                yield {"model": network["name"], "dtype": dtype, "skipped": "no time left"}
                continue
            yield _caught(
                {"model": network["name"], "dtype": dtype},
                lambda of=(network, pairs, recipe): train_step.record_of(*of, best),
            )


def encoders(settings: Settings) -> Iterator[Record]:
    """Steps of 1, 4, 16 and 64 encoders under vmap, against as many of one."""
    networks = settings.of(
        [("small_cnn", 8, 1, 256, "digits"), ("small_alexnet", 32, 3, 64, "cifar10")],
        [("small_cnn", 8, 1, 4, "digits")],
    )
    for model, side, channels, pairs, recipe in networks:
        images = _random_images(settings.of(4096, 16), side, channels)[0]
        source = data.Arrays(images, np.zeros(len(images), np.int32), ("any",), "random images")
        width = settings.of(1.0, 0.1)
        base = PretrainConfig(
            model=ModelConfig(model, width=width, dtype="bfloat16"), data=DataConfig(recipe=recipe)
        )
        job = vmapped.job_of(base, data.Dataset(source, source, source, recipe), pairs)
        for count in settings.of((1, 4, 16, 64), (1, 2)):
            named = {"model": model, "pairs": pairs, "encoders": count}
            if settings.left < 0:
                yield named | {"skipped": "no time left"}
                continue
            how = settings.of((10, 5), (1, 1))
            yield _caught(named, lambda of=(job, count, *how): vmapped.measured(*of))


def resumption(settings: Settings) -> Iterator[Record]:
    """A run that is stopped and goes on, against one that is left alone: the state, to the bit."""
    from hypersphere_jax.training import loop

    images = _write_images(Path(settings.out, "images.npz"), settings.of(4096, 128), 32)
    model = settings.of(
        {"model": "resnet18", "dtype": "bfloat16", "head": "simclr2"},
        {"model": "small_cnn", "width": 0.1},
    )
    base = PretrainConfig(
        runs_dir=f"{settings.out}/runs",
        data=str(images),
        recipe="simclr_cifar_torchvision",
        loss="nt_xent",
        epochs=settings.of(10, 20),
        batch_size=settings.of(128, 16),
        log_every_steps=1,
        steps_per_call=1,
        devices=1,
        **model,
    )
    alone, stopped = (base.replace(name=f"{name}-{os.getpid()}") for name in ("alone", "stopped"))
    folder = loop.train(alone)
    log = Path(stopped.runs_dir, stopped.name, "metrics.jsonl")
    threading.Thread(target=_stop_after, args=(log, 20), daemon=True).start()
    try:
        loop.train(stopped)
    except Stopped as reason:
        at = str(reason)
    else:
        raise UserError("the run was over before it could be stopped")
    other = loop.train(stopped)
    one, two = (jax.tree.leaves(_state(each)) for each in (folder, other))
    differ = sum(a.tobytes() != b.tobytes() for a, b in zip(one, two, strict=True))
    yield {
        "stopped": at.partition(" in ")[0],
        "arrays": len(one),
        "arrays_that_differ": differ,
        "to_the_bit": differ == 0,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _stop_after(log: Path, lines: int) -> None:
    while not log.is_file() or log.read_bytes().count(b"\n") < lines:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)


def _state(folder: Path) -> Any:
    """All arrays of a run's newest checkpoint."""
    from hypersphere_jax import models
    from hypersphere_jax.training import optimizers, recorder, step

    config = run_folder.read_config(folder)
    _, params, stats = models.abstract(config.model)
    schedule = optimizers.make_schedule(config.optimizer, 1)
    rule = optimizers.make_optimizer(config.optimizer, schedule)
    like = jax.eval_shape(lambda *of: step.init_state(*of, rule), params, stats)
    return checkpoint.restore(folder / "checkpoints", recorder.tree_of(like))[1]


def cifar10(settings: Settings) -> Iterator[Record]:
    """ResNet-18 by SimCLR on CIFAR-10: 200 epochs of 512 pairs; then k-NN and a linear probe."""
    from hypersphere_jax.evaluate import probe_verb
    from hypersphere_jax.training import loop
    from hypersphere_jax.training.metrics_log import read_metrics

    began, where, recipe = time.perf_counter(), settings.data_dir, "simclr_cifar_torchvision"
    if settings.toy:
        where = str(_write_images(Path(settings.out, "toy.npz"), 64, 8, classes=2))
    require(
        where is not None,
        "CIFAR-10 is not there: give --data-dir, the folder of train.zip and test.zip, or a file "
        ".npz of train_images, train_labels, test_images and test_labels",
    )
    model = settings.of(
        {"model": "resnet18", "dim": 128, "head": "simclr2", "dtype": "bfloat16"},
        {"model": "small_cnn", "width": 0.1},
    )
    config = PretrainConfig(
        name=f"cifar10-{os.getpid()}",
        runs_dir=f"{settings.out}/runs",
        data="cifar10",
        data_dir=where,
        recipe=recipe,
        loss="nt_xent",
        loss_tau=0.5,
        epochs=settings.of(200, 2),
        batch_size=settings.of(512, 16),
        learning_rate=0.12,
        schedule="cosine",
        warmup_epochs=settings.of(5, 0),
        weight_decay=5e-4,
        log_every_steps=settings.of(100, 1),
        devices=1,
        **model,
    )
    stopped = None
    folder = Path(config.runs_dir, config.name)
    try:
        loop.train(config)
    except Stopped as reason:  # its share of the time is over: what there is, is evaluated
        stopped = str(reason).partition(" in ")[0]
    log = read_metrics(folder)
    yield {
        "what": "training",
        "epochs": config.optimizer.epochs,
        "pairs": config.optimizer.batch_size,
        "stopped": stopped,
        "minutes": (time.perf_counter() - began) / 60,
        "images_s": statistics.median(line["images_per_s"] for line in log[len(log) // 2 :]),
        "loss": log[-1]["loss"],
    }
    asked = {"layers": ("backbone",), "protocols": ("knn", "lbfgs"), "devices": 1}
    results = probe_verb.run_probe(ProbeConfig((str(folder),), **asked))
    scores = {result["protocol"]: result["top1"] for result in results}
    minutes = (time.perf_counter() - began) / 60
    yield {
        "what": "with evaluation",
        "minutes": minutes,
        "knn5_top1": scores["knn"],
        "linear_top1": scores["lbfgs"],
        "under_10_minutes": stopped is None and minutes < 10,
        "knn_above_84": scores["knn"] > 84,
    }


def _random_images(n: int, side: int, channels: int, classes: int = 1) -> tuple:
    """uint8 `[n, side, side, channels]`, and labels that their brightness tells."""
    rng = np.random.default_rng(0)
    labels = np.arange(n, dtype=np.int32) % classes
    noise = rng.integers(0, 256 // classes, (n, side, side, channels))
    return np.uint8(noise + (256 // classes * labels)[:, None, None, None]), labels


def _write_images(file: Path, n: int, side: int, classes: int = 2) -> Path:
    images, labels = _random_images(n, side, 3, classes)
    file.parent.mkdir(parents=True, exist_ok=True)
    names = {f"{split}_images": images for split in ("train", "test")}
    np.savez(file, **names, **{f"{split}_labels": labels for split in ("train", "test")})
    return file


def _caught(named: Record, measure: Callable[[], Record]) -> Record:
    """The record, or why there is none, such as lack of memory: the others go on."""
    try:
        return named | measure()
    except Exception as error:
        return named | {"failure": reason_of(error)}


def reason_of(error: BaseException) -> str:
    """One line."""
    how = how_to_install(error.name) if isinstance(error, ModuleNotFoundError) else None
    if how:
        return f"this needs {error.name}, which is not installed: {how}"
    text = " ".join(str(error).split())
    return printable(
        text if isinstance(error, UserError | Stopped) else f"{type(error).__name__}: {text}", 300
    )


PARTS: dict[str, Callable[[Settings], Iterator[Record]]] = {
    part.__name__: part
    for part in (versions, peaks, losses, scaling, steps, encoders, resumption, cifar10)
}


def main(name: str, file: str, settings: str) -> None:
    """One part, from its settings as JSON."""
    given = Settings(**json.loads(settings))
    sharding.keep_compiled("~/.cache/hypersphere_jax")
    records: list[Record] = []
    result: dict[str, Any] = {"records": records}
    began = time.perf_counter()
    try:
        for record in PARTS[name](given):
            records.append(record)
            write_json(Path(file), result)
            shown = ", ".join(f"{k} {text_of(v)}" for k, v in record.items() if v is not None)
            print(f"  {shown}", flush=True)
    except Exception as error:
        result["failure"] = reason_of(error)
    result["seconds"] = time.perf_counter() - began
    write_json(Path(file), result)


if __name__ == "__main__":
    main(*sys.argv[1:])
