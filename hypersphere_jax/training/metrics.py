"""Metrics of a run: metrics.jsonl, TensorBoard's event files, and Weights & Biases."""

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypersphere_jax.configs import PretrainConfig, UserError, to_dict
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.extras import how_to_install
from hypersphere_jax.utils.files import atomic_write

logger = logging.getLogger("hypersphere_jax")

Record = dict[str, Any]  # "step" and metrics by name
PER_SECOND = "_per_s"  # suffix of a throughput metric


def read_metrics(folder: Path) -> list[Record]:
    """Read the records of metrics.jsonl in the order of their steps, the last record of each step.

    Invalid lines are skipped with a warning. A killed session may leave an incomplete last line.
    """
    file = folder / "metrics.jsonl"
    if not file.is_file():
        return []
    parsed = [_parse(line) for line in file.read_bytes().split(b"\n")]
    if invalid := parsed[:-1].count(None):
        logger.warning("%s: %d invalid lines are left out", file, invalid)
    records = {record["step"]: record for record in parsed if record is not None}
    return [records[step] for step in sorted(records)]


def _parse(line: bytes) -> Record | None:
    """Return the record in a line, a JSON object of numbers with a step, or None."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    are_numbers = all(isinstance(value, int | float | None) for value in record.values())
    return record if are_numbers and record["step"] >= 0 else None


class MetricLogger:
    """Logs the metrics of one run; does nothing in processes but the first.

    A run that resumes removes the records after its first step.
    """

    def __init__(self, folder: Path, config: PretrainConfig, start: int):
        self.last: Record = {}
        self._outputs: list[Any] = []
        if not distributed.is_first():
            return
        records = [record for record in read_metrics(folder) if record["step"] <= start]
        if records:
            self.last = records[-1]
        if config.log_to == "wandb":
            self._outputs.append(WandbRun(folder, config))
        self._outputs += [JsonLines(folder / "metrics.jsonl", records), EventFile(folder, start)]

    def log(self, values: Record) -> None:
        """Log metrics of a new step, or further ones of the last step if `values` has no step."""
        self.last = values if "step" in values else self.last | values
        for output in self._outputs:
            output.write(self.last, values)

    def close(self, failed: bool = False) -> None:
        """Close the outputs; `failed` says whether an error ended the run."""
        outputs = self._outputs
        self._outputs = []
        with contextlib.ExitStack() as stack:
            for output in outputs:
                stack.callback(output.close, failed)


class JsonLines:
    """metrics.jsonl: one JSON object per line."""

    def __init__(self, path: Path, records: Iterable[Record]):
        lines = [_to_line(record) for record in records]
        with atomic_write(path) as file:
            file.writelines(lines)
        self._last_line = sum(map(len, lines[:-1]))  # its offset in the file
        self._file = open(path, "r+b")  # noqa: SIM115  closed in `close`

    def write(self, record: Record, values: Record) -> None:
        """Append a line, or replace the last one by a longer line of the same step in place."""
        if "step" in values:
            self._last_line = self._file.seek(0, os.SEEK_END)
        self._file.seek(self._last_line)
        self._file.write(_to_line(record))
        self._file.flush()

    def close(self, failed: bool) -> None:
        self._file.close()


def _to_line(record: Record) -> bytes:
    return f"{json.dumps(record)}\n".encode()


class EventFile:
    """TensorBoard's events of one session.

    tensorboardX's SummaryWriter is not used: its thread ends on a full disk, and the run would wait
    for the thread forever.
    """

    def __init__(self, folder: Path, start: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        # Two sessions may start within a second.
        suffix = f".{os.getpid()}-{start}"
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=suffix)
        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        if start:  # TensorBoard drops events of later steps
            session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(self._event(step=start + 1, session_log=session))

    def write(self, record: Record, values: Record) -> None:
        summary = self._summary()
        for name, value in values.items():
            if name != "step":
                summary.value.add(tag=name, simple_value=value)
        event = self._event(wall_time=time.time(), step=record["step"], summary=summary)
        self._writer.write_event(event)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases, which later sessions of the run resume by the id in its folder.

    wandb's environment variables set its project, entity and mode, such as WANDB_PROJECT and
    WANDB_MODE=offline.
    """

    def __init__(self, folder: Path, config: PretrainConfig):
        try:
            import wandb
        except ModuleNotFoundError as error:
            how = how_to_install("wandb")
            raise UserError(f"log_to=wandb needs wandb, which is not installed: {how}") from error
        file = folder / "wandb_id.txt"
        if not file.is_file():
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
                reinit="create_new",  # vmapped runs have one each
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"log_to=wandb: {reason}; or set WANDB_MODE=offline") from error
        self._done = self._run.step  # wandb already has the steps before

    def write(self, record: Record, values: Record) -> None:
        if record["step"] >= self._done:
            self._run.log(record, step=record["step"])

    def close(self, failed: bool) -> None:
        """Wait until all records are sent."""
        self._run.finish(exit_code=int(failed))


def describe(record: Record) -> str:
    """Return loss, throughput and scores of a record as text."""
    parts = [f"loss {record['loss']:.3f}"]
    for key, value in record.items():
        if key.endswith(PER_SECOND):
            parts.append(f"{value:,.0f} {key.removesuffix(PER_SECOND)}/s")
        elif key == "data_wait":
            parts.append(f"data wait {value:.0%}")
        elif key.startswith("eval/"):
            parts.append(f"{key} {value:.4g}")
    return ", ".join(parts)


class Meter:
    """Throughput, and the share of time in which the devices wait for data.

    As a context manager it measures the time of fetching a batch. The clock starts after the first
    steps, which include compilation.
    """

    def __init__(self, batch_size: int, unit: str = "images"):
        self._batch_size = batch_size
        self._rate_name = unit + PER_SECOND
        self._is_compiled = False
        self.reset()

    def __enter__(self) -> None:
        self._waiting_since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._waited += time.perf_counter() - self._waiting_since

    def add_steps(self, count: int) -> None:
        """Count steps; the first call starts the clock."""
        self._steps += count
        if not self._is_compiled:
            self._is_compiled = True
            self.reset()

    def read(self) -> dict[str, float]:
        """Return the figures since the last reading; the last ones if no step was added since."""
        passed = time.perf_counter() - self._since
        figures = self._figures
        if self._steps:
            rate = round(self._steps * self._batch_size / passed, 1)
            figures = {self._rate_name: rate, "data_wait": round(self._waited / passed, 4)}
        self.reset(figures)
        return figures

    def reset(self, figures: dict[str, float] | None = None) -> None:
        """Restart the clock, e.g. after an evaluation."""
        self._since = time.perf_counter()
        self._steps = 0
        self._waited = 0.0
        self._figures = figures or {}
