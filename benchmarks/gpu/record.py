"""Options and results of a GPU check."""

import atexit
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from benchmarks.timing import ROOT
from hypersphere_jax.reporting.tables import format_value, print_table
from hypersphere_jax.utils.files import write_json

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "torch")


@dataclasses.dataclass
class Check:
    """Options of all checks."""

    minutes: float = 8
    """Time limit. The results contain all measurements until then."""
    out: Path = Path("runs/gpu")
    """Folder of the results."""
    toy: bool = False
    """Run at toy size on a CPU."""


class Record:
    """Rows of measurements, written to `OUT/NAME-CARD.json` whenever one is added."""

    def __init__(self, name: str, check: Check):
        options = dataclasses.asdict(check)
        self.path = options.pop("out") / f"{name}-{card()}.json"
        options.pop("data_dir", None)
        self.started = time.monotonic()
        self.limit = 60 * check.minutes
        self.rows: list[dict[str, Any]] = []
        self.results = {
            "check": name,
            "options": options,
            "commit": os.environ.get("COMMIT") or commit(),
            "device": jax.devices()[0].device_kind,
            "python": sys.version.split()[0],
            "versions": {package: version(package) for package in PACKAGES},
            "cores": os.cpu_count(),
        }
        self.save()
        self.runs_dir = tempfile.mkdtemp(prefix="gpu-check-")
        atexit.register(shutil.rmtree, self.runs_dir, ignore_errors=True)

    @property
    def seconds_left(self) -> float:
        return self.limit - (time.monotonic() - self.started)

    def save(self) -> None:
        seconds = round(time.monotonic() - self.started, 1)
        write_json(self.path, self.results | {"seconds": seconds, "rows": self.rows})

    def add(self, **row: Any) -> None:
        """Add a row, print it and write the file."""
        self.rows.append(row)
        self.save()
        shown = [f"{key} {format_value(value)}" for key, value in row.items() if value is not None]
        print(", ".join(shown), flush=True)

    def measure(self, labels: dict, function: Callable[..., dict], *arguments: Any) -> None:
        """Add a row with the result of a function, or with its error, and continue."""
        try:
            row = function(*arguments)
        except Exception as error:
            row = {"failure": f"{type(error).__name__}: {error}"[:300]}
        self.add(**labels, **row)

    def finish(self, title: str, *columns: str) -> None:
        """Print a table of the rows that have the last of these columns, or were left out."""
        causes = ("skipped", "failure")
        rows = [row for row in self.rows if row.keys() & {columns[-1], *causes}]
        columns += tuple(cause for cause in causes if any(cause in row for row in rows))
        print()
        print_table(columns, [[row.get(name) for name in columns] for row in rows], title=title)
        print(f"written: {self.path}", flush=True)


def card() -> str:
    """Return a short name of the device, e.g. `h100` or `cpu`."""
    kind = jax.devices()[0].device_kind
    model = re.search(r"\b[A-Z]+\d+[A-Z]*\b", kind)
    return (model[0] if model else kind).lower().replace(" ", "-")


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    if shutil.which("git") is None:
        return None
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
