"""Where the time of a training step goes: layer by layer, each beside the least that it could take.

The layers are those that the step itself calls, as a trace of it tells, so that one code measures
all networks.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks import roofline, train_step
from benchmarks.timing import device_kind, median, take_turns
from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, OptimizerConfig, require
from hypersphere_jax.losses import align_loss, l2_normalize, uniform_loss
from hypersphere_jax.models import resnet, small_alexnet
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.models.ops import MATRIX_PRODUCT, convolution, dot_general, max_pool
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule

LOSS, FORMS = "loss", ("value", "all")
COLUMNS = ["part", "times", "value", "all", "limit", "of step", "reached"]
NOTE = """
value, all, limit: ms; all is with gradients. /2: of stride 2.
of step: so many times, over the step, which overlaps and fuses some of its
parts, and has more: sums of residual blocks, activations but for ReLU.
limit: the FLOP at the speed of a matrix product, or what enters and leaves at
that of a copy, whichever takes longer. reached: the limit over the time.
""".strip()


class Part(NamedTuple):
    """A layer of a step, or its loss or optimizer."""

    name: str
    function: Callable[..., jax.Array]
    inputs: tuple[tuple[int, ...], ...]  # shapes, first of what comes from the layer before
    flops: float = 0.0  # of its product; the gradients of both factors take as much each
    first: int = 0  # number of the first input that has a gradient; images have none

    @property
    def forms(self) -> dict[str, Callable[[], Any]]:
        """The value, and it with its gradients."""
        keys = jax.random.split(jax.random.key(0), len(self.inputs))
        inputs = [jax.random.normal(*each) for each in zip(keys, self.inputs, strict=True)]
        fixed, moved = inputs[: self.first], inputs[self.first :]

        def value(moved):
            return self.function(*fixed, *moved)

        def both(moved, along):
            out, back = jax.vjp(value, moved)
            return out, back(along)

        programs = [jax.jit(form) for form in (value, both)]
        along = jnp.ones_like(programs[0](moved))
        given = (moved,), (moved, along)
        calls = zip(FORMS, programs, given, strict=True)
        return {
            form: functools.partial(_waited, program, *arguments)
            for form, program, arguments in calls
        }

    def limit(self, peaks: roofline.Peaks) -> float:
        """The least seconds of value and gradients."""
        out = jax.eval_shape(self.function, *map(_array, self.inputs))
        moved = self.inputs[self.first :]
        products = 1 + min(2, len(moved))  # a bias is no factor
        # The output is written, and its gradient read.
        numbers = sum(map(np.prod, (*self.inputs, *moved, out.shape, out.shape)))
        return peaks.seconds(products * self.flops, 4 * numbers, peaks.of_dtype("float32"))


def layers(
    model: str, batch_size: int, image_size: int, channels: int, width: float, rounds: int
) -> None:
    """Times each layer of a network, its loss and its optimizer, beside the least of each."""
    require(batch_size >= 2 and rounds >= 1, "--batch-size must be at least 2, --rounds 1")
    of = {"image_size": image_size, "in_channels": channels, "width": width}
    config = ModelConfig(model, dim=128, **of)  # type: ignore[arg-type]
    images = train_step.images_of(config, batch_size)
    begin = train_step.stepper(config, images, batch_size, "none")
    with recorded() as found:
        begin.lower()
    counts, parts = Counter(part.name for part in found), {}
    for part in (*found, _loss(batch_size, config.dim)):
        parts.setdefault(part.name, part)
    forms: dict[str, Callable[[], Any]] = {"step": lambda: jax.block_until_ready(begin())}
    for part in parts.values():
        forms |= {f"{part.name}: {form}": of for form, of in part.forms.items()}
    update, moved = _optimizer(config)
    times = take_turns(forms | {"optimizer": update}, rounds)
    peaks = roofline.measure(*roofline.sizes())
    seconds = {form: median(each) for form, each in times.items()}
    rows: list[list] = []
    for name, part in parts.items():
        took = (seconds[f"{name}: {form}"] for form in FORMS)
        rows.append([name, counts.get(name, 1), *took, part.limit(peaks)])
    rows.append(["optimizer", 1, None, seconds["optimizer"], moved / peaks.bytes_s])
    whole, title = seconds["step"], f"{model}, {batch_size} pairs of {image_size} pixels, "
    title += f"{device_kind()}, product {peaks.of_dtype('float32') / 1e9:.0f} GFLOP/s, "
    title += f"copy {peaks.bytes_s / 1e9:.0f} GB/s"
    print_table(COLUMNS, [*(_line(row, whole) for row in rows), *_sums(rows, whole)], title=title)
    print(NOTE)


def _line(row: list, whole: float) -> list:
    name, times, value, both, limit = row
    share, reached = f"{times * both / whole:.1%}", f"{limit / both:.0%}"
    ms = [None if each is None else f"{1e3 * each:.2f}" for each in (value, both, limit)]
    return [name, times, *ms, share, reached]


def _sums(rows: list[list], whole: float) -> list[list]:
    """All parts, and the step."""
    both, limit = (sum(row[1] * row[i] for row in rows) for i in (3, 4))
    lines = [["all parts", 1, None, both, limit], ["the step", 1, None, whole, limit]]
    return [_line(line, whole) for line in lines]


@contextlib.contextmanager
def recorded() -> Iterator[list[Part]]:
    """Will hold the layers of what is traced meanwhile, one for each call."""
    found: list[Part] = []

    def watched(original: Callable, part_of: Callable[..., Part]) -> Callable:
        def call(*arguments, **options):
            first = int(not found)
            found.append(part_of(*arguments, **options)._replace(first=first))
            return original(*arguments, **options)

        return call

    kinds: list[tuple[Any, str, Callable[..., Part]]] = [
        (nnx.Conv, "__call__", _convolution),
        (nnx.Linear, "__call__", _dense),
        (BatchNorm, "__call__", _norm),
        (small_alexnet, "max_pool", _pool),
        (resnet, "max_pool", _pool),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, part_of in kinds:
            watch = watched(getattr(owner, name), part_of)
            stack.enter_context(mock.patch.object(owner, name, watch))
        yield found


def _convolution(layer: nnx.Conv, x: jax.Array) -> Part:
    kernel, strides = layer.kernel[...].shape, layer.strides
    side, _, inputs, outputs = kernel
    steps = strides if isinstance(strides, tuple) else (strides, strides)
    window = tuple(steps), ((side // 2, side // 2),) * 2

    def function(x, kernel):
        return convolution(x, kernel, *window, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    pixels = -(-x.shape[1] // steps[0]) * -(-x.shape[2] // steps[1])
    stride = f" /{steps[0]}" * (steps[0] > 1)
    name = f"conv {side}x{side}{stride}, {inputs} to {outputs}, side {x.shape[1]}"
    return Part(name, function, (x.shape, kernel), 2.0 * len(x) * pixels * float(np.prod(kernel)))


def _dense(layer: nnx.Linear, x: jax.Array) -> Part:
    kernel = layer.kernel[...].shape
    bias = [] if layer.bias is None else [kernel[-1:]]

    def function(x, kernel, *bias):
        return dot_general(x, kernel, MATRIX_PRODUCT) + (bias[0][None] if bias else 0)

    name = f"dense, {kernel[0]} to {kernel[1]}" + ", bias" * len(bias)
    return Part(name, function, (x.shape, kernel, *bias), 2.0 * len(x) * float(np.prod(kernel)))


def _norm(layer: BatchNorm, x: jax.Array, train: bool, relu: bool = False) -> Part:
    features, plain = x.shape[-1], layer.bias is None

    def function(x, scale, *bias):
        module = BatchNorm(features, groups=layer.groups, use_bias=not plain)
        module.scale[...] = scale
        if bias:
            module.bias[...] = bias[0]
        return module(x, True, relu)

    sides = f", side {x.shape[1]}" if x.ndim == 4 else ""
    name = f"batch norm{' and ReLU' * relu}, {features}{', no bias' * plain}{sides}"
    return Part(name, function, (x.shape, *[(features,)] * (1 if plain else 2)))


def _pool(x: jax.Array, padding: int = 0) -> Part:
    name = f"maximum pool, {x.shape[-1]}, side {x.shape[1]}"
    return Part(name, lambda x: max_pool(x, padding), (x.shape,))


def _loss(batch_size: int, dim: int) -> Part:
    """Alignment and uniformity; half the entries of each view's n x n products are needed."""

    def function(x, y):
        x, y = l2_normalize(x), l2_normalize(y)
        return align_loss(x, y) + (uniform_loss(x) + uniform_loss(y)) / 2

    return Part(LOSS, function, ((batch_size, dim),) * 2, 2.0 * batch_size**2 * dim)


def _optimizer(config: ModelConfig) -> tuple[Callable[[], Any], float]:
    """A step of it, in place, and the bytes that it reads and writes."""
    optimizer = make_optimizer(OptimizerConfig(), make_schedule(OptimizerConfig(), 1000))
    _, params, _ = models.create(config, jax.random.key(0))
    gradient, state = jax.tree.map(jnp.ones_like, params), (params, optimizer.init(params))

    def step(state, gradient):
        params, inner = state
        change, inner = optimizer.update(gradient, inner, params)
        return optax.apply_updates(params, change), inner

    compiled = jax.jit(step, donate_argnums=0)

    def begin():
        nonlocal state
        state = jax.block_until_ready(compiled(state, gradient))

    whole, each = (sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (state, gradient))
    return begin, 2 * whole + each


def _waited(program: Callable, *arguments: Any) -> None:
    jax.block_until_ready(program(*arguments))


def _array(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
