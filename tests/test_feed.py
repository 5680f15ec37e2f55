"""Runs on streamed images: as those on resident ones, for any number of workers and devices."""

import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from hypersphere_jax import checkpoint, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    MetricsConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.evaluation import probe
from hypersphere_jax.evaluation.measure import measure
from hypersphere_jax.feed import is_resident

ROOT = Path(__file__).parent.parent
RUNTIME = RuntimeConfig(devices=2, log_every_steps=1, checkpoint_every_steps=100)
CLASSES = 3


def train(folder, name, **changes):
    base = PretrainConfig(
        name=name,
        runs_dir=str(folder),
        model=ModelConfig(dim=3, width=0.1),
        optimizer=OptimizerConfig(epochs=2, batch_size=280),
        runtime=RUNTIME,
    )
    return training.train(dataclasses.replace(base, **changes))


def losses(folder):
    return [record["loss"] for record in runs.read_metrics(folder)]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """20 images of each class in 7 sizes; one of them cut short."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(CLASSES):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(20):
                height, width = 12 + number % 7, 12 + number % 5
                pixels = rng.integers(0, 120, (height, width, 3), dtype=np.uint8)
                pixels[..., label] += 130
                Image.fromarray(pixels).save(folder / f"{number:02}.png")
        cut = root / split / "class1" / "05.png"
        cut.write_bytes(cut.read_bytes()[:300])
    return root


@pytest.fixture(scope="module")
def of_many_sizes(images):
    """Settings of a run on these images."""
    return {
        "data": DataConfig(name=str(images), bad_images="skip"),
        "model": ModelConfig(dim=3, width=0.2, image_size=8),
        "optimizer": OptimizerConfig(epochs=2, batch_size=20),
    }


@pytest.fixture(scope="module")
def varied(of_many_sizes, tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"), "varied", **of_many_sizes)


@pytest.mark.slow
def test_streaming_is_resident_to_the_bit(tmp_path):
    resident = train(tmp_path, "resident")
    for workers in (0, 2):
        runtime = dataclasses.replace(RUNTIME, pipeline="streaming", workers=workers)
        assert losses(train(tmp_path, f"{workers}", runtime=runtime)) == losses(resident)
    assert len(losses(resident)) == 10


@pytest.mark.slow
def test_images_of_many_sizes(varied, of_many_sizes, tmp_path, caplog):
    assert len(losses(varied)) == 6
    with caplog.at_level(logging.WARNING, "hypersphere_jax"):
        workers = dataclasses.replace(RUNTIME, workers=2)
        assert losses(train(tmp_path, "w", runtime=workers, **of_many_sizes)) == losses(varied)
    assert "class1/05.png" in caplog.text
    other = dataclasses.replace(RUNTIME, devices=4)
    four = train(tmp_path, "four", runtime=other, **of_many_sizes)
    np.testing.assert_allclose(losses(four), losses(varied), rtol=1e-4)


def test_a_stopped_stream_goes_on_as_if_it_had_not(varied, of_many_sizes, tmp_path, monkeypatch):
    original = runs.MetricsWriter.write

    def write(self, record):
        original(self, record)
        if record["step"] == 3:
            raise Stopped("as by a signal")

    runtime = dataclasses.replace(RUNTIME, checkpoint_every_steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(runs.MetricsWriter, "write", write)
        with pytest.raises(Stopped):
            train(tmp_path, "again", runtime=runtime, **of_many_sizes)
    assert losses(train(tmp_path, "again", runtime=runtime, **of_many_sizes)) == losses(varied)


@pytest.mark.slow
def test_evaluation_leaves_bad_images_out(varied):
    linear, _ = probe.probe(ProbeConfig((str(varied),), devices=2))
    assert linear["n"] == 20 * CLASSES - 1
    assert linear["top1"] > 60  # the classes differ in colour
    found = measure(MetricsConfig(run=str(varied), devices=2))
    assert found["n"] == 20 * CLASSES - 1 and 0 < found["align"] < 4


def test_bad_images_are_errors_unless_skipped(images, of_many_sizes, tmp_path):
    strict = of_many_sizes | {"data": DataConfig(name=str(images))}
    with pytest.raises(UserError, match=r"class1/05\.png.*--bad-images skip"):
        train(tmp_path, "strict", **strict)


def test_size_must_be_given_where_sizes_differ(images, of_many_sizes, tmp_path):
    without = of_many_sizes | {"model": ModelConfig(dim=3, width=0.2)}
    with pytest.raises(UserError, match=r"differ in size.*--image-size"):
        train(tmp_path, "run", **without)
    resident = dataclasses.replace(RUNTIME, pipeline="resident")
    with pytest.raises(UserError, match=r"--pipeline resident.*differ in size"):
        train(tmp_path, "run", runtime=resident, **of_many_sizes)


def test_moved_data(varied, images, of_many_sizes, tmp_path):
    moved = str(shutil.copytree(images, tmp_path / "elsewhere"))
    assert runs.load_data(varied, moved).digest() == runs.load_data(varied).digest()
    with pytest.raises(UserError, match=r"not exist.*--data-dir|no file.*--data-dir"):
        runs.load_data(varied, str(tmp_path / "nowhere"))
    # The run itself goes on there, and remembers.
    there = of_many_sizes | {"data": dataclasses.replace(of_many_sizes["data"], name=moved)}
    folder = shutil.copytree(varied, tmp_path / "varied")
    assert losses(train(tmp_path, "varied", **there)) == losses(varied)
    assert runs.read_config(folder).data.name == moved


def test_what_ends_reading_loses_no_step(varied, images, of_many_sizes, tmp_path):
    """A run ends at the first bad image with all its steps saved, and goes on when told to skip."""
    strict = of_many_sizes | {"data": DataConfig(name=str(images))}
    with pytest.raises(UserError, match=r"05\.png"):
        train(tmp_path, "run", **strict)
    done = checkpoint.steps(tmp_path / "run" / "checkpoints")[-1]
    order = Sampler(20 * CLASSES, 20, 0)
    first = next(step for step in range(6) if 25 in order(step))
    assert done <= first
    assert losses(train(tmp_path, "run", **of_many_sizes)) == losses(varied)


@pytest.mark.slow
def test_ctrl_c_with_workers_saves(images, tmp_path):
    """A terminal sends the signal to the readers, too."""
    command = [sys.executable, "run.py", "pretrain", "--data", str(images), "--bad-images", "skip"]
    command += ["--image-size", "8", "--width", "0.1", "--dim", "3", "--batch-size", "20"]
    command += ["--epochs", "100000", "--workers", "2", "--devices", "1", "--name", "run"]
    command += ["--log-every-steps", "1", "--runs-dir", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 1000):
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, text = process.communicate(timeout=60)
    assert process.returncode == 0 and "stopped and saved" in text, text
    assert "Traceback" not in text and "leaked" not in text, text


def test_what_fits_is_resident(monkeypatch):
    source = Arrays(np.zeros((100, 8, 8, 3), np.uint8), np.zeros(100, int), ("a",), "zeros")
    devices = jax.devices()[:1]
    for memory, expected in ((4 * source.images.size, True), (4 * source.images.size - 4, False)):
        monkeypatch.setattr(sharding, "memory", lambda devices, memory=memory: memory)
        assert is_resident(source, "auto", devices) is expected
    assert not is_resident(source, "streaming", devices)
    monkeypatch.undo()
    assert 2**28 < sharding.memory(devices) < 2**50
    assert sharding.memory(jax.devices()) == sharding.memory(devices) // 8  # they share it


def test_compiled_programs_are_kept_where_jax_was_not_told(tmp_path):
    told = jax.config.jax_compilation_cache_dir
    sharding.keep_compiled(tmp_path)
    assert jax.config.jax_compilation_cache_dir == told
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        sharding.keep_compiled(tmp_path)
        assert jax.config.jax_compilation_cache_dir.startswith(str(tmp_path / "compiled"))
    finally:
        jax.config.update("jax_compilation_cache_dir", told)


def test_compiled_programs_are_freed_before_the_maps_run_out(tmp_path, monkeypatch):
    limit = tmp_path / "max_map_count"
    monkeypatch.setattr(sharding, "LIMIT_OF_MAPS", limit)
    assert not sharding.forget_compiled()  # not on Linux
    limit.write_text("1000000000\n")
    step = jax.jit(lambda x: x + 1)
    assert step(1.0) == 2.0 and not sharding.forget_compiled() and step._cache_size() == 1
    limit.write_text("10\n")
    sharding.pmap(lambda x: x, sharding.local_devices(1))
    assert step._cache_size() == 0 and step(1.0) == 2.0
