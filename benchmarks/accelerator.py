"""All that an accelerator is asked, in one command and a given time: one JSON file and one page.

Each part is a process of its own, which has the device to itself: what fails, or takes longer than
its share of the time, ends alone, with its reason.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import ROOT
from hypersphere_jax import report
from hypersphere_jax.config import require
from hypersphere_jax.config.base import program
from hypersphere_jax.files import write_json

GRACE_S = 60.0  # after which a process that was asked to end is killed: it may save, and evaluate
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
QUICKLY_COMPILED = "--xla_backend_optimization_level=0"


class Part(NamedTuple):
    """What is measured, and how long it may take of 25 minutes."""

    title: str
    seconds: float
    note: str = ""


PARTS: dict[str, Part] = {
    "versions": Part("Versions", 30),
    "peaks": Part(
        "Peaks",
        45,
        "Products of two square matrices, and a copy in place (bytes read and written). bfloat16 "
        "x6 and x3: float32 ones by products of bfloat16 parts, as the losses have them.",
    ),
    "losses": Part(
        "Losses against float64",
        300,
        "tau = 0.005, d = 128; t and alpha are 1 / (2 tau) and 1 / tau. Errors of the value, "
        "relative where it is above 1, and of the gradient at 64 points, by its norm; float32: "
        "whether both are within 8 roundings of logits of that size.",
    ),
    "precision": Part(
        "Precision of the products",
        60,
        "The same errors at each precision of a loss's products, over tau.",
    ),
    "scaling": Part(
        "Uniform and contrastive loss from small n to large",
        240,
        "Value and gradient, d = 128. Roofline: of the products at the measured speed of such "
        "products, or of n x n logits that are written once and read twice in each pass.",
    ),
    "steps": Part(
        "Training steps",
        180,
        "The align+uniform step with its augmentation; ms: with many in flight; alone: waited for; "
        "host: until a step has begun. share: % of the measured product's speed (of float32: TF32 "
        "where there is that).",
    ),
    "encoders": Part(
        "Encoders under vmap",
        160,
        "A step of all encoders; single_ms: of one encoder, times their number; ratio: of both.",
    ),
    "resumption": Part(
        "Resumption to the bit", 90, "A run that is stopped and goes on, and one that is not."
    ),
    "cifar10": Part(
        "SimCLR on CIFAR-10",
        395,
        "ResNet-18 in bfloat16, SGD with a cosine; 5-NN and logistic regression on the backbone. "
        "Goal: under 10 minutes, 5-NN above 84%.",
    ),
}


def accelerator(
    parts: tuple[str, ...], minutes: float, data_dir: str | None, toy: bool, out: Path
) -> None:
    """Measure all that is asked of an accelerator, in one command; write one JSON and one page."""
    require(bool(parts), f"--parts: name at least one of {', '.join(PARTS)}")
    shares = {name: PARTS[name].seconds for name in parts}
    scale = 60 * minutes / sum(shares.values())
    results: dict[str, Any] = {
        "command": f"{program()} {' '.join(sys.argv[1:])}",
        "minutes": minutes,
        "toy": toy,
        "parts": {},
    }
    began, until = time.monotonic(), 0.0
    for name in shares:
        until += scale * shares[name]
        seconds = began + until - time.monotonic()
        print(f"{PARTS[name].title}: at most {seconds:.0f} s", flush=True)
        settings = {
            "toy": toy,
            "seconds": 0.9 * seconds,  # when it begins nothing more
            "out": str(out.resolve()),
            "data_dir": data_dir and str(Path(data_dir).expanduser().resolve()),
            "peaks": _peaks(results["parts"].get("peaks", {})),
        }
        file = (out / "parts" / f"{name}.json").resolve()
        command = [sys.executable, "-m", "benchmarks.accelerator_process", name, str(file)]
        result = run_part([*command, json.dumps(settings)], file, seconds, _environment(name, toy))
        results["parts"][name] = {"title": PARTS[name].title, "limit_s": seconds, **result}
        if "failure" in result:
            print(f"  failed: {result['failure']}", flush=True)
        write_json(out / "accelerator.json", results)
        write_page(out / "accelerator.html", results)
    print(f"written: {out / 'accelerator.json'}, {out / 'accelerator.html'}")
    failed = [name for name, part in results["parts"].items() if "failure" in part]
    require(not failed, f"{', '.join(failed)} did not end; the page says why, and has the others")


def run_part(
    command: Sequence[str], file: Path, seconds: float, environment: Mapping[str, str]
) -> dict[str, Any]:
    """What a process has written to the file when it ends, or is ended; and why it failed."""
    file.unlink(missing_ok=True)
    began = time.monotonic()
    # The process waits for the end of its standard input, which comes with the end of this one.
    options = {"cwd": ROOT, "env": os.environ | dict(environment)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, **options) as process:
        code, late = _ended(process, seconds)
    result = json.loads(file.read_text()) if file.is_file() else {"records": []}
    result.setdefault("seconds", time.monotonic() - began)
    if code and "failure" not in result:
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        why = f"stopped: more than its {seconds:.0f} s" if late else f"its process ended: {how}"
        result["failure"] = why
    return result


def _ended(process: subprocess.Popen, seconds: float) -> tuple[int, bool]:
    """Wait for a process; return its exit status, and whether it took too long."""
    late = False
    try:
        process.wait(max(1.0, seconds))
    except subprocess.TimeoutExpired:
        late = True
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    finally:
        if process.poll() is None and not late:  # Ctrl-C
            process.kill()
        process.wait()
    return process.returncode, late


def _environment(name: str, toy: bool) -> dict[str, str]:
    flags = [os.environ.get("XLA_FLAGS", "")]
    flags += [DETERMINISTIC] if name == "resumption" else []
    flags += [QUICKLY_COMPILED] if toy else []
    environment = {"XLA_FLAGS": " ".join(filter(None, flags))}
    if name == "scaling":  # PyTorch takes its memory beside JAX
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return environment


def _peaks(result: Mapping[str, Any]) -> list | None:
    """`roofline.Peaks` of the records of that part."""
    records = result.get("records", [])
    flops_s = {
        record["what"].removesuffix(" product"): 1e12 * record["tflop_s"]
        for record in records
        if "tflop_s" in record
    }
    copied = [1e12 * record["tb_s"] for record in records if "tb_s" in record]
    return [flops_s, *copied] if flops_s and copied else None


def write_page(path: Path, results: Mapping[str, Any]) -> None:
    """All parts, each with its table."""
    blocks: list[tuple] = [("command", results["command"])]
    for name, part in results["parts"].items():
        blocks += [
            ("heading", part["title"]),
            ("text", f"{part['seconds']:.0f} s. {PARTS[name].note}".strip()),
        ]
        records = part["records"]
        if name == "versions" and records:
            rows = [[key, value] for key, value in records[0].items()]
            blocks.append(("table", ["", "version"], rows))
        elif records:
            columns = list(dict.fromkeys(key for record in records for key in record))
            rows = [[record.get(column) for column in columns] for record in records]
            blocks.append(("table", [column.replace("_", " ") for column in columns], rows))
        if "failure" in part:
            blocks.append(("text", f"It did not end: {part['failure']}"))
    report.write_page(path, "Accelerator" + " (toy)" * results["toy"], blocks)
