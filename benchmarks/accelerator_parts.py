"""Parts of `bench accelerator` without training runs: each gives records, one after the other."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from unittest import mock

import jax
import numpy as np

import hypersphere_jax as hj
from benchmarks import float64, loss_forms, roofline, train_step, vmapped
from benchmarks.timing import median, take_turns
from hypersphere_jax import data
from hypersphere_jax.config import (
    DataConfig,
    ModelConfig,
    PretrainConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.extras import how_to_install
from hypersphere_jax.losses import fused
from hypersphere_jax.terminal import printable

Record = dict[str, Any]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "torch")
LOSSES = ("uniform", "contrastive")  # whose times are measured
BY_BLOCKS = "high, by blocks"
# Products of [n, d] x [d, n] in the kernel's place: all pairs, rows and columns apart.
KERNEL = {"uniform": 2, "contrastive": 6}
SAMPLED = 64  # points whose gradients are compared, of the first half
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
        at = np.sort(np.random.default_rng(1).permutation(n // 2)[:SAMPLED])
        sums, every = float64.Sums(x, y, labels, tau), float64.cases(tau, dim)
        ways = [(name, "highest") for name in every]
        ways += [(name, "high") for name in every if n == sizes[-2:][0] and every[name].pairwise]
        given = jax.block_until_ready(jax.device_put((x, y, labels)))
        with ThreadPoolExecutor(2) as pool:  # that compile
            called = [pool.submit(_compiled_case, every[name], how, given) for name, how in ways]
            references: dict[str, float64.Reference] = {}
            for (name, precision), compiled in zip(ways, called, strict=True):
                record = {"loss": name, "n": n, "precision": precision}
                if settings.left < 0:
                    pool.shutdown(wait=False, cancel_futures=True)
                    yield record | {"skipped": "no time left"}
                    return
                if name not in references:
                    references[name] = every[name].reference(sums, at)
                errors = _errors(compiled.result()(*given), references[name], at)
                bound = ROUNDINGS * float(np.finfo(np.float32).eps) / tau
                exact = max(errors["value_error"], errors["gradient_error"]) <= bound
                yield record | errors | ({"float32": exact} if precision == "highest" else {})


def precision(settings: Settings) -> Iterator[Record]:
    """Two losses at each precision over tau, against float64: what `"high"` and TF32 cost."""
    n, dim = settings.of((8192, 128), (33, 8))
    x, y, labels = float64.points(n, dim)
    at = np.sort(np.random.default_rng(1).permutation(n // 2)[:SAMPLED])
    of = {
        "uniform": lambda x, y, tau, how: hj.uniform_loss(x, t=1 / (2 * tau), precision=how),
        "contrastive": lambda x, y, tau, how: hj.contrastive_loss(x, y, tau, precision=how),
    }
    ways = list(itertools.product(of, ("highest", "high", "default")))
    given = jax.block_until_ready(jax.device_put((x, y, np.float32(1))))
    sides = {name: float64.cases(1.0, dim)[name].sides for name in of}
    programs = {
        (name, how): _compiled(functools.partial(of[name], how=how), sides[name], given)
        for name, how in ways
    }
    for tau in settings.of((0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0), (0.005, 1.0)):
        sums, cases = float64.Sums(x, y, labels, tau), float64.cases(tau, dim)
        references = {name: cases[name].reference(sums, at) for name in of}
        for name, how in ways:
            found = programs[name, how](*given[:2], np.float32(tau))
            named = {"loss": name, "tau": tau, "n": n, "precision": how}
            yield named | _errors(found, references[name], at)


def _errors(found: Any, reference: float64.Reference, at: np.ndarray) -> Record:
    """Of a value and its gradients, of which those at some points are compared."""
    (value, gradients), (wanted, wanted_gradients) = jax.device_get(found), reference
    return {
        "value": float(value),
        "value_error": float(abs(float(value) - wanted) / max(1.0, abs(wanted))),
        "gradient_error": float64.error([g[at] for g in gradients], wanted_gradients),
    }


def _compiled_case(case: float64.Case, precision: str, given: Any) -> Callable:
    how = {"precision": precision} if case.pairwise else {}

    def loss(x, y, labels):
        return case.loss(x, y, labels, **how)

    return _compiled(loss, case.sides, given)


def _compiled(loss: Callable, sides: int, given: Any) -> Callable:
    """Value, and gradients by so many of the arguments, which may be shapes and types."""
    function = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(sides))))
    return function.lower(*given).compile()


def scaling(settings: Settings) -> Iterator[Record]:
    """Uniform and contrastive from few points to a million: value and gradient, d = 128."""
    sizes = settings.of((1024, 4096, 16_384, 65_536, 262_144, 1_000_000), (64, 96))
    dim, dense = settings.of((128, 16_384), (16, 64))
    best = settings.measured_peaks()
    torch = importlib.util.find_spec("torch") is not None
    for n, name in itertools.product(sizes, LOSSES):
        loss = loss_forms.LOSSES[name]
        arrays = loss_forms.unit_vectors(loss.inputs, n, dim)
        given = jax.block_until_ready(jax.device_put(arrays))
        limits: dict[str, float] = _limits(name, n, dim, best)
        others = [loss_forms.TORCH] if torch and n <= dense else []
        for form in (*limits, *others):
            named = {"loss": name, "n": n, "form": form}
            needed, left = limits.get(form, 0.0), settings.left
            if needed > left:
                why = f"needs {needed:.0f} s by the roofline, and {left:.0f} s are left"
                yield named | {"skipped": why}
                continue
            if form == loss_forms.TORCH:
                call = loss_forms.make_form(loss, form, arrays)
            else:
                call = functools.partial(_called, _program(loss, form, given), given)
            long = needed > 1  # and is compiled
            times = take_turns({form: call}, 1 if long else 4, before=0 if long else 1)
            roofline_ms = 1e3 * needed if form in limits else None
            yield named | {"ms": 1e3 * median(times[form]), "roofline_ms": roofline_ms}


def _limits(name: str, n: int, dim: int, best: roofline.Peaks) -> dict[str, float]:
    """Seconds of each form, at least. Where `"high"` is one kernel, it is there by blocks too."""
    limits = {how: _limit(name, n, dim, best, how) for how in ("high", "highest")}
    x = jax.ShapeDtypeStruct((n, dim), np.float32)
    if jax.default_backend() == "gpu" and fused.serves(x, x):
        limits[BY_BLOCKS] = limits["high"]
        limits["high"] = KERNEL[name] * 3 * 2 * n * n * dim / best.of("bfloat16")
    return limits


def _limit(name: str, n: int, dim: int, best: roofline.Peaks, precision: str) -> float:
    """Of the products, or of logits that are written once and read twice in each pass."""
    loss = loss_forms.LOSSES[name]
    passes = {1.5: 0.5, 4: 2}[loss.linear]  # uniformity has one, over half of the pairs
    flops = loss.flops(loss_forms.OURS, n, dim)
    return best.seconds(flops, 3 * 4 * n * n * passes, best.of_precision(precision))


def _program(loss: loss_forms.Loss, form: str, given: Any) -> Callable:
    precision = "high" if form == BY_BLOCKS else form
    ours = functools.partial(loss.ours, precision=precision)
    jax.clear_caches()  # JAX keeps what it traced of a loss, of the other form too
    with mock.patch.object(fused, "serves", _never) if form == BY_BLOCKS else nullcontext():
        return _compiled(ours, loss.learned, given)


def _never(*points: Any) -> bool:
    return False


def _called(program: Callable, given: Any) -> Any:
    return jax.block_until_ready(program(*given))


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
        images = random_images(settings.of(4096, 16), side, channels)[0]
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


def random_images(n: int, side: int, channels: int, classes: int = 1) -> tuple:
    """uint8 `[n, side, side, channels]`, and labels that their brightness tells."""
    rng = np.random.default_rng(0)
    labels = np.arange(n, dtype=np.int32) % classes
    noise = rng.integers(0, 256 // classes, (n, side, side, channels))
    return np.uint8(noise + (256 // classes * labels)[:, None, None, None]), labels


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
