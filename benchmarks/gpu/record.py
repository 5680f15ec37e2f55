"""Results of one GPU check: a JSON file that is complete after every measurement."""

import atexit
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks.timing import ROOT
from hypersphere_jax.reporting.tables import format_value, print_table
from hypersphere_jax.utils.files import write_json

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "torch")


class Record:
    """Rows of measurements, written to `OUT/NAME-CARD.json` whenever one is added.

    Attributes:
      ends_process: whether the process ends at the time limit, whatever it is doing. The command
        line sets it; the rows are in the file by then.

    Args:
      name: name of the check.
      out: folder of the file.
      minutes: time limit; `seconds_left` counts down from it.
      options: all other options of the check, stored in the file.
    """

    ends_process = False

    def __init__(self, name: str, out: Path, minutes: float, **options: Any):
        self.started = time.monotonic()
        self.limit = 60 * minutes
        self.rows: list[dict[str, Any]] = []
        self.results = {
            "check": name,
            "options": {"minutes": minutes, **options},
            "commit": os.environ.get("COMMIT") or _commit(),
            "device": jax.devices()[0].device_kind,
            "python": sys.version.split()[0],
            "versions": {package: _version(package) for package in PACKAGES},
            "cores": os.cpu_count(),
            "seconds": 0.0,
            "rows": self.rows,
        }
        self.path = out / f"{name}-{card()}.json"
        self.save()
        self.runs_dir = tempfile.mkdtemp(prefix="gpu-check-")
        atexit.register(shutil.rmtree, self.runs_dir, ignore_errors=True)
        self._timer = threading.Timer(self.limit, self._end)
        self._timer.daemon = True
        if self.ends_process:
            self._timer.start()

    @property
    def seconds_left(self) -> float:
        return self.limit - (time.monotonic() - self.started)

    def add(self, **row: Any) -> None:
        """Add a row, print it and write the file."""
        self.rows.append(row)
        self.save()
        shown = [f"{key} {format_value(value)}" for key, value in row.items() if value is not None]
        print(", ".join(shown), flush=True)

    def save(self) -> None:
        self.results["seconds"] = round(time.monotonic() - self.started, 1)
        write_json(self.path, self.results)

    def finish(self, title: str, columns: tuple[str, ...], rows: list[dict] | None = None) -> None:
        """Print a table of all rows, or of some, and stop the clock."""
        self._timer.cancel()
        rows = self.rows if rows is None else rows
        print()
        print_table(columns, [[row.get(column) for column in columns] for row in rows], title=title)
        print(f"written: {self.path}", flush=True)

    def _end(self) -> None:
        print(f"time limit; results so far: {self.path}", flush=True)
        os._exit(1)


def card() -> str:
    """Return a short name of the device, e.g. `h100` or `cpu`."""
    kind = jax.devices()[0].device_kind
    model = re.search(r"\b[A-Z]+\d+[A-Z]*\b", kind)
    return (model[0] if model else kind).lower().replace(" ", "-")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
