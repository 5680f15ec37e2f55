"""The log of a run: metrics.jsonl, and the same for TensorBoard."""

import contextlib
import json
import os
import time
from pathlib import Path

from hypersphere_jax.files import atomic_write


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The records of metrics.jsonl; a line that was cut short by a kill is left out."""
    file = folder / "metrics.jsonl"
    records = []
    for line in file.read_bytes().splitlines() if file.is_file() else []:
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict) and "step" in record]


class MetricsWriter:
    """Appends to metrics.jsonl and to TensorBoard's files, both cut back to `step` on resuming."""

    def __init__(self, folder: Path, step: int):
        # Imported here, as evaluation does without. Not its SummaryWriter: that one writes from a
        # thread, which dies on a full disk, and the run would wait for it for ever.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

        kept = [record for record in read_metrics(folder) if record["step"] <= step]
        with atomic_write(folder / "metrics.jsonl") as file:
            file.writelines((json.dumps(record) + "\n").encode() for record in kept)
        self._file = open(folder / "metrics.jsonl", "a")  # noqa: SIM115  closed in `close`
        self._events = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}")
        self._event, self._scalar, self._flushed = Event, scalar, time.monotonic()
        if step:
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(step=step + 1, session_log=start))

    def write(self, record: dict[str, float]) -> None:
        """Adds a line; it is on disk when this returns, in TensorBoard's files within seconds."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        for name, value in record.items():
            if name != "step":
                summary = self._scalar(name, value)
                event = self._event(wall_time=time.time(), step=record["step"], summary=summary)
                self._events.write_event(event)
        if time.monotonic() - self._flushed > 5:
            self._events.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Closes the files; raises OSError when the disk is full."""
        with contextlib.closing(self._events):
            self._file.close()
