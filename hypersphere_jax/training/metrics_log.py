"""The log of a run: metrics.jsonl, and the same for TensorBoard and Weights & Biases."""

import contextlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any

from hypersphere_jax.configs import PretrainConfig, UserError, to_dict
from hypersphere_jax.extras import how_to_install
from hypersphere_jax.files import atomic_write

logger = logging.getLogger("hypersphere_jax")


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The records of metrics.jsonl by their steps, of each step the last one.

    What is no record is left out, with a warning; a last line that a kill cut short without one.
    """
    file = folder / "metrics.jsonl"
    records, broken = {}, 0
    for line in file.read_bytes().splitlines(keepends=True) if file.is_file() else []:
        with contextlib.suppress(ValueError, RecursionError, AttributeError, KeyError):
            record = json.loads(line)
            is_record = all(map(_is_value, record.values()))
            if is_record and isinstance(record["step"], int) and record["step"] >= 0:
                records[record["step"]] = record
                continue
        broken += line.endswith(b"\n")
    if broken:
        logger.warning("%s: %d lines are no records, and left out", file, broken)
    return [records[step] for step in sorted(records)]


def _is_value(x: Any) -> bool:
    return type(x) in (float, NoneType) or (type(x) is int and abs(x) < 2**63)


class MetricsWriter:
    """Appends to metrics.jsonl and to TensorBoard's files, both cut back to `step` on resuming.

    Args:
      folder: of the run.
      step: from which the run goes on.
      config: of the run, which says whether metrics go to Weights & Biases, too.

    Raises:
      UserError: when it should, and cannot.
    """

    def __init__(self, folder: Path, step: int, config: PretrainConfig):
        # Imported here, as evaluation does without. Not its SummaryWriter: that one writes from a
        # thread, which dies on a full disk, and the run would wait for it for ever.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        wandb = config.log_to == "wandb"
        self._wandb = WandbRun(folder, config) if wandb else None
        kept = [record for record in read_metrics(folder) if record["step"] <= step]
        last = kept[-1]["step"] if kept else 0
        if step - last >= config.log_every_steps:
            lost = "%s/metrics.jsonl has no lines of steps %d to %d any more"
            logger.warning(lost, folder, last + 1, step)
        lines = [f"{json.dumps(record)}\n".encode() for record in kept]
        with atomic_write(folder / "metrics.jsonl") as file:
            file.writelines(lines)
        self.last = kept[-1] if kept else {}
        self._end = sum(map(len, lines[:-1]))  # end of the line before the last one
        self._file = open(folder / "metrics.jsonl", "r+b")  # noqa: SIM115  closed in `close`
        suffix = f".{os.getpid()}-{step}"  # two may begin in one second
        self._events = EventsWriter(str(folder / "events"), filename_suffix=suffix)
        self._event, self._summary, self._flushed = Event, Summary, time.monotonic()
        if step:
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(step=step + 1, session_log=start))

    def write(self, record: dict[str, float]) -> None:
        """Adds a line; it is on disk when this returns, in TensorBoard's files within seconds."""
        self._end = self._file.seek(0, os.SEEK_END)
        self._write(record, record.keys() - {"step"})

    def extend(self, values: dict[str, float]) -> dict[str, float]:
        """Adds values to the last line, and returns its record."""
        new = values.keys() - self.last.keys()
        self._write(self.last | values, new)
        return self.last

    def _write(self, record: dict[str, float], new: Iterable[str]) -> None:
        """Writes the last line, in place: a longer one is there before or after, never a part."""
        self._file.seek(self._end)
        self._file.write(f"{json.dumps(record)}\n".encode())
        self._file.flush()
        self.last = record
        summary = self._summary()
        for name in new:
            summary.value.add(tag=name, simple_value=record[name])
        event = self._event(wall_time=time.time(), step=record["step"], summary=summary)
        self._events.write_event(event)
        if self._wandb is not None:
            self._wandb.write(record)
        if time.monotonic() - self._flushed > 5:
            self._events.flush()
            self._flushed = time.monotonic()

    def close(self, failed: bool = False) -> None:
        """Closes the files; raises OSError when the disk is full.

        Args:
          failed: whether an error ended the run, for Weights & Biases.
        """
        if self._wandb is not None:
            self._wandb.close(failed)
        with contextlib.closing(self._events):
            self._file.close()


class WandbRun:
    """A run of Weights & Biases: begun with the first session of a run, continued by the others.

    Its id is kept in the run's folder. Project, entity and mode are those of wandb's environment
    variables, such as WANDB_PROJECT and WANDB_MODE=offline.
    """

    def __init__(self, folder: Path, config: PretrainConfig):
        try:
            import wandb
        except ModuleNotFoundError as error:
            how = how_to_install("wandb")
            raise UserError(f"log_to=wandb needs wandb, which is not installed: {how}") from error
        file = folder / "wandb_id.txt"
        if not file.is_file() or re.fullmatch(rb"\w+\s*", file.read_bytes()) is None:
            with atomic_write(file) as out:
                out.write(secrets.token_hex(4).encode())
        try:
            self._run: Any = wandb.init(
                id=file.read_text().strip(),
                resume="allow",
                name=config.name,
                project=os.environ.get("WANDB_PROJECT", "hypersphere-jax"),
                dir=folder,
                config=to_dict(config),
                reinit="create_new",  # runs in one program have one each
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"log_to=wandb: {reason}; or set WANDB_MODE=offline") from error
        self._done = self._run.step  # of a continued run wandb has steps that are done again

    def write(self, record: dict[str, float]) -> None:
        """Adds a record, unless it is of a step that is there."""
        if record["step"] >= self._done:
            self._run.log(record, step=record["step"])

    def close(self, failed: bool) -> None:
        """Waits until all is sent."""
        self._run.finish(exit_code=int(failed))
