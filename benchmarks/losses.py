"""The losses, value and gradient: time, share of the matrix product's speed, and peak memory."""

import importlib.metadata
import importlib.util
import os
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from benchmarks.loss_forms import DENSE, LOSSES, OURS, TORCH, Loss, make_form, unit_vectors
from benchmarks.timing import child, median, product, protocol, ratio, take_turns
from hypersphere_jax.configs import UserError
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.utils.files import write_json

PRODUCT = "product"
SLOW_S = 20.0  # a form with slower calls gets one round
LIMIT = """
% of peak: of the measured speed of a matrix product, counting only the products that a form needs.
limit: the products that a form whose memory is linear in n needs, at that speed.
base: memory of the same process before its first call (imports and inputs).
""".strip()
COLUMNS = {
    "n": "n",
    "form": "form",
    "ms": "ms",
    "ratio": "× ours",
    "share": "% of peak",
    "limit_ms": "limit ms",
    "peak_mb": "peak MB",
    "base_mb": "base MB",
    "note": "note",
}


def scaling(
    sizes: tuple[int, ...],
    dim: int,
    losses: tuple[str, ...],
    rounds: int,
    dense_limit: int,
    memory: bool,
    out: Path,
) -> None:
    """Time value and gradient of the losses from small n to large; measure their peak memory."""
    from benchmarks.loss_figure import loss_scaling  # imports Matplotlib

    unknown = set(losses) - set(LOSSES)
    if unknown:
        raise UserError(f"no loss {', '.join(unknown)}: the losses are {', '.join(LOSSES)}")
    if min(sizes, default=0) < 2 or dim < 1 or rounds < 1:
        raise UserError("--sizes must be at least 2, --dim and --rounds at least 1")
    # The processes that measure memory share the accelerator with this one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Where something else runs too, PyTorch's threads wait for each other ten times as long when
    # they spin as when they sleep, and slow the other forms.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    torch = importlib.util.find_spec("torch") is not None
    if not torch:
        print("PyTorch is not installed: its forms are left out")
    side = 2048 if jax.default_backend() == "cpu" else 8192
    multiply = product(side)
    results = protocol(
        torch=importlib.metadata.version("torch") if torch else None,
        d=dim,
        rounds=rounds,
        dense_limit=dense_limit,
        product_side=side,
    )
    records = results["records"] = []
    for name in losses:
        title = f"{name}, value and gradient, d = {dim}, {results['device']}"
        of_loss = []
        for n in sizes:
            began = time.perf_counter()
            forms = [OURS, *([DENSE, TORCH] if torch else [DENSE])] if n <= dense_limit else [OURS]
            new = measure(name, n, dim, forms, rounds, memory, multiply)
            of_loss += new
            records += new
            write_json(out / "losses.json", results)
            loss_scaling(title, of_loss, out / f"{name}.png")
            said = ", ".join(f"{r['form']} {_ms(r)}" for r in new)
            print(f"{name}, n = {n}: {said} ({time.perf_counter() - began:.0f} s)", flush=True)
        print()
        print_table(list(COLUMNS.values()), list(map(_row, of_loss)), title=title)
    print(f"{LIMIT}\nwritten: {out}")


def measure(
    name: str, n: int, dim: int, forms: Sequence[str], rounds: int, memory: bool, product: tuple
) -> list[dict]:
    """One record a form; a form whose process dies is not timed, and its record says why."""
    # Memory first: what dies of it dies alone.
    # In MB of 10^6 bytes, of the accelerator where there is one (`resident_mb` is then the host's).
    of = [child("benchmarks.loss_forms", name, form, n, dim) if memory else {} for form in forms]
    peaks = dict(zip(forms, of, strict=True))
    arrays = unit_vectors(LOSSES[name].inputs, n, dim)
    alive = [form for form in forms if "failure" not in peaks[form]]
    calls = {form: make_form(LOSSES[name], form, arrays) for form in alive}
    multiply, product_flops = product
    seconds = adaptive_rounds({**calls, PRODUCT: multiply}, rounds)
    times = {form: summary(LOSSES[name], form, n, dim, seconds, product_flops) for form in alive}
    labels = {"loss": name, "n": n, "d": dim}
    return [labels | {"form": form} | times.get(form, {}) | peaks[form] for form in forms]


def summary(
    loss: Loss, form: str, n: int, dim: int, seconds: Mapping[str, np.ndarray], product_flops: float
) -> dict:
    """What the rounds say of one form."""
    flops, limit_flops = loss.flops(form, n, dim), loss.flops(OURS, n, dim)
    return {
        "ms": 1e3 * median(seconds[form]),
        "ratio": ratio(seconds, form, OURS) if OURS in seconds else None,
        "share": flops / product_flops * ratio(seconds, PRODUCT, form),
        "limit_ms": 1e3 * limit_flops / product_flops * median(seconds[PRODUCT]),
        "seconds": seconds[form].tolist(),
        "product_seconds": seconds[PRODUCT].tolist(),
    }


def adaptive_rounds(calls: dict[str, Callable], rounds: int) -> dict[str, np.ndarray]:
    """`take_turns`, in which the forms that prove slow in the first round have no other."""
    seconds = take_turns(calls, 1)
    quick = {form: call for form, call in calls.items() if seconds[form][0] <= SLOW_S}
    if rounds > 1:
        for form, more in take_turns(quick, rounds - 1).items():
            seconds[form] = np.concatenate([seconds[form], more])
    return seconds


def _ms(record: Mapping) -> str:
    return f"{record['ms']:.4g} ms" if "ms" in record else f"- ({record['failure']})"


def _row(record: Mapping) -> list:
    """Of a table of 100 characters, so a failure is cut short; the JSON has all of it."""
    note = "1 round" if len(record.get("seconds", ())) == 1 else ""
    note = textwrap.shorten(record.get("failure", note), 24, placeholder="…")
    share = round(100 * record["share"]) if "share" in record else None
    shown = {**record, "note": note, "share": share}
    return [shown.get(key) for key in COLUMNS]
