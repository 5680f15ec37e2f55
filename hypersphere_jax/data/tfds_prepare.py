"""Downloads and prepares a data set of TensorFlow Datasets (TFDS); the one place for TensorFlow.

Training does not import this module's libraries: it reads what stands here afterwards.
"""

import http.client
import importlib.util
import json
import os
import struct
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data import tfds_source
from hypersphere_jax.data.tfds_source import FORMAT

# How long a server may take to answer before it counts as out of reach, seconds.
PATIENCE = 8.0
# Every registered file of these comes by hand; without one, TFDS would leave out its split.
BY_HAND = ("imagenet2012",)
# So many files are named in an error.
NAMED_FILES = 5


def prepare(name: str, data_dir: Path | None = None) -> Path:
    """Makes a data set ready to be read, unless it is; shows progress, and returns its folder.

    Without network, files that were fetched elsewhere are taken from `downloads/manual` in the
    folder of all data sets. A set that is there in TFDS's usual format, TFRecord, gets ArrayRecord
    files beside it; this and finding it ready needs no TensorFlow.

    Args:
      name: as TFDS has it: `cifar10`, `name/config`, `stl10:1.0.0`.
      data_dir: of TFDS; None: its own default.

    Raises:
      UserError: when TensorFlow is not installed, TFDS does not have the data set, or its files
        can neither be downloaded nor found; says which files to put where.
    """
    wanted, root = tfds_source.parse(name), tfds_source.data_root(data_dir)
    folder = tfds_source.version_folder(wanted, root)
    if folder is not None:
        if FORMAT not in tfds_source.formats(folder):
            _add_array_record(folder)
        return folder
    tfds = tfds_source.import_tfds()
    line = tfds_source.unknown(wanted.name)
    require(line is None, f"{line}")
    require(
        importlib.util.find_spec("tensorflow") is not None,
        f"preparing {name} needs TensorFlow (reading it will not): "
        "pip install -r requirements-prepare.txt",
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # it reports each missing accelerator
    try:
        builder = tfds.builder(name, data_dir=str(root))
    except Exception as error:  # TFDS names no common kind
        raise UserError(f"TFDS cannot prepare {name}: {_line(error)}") from error
    command = tfds_source.prepare_command(name, data_dir)
    downloads = root / "downloads"
    _check_files(tfds, builder, downloads, command)
    try:
        builder.download_and_prepare(
            download_dir=str(downloads),
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            file_format=FORMAT,
        )
    except Exception as error:  # of a network, an archive, a disk, a missing library, …
        missing = _missing(tfds, builder, downloads)
        help_ = _instructions(missing, downloads, command) if missing else f"then run `{command}`"
        raise UserError(f"{name} could not be prepared: {_line(error)}; {help_}") from error
    return tfds_source.find_prepared(name, data_dir)


def _check_files(tfds: Any, builder: Any, downloads: Path, command: str) -> None:
    """Raises `UserError` where files must come by hand, or no server of them answers."""
    manual = downloads / "manual"
    missing = _missing(tfds, builder, downloads)
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        there = manual.is_dir() and any(manual.iterdir())
        asked = " ".join(builder.MANUAL_DOWNLOAD_INSTRUCTIONS.split())
        require(
            there and not (missing and builder.name in BY_HAND),
            f"the files of {builder.name} must be fetched by hand: {asked} Put them into {manual}, "
            f"then run `{command}`",
        )
        return
    refusal = _unreachable(list(missing)) if missing else None
    require(
        refusal is None,
        f"{builder.name} cannot be downloaded ({refusal}); "
        + _instructions(missing, downloads, command),
    )


def _missing(tfds: Any, builder: Any, downloads: Path) -> dict[str, Any]:
    """Registered downloads of a data set that are not here, by address.

    TFDS looks for a file in the manual folder under its plain name, and among its own downloads.
    """
    missing = {}
    for url, info in (builder.url_infos or {}).items():
        own = tfds.core.download.resource.get_dl_fname(url, info.checksum)
        places = [downloads / builder.name / own, downloads / own]
        here = any(place.is_file() and Path(f"{place}.INFO").is_file() for place in places)
        if info.filename is None:  # of old entries; TFDS takes it from here all the same
            info.filename = Path(urllib.parse.urlparse(url).path).name
        if not here and not (downloads / "manual" / info.filename).is_file():
            missing[url] = info
    return missing


def _instructions(missing: dict[str, Any], downloads: Path, command: str) -> str:
    files = [
        f"{info.filename} ({info.size / 2**20:,.0f} MiB) from {url}"
        for url, info in list(missing.items())[:NAMED_FILES]
    ]
    more = f" and {len(missing) - NAMED_FILES} more" if len(missing) > NAMED_FILES else ""
    return (
        f"without network, put {', '.join(files)}{more} into {downloads / 'manual'}, "
        f"then run `{command}`"
    )


def _unreachable(urls: list[str]) -> str | None:
    """Why no server of these files answers; None if one does."""
    hosts = {urllib.parse.urlparse(url).netloc: url for url in urls}
    answers: dict[str, str | None] = dict.fromkeys(hosts, f"no answer in {PATIENCE:.0f} s")

    def ask(host: str, url: str) -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=PATIENCE):
                answers[host] = None
        except urllib.error.HTTPError as error:
            answers[host] = None if error.code < 500 else str(error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            answers[host] = str(getattr(error, "reason", error))

    # Looking up a name has no time limit of its own, so the threads are left behind.
    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in hosts.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if None in answers.values():
        return None
    return ", ".join(f"{host}: {why}" for host, why in list(answers.items())[:NAMED_FILES])


def _add_array_record(folder: Path) -> None:
    """Writes the records of a data set, which is there as TFRecord, also as ArrayRecord."""
    from array_record.python.array_record_module import ArrayRecordWriter

    file = folder / "dataset_info.json"
    info = json.loads(file.read_text())
    require(
        "tfrecord" in tfds_source.formats(folder),
        f"{folder} is prepared as {info['fileFormat']}, of which {FORMAT} cannot be made: "
        "move it away, then prepare it again",
    )
    numbers = {split["name"]: split.get("shardLengths", []) for split in info["splits"]}
    try:
        for split, lengths in numbers.items():
            for shard, length in enumerate(lengths):
                name = f"{info['name']}-{split}.{{}}-{shard:05d}-of-{len(lengths):05d}"
                old, new = folder / name.format("tfrecord"), folder / name.format(FORMAT)
                print(f"{old.name} -> {FORMAT}", file=sys.stderr)
                part = new.with_name(f"{new.name}.part")
                writer = ArrayRecordWriter(str(part), "group_size:1")
                count = 0
                for record in _tfrecords(old):
                    writer.write(record)
                    count += 1
                writer.close()
                require(count == int(length), f"{old} has {count} of {length} records")
                part.replace(new)
        info.setdefault("alternativeFileFormats", []).append(FORMAT)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(info, indent=2))
        part.replace(file)
    except OSError as error:
        raise UserError(f"{folder} is there as TFRecord only, and: {error}") from error


def _tfrecords(file: Path) -> Iterator[bytes]:
    """Records of a TFRecord file: each has its length (8 bytes), a sum (4), the data, a sum (4)."""
    with open(file, "rb") as stream:
        while header := stream.read(12):
            require(len(header) == 12, f"{file} ends within a record")
            (length,) = struct.unpack("<Q", header[:8])
            record = stream.read(length + 4)
            require(len(record) == length + 4, f"{file} ends within a record")
            yield record[:-4]


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
