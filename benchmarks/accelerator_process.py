"""The process of one part of `bench accelerator`.

`python -m benchmarks.accelerator_process NAME FILE SETTINGS` writes the part's records to FILE as
they come, and why it ended early.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import accelerator_parts, accelerator_runs
from benchmarks.accelerator_parts import Record, Settings, reason_of
from hypersphere_jax import signals
from hypersphere_jax.files import write_json
from hypersphere_jax.tables import text_of
from hypersphere_jax.training import sharding

PARTS: dict[str, Callable[[Settings], Iterator[Record]]] = {
    part.__name__: part
    for part in (
        accelerator_parts.versions,
        accelerator_parts.peaks,
        accelerator_parts.losses,
        accelerator_parts.precision,
        accelerator_parts.scaling,
        accelerator_parts.steps,
        accelerator_parts.encoders,
        accelerator_runs.resumption,
        accelerator_runs.cifar10,
    )
}


def main(name: str, file: str, settings: str) -> None:
    """One part, from its settings as JSON."""
    signals.end_with_parent(sys.stdin.fileno())
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
