"""What many devices send each other and hold, read from the programs compiled for them.

`python -m benchmarks.scaling '{"devices": 8, …}'` is the process that compiles for one number of
virtual CPU devices; nothing is run, so a laptop compiles for hundreds.
"""

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import roofline
from benchmarks.collectives import RECEIVED, traffic
from benchmarks.timing import child, protocol
from hypersphere_jax import align_loss, augment, contrastive_loss, models, uniform_loss
from hypersphere_jax.configs import ModelConfig, ObjectiveConfig, OptimizerConfig, UserError
from hypersphere_jax.moco import queue_init, shuffle
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import distributed
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import (
    Momentum,
    init_state,
    make_moco_step,
    make_queue_objective,
    make_step,
)
from hypersphere_jax.utils import xla
from hypersphere_jax.utils.files import write_json

FORMS = {"gathered": False, "ring": True}
OPTIMIZER = make_optimizer(OptimizerConfig(), make_schedule(OptimizerConfig(), 1000))
STEP, MOCO = "step", "MoCo step"
# What is sent of a key's sample when it goes to another device: "resident" data's number.
SENT = {"images": False, "numbers": True}
QUEUE = 65536  # keys, as in MoCo's and Wang & Isola's ImageNet runs
AT_PEAK = 0.4  # of a chip's peak that convolutions are assumed to reach


class Link(NamedTuple):
    """Nominal figures of an interconnect and the chips on it, in one direction."""

    devices: int  # that it joins at most
    bytes_s: float  # into a device, from all others
    neighbour_bytes_s: float  # into a device, from one other
    chip: str
    peak_flops_s: float  # of the chip, in bfloat16 without sparsity


LINKS = {
    "NVLink 4": Link(8, 450e9, 450e9, "H100", 989e12),
    "InfiniBand 400 Gb/s": Link(4096, 50e9, 50e9, "H100", 989e12),
    "PCIe 4.0 x16": Link(8, 32e9, 32e9, "A100", 312e12),
    "InfiniBand 100 Gb/s": Link(4096, 12.5e9, 12.5e9, "A100", 312e12),
    "ICI of TPU v4": Link(4096, 300e9, 50e9, "TPU v4", 275e12),
    "ICI of TPU v5e": Link(256, 200e9, 50e9, "TPU v5e", 197e12),
}


def scaling(
    devices: tuple[int, ...],
    batch_per_device: int,
    dim: int,
    model: str,
    image_size: int,
    step: bool,
    out: Path,
) -> None:
    """Count what devices send each other and hold, in programs compiled for 1 to 256 of them."""
    if min(devices, default=0) < 1 or batch_per_device < 2:
        raise UserError("--devices must be at least 1, --batch-per-device at least 2")
    settings = {"batch_per_device": batch_per_device, "dim": dim, "model": model}
    settings |= {"image_size": image_size, "step": step}
    records: list[dict] = []
    for count in devices:
        began = time.perf_counter()
        options = json.dumps({"devices": count, **settings})
        compiled = child("benchmarks.scaling", options, JAX_PLATFORMS="cpu")
        if "failure" in compiled:
            raise UserError(f"compiling for {count} devices failed: {compiled['failure']}")
        records += compiled
        write_json(out / "scaling.json", protocol(**settings, records=records))
        print(f"{count} devices: {time.perf_counter() - began:.0f} s", flush=True)
    for what in dict.fromkeys(record["what"] for record in records):
        _print_counts(what, [record for record in records if record["what"] == what])
    if step:
        _print_predictions([record for record in records if record["what"] == STEP])
    print(f"written: {out}")


def compiled_records(
    devices: int, batch_per_device: int, dim: int, model: str, image_size: int, step: bool
) -> list[dict]:
    """One record for each program and form; this process must have that many devices."""
    losses = {"align+uniform": _align_uniform_loss, "contrastive": contrastive_loss}
    features = (jax.ShapeDtypeStruct((batch_per_device, dim), jnp.float32),) * 2
    images = jax.ShapeDtypeStruct((batch_per_device, image_size, image_size, 3), jnp.uint8)
    integers = jax.ShapeDtypeStruct((batch_per_device,), jnp.int32)
    batch = images, integers, integers, jax.eval_shape(jax.random.key, 0)
    records = []

    def add(what: str, form: str, program: Callable, arguments: Sequence, **more) -> None:
        record = compiled_record(program, arguments, devices, **more)
        records.append({"what": what, "form": form, **record})

    for form, ring in FORMS.items():
        for what, loss in losses.items():
            of_one = functools.partial(loss, axis_name=distributed.AXIS, ring=ring)
            add(what, form, jax.value_and_grad(of_one, argnums=(0, 1)), features)
        if step:
            program, state = _step(dim, model, image_size, ring)
            add(STEP, form, program, (state, *batch), donate=(0,))
            records[-1]["parameters"] = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    for form, resident in SENT.items() if step else ():
        program, state = _moco_step(dim, model, image_size, resident, shuffled=devices > 1)
        add(MOCO, form, program, (state, *batch), donate=(0,))
    return records


def compiled_record(
    program: Callable, arguments: Sequence[Any], devices: int, donate: Sequence[int] = ()
) -> dict:
    """Traffic, memory and FLOP of a device, of a program compiled for many and not run.

    `program` knows the axis by its name, `arguments` are the shapes on one device. Results in place
    of donated arguments do not count.
    """
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((devices, *x.shape), x.dtype), arguments)
    with roofline.plain_convolutions():
        lowered = distributed.pmap(program, distributed.local_devices(devices), donate).lower(*many)
    compiled = lowered.compile()
    memory, sent = compiled.memory_analysis(), traffic(compiled.as_text(), devices)
    return {
        "devices": devices,
        "collectives": {kind: through._asdict() for kind, through in sent.items()},
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "flops": lowered.cost_analysis()["flops"],
    }


def predicted(link: Link, gathered: Mapping, ring: Mapping) -> dict[str, float]:
    """Seconds of a step's parts, from the records of its two forms: bytes over bandwidth."""

    def seconds(record, kind):
        bandwidth = link.neighbour_bytes_s if kind == "collective-permute" else link.bytes_s
        return record["collectives"].get(kind, {"received": 0})["received"] / bandwidth

    reduced = seconds(gathered, "all-reduce")
    return {
        "compute": gathered["flops"] / (AT_PEAK * link.peak_flops_s),
        "gradients": reduced,
        "gathered": sum(seconds(gathered, kind) for kind in RECEIVED) - reduced,
        "ring": sum(seconds(ring, kind) for kind in RECEIVED) - seconds(ring, "all-reduce"),
    }


def _align_uniform_loss(x: jax.Array, y: jax.Array, *, axis_name: str, ring: bool) -> jax.Array:
    apart = [uniform_loss(side, axis_name=axis_name, ring=ring) for side in (x, y)]
    return align_loss(x, y, axis_name=axis_name) + sum(apart) / 2


def _step(dim: int, model: str, image_size: int, ring: bool) -> tuple[Callable, Any]:
    """The step of training on batches that stream, and the shapes of its state."""
    config = ModelConfig(model, dim=dim, image_size=image_size, in_channels=3)
    apply, params, stats = models.abstract(config)

    def objective(view1, view2, labels, axis_name, key):
        del labels, key
        x, y = view1["output"], view2["output"]
        return _align_uniform_loss(x, y, axis_name=axis_name, ring=ring), {}

    transform = augment.make_augment("stl10", image_size)
    program = make_step(apply, objective, OPTIMIZER, transform, axis_name=distributed.AXIS)
    start = functools.partial(init_state, optimizer=OPTIMIZER)
    return program, jax.eval_shape(start, params, stats)


def _moco_step(
    dim: int, model: str, image_size: int, resident: bool, shuffled: bool
) -> tuple[Callable, Any]:
    """The step with a queue and the batch norm of each device, and the shapes of its state."""
    config = ModelConfig(model, dim=dim, image_size=image_size, in_channels=3, batch_norm="local")
    apply, params, stats = models.abstract(config)
    transform = augment.make_augment("moco", image_size)
    objective = make_queue_objective(ObjectiveConfig())
    deal = functools.partial(shuffle, axis_name=distributed.AXIS) if shuffled else None
    of = {"axis_name": distributed.AXIS, "separate": deal, "resident": resident}
    program = make_moco_step(apply, objective, OPTIMIZER, transform, **of)

    def start(params, stats):
        momentum = Momentum(params, stats, queue_init(jax.random.key(0), QUEUE, dim))
        return init_state(params, stats, OPTIMIZER)._replace(momentum=momentum)

    return program, jax.eval_shape(start, params, stats)


def _print_counts(what: str, records: Sequence[Mapping]) -> None:
    kinds = sorted({kind for record in records for kind in record["collectives"]})
    rows = []
    for record in sorted(records, key=lambda record: record["form"]):
        sent = record["collectives"]
        through = [sent[kind]["received"] / 1e6 if kind in sent else None for kind in kinds]
        held = [record[f"{part}_bytes"] / 1e6 for part in ("argument", "output", "temporary")]
        number = sum(collective["count"] for collective in sent.values())
        rows.append([record["form"], record["devices"], number, *through, *held])
    columns = ["form", "devices", "collectives", *kinds, "arguments", "results", "temporaries"]
    print()
    title = f"{what}: MB (10^6 bytes) that each device receives by each collective, and holds"
    print_table(columns, rows, title=title)


def _print_predictions(records: Sequence[Mapping]) -> None:
    rows = []
    by_form = {(record["form"], record["devices"]): record for record in records}
    for name, link in LINKS.items():
        for count in sorted({record["devices"] for record in records}):
            if 1 < count <= link.devices:
                forms = [by_form[form, count] for form in FORMS]
                ms = {part: 1e3 * s for part, s in predicted(link, *forms).items()}
                share = ms["compute"] / (ms["compute"] + ms["gradients"] + ms["gathered"])
                rows.append([name, link.chip, count, *ms.values(), round(100 * share)])
    columns = ["interconnect", "chip", "devices", "compute ms", "all-reduce ms"]
    columns += ["features gathered ms", "by ring ms", "% computing"]
    print()
    title = f"step, predicted: bytes over nominal bandwidth, flops over {AT_PEAK:.0%} of the peak"
    print_table(columns, rows, title=title)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    xla.use_virtual_cpu_devices(settings["devices"])
    print(json.dumps(compiled_records(**settings)))
