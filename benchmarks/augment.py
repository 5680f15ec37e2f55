"""Augmentation: images a second, beside the same recipe in Pillow and NumPy, and its memory."""

import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jax
import numpy as np
import PIL

from benchmarks.augment_pillow import PILLOW, pillow_views
from benchmarks.timing import Times, median, protocol, ratio, take_turns
from hypersphere_jax.augment import RECIPES, Recipe, make_augment, two_views
from hypersphere_jax.configs import UserError
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.utils.files import write_json

OURS, PILLOWS = "ours", "Pillow"
ROUND_S = 0.3  # short calls are repeated until a round takes this long
NOTE = """
us of a core: processor time of the whole process, threads and all, for one view; × ours: the
median over the rounds of its ratio. Pillow runs in one thread.
share: of the time that the recipe takes, how much is saved by leaving the operation out.
""".strip()


def augment(
    recipe: str, sizes: tuple[int, ...], images: int, rounds: int, epoch: int, out: Path
) -> None:
    """Time a recipe against the same one in Pillow and NumPy, and see whether memory grows."""
    if recipe not in RECIPES:
        raise UserError(f"no recipe {recipe!r}: the recipes are {', '.join(RECIPES)}")
    foreign = [name for name, _ in RECIPES[recipe].train if name not in PILLOW]
    if foreign:
        raise UserError(f"--recipe {recipe}: {', '.join(foreign)} is not written in Pillow")
    if min(sizes, default=0) < 8 or min(images, rounds, epoch) < 1:
        raise UserError("--sizes must be at least 8, --images, --rounds and --epoch at least 1")
    settings = {"recipe": recipe, "images": images, "rounds": rounds, "epoch": epoch}
    results = protocol(pillow=PIL.__version__, **settings, records=[])
    for size in sizes:
        record = measure(RECIPES[recipe], size, images, rounds, epoch)
        results["records"].append(record)
        write_json(out / "augment.json", results)
        print()
        _print(record, f"{recipe}, {size} pixels, {images} images, {results['device']}")
    print(f"{NOTE}\nwritten: {out / 'augment.json'}")


def measure(recipe: Recipe, size: int, images: int, rounds: int, epoch: int) -> dict:
    """Speed of a recipe's train part and of Pillow's, the share of each operation, and memory."""
    batch = np.random.default_rng(0).integers(0, 256, (images, size, size, 3), np.uint8)
    calls = {OURS: _ours(recipe, size, batch)}
    memory = memory_over(calls[OURS], math.ceil(epoch / images))
    names = [name for name, _ in recipe.train if name != "rgb"]  # which passes images in colour
    for left_out in names:
        less = Recipe(tuple(step for step in recipe.train if step[0] != left_out), ())
        calls[left_out] = _ours(less, size, batch)
    rng = np.random.default_rng(1)
    calls[PILLOWS] = lambda: [pillow_views(rng, recipe.train, size, batch) for _ in range(2)]
    on_cpu = jax.default_backend() == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    spent = rounds_of(calls, rounds, clock)
    both, views = (OURS, PILLOWS), 2 * images
    return {
        "size": size,
        "clock": "processor" if on_cpu else "wall",
        "us": {form: 1e6 * median(spent[form]) / views for form in both},
        "ratio": ratio(spent, PILLOWS, OURS),
        "share": {name: 1 - ratio(spent, name, OURS) for name in names},
        "seconds": {form: seconds.tolist() for form, seconds in spent.items()},
        **memory,
    }


def _ours(recipe: Recipe, size: int, batch: np.ndarray) -> Callable:
    views = jax.jit(partial(two_views, make_augment(recipe, size)))
    arguments = jax.device_put((jax.random.key(0), batch, np.arange(len(batch))))
    return lambda: jax.block_until_ready(views(*arguments))


def rounds_of(calls: Mapping[str, Callable], rounds: int, clock: Callable[[], float]) -> Times:
    """Seconds of a call of each form in each round; short calls are repeated within one."""
    repeats = {}
    for form, call in calls.items():
        call()  # compiles
        began = time.perf_counter()
        call()
        repeats[form] = math.ceil(ROUND_S / (time.perf_counter() - began))

    def repeated(form):
        for _ in range(repeats[form]):
            calls[form]()

    times = take_turns({form: partial(repeated, form) for form in calls}, rounds, clock)
    return {form: seconds / repeats[form] for form, seconds in times.items()}


def memory_over(call: Callable, calls: int) -> dict:
    """MB (of 10^6 bytes) that the process and the accelerator hold before and after many calls.

    And after half of them: at first the allocator may still take what it then keeps.
    """
    call()
    held = {"calls": calls, "before_mb": _held()}
    for number in range(calls):
        call()
        if number == (calls - 1) // 2:
            held["half_mb"] = _held()
    return held | {"after_mb": _held()}


def _held() -> dict:
    statm, device = Path("/proc/self/statm"), jax.devices()[0].memory_stats() or {}
    pages = int(statm.read_text().split()[1]) if statm.exists() else None
    held = {
        "resident": pages and pages * os.sysconf("SC_PAGE_SIZE"),
        "device": device.get("bytes_in_use"),
        "device_peak": device.get("peak_bytes_in_use"),
    }
    return {what: size and size / 1e6 for what, size in held.items()}


def _print(record: Mapping, title: str) -> None:
    of_core = " of a core" if record["clock"] == "processor" else ""
    rows = [
        [form, record["us"][form], 1e6 / record["us"][form], times]
        for form, times in ((OURS, 1.0), (PILLOWS, record["ratio"]))
    ]
    print_table(["form", f"us{of_core} a view", f"views/s{of_core}", "× ours"], rows, title=title)
    shares = sorted(record["share"].items(), key=lambda item: -item[1])
    print_table(["operation", "share"], [[name, f"{share:.0%}"] for name, share in shares])
    held = [
        [what, *(record[when][what] for when in ("before_mb", "half_mb", "after_mb"))]
        for what, after in record["after_mb"].items()
        if after is not None
    ]
    print_table(["memory", "MB before", "after half", f"after {record['calls']} batches"], held)
