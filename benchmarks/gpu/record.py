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

    minutes: float = 8  # Time limit. The results contain all measurements until then.
    out: Path = Path("runs/gpu")  # Folder of the results
    toy: bool = False  # Run at toy size on a CPU


class Record:
    """Rows of measurements, written to `OUT/NAME-CARD.json` whenever one is added."""

    def __init__(self, name: str, check: Check):
        options = dataclasses.asdict(check)
        options.pop("data_dir", None)
        kind = jax.devices()[0].device_kind
        model = re.search(r"\b[A-Z]+\d+[A-Z]*\b", kind)  # e.g. H100
        card = model[0] if model else kind
        self.path = options.pop("out") / f"{name}-{card.lower().replace(' ', '-')}.json"
        self.started = time.monotonic()
        self.limit = 60 * check.minutes
        self.rows: list[dict[str, Any]] = []
        installed = {package.name: package.version for package in metadata.distributions()}
        self.results = {
            "check": name,
            "options": options,
            "commit": commit(),
            "device": kind,
            "python": sys.version.split()[0],
            "versions": {package: installed.get(package) for package in PACKAGES},
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
        print(", ".join(f"{key} {format_value(value)}" for key, value in row.items()), flush=True)

    def measure(
        self, labels: dict, function: Callable[..., dict], *arguments: Any, **options: Any
    ) -> None:
        """Add a row with the result of a function, or with its error, and continue."""
        try:
            row = function(*arguments, **options)
        except Exception as error:
            row = {"failure": f"{type(error).__name__}: {error}"[:300]}
        self.add(**labels, **row)

    def finish(self, title: str, *columns: str) -> None:
        """Print a table of the rows that have the last of these columns, or a failure."""
        rows = [row for row in self.rows if row.keys() & {columns[-1], "failure"}]
        if any("failure" in row for row in rows):
            columns += ("failure",)
        print()
        print_table(columns, [[row.get(name) for name in columns] for row in rows], title=title)
        print(f"written: {self.path}", flush=True)


def commit() -> str | None:
    """Return the commit of this clone, or COMMIT of the environment."""
    if "COMMIT" in os.environ or shutil.which("git") is None:
        return os.environ.get("COMMIT")
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
